package server

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// busWithOutages returns a bus with circuits and a record of outages.
func busWithOutages(t *testing.T) *bus {
	t.Helper()
	told := outbox.NewOutages(memstore.New(memstore.Options{}), "luciusschedule", time.Second, nil)
	circuits := breaker.NewSet(breaker.Config{})
	return &bus{lanes: 1, outages: told, circuits: circuits}
}

// unread is a reader whose reply topics cannot be read.
type unread struct{ Replies }

func (unread) Down() []callbacks.UnreadTopic { return nil }

// fails reports a failed send to the topic.
func (b *bus) fails(topic string, verdict breaker.Verdict) {
	now := time.Now()
	b.circuits.Report(b.circuits.Allow(topic, 1, now), breaker.Outcome{Verdict: verdict}, now)
}

// noted checks which parts are out of service, records them, and returns the sweeper's
// outages.
func (b *bus) noted(t *testing.T, want ...outbox.Part) background.Outages {
	t.Helper()
	var parts []outbox.Part
	outages := b.outOfService(time.Now())
	for i := range outages {
		parts = append(parts, outages[i].Part)
	}
	if !slices.Equal(parts, want) {
		t.Errorf("out of service is %q, want %q", parts, want)
	}
	musttest.NoError(t, b.outages.Note(t.Context(), outages...))
	told, err := b.outagesForSweeper()(t.Context())
	musttest.NoError(t, err)
	return told
}

// An open circuit is an outage of its topic, or of all topics if it is that of the bus. A
// half-open circuit, which waits for a message to send, is not an outage.
func TestOutages_FollowOpenCircuits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := busWithOutages(t)
		told := b.noted(t)
		if !told.Topic("topic1").IsZero() || !told.Replies.IsZero() {
			t.Errorf("before any outage: %s, %s", told.Topic("topic1"), told.Replies)
		}
		b.fails("topic1", breaker.EntityFailed)
		began := time.Now()
		told = b.noted(t, "topic1")
		if !told.Topic("topic1").Equal(began) || !told.Topic("topic2").IsZero() || !told.Replies.IsZero() {
			t.Errorf("a topic is unavailable: %s, %s, %s", told.Topic("topic1"), told.Topic("topic2"), told.Replies)
		}
		time.Sleep(time.Minute)
		told = b.noted(t)
		if !told.Topic("topic1").Equal(began.Add(time.Second)) {
			t.Errorf("it ended at %s, want %s", told.Topic("topic1"), began.Add(time.Second))
		}
		b.fails("topic2", breaker.BusFailed)
		told = b.noted(t, outbox.PartBus)
		if now := time.Now(); !told.Topic("topic1").Equal(now) || !told.Topic("topic2").Equal(now) || !told.Replies.IsZero() {
			t.Errorf("the bus is unavailable: %s, %s, %s", told.Topic("topic1"), told.Topic("topic2"), told.Replies)
		}
	})
}

// An outage of the bus is also one of the replies, if they come over the bus.
func TestOutages_OfTheBusIncludeReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := busWithOutages(t)
		b.Replies = unread{}
		b.fails("topic1", breaker.BusFailed)
		if told := b.noted(t, outbox.PartBus); !told.Replies.Equal(time.Now()) {
			t.Errorf("the outage of replies ends at %s, want now", told.Replies)
		}
	})
}

func TestOutages_ThePullQueueHasNone(t *testing.T) {
	t.Parallel()
	if (&bus{}).outagesForSweeper() != nil {
		t.Error("the sweeper would read outages of the pull queue")
	}
}

// A process shows the circuits of other processes' relays.
func TestCircuits_IncludeThoseOfOtherProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		relay, api := busWithOutages(t), busWithOutages(t)
		api.outages = relay.outages
		relay.fails("topic1", breaker.EntityFailed)
		relay.noted(t, "topic1")
		api.fails("topic2", breaker.EntityFailed)
		for b, want := range map[*bus][]string{relay: {"topic1"}, api: {"topic1", "topic2"}} {
			circuits, err := b.notClosed(t.Context())
			var names []string
			for i := range circuits {
				names = append(names, circuits[i].Name)
			}
			if err != nil || !slices.Equal(names, want) || circuits[0].State != breaker.Open || circuits[0].Until.IsZero() {
				t.Errorf("circuits %+v, %v, want %q", circuits, err, want)
			}
		}
	})
}
