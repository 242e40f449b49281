package ledger_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/projections/projectionstest"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// failedAtTwo is a job whose first step succeeded and whose second did not.
func (b *bundle) failedAtTwo(t *testing.T) string {
	t.Helper()
	id := b.Submit(command("h"))
	b.succeed(b.Handoff.Last())
	b.failFinal(t)
	return id
}

func TestRerun_FromTheFailedStepKeepsEarlierResults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	accepted, err := b.Rerun(t.Context(), ledger.Rerun{JobID: old, From: ledger.FromFailed, Actor: "operator", Reason: "fixed"})
	if err != nil || accepted.Replayed {
		t.Fatalf("%+v, %v", accepted, err)
	}
	m := b.Handoff.Last()
	if m.JobID != accepted.Job.ID || m.StepID != "two" || accepted.Job.RerunOf != old {
		t.Errorf("%+v was dispatched for %+v", m, accepted.Job)
	}
	agg := b.Read(accepted.Job.ID)
	if one := agg.Steps[0]; one.State != statemachine.StepSucceeded || string(one.ResultRef) != `{"uri":"s3://b/one"}` || one.AttemptNo != 0 {
		t.Errorf("the step that was done is %+v", one)
	}
	if string(agg.Steps[1].InputRef) != `{"uri":"s3://b/one"}` {
		t.Errorf("the step to do gets %s", agg.Steps[1].InputRef)
	}
	b.succeed(m)
	if agg, err = b.Job(t.Context(), accepted.Job.ID); err != nil || agg.Job.State != statemachine.JobSucceeded {
		t.Errorf("the rerun is %s, %v", agg.Job.State, err)
	}
	history, _, err := b.History(t.Context(), accepted.Job.ID, 0, 10)
	if err != nil || history[0].Detail != "fixed" || history[1].Type != statemachine.EventStepCarried {
		t.Errorf("history %+v, %v", history[:2], err)
	}
}

// Lists and filters read the service of a job that waits from its current step.
func TestRerun_ThatWaitsInItsLineHasTheStepAtWhichItStarts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("h")
	cmd.Job.Order = statemachine.Order{Key: "doc", Mode: statemachine.OrderFIFO}
	old := b.Submit(cmd)
	b.succeed(b.Handoff.Last())
	b.failFinal(t)
	cmd = command("runs")
	cmd.Job.Order = statemachine.Order{Key: "doc", Mode: statemachine.OrderFIFO}
	b.Submit(cmd)
	waits := b.Read(b.rerun(t, old, ledger.FromFailed).ID)
	if !waits.Job.AwaitsTurn() || waits.Job.CurrentStepIndex != 1 || ledger.IndexRowOf(waits).StepType != waits.Steps[1].Type {
		t.Errorf("the rerun is %+v, listed as %+v", waits.Job, ledger.IndexRowOf(waits))
	}
}

func TestRerun_FromTheStartRepeatsEveryStep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	if _, err := b.Rerun(t.Context(), ledger.Rerun{JobID: old, From: ledger.FromStart}); err != nil {
		t.Fatal(err)
	}
	if m := b.Handoff.Last(); m.StepID != "one" {
		t.Errorf("step %s was dispatched", m.StepID)
	}
}

func TestRerun_ADoubleClickMakesOneJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.failedAtTwo(t)
	ids := make([]string, 8)
	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			accepted, err := b.Rerun(t.Context(), ledger.Rerun{JobID: old, From: ledger.FromFailed})
			if err != nil {
				t.Error(err)
			}
			ids[i] = accepted.Job.ID
		})
	}
	group.Wait()
	other, err := b.Rerun(t.Context(), ledger.Rerun{JobID: old, From: ledger.FromStart})
	if err != nil || other.Job.ID == ids[0] {
		t.Errorf("the other starting point gave %+v, %v", other, err)
	}
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("reruns %v", ids)
		}
	}
	if live := b.LiveJobs(); len(live) != 2 {
		t.Errorf("%d jobs are alive", len(live))
	}
}

// The record of a rerun does not expire with idempotency keys: otherwise a late repeat would
// execute the steps a second time.
func TestRerun_ARepeatAfterTheTimeOfKeysIsAnsweredWithTheSameJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := split()
		b := open(t, store, ledger.Config{
			Bus: statemachine.BusServiceBus, Shards: 1, Retention: 10 * time.Hour, KeyTTL: time.Hour,
			Projector: projectionstest.Projector(t, store),
		})
		rerun := ledger.Rerun{JobID: b.failedAtTwo(t), From: ledger.FromFailed}
		first, err := b.Rerun(t.Context(), rerun)
		if err != nil {
			t.Fatal(err)
		}
		b.succeed(b.Handoff.Last())
		time.Sleep(2 * time.Hour)
		again, err := b.Rerun(t.Context(), rerun)
		if err != nil || !again.Replayed || again.Job.ID != first.Job.ID {
			t.Errorf("answered %+v, %v", again, err)
		}
	})
}

func TestRerun_OnlyOfJobsThatHaveEnded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	live := b.Submit(command("live"))
	done := b.Submit(command("done"))
	b.succeed(b.Handoff.Last())
	b.succeed(b.Handoff.Last())
	for _, test := range []struct {
		rerun ledger.Rerun
		code  apierror.Code
	}{
		{ledger.Rerun{JobID: live, From: ledger.FromStart}, apierror.IllegalTransition},
		{ledger.Rerun{JobID: done, From: ledger.FromFailed}, apierror.NothingToRun},
		{ledger.Rerun{JobID: "gone"}, apierror.JobNotFound},
	} {
		_, err := b.Rerun(t.Context(), test.rerun)
		var told *apierror.Error
		if !errors.As(ledger.Problem(err), &told) || told.Code != test.code {
			t.Errorf("%+v: %v", test.rerun, err)
		}
	}
	again, err := b.Rerun(t.Context(), ledger.Rerun{JobID: done, From: ledger.FromStart})
	if err != nil || again.Replayed {
		t.Fatalf("of a job that succeeded: %+v, %v", again, err)
	}
	if by, err := b.SupersededBy(t.Context(), &b.Read(done).Job); err != nil || by != again.Job.ID {
		t.Errorf("it is superseded by %q, %v", by, err)
	}
}

func TestRerun_OfTheNewestJobOfTheChain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.failedAtTwo(t)
	rerun := ledger.Rerun{JobID: first, From: ledger.FromFailed, Newest: true}
	second, err := b.Rerun(t.Context(), rerun)
	if err != nil || second.Replayed || second.Job.RerunOf != first {
		t.Fatalf("%+v, %v", second, err)
	}
	if live, err := b.Rerun(t.Context(), rerun); err != nil || !live.Replayed || live.Job.ID != second.Job.ID {
		t.Errorf("while that is live: %+v, %v", live, err)
	}
	b.failFinal(t)
	third, err := b.Rerun(t.Context(), rerun)
	if err != nil || third.Replayed || third.Job.RerunOf != second.Job.ID {
		t.Errorf("after its end: %+v, %v", third, err)
	}
	last := third.Job.ID
	for range 2 { // A cancelled rerun leaves the chain, but its record remains.
		b.Apply(last, statemachine.Cancel{})
		if plan, err := b.PlanRerun(t.Context(), rerun); err != nil || plan.Old.Job.ID != last {
			t.Errorf("after %s was cancelled: a rerun of %+v is planned, %v", last, plan.Old, err)
		}
		next, err := b.Rerun(t.Context(), rerun)
		if err != nil || next.Replayed || next.Job.RerunOf != last || next.Job.Supersedes != second.Job.ID {
			t.Fatalf("after %s was cancelled: %+v, %v", last, next, err)
		}
		last = next.Job.ID
	}
}

func TestRerun_TakesTheTagsOfTheJobAndMore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cmd := command("h")
	cmd.Job.Tags = statemachine.NewTags(map[string]string{"customer": "42", "run": "october", "lucius.operation": "x"})
	old := b.Submit(cmd)
	b.Apply(old, statemachine.Cancel{})
	tags := func(of ...string) (tags statemachine.Tags) {
		tags, err := statemachine.ParseTags(of)
		if err != nil {
			t.Fatal(err)
		}
		return tags
	}
	again, err := b.Rerun(t.Context(), ledger.Rerun{JobID: old, From: ledger.FromStart, Tags: tags("run=november"), NoCallbacks: true})
	if err != nil || again.Job.Tags != tags("customer=42", "run=november") || again.Job.CallbackURLs != nil {
		t.Errorf("%+v, %v", again.Job, err)
	}
	_, err = b.Rerun(t.Context(), ledger.Rerun{JobID: old, From: ledger.FromFailed, Tags: tags("a=1", "b=1", "c=1", "d=1", "e=1", "f=1", "g=1")})
	if _, ok := errors.AsType[*statemachine.NotRerunnableError](err); !ok {
		t.Errorf("with nine tags: %v", err)
	}
}

func TestRerun_ACancelledJobWhoseStepsAllSucceededStartsOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	b.succeed(b.Handoff.Last())
	m := b.Handoff.Last()
	b.Apply(id, ledgertest.Started(m))
	b.Apply(id, statemachine.Cancel{})
	b.Apply(id, ledgertest.Ended(m, statemachine.ResultSucceeded, ""))
	var unfit *statemachine.NotRerunnableError
	if _, err := b.Rerun(t.Context(), ledger.Rerun{JobID: id, From: ledger.FromFailed}); !errors.As(err, &unfit) {
		t.Errorf("rerun from a step that failed: %v", err)
	}
	if _, err := b.Rerun(t.Context(), ledger.Rerun{JobID: id, From: ledger.FromStart}); err != nil {
		t.Errorf("rerun from the start: %v", err)
	}
}
