package callbacks_test

import (
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
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// recordStore counts the writes of records of refused callbacks, and fails them while
// down.
type recordStore struct {
	writes atomic.Int64
	down   atomic.Bool
}

func (s *recordStore) commit(batch tablestore.Batch) error {
	if strings.HasPrefix(batch[0].Key.Row, "CALLBACK:") {
		s.writes.Add(1)
		if s.down.Load() {
			return tablestore.ErrUnavailable
		}
	}
	return nil
}

// counts are what a service reported about refused callbacks.
type counts struct {
	mu         sync.Mutex
	rejected   map[string]int
	unrecorded int
}

// recording is setup with a store of records. It runs in a synctest bubble, with a virtual
// clock.
func recording(t *testing.T) (*worker, *ledgertest.Ledger, *recordStore, *counts) {
	t.Helper()
	store := &recordStore{}
	w, l := setupOn(t, storetest.BeforeCommit(ledgertest.Split(), store.commit))
	told := &counts{rejected: map[string]int{}}
	w.Service = callbacks.New(callbacks.Config{
		Ledger: l.Ledger,
		Rejected: func(kind, cause string) {
			told.mu.Lock()
			defer told.mu.Unlock()
			told.rejected[kind+" "+cause]++
		},
		Unrecorded: func() {
			told.mu.Lock()
			defer told.mu.Unlock()
			told.unrecorded++
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
		time.Sleep(time.Second)
		w.refused(t, w.result(statemachine.ResultFailedFinal), apierror.ContradictoryResult)
		time.Sleep(time.Millisecond)
		w.refused(t, w.heartbeat(), apierror.IllegalTransition)
		w.pair.LeaseID = "another"
		time.Sleep(time.Second)
		w.refused(t, w.ack(), apierror.StaleAttempt)
		time.Sleep(time.Second)

		digest := statemachine.LeaseDigest(pair.LeaseID)
		later := begin.Add(time.Second)
		want := ledger.Rejections{
			{Kind: "HEARTBEAT", AttemptNo: 7, LeaseDigest: digest, Cause: "stale_attempt", Rev: 2, At: begin},
			{Kind: "RESULT", AttemptNo: 1, LeaseDigest: digest, Status: "FAILED_FINAL", Cause: "contradictory_result", Rev: 3, At: later},
			{Kind: "HEARTBEAT", AttemptNo: 1, LeaseDigest: digest, Cause: "illegal_transition", Rev: 3, At: later.Add(time.Millisecond)},
			{Kind: "ACK", AttemptNo: 1, LeaseDigest: statemachine.LeaseDigest("another"), Cause: "stale_attempt", Rev: 3, At: later.Add(time.Second)},
		}
		for i := range want {
			want[i].StepID, want[i].Caller, want[i].Report, want[i].RequestID = "one", "ocr-workers", w.report, "r1"
			want[i].No = int64(i + 1)
		}
		got, err := l.Rejected(t.Context(), w.JobID)
		if diff := cmp.Diff(want, got, cmpopts.EquateApproxTime(2*time.Millisecond)); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
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

// However fast a worker repeats refused callbacks, its job is written 16 times a minute,
// other jobs have their own share, and the rest is counted.
func TestReject_ALoopingWorkerCostsLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, l, store, told := recording(t)
		w.pair.LeaseID = "guessed"
		for range 6000 { // in two minutes
			w.refused(t, w.ack(), apierror.StaleAttempt)
			time.Sleep(20 * time.Millisecond)
		}
		if got, err := l.Rejected(t.Context(), w.JobID); err != nil || len(got) != 32 || store.writes.Load() != 32 || told.unrecorded != 6000-32 {
			t.Errorf("%d are kept after %d writes, and %d unrecorded: %v", len(got), store.writes.Load(), told.unrecorded, err)
		}
		w.JobID = l.Submit(ledgertest.Command("tenant_a", "another"))
		w.refused(t, w.ack(), apierror.StaleAttempt)
		if got, err := l.Rejected(t.Context(), w.JobID); err != nil || len(got) != 1 {
			t.Errorf("of another job %d are kept: %v", len(got), err)
		}
	})
}

// A worker that reports on very many jobs is bounded as well.
func TestReject_RecordsOfAtMost4096JobsAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, l, store, told := recording(t)
		w.pair.LeaseID = "guessed"
		for i := range 4100 {
			w.JobID = l.Submit(ledgertest.Command("tenant_a", fmt.Sprint(i)))
			w.refused(t, w.ack(), apierror.StaleAttempt)
		}
		if store.writes.Load() != 4096 || told.unrecorded != 4 {
			t.Errorf("%d writes, %d unrecorded", store.writes.Load(), told.unrecorded)
		}
		time.Sleep(time.Minute)
		if w.refused(t, w.ack(), apierror.StaleAttempt); store.writes.Load() != 4097 {
			t.Error("the next minute begins with the old count")
		}
	})
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
		store.down.Store(false)
		w.refused(t, w.ack(), apierror.StaleAttempt)
		if got, err := l.Rejected(t.Context(), w.JobID); err != nil || len(got) != 1 || told.unrecorded != 3 {
			t.Errorf("recorded %+v, %d unrecorded: %v", got, told.unrecorded, err)
		}
	})
}
