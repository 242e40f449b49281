package ledger_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// sketch is a scripted projector that records its calls.
type sketch struct {
	project func(r *ledger.Revision) (int64, error)
	forget  error
	given   []*ledger.Revision
	forgot  []string
}

func (s *sketch) Project(_ context.Context, r *ledger.Revision) (int64, error) {
	s.given = append(s.given, r)
	if s.project == nil {
		return r.Job.Rev, nil
	}
	return s.project(r)
}

func (s *sketch) Forget(_ context.Context, job *statemachine.Job) error {
	s.forgot = append(s.forgot, job.TenantID+"/"+job.ID)
	return s.forget
}

// sketched is a ledger with that projector, on a store whose calls can fail.
func sketched(t *testing.T) (*bundle, *sketch, *storetest.Faults) {
	t.Helper()
	store, faults := storetest.Faulty(ledgertest.Split())
	projector := &sketch{}
	b := open(t, &hooked{Store: store}, ledger.Config{Bus: statemachine.BusServiceBus, Shards: 1, Projector: projector})
	return b, projector, faults
}

// summary is a short form of a revision.
type summary struct {
	Rev, After int64
	Outbox     []string
	Events     []string
}

func summarise(r *ledger.Revision) summary {
	s := summary{Rev: r.Job.Rev, After: r.After}
	for _, row := range r.Outbox {
		text := string(row.State)
		if row.New {
			text += ", new"
		}
		if row.Directive != nil {
			text += ", with its directive"
		}
		s.Outbox = append(s.Outbox, text)
	}
	for i := range r.History {
		s.Events = append(s.Events, r.History[i].Type)
	}
	return s
}

func TestProjector_GetsEachChange(t *testing.T) {
	t.Parallel()
	b, projector, _ := sketched(t)
	b.Submit(command("h"))
	m := b.Handoff.Last()
	b.Apply(m.JobID, ledgertest.Sent(m))
	b.Apply(m.JobID, ledgertest.Started(m))
	b.Apply(m.JobID, statemachine.Heartbeat{StepID: m.StepID, Pair: ledgertest.Pair(m)}) // It has no revision.
	want := []summary{
		{Rev: 1, Outbox: []string{"PENDING, new, with its directive"}, Events: []string{
			"job.accepted", "step.dispatching", "outbox.pending", "job.dispatching",
		}},
		{Rev: 2, After: 1, Outbox: []string{"SENT"}, Events: []string{"outbox.sent", "step.awaiting_ack"}},
		{Rev: 3, After: 2, Events: []string{"step.in_progress", "job.in_progress"}},
	}
	got := make([]summary, len(projector.given))
	for i, r := range projector.given {
		got[i] = summarise(r)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProjector_GetsAllChangesThatItLacks(t *testing.T) {
	t.Parallel()
	b, projector, _ := sketched(t)
	b.Submit(command("h"))
	m := b.Handoff.Last()
	projector.project = func(r *ledger.Revision) (int64, error) {
		if r.After > 0 {
			return 0, nil // Nothing was shown yet.
		}
		return r.Job.Rev, nil
	}
	b.Apply(m.JobID, ledgertest.Sent(m))
	want := summary{Rev: 2, Outbox: []string{"SENT, with its directive"}, Events: []string{
		"job.accepted", "step.dispatching", "outbox.pending", "job.dispatching", "outbox.sent", "step.awaiting_ack",
	}}
	if diff := cmp.Diff(want, summarise(projector.given[len(projector.given)-1])); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProjector_ThatNeverCatchesUpIsGivenUp(t *testing.T) {
	t.Parallel()
	b, projector, _ := sketched(t)
	projector.project = func(*ledger.Revision) (int64, error) { return 0, nil }
	accepted := b.MustAccept(command("h"))
	if !errors.Is(accepted.PostErr, tablestore.ErrUnavailable) || len(projector.given) != 50 {
		t.Errorf("after %d tries: %v", len(projector.given), accepted.PostErr)
	}
}

// If the ledger cannot read what the projector needs, the change is committed and its
// timer stays.
func TestProjector_ReadsThatFail(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]storetest.Fault{
		"the job":       {Call: storetest.ScanCall, Nth: 2},
		"the history":   {Call: storetest.ScanCall, Nth: 3},
		"the directive": {Call: storetest.GetCall},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, projector, faults := sketched(t)
			b.Submit(command("h"))
			m := b.Handoff.Last()
			projector.project = func(*ledger.Revision) (int64, error) { return 0, nil }
			faults.Plan(fault)
			result := b.Send(m.JobID, ledgertest.Sent(m))
			if !errors.Is(result.PostErr, storetest.ErrInjected) {
				t.Errorf("the work after the commit returned %v", result.PostErr)
			}
			if entries := b.entries(); len(entries) != 3 {
				t.Errorf("the schedule has %v", entries)
			}
		})
	}
}

func TestProjector_OfAJobPurgedInBetween(t *testing.T) {
	t.Parallel()
	b, projector, _ := sketched(t)
	projector.project = func(r *ledger.Revision) (int64, error) { return 0, b.purge(t, r.Job.ID) }
	accepted := b.MustAccept(command("h"))
	if accepted.PostErr != nil || len(projector.given) != 1 || len(projector.forgot) != 1 {
		t.Errorf("after %d tries, forgotten %v: %v", len(projector.given), projector.forgot, accepted.PostErr)
	}
}

// purge purges a job.
func (b *bundle) purge(t *testing.T, jobID string) error {
	t.Helper()
	_, err := b.store.Commit(t.Context(), tablestore.Batch{{
		Verb: tablestore.Discard, Key: tablestore.Key{Table: "luciusledger", Partition: jobID, Row: "JOB"},
	}})
	return err
}

// A process that projects so late that the job may be purged checks that afterwards, and
// deletes the projections that the purge did not find.
func TestProjector_DeletesProjectionsWrittenAfterAPurge(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		late    time.Duration
		purged  bool
		forgets int
		forget  error
	}{
		"at once":                       {0, false, 0, nil},
		"late":                          {time.Minute, false, 0, nil},
		"late, of a job that is purged": {time.Minute, true, 1, nil},
		"late, and it fails":            {time.Minute, true, 1, errors.New("out of reach")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, projector, _ := sketched(t)
				projector.forget = test.forget
				projector.project = func(r *ledger.Revision) (int64, error) {
					time.Sleep(test.late)
					if test.purged {
						return r.Job.Rev, b.purge(t, r.Job.ID)
					}
					return r.Job.Rev, nil
				}
				accepted := b.MustAccept(command("h"))
				if !errors.Is(accepted.PostErr, test.forget) || len(projector.forgot) != test.forgets {
					t.Errorf("forgotten %v, %v", projector.forgot, accepted.PostErr)
				}
			})
		})
	}
}

// A projector may have crashed after the purge of its job. The sweeper that finds the
// timer deletes the projections.
func TestFire_AnEntryOfAPurgedJobDeletesProjections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, projector, _ := sketched(t)
		projector.project = func(*ledger.Revision) (int64, error) { return 0, errors.New("died") }
		id := b.Submit(command("h"))
		b.Send(id, statemachine.Cancel{})
		if err := b.purge(t, id); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		projector.forget = errors.New("out of reach")
		failed := 0
		for _, entry := range b.Entries(ledger.Timer, time.Now()) {
			if _, _, err := b.Fire(t.Context(), entry, statemachine.DeadlinePassed{}); errors.Is(err, projector.forget) {
				failed++
			}
		}
		if left := b.Entries(ledger.Timer, time.Now()); failed == 0 || len(left) < failed {
			t.Errorf("%d could not be fired, and %d are left", failed, len(left))
		}
		projector.forget = nil
		projector.forgot = nil
		b.Expire()
		if left := b.Entries(ledger.Timer, time.Now()); len(left) != 0 || len(projector.forgot) == 0 || projector.forgot[0] != "tenant_a/"+id {
			t.Errorf("left %v, forgotten %v", left, projector.forgot)
		}
	})
}

// The timer of a change stays until the change is projected, whatever the job's state
// is by then.
func TestFire_AnEntryStaysUntilItsChangeIsShown(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]bool{"a job that goes on": false, "a job that has ended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b, projector, _ := sketched(t)
				broken := errors.New("out of reach")
				projector.project = func(*ledger.Revision) (int64, error) { return 0, broken }
				id := b.Submit(command("h"))
				want := map[ledger.FireOutcome]int{ledger.Stale: 1}
				if end {
					b.Send(id, statemachine.Cancel{})
					want[ledger.Finished] = 1
				}
				time.Sleep(6 * time.Second)
				for _, entry := range b.Entries(ledger.Timer, time.Now()) {
					if _, _, err := b.Fire(t.Context(), entry, statemachine.DeadlinePassed{}); !errors.Is(err, broken) {
						t.Errorf("fired with %v", err)
					}
				}
				projector.project = nil
				if diff := cmp.Diff(want, b.Expire()); diff != "" {
					t.Errorf("fired (-want +got):\n%s", diff)
				}
				if left := b.Entries(ledger.Timer, time.Now()); len(left) != 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}
