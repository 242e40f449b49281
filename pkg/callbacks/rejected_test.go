package callbacks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// recordStore counts the writes of records of refused callbacks, and fails them while
// down.
type recordStore struct {
	tablestore.Store
	writes atomic.Int64
	down   atomic.Bool
	slow   atomic.Int64 // how long a write takes, a time.Duration
}

func (s *recordStore) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if batch[0].Key.Row == "CALLBACKS" {
		s.writes.Add(1)
		time.Sleep(time.Duration(s.slow.Load()))
		if s.down.Load() {
			return nil, tablestore.ErrUnavailable
		}
	}
	return s.Store.Commit(ctx, batch)
}

// counts are what a service reported about refused callbacks.
type counts struct {
	mu         sync.Mutex
	rejected   map[string]int
	unrecorded int64
}

// recording is setup with a store of records. It runs in a synctest bubble, with a virtual
// clock.
func recording(t *testing.T) (*worker, *ledgertest.Ledger, *recordStore, *counts) {
	t.Helper()
	store := &recordStore{Store: ledgertest.Split()}
	w, l := setupOn(t, store)
	told := &counts{rejected: map[string]int{}}
	w.Service = callbacks.New(callbacks.Config{
		Ledger: l.Ledger,
		Rejected: func(kind, cause string) {
			told.mu.Lock()
			defer told.mu.Unlock()
			told.rejected[kind+" "+cause]++
		},
		Unrecorded: func(count int64) {
			told.mu.Lock()
			defer told.mu.Unlock()
			told.unrecorded += count
		},
	})
	return w, l, store, told
}

// refused applies an event that must be refused with that code.
func (w *worker) refused(t *testing.T, event statemachine.Event, code apierror.Code) {
	t.Helper()
	_, err := w.apply(t.Context(), event)
	if refused, ok := errors.AsType[*apierror.Error](err); !ok || refused.Code != code {
		t.Fatalf("%s: %v, want %s", event.Name(), err, code)
	}
}

// pass waits for a second and records what was collected in it.
func (w *worker) pass(t *testing.T) {
	t.Helper()
	time.Sleep(time.Second)
	if err := w.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A late, stale or contradictory callback changes nothing, and is recorded with its
// content, even after the end of the job.
func TestReject_EachRefusedCallbackIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, l, _, told := recording(t)
		w.Caller = "ocr-workers"
		pair := w.pair
		begin := tablestore.Now()
		if _, err := w.apply(t.Context(), w.ack()); err != nil {
			t.Fatal(err)
		}
		w.report = statemachine.Report{Timestamp: "2026-01-27T10:02:00.000Z", CorrelationID: "corr"}
		w.pair.AttemptNo = 7
		w.refused(t, w.heartbeat(), apierror.StaleAttempt)
		w.pair = pair
		if _, err := w.apply(t.Context(), w.result(statemachine.ResultSucceeded)); err != nil {
			t.Fatal(err)
		}
		w.pass(t)
		w.refused(t, w.result(statemachine.ResultFailedFinal), apierror.ContradictoryResult)
		w.refused(t, w.heartbeat(), apierror.IllegalTransition)
		w.pair.LeaseID = "another"
		w.pass(t)
		w.refused(t, w.ack(), apierror.StaleAttempt)
		w.pass(t)

		digest := statemachine.LeaseDigest(pair.LeaseID)
		later := begin.Add(time.Second)
		want := []ledger.Rejection{
			{Kind: "HEARTBEAT", AttemptNo: 7, LeaseDigest: digest, Cause: "stale_attempt", Rev: 2, First: begin, Last: begin},
			{Kind: "RESULT", AttemptNo: 1, LeaseDigest: digest, Status: "FAILED_FINAL", Cause: "contradictory_result", Rev: 3, First: later, Last: later},
			{Kind: "HEARTBEAT", AttemptNo: 1, LeaseDigest: digest, Cause: "illegal_transition", Rev: 3, First: later, Last: later},
			{
				Kind: "ACK", AttemptNo: 1, LeaseDigest: statemachine.LeaseDigest("another"), Cause: "stale_attempt", Rev: 3,
				First: begin.Add(2 * time.Second), Last: begin.Add(2 * time.Second),
			},
		}
		for i := range want {
			want[i].StepID, want[i].Caller, want[i].Report, want[i].RequestID, want[i].Count = "one", "ocr-workers", w.report, "r1", 1
		}
		got, err := l.Rejected(t.Context(), w.JobID)
		if diff := cmp.Diff(want, got.Kept, cmpopts.EquateApproxTime(time.Millisecond)); err != nil || diff != "" || got.More != 0 {
			t.Errorf("%d more, %v (-want +got):\n%s", got.More, err, diff)
		}
		w.StepID = "unknown"
		w.refused(t, w.ack(), apierror.StepNotFound)
		w.JobID = "unknown"
		w.refused(t, w.ack(), apierror.JobNotFound)
		if diff := cmp.Diff(map[string]int{
			"HEARTBEAT stale_attempt": 1, "RESULT contradictory_result": 1, "HEARTBEAT illegal_transition": 1, "ACK stale_attempt": 1,
			"ACK step_not_found": 1, "ACK job_not_found": 1,
		}, told.rejected); diff != "" || told.unrecorded != 0 {
			t.Errorf("%d are unrecorded, counted (-want +got):\n%s", told.unrecorded, diff)
		}
	})
}

// However fast a worker repeats refused callbacks, and whatever they contain, its job is
// written about once a second, and its record is bounded. The counts stay exact.
func TestReject_ALoopingWorkerCostsLittle(t *testing.T) {
	t.Parallel()
	const times = 3000
	for name, test := range map[string]struct {
		next func(w *worker, i int)
		kept int
	}{
		"the same again": {func(*worker, int) {}, 1},
		"always another one": {func(w *worker, i int) {
			w.pair.LeaseID, w.report.CorrelationID = fmt.Sprint(i), strings.Repeat("\x01", 128)
		}, 16},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w, l, store, told := recording(t)
				w.pair.LeaseID = "guessed"
				for i := range times {
					test.next(w, i)
					w.refused(t, w.ack(), apierror.StaleAttempt)
					if i == 0 {
						if got, err := l.Rejected(t.Context(), w.JobID); err != nil || len(got.Kept) != 1 {
							t.Errorf("the first is not recorded at once: %+v, %v", got, err)
						}
					}
					if i%1000 == 999 {
						w.pass(t)
					}
				}
				if n := store.writes.Load(); n > 4 {
					t.Errorf("%d writes in 3 seconds", n)
				}
				got, err := l.Rejected(t.Context(), w.JobID)
				total := got.More
				for i := range got.Kept {
					total += got.Kept[i].Count
				}
				if err != nil || len(got.Kept) != test.kept || total != times || told.unrecorded != 0 {
					t.Errorf("%d are kept, %d counted and %d unrecorded: %v", len(got.Kept), total, told.unrecorded, err)
				}
			})
		})
	}
}

// Recording is best effort: if it fails, the worker gets the same answer, and a metric
// counts the failure.
func TestReject_ARecordThatFailsIsCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, l, store, told := recording(t)
		w.pair.LeaseID = "guessed"
		store.down.Store(true)
		for range 3 {
			w.refused(t, w.ack(), apierror.StaleAttempt)
		}
		if err := w.RunOnce(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) || told.unrecorded != 3 {
			t.Errorf("%d unrecorded, %v", told.unrecorded, err)
		}
		store.down.Store(false)
		w.refused(t, w.ack(), apierror.StaleAttempt)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := w.RunOnce(canceled); !errors.Is(err, context.Canceled) {
			t.Errorf("a pass that must stop: %v", err)
		}
		w.pass(t)
		got, err := l.Rejected(t.Context(), w.JobID)
		if err != nil || len(got.Kept) != 1 || got.Kept[0].Count != 1 || told.unrecorded != 3 {
			t.Errorf("recorded %+v, %d unrecorded: %v", got, told.unrecorded, err)
		}
	})
}

// Many jobs with refused callbacks do not wait for one another.
func TestRunOnce_RecordsJobsConcurrently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, l, store, told := recording(t)
		w.pair.LeaseID = "guessed"
		jobs := []string{w.JobID}
		for i := range 15 {
			jobs = append(jobs, l.Submit(ledgertest.Command("tenant_a", fmt.Sprint(i))))
		}
		for _, w.JobID = range jobs {
			w.refused(t, w.ack(), apierror.StaleAttempt) // Recorded at once.
			w.refused(t, w.ack(), apierror.StaleAttempt)
		}
		store.slow.Store(int64(time.Second))
		begin := time.Now()
		if err := w.RunOnce(t.Context()); err != nil || time.Since(begin) > 2*time.Second {
			t.Errorf("a pass with writes of a second took %s: %v", time.Since(begin), err)
		}
		for _, job := range jobs {
			if got, err := l.Rejected(t.Context(), job); err != nil || got.Total() != 2 {
				t.Errorf("job %s has %d records: %v", job, got.Total(), err)
			}
		}
		// Callbacks that the process has no time to record at its end are counted.
		w.refused(t, w.ack(), apierror.StaleAttempt)
		w.refused(t, w.ack(), apierror.StaleAttempt)
		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		if w.Flush(canceled); told.unrecorded != 2 {
			t.Errorf("%d are counted as unrecorded, want 2", told.unrecorded)
		}
	})
}
