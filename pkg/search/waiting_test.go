package search_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// accepted accepts jobs on the bus, each with a step of the service ocr and the topic t1, and
// returns their ids, oldest first.
func accepted(t *testing.T, bus statemachine.Bus, n int) (l *ledgertest.Ledger, ids []string) {
	t.Helper()
	l = ledgertest.Open(t, ledger.Config{Bus: bus})
	for i := range n {
		cmd := ledgertest.Command("t", fmt.Sprint(i))
		cmd.Job.ProtocolID, cmd.Steps[0].Routing = "p", statemachine.Routing{Lane: 1, Topic: "t1"}
		ids = append(ids, l.Submit(cmd))
	}
	return l, ids
}

// shows returns what the job waits for, as Show and as List say it.
func shows(t *testing.T, l *ledgertest.Ledger, s *search.Service, id string) (alone, listed statemachine.Waiting) {
	t.Helper()
	job, err := l.Job(t.Context(), id)
	musttest.NoError(t, err)
	shown, err := s.Show(t.Context(), job)
	musttest.NoError(t, err)
	found, _, err := s.List(t.Context(), search.Filter{}, 2000, "")
	musttest.NoError(t, err)
	for i := range found {
		if found[i].Job.ID == id {
			listed = found[i].Waiting
		}
	}
	return shown.Waiting, listed
}

func TestShow_CountsTheDirectivesAheadUpToABound(t *testing.T) {
	t.Parallel()
	l, ids := accepted(t, statemachine.BusQueue, 1002)
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{EndRate: func(kind ledger.WorkKind) float64 {
		if kind != (ledger.WorkKind{Service: "ocr", StepType: "OCR"}) {
			t.Errorf("asked for the rate of %v", kind)
		}
		return 1.2345
	}})
	for i, want := range map[int]string{
		0:    ", the first of its tenant; over all tenants 74.1 such attempts end a minute",
		1:    ", with 1 of its tenant before it; ",
		999:  ", with 999 of its tenant before it; ",
		1001: ", with 1000 or more of its tenant before it; ",
	} {
		alone, listed := shows(t, l, s, ids[i])
		if alone.Reason != "queued" || !strings.Contains(alone.Detail, want) {
			t.Errorf("job %d waits for %+v, want %q", i, alone, want)
		}
		if listed.Reason != "queued" || strings.Contains(listed.Detail, "of its tenant") {
			t.Errorf("in the list job %d waits for %+v", i, listed)
		}
	}
}

func TestShow_ReadsTheSurroundingsOfTheActiveStep(t *testing.T) {
	t.Parallel()
	target := statemachine.Target{TenantID: "t", ProtocolID: "p", Lane: 1, Service: "ocr"}
	pausing := func(asked statemachine.Target) *statemachine.ScopePause {
		if asked != target {
			t.Errorf("asked for pauses of %+v", asked)
		}
		return &statemachine.ScopePause{Scope: statemachine.Scope{Kind: "service", Value: "ocr"}, State: statemachine.ScopePaused}
	}
	polled := func(kind ledger.WorkKind, tenant string) (time.Time, bool) {
		if kind != (ledger.WorkKind{Service: "ocr", StepType: "OCR"}) || tenant != "t" {
			t.Errorf("asked for polls of %v by %s", kind, tenant)
		}
		return time.Now().Add(-time.Hour), true
	}
	broken := func(_ context.Context, topic string) (*statemachine.OpenCircuit, error) {
		if topic != "t1" {
			t.Errorf("asked for the circuit of %s", topic)
		}
		return &statemachine.OpenCircuit{Name: topic, Until: time.Now().Add(time.Hour)}, nil
	}
	away := func(context.Context, string) (*statemachine.OpenCircuit, error) {
		return nil, fmt.Errorf("read: %w", tablestore.ErrUnavailable)
	}
	for name, test := range map[string]struct {
		bus    statemachine.Bus
		around search.Surroundings
		want   statemachine.Reason
	}{
		"a pause":                    {statemachine.BusQueue, search.Surroundings{Pause: pausing}, "scope_paused"},
		"a poll long ago":            {statemachine.BusQueue, search.Surroundings{LastPoll: polled}, "no_worker"},
		"nothing is known of polls":  {statemachine.BusQueue, search.Surroundings{}, "queued"},
		"no circuit of the queue":    {statemachine.BusQueue, search.Surroundings{Circuit: away}, "queued"},
		"an open circuit":            {statemachine.BusServiceBus, search.Surroundings{Circuit: broken, LastPoll: polled}, "circuit_open"},
		"nothing known of circuits":  {statemachine.BusServiceBus, search.Surroundings{LastPoll: polled}, "publishing"},
		"circuits cannot be read":    {statemachine.BusServiceBus, search.Surroundings{Circuit: away}, ""},
		"a pause before the circuit": {statemachine.BusServiceBus, search.Surroundings{Pause: pausing, Circuit: broken}, "scope_paused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, ids := accepted(t, test.bus, 1)
			s := search.New(l.Ledger, &search.Ended{}, test.around)
			if test.want != "" {
				if alone, listed := shows(t, l, s, ids[0]); alone.Reason != test.want || listed.Reason != test.want {
					t.Errorf("Show says that it waits for %+v, List for %+v", alone, listed)
				}
				return
			}
			job, err := l.Job(t.Context(), ids[0])
			musttest.NoError(t, err)
			_, one := s.Show(t.Context(), job)
			_, _, list := s.List(t.Context(), search.Filter{}, 10, "")
			for _, err := range []error{one, list} {
				if refused, ok := errors.AsType[*apierror.Error](err); !ok || refused.Code != apierror.StoreUnavailable {
					t.Errorf("with an unavailable store: %v", err)
				}
			}
		})
	}
}

func TestForOneTenant_HidesTheErrorOfACircuit(t *testing.T) {
	t.Parallel()
	l, ids := accepted(t, statemachine.BusServiceBus, 1)
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{Circuit: func(context.Context, string) (*statemachine.OpenCircuit, error) {
		return &statemachine.OpenCircuit{Name: "t1", Reason: "dial 10.0.0.7", Until: time.Now().Add(time.Hour)}, nil
	}})
	alone, listed := shows(t, l, s.ForOneTenant(), ids[0])
	for _, got := range []statemachine.Waiting{alone, listed} {
		if got.Reason != "circuit_open" || !strings.HasPrefix(got.Detail, "circuit t1 is open; a relay tries again at ") {
			t.Errorf("a caller of one tenant sees %+v", got)
		}
	}
	if alone, _ = shows(t, l, s, ids[0]); !strings.HasPrefix(alone.Detail, "circuit t1 is open: dial 10.0.0.7; a relay") {
		t.Errorf("a caller of all tenants sees %+v", alone)
	}
}

func TestShow_NamesASlowStore(t *testing.T) {
	t.Parallel()
	l, ids := accepted(t, statemachine.BusServiceBus, 1)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{Slow: func() time.Time { return since }})
	alone, listed := shows(t, l, s, ids[0])
	for _, shown := range []statemachine.Waiting{alone, listed} {
		if shown.Reason != "publishing" || !strings.HasSuffix(shown.Detail, "the store is slow: calls of it take too long since 2026-01-02T03:04:05.000Z") {
			t.Errorf("it waits for %+v", shown)
		}
	}
}

// List with a waiting reason returns exactly the live jobs for which Show gives that reason, with and
// without an index of live jobs.
func TestList_OfJobsThatWaitForAReason(t *testing.T) {
	t.Parallel()
	reasons := []statemachine.Reason{
		statemachine.ReasonJobPaused, statemachine.ReasonPausing, statemachine.ReasonCancelling, statemachine.ReasonScopePaused,
		statemachine.ReasonNoWorker, statemachine.ReasonQueued, statemachine.ReasonDelivered, statemachine.ReasonRunning,
		statemachine.ReasonSilent, statemachine.ReasonBackoff, statemachine.ReasonRateLimited,
	}
	met := map[statemachine.Reason]bool{}
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			h := &history{p: alone(t), rng: rand.New(rand.NewPCG(seed, 2))}
			around := search.Surroundings{
				Pause: func(target statemachine.Target) *statemachine.ScopePause {
					if target.Service != "embed" || target.ProtocolID != "review" {
						return nil
					}
					return &statemachine.ScopePause{State: statemachine.ScopePaused, CreatedAt: time.Now()}
				},
				LastPoll: func(kind ledger.WorkKind, _ string) (time.Time, bool) {
					if kind.Service == "ocr" {
						return time.Now(), true
					}
					return time.Now().Add(-time.Hour), true
				},
			}
			reading := search.New(h.p.ledger.Ledger, &search.Ended{}, around)
			around.Live = h.p.Live
			knowing := search.New(h.p.ledger.Ledger, &search.Ended{}, around)
			for round := range 10 {
				for range 20 {
					h.step()
				}
				if round == 9 {
					time.Sleep(31 * time.Minute) // The leases take an hour.
				}
				want := map[statemachine.Reason]int{}
				for _, job := range h.p.live() {
					shown, err := reading.Show(t.Context(), job)
					musttest.NoError(t, err)
					want[shown.Waiting.Reason]++
				}
				for _, reason := range reasons {
					met[reason] = met[reason] || want[reason] > 0
					for name, s := range map[string]*search.Service{"reading": reading, "knowing": knowing} {
						found, _, err := s.List(t.Context(), search.Filter{Waiting: []statemachine.Reason{reason}}, 1000, "")
						musttest.NoError(t, err)
						for i := range found {
							if found[i].Waiting.Reason != reason {
								t.Errorf("%s, seed %d: a job that waits for %s listed as %s", name, seed, found[i].Waiting.Reason, reason)
							}
						}
						if len(found) != want[reason] {
							t.Errorf("%s, seed %d: %d jobs listed for %s, want %d", name, seed, len(found), reason, want[reason])
						}
					}
				}
			}
		})
	}
	for _, reason := range reasons {
		if !met[reason] {
			t.Errorf("no job waited for %s", reason)
		}
	}
}
