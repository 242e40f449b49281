package main

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/outages"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// onBoard is a system with circuits and a board of its own.
func onBoard(t *testing.T) *system {
	t.Helper()
	board, err := outages.New(outages.Config{Store: memstore.New(memstore.Options{}), Table: "luciusschedule", Margin: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	circuits, err := breaker.NewSet(breaker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &system{cfg: &config.Config{}, outages: board, breakers: circuits, bus: &bus{}}
}

// fails sends to the topic, in vain.
func (s *system) fails(topic string, verdict breaker.Verdict) {
	now := time.Now()
	s.breakers.Report(s.breakers.Allow(topic, 1, now), breaker.Outcome{Verdict: verdict}, now)
}

// noted checks what is out of service, notes it, and returns what the sweeper is told.
func (s *system) noted(t *testing.T, want ...outages.Part) upkeep.Outages {
	t.Helper()
	parts := s.outOfService(time.Now())
	if !slices.Equal(parts, want) {
		t.Errorf("out of service is %q, want %q", parts, want)
	}
	for _, part := range parts {
		if err := s.outages.Note(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	told, err := s.outagesForSweeper()(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return told
}

// An open circuit is an outage of its topic, and that of the bus one of each topic. One
// that is half open is none: it waits for something to be sent.
func TestOutages_AreThoseOfOpenCircuits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := onBoard(t)
		told := s.noted(t)
		if !told.Topic("topic1").IsZero() || !told.Replies.IsZero() {
			t.Errorf("before any: %s, %s", told.Topic("topic1"), told.Replies)
		}
		s.fails("topic1", breaker.EntityFailed)
		began := time.Now()
		told = s.noted(t, "topic1")
		if !told.Topic("topic1").Equal(began) || !told.Topic("topic2").IsZero() || !told.Replies.IsZero() {
			t.Errorf("a topic is away: %s, %s, %s", told.Topic("topic1"), told.Topic("topic2"), told.Replies)
		}
		time.Sleep(time.Minute)
		told = s.noted(t)
		if !told.Topic("topic1").Equal(began.Add(time.Second)) {
			t.Errorf("it ended at %s, want %s", told.Topic("topic1"), began.Add(time.Second))
		}
		s.fails("topic2", breaker.BusFailed)
		told = s.noted(t, outages.Bus)
		if now := time.Now(); !told.Topic("topic1").Equal(now) || !told.Topic("topic2").Equal(now) || !told.Replies.IsZero() {
			t.Errorf("the bus is away: %s, %s, %s", told.Topic("topic1"), told.Topic("topic2"), told.Replies)
		}
	})
}

// Where replies come by the bus as well, they are away with it.
func TestOutages_OfTheBusAreThoseOfReplies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := onBoard(t)
		s.cfg.ServiceBus.Replies = true
		s.fails("topic1", breaker.BusFailed)
		if told := s.noted(t, outages.Bus); !told.Replies.Equal(time.Now()) {
			t.Errorf("replies are away until %s", told.Replies)
		}
	})
}

func TestOutages_OfThePullQueueAreNone(t *testing.T) {
	t.Parallel()
	if (&system{}).outagesForSweeper() != nil {
		t.Error("the sweeper is to ask about outages")
	}
}
