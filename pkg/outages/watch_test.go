package outages_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/outages"
)

// A topic is unreachable during its own outages and those of the whole bus; the
// later end counts.
func TestEnds_Topic(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	ends := outages.Ends{outages.Bus: at(2), "early": at(1), "late": at(3), outages.Replies: at(9)}
	for topic, want := range map[string]time.Time{"early": at(2), "late": at(3), "never": at(2)} {
		if got := ends.Topic(topic); !got.Equal(want) {
			t.Errorf("%s: %s, want %s", topic, got, want)
		}
	}
	if got := (outages.Ends)(nil).Topic("any"); !got.IsZero() {
		t.Errorf("without any outage: %s", got)
	}
}

// Only an open circuit is a sign of an outage: a half-open one waits for a
// message to send, which may never come.
func TestBroken_AreTheOpenCircuits(t *testing.T) {
	t.Parallel()
	set, err := breaker.NewSet(breaker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	fail := func(verdict breaker.Verdict) {
		for range 100 {
			set.Report(set.Allow("global-bus-p3", 1, now), breaker.Outcome{Verdict: verdict, Reason: "away"}, now)
		}
	}
	if got := outages.Broken(set, now); len(got) != 0 {
		t.Errorf("before: %v", got)
	}
	fail(breaker.EntityFailed)
	if diff := cmp.Diff([]outages.Part{"global-bus-p3"}, outages.Broken(set, now)); diff != "" {
		t.Errorf("a topic (-want +got):\n%s", diff)
	}
	if got := outages.Broken(set, now.Add(time.Hour)); len(got) != 0 {
		t.Errorf("half open: %v", got)
	}
	now = now.Add(time.Hour)
	fail(breaker.BusFailed)
	if got := outages.Broken(set, now); len(got) == 0 || got[0] != outages.Bus {
		t.Errorf("the whole bus: %v", got)
	}
}
