package breaker_test

import (
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

// A topic is disabled for a while, and its backlog drains afterwards.
func Example() {
	set := breaker.NewSet(breaker.Config{})
	now := time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	publish := func(rows int, outcome breaker.Outcome) {
		grant := set.Allow("global-bus-p3", rows, now)
		for range grant.N {
			set.Report(grant, outcome, now)
		}
		fmt.Printf("%s  %3d of %d rows, then %s\n",
			now.Format(time.TimeOnly), grant.N, rows, set.State("global-bus-p3", now))
	}

	publish(500, breaker.Outcome{Verdict: breaker.EntityFailed, Reason: "topic is disabled"})
	now = now.Add(time.Second)
	publish(500, breaker.Outcome{Verdict: breaker.Answered})
	for _, circuit := range set.Open(now) {
		fmt.Println(circuit.Name, circuit.State, "since", circuit.Since.Format(time.TimeOnly), "for:", circuit.Reason)
	}
	now = now.Add(4 * time.Second)
	publish(500, breaker.Outcome{Verdict: breaker.Answered})
	publish(490, breaker.Outcome{Verdict: breaker.Answered})
	now = now.Add(time.Second)
	publish(489, breaker.Outcome{Verdict: breaker.Answered})
	now = now.Add(time.Second)
	publish(389, breaker.Outcome{Verdict: breaker.Answered})
	// Output:
	// 12:00:00  500 of 500 rows, then open
	// 12:00:01    0 of 500 rows, then open
	// global-bus-p3 open since 12:00:00 for: topic is disabled
	// 12:00:05   10 of 500 rows, then closed
	// 12:00:05    1 of 490 rows, then closed
	// 12:00:06  100 of 489 rows, then closed
	// 12:00:07  200 of 389 rows, then closed
}
