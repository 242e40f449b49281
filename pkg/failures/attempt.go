package failures

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// attempt tries one item, and notes what became of it.
func (w *worker) attempt(ctx context.Context, item *itemRow) {
	tenant := item.tenant
	outcome, err := w.rerun(ctx, item.JobID, &tenant)
	w.mu.Lock()
	defer w.mu.Unlock()
	item.tenant = tenant
	w.tried[item] = true
	switch {
	case err == nil:
		item.Item = outcome
		w.fresh = append(w.fresh, item)
	case errors.Is(err, errLost) || errors.Is(err, errNoOperation):
		w.stopped = true
	case errors.Is(err, ledger.ErrTenantLimit):
		w.blocked[tenant] = time.Now().Add(patience)
	default:
		w.until = time.Now().Add(patience)
		if ctx.Err() == nil {
			w.cfg.Logger.WarnContext(ctx, "rerun put off", "retry_id", w.op.ID, "jobId", item.JobID, "error", err)
		}
	}
}

// rerun reruns a job. It returns an error where the job has to wait: that of the
// store, [ledger.ErrTenantLimit], or [errLost] where it is not to be rerun any
// more. It fills in the tenant.
func (w *worker) rerun(ctx context.Context, jobID string, tenant *string) (Item, error) {
	if err := w.check(ctx); err != nil {
		return Item{}, err
	}
	agg, err := w.service.cfg.Ledger.Job(ctx, jobID)
	if err != nil {
		return w.refused(ctx, jobID, err)
	}
	*tenant = agg.Job.TenantID
	if !w.op.named && agg.Job.State != statemachine.JobFailedFinal {
		detail := fmt.Sprintf("The job is %s, and only failed ones were asked for.", agg.Job.State)
		return Item{JobID: jobID, Outcome: Skipped, Detail: detail}, nil
	}
	accepted, err := w.service.cfg.Ledger.Rerun(ctx, ledger.Rerun{
		JobID: jobID, From: w.op.From, Limit: w.cfg.Limit, Actor: w.op.Actor, RequestID: w.op.ID, Reason: w.op.Reason,
	})
	if err != nil {
		return w.refused(ctx, jobID, err)
	}
	outcome := Rerun
	if accepted.Replayed {
		if outcome, err = w.replayed(ctx, accepted.Job.ID); err != nil {
			return Item{}, err
		}
	}
	return Item{JobID: jobID, Outcome: outcome, NewJobID: accepted.Job.ID}, nil
}

// replayed tells whether a rerun that was there already is this operation's own,
// made before a crash: its first entry in the history names the operation.
func (w *worker) replayed(ctx context.Context, newJobID string) (Outcome, error) {
	entries, _, err := w.service.cfg.Ledger.History(ctx, newJobID, 0, 1)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 && entries[0].RequestID == w.op.ID {
		return Rerun, nil
	}
	return Repeated, nil
}

// refused is what becomes of a job that was not rerun: it waits for the tenant
// and for the store, and that is an error; anything else is final.
func (w *worker) refused(ctx context.Context, jobID string, err error) (Item, error) {
	for _, later := range []error{ledger.ErrTenantLimit, tablestore.ErrUnavailable, tablestore.ErrUnknown, ctx.Err()} {
		if later != nil && errors.Is(err, later) {
			return Item{}, err
		}
	}
	told := problem.From(ledger.Problem(err))
	if told.Code == problem.JobNotFound || told.Code == problem.IllegalTransition {
		return Item{JobID: jobID, Outcome: Skipped, Detail: told.Detail}, nil
	}
	w.cfg.Logger.ErrorContext(ctx, "rerun failed", "retry_id", w.op.ID, "jobId", jobID, "error", err)
	detail := told.Detail
	if told.Code == problem.Internal {
		detail = "The rerun failed for an internal reason, which is in the log."
	}
	return Item{JobID: jobID, Outcome: Failed, Detail: detail}, nil
}
