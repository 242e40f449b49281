package statemachine_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// BenchmarkDecide measures the decisions of an attempt in the pull queue.
func BenchmarkDecide(b *testing.B) {
	s := untold(b, statemachine.BusQueue)
	decide := func(name string, event statemachine.Event) {
		before := s.agg
		s.does(event)
		now := env(s.now, "lease", s.bus, false)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, err := statemachine.Decide(before, event, now); err != nil || d.Outcome != statemachine.Applied {
					b.Fatalf("%s, %v", d.Outcome, err)
				}
			}
		})
		s.later(time.Second)
	}
	decide("accept", statemachine.Accept{})
	decide("claim", s.claimed())
	decide("ack", s.ack())
	decide("heartbeat", s.heartbeat())
	decide("result", s.result(statemachine.ResultSucceeded))
}
