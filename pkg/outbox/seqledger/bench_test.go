package seqledger_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

// BenchmarkLife measures the whole life of a seq, with a heartbeat: five calls.
func BenchmarkLife(b *testing.B) {
	ledger, err := seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Fatal:         func(e *seqledger.IllegalTransitionError) { b.Error(e) },
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := t0
		for pb.Next() {
			now = now.Add(time.Microsecond)
			seq, _ := ledger.Take(now)
			lease, _ := ledger.Begin(seq, "anna", now)
			_, _ = ledger.Heartbeat(lease, now)
			_, _ = ledger.Finish(lease, seqledger.TerminalSuccess, now)
			_, _ = ledger.Commit(seq, now)
		}
	})
}

// BenchmarkReclaimNothing measures Reclaim, as each pass of the relay calls it,
// with many leases in flight and none expired.
func BenchmarkReclaimNothing(b *testing.B) {
	f := newLedger(b)
	for range 64 {
		f.in(b, seqledger.InFlight)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = f.Reclaim(t0)
	}
}
