package outbox_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// BenchmarkRelay measures one row of the dispatch schedule: a pass finds, holds, publishes
// and marks it.
func BenchmarkRelay(b *testing.B) {
	store, counter := storetest.Counting(ledgertest.Atomic())
	l := ledgertest.Open(b, ledger.Config{Store: store, Bus: statemachine.BusServiceBus, Shards: 1})
	breakers := breaker.NewSet(breaker.Config{})
	relay, err := outbox.NewRelay(outbox.Config{
		Ledger: l.Ledger, Publisher: &bus{}, Handoff: outbox.NewHandoff(1), Breakers: breakers,
		Fatal: func(illegal *seqledger.IllegalTransitionError) { b.Errorf("illegal transition: %v", illegal) },
	})
	if err != nil {
		b.Fatal(err)
	}
	var commits int64
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		l.Submit(ledgertest.Command("t", strconv.Itoa(n), statemachine.Step{
			ID: "step", Type: "OCR", Service: "ocr", Policy: statemachine.Policy{AckTimeout: time.Minute, Lease: time.Minute},
		}))
		counter.Reset()
		b.StartTimer()
		if rows, err := relay.RunOnce(b.Context()); err != nil || rows != 1 {
			b.Fatalf("%d rows, %v", rows, err)
		}
		commits += counter.Counts().Commits
	}
	b.ReportMetric(float64(commits)/float64(b.N), "commits/op")
}
