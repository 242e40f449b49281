package seqledger_test

import (
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
)

// A row's first owner is too slow, and a second one finishes it. In production
// Fatal logs the error and exits with a non-zero code.
func Example() {
	window := seqledger.New(seqledger.Config{
		LeaseDuration: 10 * time.Second,
		Window:        64,
		Retry: seqledger.Policy{
			MaxAttempts: 2,
			Retryable:   []seqledger.Class{seqledger.LeaseExpired},
		},
		Fatal: func(e *seqledger.IllegalTransitionError) { fmt.Println("fatal:", e) },
	})
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

	seq, _ := window.Take(now)
	slow, _ := window.Begin(seq, "slow", now)

	now = now.Add(10 * time.Second)
	reclaimed, _ := window.Reclaim(now)
	fmt.Printf("%+v\n", reclaimed)

	fast, _ := window.Begin(seq, "fast", now)
	held, _ := window.Finish(slow, seqledger.TerminalSuccess, now)
	fmt.Println("slow held its lease:", held)
	held, _ = window.Finish(fast, seqledger.TerminalSuccess, now)
	fmt.Println("fast held its lease:", held)

	_, _ = window.Commit(seq, now)
	fmt.Printf("%+v\n", window.Counters())

	_, _ = window.Finish(fast, seqledger.TerminalSuccess, now)
	// Output:
	// [{Seq:1 Owner:slow Attempt:1 Retried:true}]
	// slow held its lease: false
	// fast held its lease: true
	// {Dispatched:0 InFlight:0 Terminal:0 Committed:1}
	// fatal: illegal transition of seq 1 from COMMITTED(7) to TERMINAL_SUCCESS(3) by owner "fast" at 2026-03-01T12:00:10Z: second terminal event of attempt 2
}
