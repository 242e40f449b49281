package audit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A restore audits the store on the machine that served it. It must not hold the rows of all jobs.
func TestAudit_RemembersFewBytesOfEachJob(t *testing.T) { //nolint:paralleltest // It measures the memory of the process.
	const jobs = 1_000
	for name, kind := range map[string]struct {
		ended bool
		order statemachine.Order
		most  int64 // bytes
	}{
		"ended":           {ended: true, most: 200},
		"ended in a line": {ended: true, order: statemachine.Order{Mode: statemachine.OrderFIFO}, most: 500},
		"live":            {most: 500},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledgertest.Open(t, ledger.Config{Held: func(statemachine.Target) bool { return true }})
			for n := range jobs {
				cmd := ledgertest.Command("tenant_a", fmt.Sprint("job ", n))
				cmd.Job.InputRef, cmd.Job.Order = json.RawMessage(`"`+strings.Repeat("x", 4_000)+`"`), kind.order
				if kind.order.Mode != "" {
					cmd.Job.Order.Key = fmt.Sprint("document ", n)
				}
				if jobID := l.Submit(cmd); kind.ended {
					l.Apply(jobID, statemachine.Cancel{})
				}
			}
			store := &measured{Store: l.Store.(audit.Store), before: heap()}
			report, err := audit.Run(t.Context(), audit.Config{Store: store, Options: audit.Options{Tables: tables}})
			if err != nil || report.Jobs != jobs || len(report.Findings) > 0 || kind.ended != (report.States["CANCELLED"] == jobs) {
				t.Fatalf("the audit has %+v, %v", report, err)
			}
			held := (store.after - store.before) / jobs
			t.Logf("%d bytes a job", held)
			if held > kind.most {
				t.Errorf("the audit holds %d bytes of each job, want at most %d", held, kind.most)
			}
		})
	}
}

// measured decodes each row that it returns, as a store on disk does, and measures the memory in use when the audit
// has judged all jobs.
type measured struct {
	audit.Store
	before, after int64
}

func (m *measured) Walk(ctx context.Context, walk tablestore.Walk) ([]tablestore.Row, error) {
	if walk.Table != tables.Ledger && m.after == 0 {
		m.after = heap()
	}
	rows, err := m.Store.Walk(ctx, walk)
	for i := range rows {
		data, _ := tablestore.EncodeProperties(nil, rows[i].Properties, nil)
		rows[i].Properties, _ = tablestore.DecodeProperties(data, nil)
	}
	return rows, err
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	runtime.GC() // What the first one finds in pools.
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
