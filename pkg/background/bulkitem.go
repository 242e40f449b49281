package background

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// apply changes the job of an item and sets the item's outcome. An error means that the
// item keeps waiting: it is [ledger.ErrTenantLimit], an error of the store, [errHeldUp], or
// [errLost] if the operation is over.
func (w *bulkWorker) apply(ctx context.Context, item *itemRow) error {
	if err := w.check(ctx); err != nil {
		return err
	}
	agg, err := w.cfg.Operations.cfg.Ledger.Job(ctx, item.JobID)
	if err != nil {
		return w.refused(ctx, item, err)
	}
	item.Tenant, item.line = agg.Job.TenantID, agg.Job.Place.Line
	w.mu.Lock()
	held := w.heldUp(item)
	w.mu.Unlock()
	if held {
		return errHeldUp
	}
	live := w.op.Kind != KindRetry
	if live { // A worker that crashed may have changed the job.
		switch done, err := w.madeByThis(ctx, item.JobID); {
		case err != nil:
			return w.refused(ctx, item, err)
		case done:
			item.Outcome = ItemApplied
			return nil
		}
	}
	if !w.op.Named && (live && !w.op.Filter.Matches(agg) || !live && agg.Job.State != w.op.Filter.State) {
		item.Outcome = ItemSkipped
		item.Detail = fmt.Sprintf("The job no longer matches: it is %s.", agg.Job.State)
		return nil
	}
	ctx = ledger.WithCaller(ctx, w.op.Caller)
	if live {
		changed, err := w.control(ctx, item, agg.Job.Rev)
		if changed {
			return w.apply(ctx, item)
		}
		return err
	}
	if !w.op.Named {
		if err := w.superseded(ctx, item, &agg.Job); err != nil || item.Outcome != ItemWaiting {
			return err
		}
	}
	return w.rerun(ctx, item)
}

// superseded sets the outcome if the job has a rerun. The ledger would accept another rerun
// from the other starting point, and both would write to the same output.
func (w *bulkWorker) superseded(ctx context.Context, item *itemRow, job *statemachine.Job) error {
	by, err := w.cfg.Operations.cfg.Ledger.SupersededBy(ctx, job)
	own := false
	if err == nil && by != "" {
		own, err = w.madeByThis(ctx, by)
	}
	if err != nil {
		return w.refused(ctx, item, err)
	}
	if by == "" {
		return nil
	}
	if item.Outcome, item.NewJobID = ItemApplied, by; !own {
		item.Outcome, item.Detail = ItemSkipped, "The job no longer matches: it was rerun."
	}
	return nil
}

// OperationTag is the key of the tag that the reruns of an operation have: its value is the id of the
// operation.
const OperationTag = statemachine.SystemTag + "operation"

// rerun reruns an ended job. If this rerun exists and was cancelled, but was not made by this operation, the
// cancelled one is rerun instead.
func (w *bulkWorker) rerun(ctx context.Context, item *itemRow) error {
	rerun := w.op.rerun(item.JobID)
	rerun.Actor, rerun.RequestID, rerun.Reason = w.op.Actor, w.op.ID, w.op.Reason
	rerun.Tags = statemachine.NewTags(map[string]string{OperationTag: w.op.ID})
	for ; ; rerun.JobID = item.NewJobID {
		accepted, err := w.cfg.Operations.cfg.Commands.Rerun(ctx, rerun)
		if err != nil {
			return w.refused(ctx, item, err)
		}
		item.NewJobID = accepted.Job.ID
		own := !accepted.Replayed
		if !own { // The history tells whether this operation made the rerun before a crash.
			if own, err = w.madeByThis(ctx, accepted.Job.ID); err != nil {
				return w.refused(ctx, item, err)
			}
		}
		if !own && accepted.Job.State == statemachine.JobCancelled {
			continue // Without an outcome: the next rerun may have to wait.
		}
		if item.Outcome = ItemRepeated; own {
			item.Outcome = ItemApplied
		}
		return nil
	}
}

// control cancels, pauses or resumes a live job, unless it has changed since that revision: another runner may have done it, if
// this one stood still until its lease ended, and a user may have undone it.
func (w *bulkWorker) control(ctx context.Context, item *itemRow, rev int64) (changed bool, err error) {
	var event statemachine.Event
	switch w.op.Kind {
	case KindCancel:
		event = statemachine.Cancel{Reason: w.op.Reason}
	case KindPause:
		event = statemachine.Pause{Reason: w.op.Reason}
	default:
		event = statemachine.Resume{Reason: w.op.Reason}
	}
	result, err := w.cfg.Operations.cfg.Ledger.Change(ctx, item.JobID, event, ledger.By(w.op.Actor, w.op.ID), ledger.AtRev(rev))
	if err == nil {
		err = result.Problem()
	}
	switch {
	case err != nil:
		return false, w.refused(ctx, item, err)
	case result.Outcome == statemachine.Applied:
		item.Outcome = ItemApplied
	case result.Job.Job.Rev != rev:
		return true, nil
	default:
		item.Outcome = ItemRepeated
	}
	return false, nil
}

// madeByThis reports whether the job's history names this operation.
func (w *bulkWorker) madeByThis(ctx context.Context, jobID string) (bool, error) {
	for after := int64(0); ; {
		entries, next, err := w.cfg.Operations.cfg.Ledger.History(ctx, jobID, after, historyPage)
		if err != nil || next == 0 {
			return w.names(entries), err
		}
		if w.names(entries) {
			return true, nil
		}
		after = next
	}
}

// maxSkew is more than the clocks of two servers differ by, and less than an operation is kept.
const maxSkew = time.Hour

// names reports whether an entry names this operation, and not a removed one that had the same key and
// so the same id.
func (w *bulkWorker) names(entries []ledger.HistoryEntry) bool {
	oldest := w.op.CreatedAt.Add(-maxSkew)
	return slices.ContainsFunc(entries, func(e ledger.HistoryEntry) bool { return e.RequestID == w.op.ID && e.At.After(oldest) })
}

// maxDetail bounds the detail of an item, in bytes.
const maxDetail = 1024

// refused sets the outcome of a job that was not changed, or returns err if the job must
// wait for its tenant or the store.
func (w *bulkWorker) refused(ctx context.Context, item *itemRow, err error) error {
	if errors.Is(err, ledger.ErrTenantLimit) || tablestore.IsOutage(err) || ctx.Err() != nil {
		return err
	}
	reason := apierror.From(ledger.Problem(err))
	detail := reason.Summary() // It may name a key of the payload, which has any length.
	item.Detail = strings.ToValidUTF8(detail[:min(len(detail), maxDetail)], "")
	if reason.Code.Status() < 500 { // The job, or what is asked of it, is at fault.
		item.Outcome = ItemSkipped
		return nil
	}
	w.cfg.Logger.ErrorContext(ctx, "job of an operation not changed", item.fields().With("operation_id", w.op.ID, "error", err)...)
	if item.Outcome = ItemFailed; reason.Code == apierror.Internal {
		item.Detail = "The change failed for an internal reason, which is in the log."
	}
	return nil
}
