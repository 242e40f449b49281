package ledger_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// paged reads a store with one row per page; it calls between after the first page of a job.
type paged struct {
	between func(query tablestore.Query)
}

func (p *paged) hook(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
	r.Query.Limit = 1
	err := do(ctx)
	if r.Query.Table == "luciusledger" && r.Query.Continue == "" && p.between != nil {
		p.between(r.Query)
	}
	return err
}

// onPages returns a ledger that reads such pages, with a job whose first step was
// dispatched, and another ledger on the same rows.
func onPages(t *testing.T) (*paged, *ledgertest.Ledger, *bundle, ledger.Message) {
	t.Helper()
	b := setup(t)
	b.Submit(command("h"))
	m := b.Handoff.Last()
	b.Apply(m.JobID, ledgertest.Sent(m))
	pages := &paged{}
	return pages, ledgertest.Open(t, ledger.Config{Store: storetest.Hooked(b.store, pages.hook)}), b, m
}

// A change between two pages is visible in the second alone: a step that it started then
// has no outbox row, or a state that does not fit the job's.
func TestJob_IsReadAsItWasAtOneInstant(t *testing.T) {
	t.Parallel()
	pages, l, b, m := onPages(t)
	var moved atomic.Bool
	pages.between = func(tablestore.Query) {
		if !moved.Swap(true) {
			b.Apply(m.JobID, ledgertest.Ended(m, statemachine.ResultSucceeded, ""))
		}
	}
	agg := l.Read(m.JobID)
	if agg.Job.CurrentStepIndex != 1 || agg.Steps[0].State != statemachine.StepSucceeded ||
		agg.Steps[1].State != statemachine.StepDispatching || agg.Outbox == nil || agg.Outbox.StepIndex != 1 {
		t.Errorf("the job is at step %d, its steps %s and %s, its row %+v",
			agg.Job.CurrentStepIndex, agg.Steps[0].State, agg.Steps[1].State, agg.Outbox)
	}
}

func TestJob_ThatKeepsChangingIsUnavailable(t *testing.T) {
	t.Parallel()
	pages, l, b, m := onPages(t)
	pages.between = func(tablestore.Query) {
		for _, event := range []statemachine.Event{statemachine.Pause{}, statemachine.Resume{}} {
			if result, err := b.Change(t.Context(), m.JobID, event); err != nil || result.Outcome == statemachine.Applied {
				return
			}
		}
	}
	if _, err := l.Job(t.Context(), m.JobID); !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("answered %v", err)
	}
}

func TestJob_PurgedBetweenTwoPagesIsNotFound(t *testing.T) {
	t.Parallel()
	pages, l, b, m := onPages(t)
	pages.between = func(query tablestore.Query) {
		all := tablestore.Query{Table: query.Table, Partition: query.Partition}
		if err := tablestore.DiscardAll(t.Context(), b.store, all, ""); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.Job(t.Context(), m.JobID); !errors.Is(err, ledger.ErrJobNotFound) {
		t.Errorf("answered %v", err)
	}
}

func TestHistory_NamesTheEventOfEachChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.Submit(command("h"))
	m := b.Handoff.Last()
	b.Apply(id, statemachine.PublishRejected{OutboxID: m.OutboxID, AttemptNo: m.AttemptNo, Reason: "malformed"})
	b.Apply(id, statemachine.Cancel{})
	history := b.Past(id)
	var events []string
	for _, entry := range history {
		events = append(events, entry.Event)
	}
	if diff := cmp.Diff([]string{"accept", "publish_rejected", "cancel"}, slices.Compact(events)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
