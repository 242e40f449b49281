package search_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setup returns a service, its ledger and a job.
func setup(t *testing.T) (*search.Service, *ledgertest.Ledger, string) {
	t.Helper()
	ended := &search.Ended{}
	l := ledgertest.Open(t, ledger.Config{Ended: ended.Tell})
	cmd := ledgertest.Command("t", "h", statemachine.Step{ID: "one", PayloadPointer: "/one"},
		statemachine.Step{ID: "two", PayloadPointer: "/none"}, statemachine.Step{ID: "three"})
	cmd.Payload = []byte(`{"one":{"n":1.50}}`)
	return search.New(l.Ledger, ended, search.Surroundings{}), l, l.Submit(cmd)
}

func TestPayload_HoldsEachStepsPart(t *testing.T) {
	t.Parallel()
	_, l, id := setup(t)
	job, err := l.Job(t.Context(), id)
	musttest.NoError(t, err)
	payload, err := l.Payload(t.Context(), id)
	musttest.NoError(t, err)
	for i, want := range []string{`{"n":1.50}`, "", `{"one":{"n":1.50}}`} {
		if got := ledger.StepPayload(payload, &job.Steps[i]); string(got) != want || (got == nil) != (want == "") {
			t.Errorf("step %d has the payload %q, want %q", i, got, want)
		}
	}
}

func TestGet_MissingJob(t *testing.T) {
	t.Parallel()
	s, _, _ := setup(t)
	for name, call := range map[string]func() error{
		"wait":    func() error { _, err := s.Wait(t.Context(), "gone", time.Second, nil); return err },
		"history": func() error { _, _, err := s.History(t.Context(), "gone", 0, 10); return err },
	} {
		if known, ok := errors.AsType[*apierror.Error](call()); !ok || known.Code != apierror.JobNotFound {
			t.Errorf("%s answered %v", name, known)
		}
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		during func(ctx context.Context, l *ledgertest.Ledger, id string, drain func())
		state  statemachine.JobState
		after  time.Duration
	}{
		{"ends with the job", func(ctx context.Context, l *ledgertest.Ledger, id string, _ func()) {
			_, _ = l.Change(ctx, id, statemachine.Cancel{})
		}, statemachine.JobCancelled, 300 * time.Millisecond},
		{"ends with its time", func(context.Context, *ledgertest.Ledger, string, func()) {}, statemachine.JobDispatching, time.Minute},
		{"ends when the server drains", func(_ context.Context, _ *ledgertest.Ledger, _ string, drain func()) { drain() },
			statemachine.JobDispatching, 300 * time.Millisecond},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, l, id := setup(t)
				drained := make(chan struct{})
				started := time.Now()
				go func() {
					time.Sleep(300 * time.Millisecond)
					test.during(t.Context(), l, id, func() { close(drained) })
				}()
				view, err := s.Wait(t.Context(), id, time.Minute, drained)
				if err != nil || view.Job.State != test.state || time.Since(started) != test.after {
					t.Errorf("%v after %s: %v", view.Job.State, time.Since(started), err)
				}
				synctest.Wait()
			})
		})
	}
}

func TestWait_SeesAJobThatAnotherProcessEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, l, id := setup(t)
		other := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
		go func() {
			time.Sleep(300 * time.Millisecond)
			if _, err := l.Change(t.Context(), id, statemachine.Cancel{}); err != nil {
				t.Errorf("cancel: %v", err)
			}
		}()
		view, err := other.Wait(t.Context(), id, time.Minute, nil)
		if err != nil || view.Job.State != statemachine.JobCancelled {
			t.Errorf("%v, %v", view, err)
		}
	})
}

// A rejected callback is in the history at the rev at which it was recorded, on the page of
// that rev, and a follower gets it once.
func TestHistory_HasRejectedCallbacks(t *testing.T) {
	t.Parallel()
	s, l, id := setup(t)
	reject := func(lease string) {
		t.Helper()
		one := ledger.Rejection{
			StepID: "one", Kind: "RESULT", Status: "SUCCEEDED", AttemptNo: 1, LeaseDigest: lease, Cause: "stale_attempt",
		}
		musttest.NoError(t, l.Reject(t.Context(), &l.Read(id).Job, one))
	}
	var last ledger.HistoryEntry
	follow := func() (types []string) {
		t.Helper()
		entries, _, err := s.Follow(t.Context(), id, last.Rev, last.Index)
		musttest.NoError(t, err)
		for i := range entries {
			last = entries[i]
			types = append(types, last.Type)
		}
		return types
	}
	const rejected = statemachine.EventCallbackRejected
	reject("a")
	if types := follow(); len(types) < 2 || slices.Index(types, rejected) != len(types)-1 {
		t.Errorf("the follower got %v", types)
	}
	reject("b")
	if types := follow(); !slices.Equal(types, []string{rejected}) {
		t.Errorf("then it got %v", types)
	}
	l.Send(id, statemachine.Cancel{})
	reject("c")
	if types := follow(); len(types) < 2 || types[0] == rejected || slices.Index(types, rejected) != len(types)-1 {
		t.Errorf("after the end it got %v", types)
	}
	for after, want := range map[int64]int{0: 2, 1: 1} {
		entries, next, err := s.History(t.Context(), id, after, 1)
		n := 0
		for i := range entries {
			if entries[i].Rev != after+1 {
				t.Errorf("the page after rev %d has %+v", after, entries[i])
			}
			if entries[i].Type == rejected {
				n++
			}
		}
		if err != nil || n != want || (next == 0) != (after == 1) {
			t.Errorf("the page after rev %d has %d rejected callbacks, then %d: %v", after, n, next, err)
		}
	}
	if found, err := s.Rejected(t.Context(), id); err != nil || len(found) != 3 {
		t.Errorf("rejected callbacks: %+v, %v", found, err)
	}
	known, ok := errors.AsType[*apierror.Error](func() error { _, err := s.Rejected(t.Context(), "gone"); return err }())
	if !ok || known.Code != apierror.JobNotFound {
		t.Errorf("of a missing job: %v", known)
	}
}

// More callbacks may be rejected at one revision than are kept. A follower gets each once, under an id that it
// keeps.
func TestFollow_GetsARejectedCallbackBeyondThoseKept(t *testing.T) {
	t.Parallel()
	s, l, id := setup(t)
	job := l.Read(id).Job
	reject := func(requestID string) {
		t.Helper()
		one := ledger.Rejection{StepID: "one", Kind: "ACK", AttemptNo: 1, RequestID: requestID, Cause: "stale_attempt"}
		musttest.NoError(t, l.Reject(t.Context(), &job, one))
	}
	follow := func(last ledger.HistoryEntry) []ledger.HistoryEntry {
		t.Helper()
		entries, _, err := s.Follow(t.Context(), id, last.Rev, last.Index)
		musttest.NoError(t, err)
		return entries
	}
	for i := range 64 {
		reject(fmt.Sprint(i))
	}
	before := follow(ledger.HistoryEntry{})
	for i := 64; i < 200; i++ {
		last := before[len(before)-1]
		reject(fmt.Sprint(i))
		added := follow(last)
		if len(added) != 1 || added[0].RequestID != fmt.Sprint(i) || added[0].EventID() <= last.EventID() {
			t.Fatalf("after %s the follower got %+v", last.EventID(), added)
		}
		before = append(before, added...)
	}
	all := follow(ledger.HistoryEntry{})
	kept := before[len(before)-64:]
	if diff := cmp.Diff(kept, all[len(all)-64:]); diff != "" || all[len(all)-65].Type == statemachine.EventCallbackRejected {
		t.Errorf("of those that are kept (-when they were sent +now):\n%s", diff)
	}
}
