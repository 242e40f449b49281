package pebblestore_test

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// TestSize_OfAFinishedJob compares the disk space of a job of three steps, with a payload
// of some 250 bytes, with docs/run/limits.md.
func TestSize_OfAFinishedJob(t *testing.T) {
	t.Parallel()
	const jobs, limit = 200, 4 << 10
	// Let the first level have several tables: a compaction would move a single table
	// unchanged.
	store := open(t, pebblestore.Options{Dir: "data", FS: vfs.NewMem()}.WithMemTable(1<<20))
	defer func() { _ = store.Close() }()
	mirror := workqueue.NewMirror(0)
	l := ledgertest.Open(t, ledger.Config{Store: store, Ready: mirror.Ready, Taker: mirror.Taker, Retention: time.Hour, KeyTTL: time.Hour})
	queue := workqueue.New(workqueue.Config{Ledger: l.Ledger, Store: store, Mirror: mirror})
	random := rand.NewChaCha8([32]byte{})
	for i := range jobs {
		l.Submit(documentCommand(i, random))
	}
	for done := 0; done < 3*jobs; {
		views, err := queue.Claim(t.Context(), workqueue.ClaimRequest{
			Owner: "worker-1", RequestID: "claim-" + strconv.Itoa(done), Max: 10, Start: true,
		})
		if err != nil || len(views) == 0 {
			t.Fatalf("claimed %d items: %v", len(views), err)
		}
		for i := range views {
			item := &views[i].Item
			done++
			by := statemachine.ItemRequest{Actor: "worker-1", ID: "complete-" + strconv.Itoa(done), ExpectedRev: item.Rev}
			output := fmt.Appendf(nil, `{"uri":"s3://documents/%s/output"}`, item.WorkID)
			if _, err := queue.Complete(t.Context(), item.WorkID, by, statemachine.Product{OutputRef: output}); err != nil {
				t.Fatal(err)
			}
		}
	}
	bytes, err := store.Compact(t.Context())
	if err != nil || bytes/jobs > limit {
		t.Errorf("a job takes %d bytes, want at most %d (%v)", bytes/jobs, limit, err)
	}
}

// documentCommand is a command of three steps. Its hash, its key and a part of its payload
// are random: they cannot be compressed.
func documentCommand(n int, random *rand.ChaCha8) ledger.Command {
	hash := make([]byte, 32)
	_, _ = random.Read(hash)
	minutes := []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute}
	cmd := ledger.Command{
		Job: statemachine.Job{
			TenantID: fmt.Sprint("tenant-", n%8), RequestType: "doc.ingest", ProtocolID: "doc_ingest_v1",
			IdempotencyHash: hex.EncodeToString(hash), IdempotencyKey: "key-" + hex.EncodeToString(hash[:8]),
			CorrelationID: "correlation-" + strconv.Itoa(n),
			InputRef:      fmt.Appendf(nil, `{"uri":"s3://documents/%x/input"}`, hash[:4]),
			OutputRef:     fmt.Appendf(nil, `{"uri":"s3://documents/%x/output"}`, hash[:4]),
		},
		Payload: fmt.Appendf(nil, `{"document":"%x","language":"en","pages":%d,"title":"Minutes of the meeting of the %dth",`+
			`"options":{"ocr":true,"tables":false,"chunks":{"size":512,"overlap":64}},"labels":["minutes","board","%x"],`+
			`"source":"https://documents.example/archive/%x.pdf"}`, hash[:16], n%40, n%28, hash[16:20], hash[20:28]),
	}
	for i := range 3 {
		cmd.Steps = append(cmd.Steps, statemachine.Step{
			ID: fmt.Sprint("step-", i), Type: "EXTRACT", Service: "extract", Input: statemachine.InputJob,
			Policy: statemachine.Policy{
				AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, Dispatch: minutes, Ack: minutes, Execution: minutes,
			},
		})
	}
	return cmd
}
