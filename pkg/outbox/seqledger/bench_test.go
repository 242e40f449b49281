package seqledger_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

// BenchmarkLife measures the whole life of a seq, with a heartbeat: five calls.
func BenchmarkLife(b *testing.B) {
	window := seqledger.New(seqledger.Config{
		LeaseDuration: leaseDuration,
		Window:        64,
		Fatal:         func(e *seqledger.IllegalTransitionError) { b.Error(e) },
	})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := t0
		for pb.Next() {
			now = now.Add(time.Microsecond)
			seq, _ := window.Take(now)
			lease, _ := window.Begin(seq, "anna", now)
			_, _ = window.Heartbeat(lease, now)
			_, _ = window.Finish(lease, seqledger.TerminalSuccess, now)
			_, _ = window.Commit(seq, now)
		}
	})
}

// BenchmarkReclaimNothing measures Reclaim, as each pass of the relay calls it,
// with many leases in flight and none expired.
func BenchmarkReclaimNothing(b *testing.B) {
	f := newWindow(b)
	for range 64 {
		f.in(b, seqledger.InFlight)
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = f.Reclaim(t0)
	}
}
