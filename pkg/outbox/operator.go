package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Operator makes waiting rows due. It is safe for concurrent use.
type Operator struct {
	ledger *ledger.Ledger
	live   search.LiveIndex
}

// NewOperator returns an operator on the ledger, which finds live jobs by the index. Without
// one it reads all of them.
func NewOperator(l *ledger.Ledger, live search.LiveIndex) *Operator {
	return &Operator{ledger: l, live: live}
}

// Filter chooses rows. Without OutboxIDs it chooses among the rows of live jobs those
// that are PENDING, or whose step waits in FAILED_RETRY; each field that is set
// narrows the choice.
type Filter struct {
	OutboxIDs []string
	TenantID  string
	JobID     string
	Lane      *int
	OlderThan time.Duration // since the row was last changed
	Limit     int           // the maximum number of rows, of any that match; 0 means no limit
	Actor     string
	RequestID string
}

// fits applies the filter to what is known of a live job.
func (f *Filter) fits(t *search.Traits) bool {
	return t.Retryable && (f.TenantID == "" || f.TenantID == t.TenantID) && (f.Lane == nil || *f.Lane == t.Lane)
}

// Skip is a row that was not made due, and why.
type Skip struct {
	OutboxID string
	Reason   string
}

// noRow is the reason for a row that does not exist.
const noRow = "there is no such row"

// Report says what a retry did.
type Report struct {
	Matched int
	Retried int
	Skipped []Skip
}

func (r *Report) skip(outboxID, reason string) {
	r.Skipped = append(r.Skipped, Skip{OutboxID: outboxID, Reason: reason})
}

// Retry makes the rows due now, and the next dispatch of steps that wait for
// one. It spends no budget and may be repeated. The errors are [*apierror.Error]s;
// the rows retried before an error stay retried.
func (o *Operator) Retry(ctx context.Context, filter Filter) (Report, error) {
	var report Report
	var err error
	switch {
	case len(filter.OutboxIDs) > 0:
		for i := 0; i < len(filter.OutboxIDs) && err == nil; i++ {
			err = o.retryRow(ctx, filter.OutboxIDs[i], filter, &report)
		}
	case filter.JobID != "":
		err = o.retryJob(ctx, filter.JobID, filter, &report)
	default:
		err = o.retryLive(ctx, filter, &report)
	}
	return report, ledger.Problem(err)
}

// retryRow retries one row by its id, or reports why it cannot.
func (o *Operator) retryRow(ctx context.Context, id string, filter Filter, report *Report) error {
	report.Matched++
	parts, err := ledger.ParseOutboxID(id)
	if err != nil {
		report.skip(id, "not an outbox id")
		return nil //nolint:nilerr // The row's reason is in the report.
	}
	agg, err := o.ledger.Job(ctx, parts.JobID)
	switch {
	case errors.Is(err, ledger.ErrJobNotFound), err == nil && parts.StepIndex >= len(agg.Steps):
		report.skip(id, noRow)
	case err != nil:
		return err
	case agg.Steps[parts.StepIndex].OutboxID != id:
		report.skip(id, "a later attempt has taken its place")
	default:
		return o.retryStep(ctx, parts.JobID, &agg.Steps[parts.StepIndex], filter, report)
	}
	return nil
}

// retryLive retries the matching rows of live jobs.
func (o *Operator) retryLive(ctx context.Context, filter Filter, report *Report) error {
	for jobIDs, err := range o.live.Candidates(ctx, o.ledger, filter.TenantID, filter.fits) {
		if err != nil {
			return err
		}
		for _, jobID := range jobIDs {
			if filter.Limit > 0 && report.Matched >= filter.Limit {
				return nil
			}
			err := o.retryJob(ctx, jobID, filter, report)
			if err != nil && !errors.Is(err, ledger.ErrJobNotFound) {
				return err
			}
		}
	}
	return nil
}

// retryJob retries the job's waiting row, if it matches.
func (o *Operator) retryJob(ctx context.Context, jobID string, filter Filter, report *Report) error {
	agg, err := o.ledger.Job(ctx, jobID)
	if err != nil {
		return err
	}
	if len(agg.Steps) == 0 {
		return nil
	}
	traits := search.TraitsOf(agg)
	step := &agg.Steps[agg.Job.CurrentStepIndex] // A step that can be retried was dispatched, and is the current one.
	if !filter.fits(&traits) || time.Since(step.UpdatedAt) < filter.OlderThan {
		return nil
	}
	report.Matched++
	return o.retryStep(ctx, jobID, step, filter, report)
}

// retryStep makes the step's row due.
func (o *Operator) retryStep(
	ctx context.Context, jobID string, step *statemachine.Step, filter Filter, report *Report,
) error {
	opts := []ledger.Option{ledger.By(filter.Actor, filter.RequestID), ledger.InTenant(filter.TenantID)}
	result, err := o.ledger.Change(ctx, jobID, statemachine.Retry{StepID: step.ID}, opts...)
	switch {
	case errors.Is(err, ledger.ErrJobNotFound):
		report.skip(step.OutboxID, noRow)
	case err != nil:
		return err
	case result.Outcome != statemachine.Applied:
		report.skip(step.OutboxID, result.Reason)
	default:
		report.Retried++
	}
	return nil
}
