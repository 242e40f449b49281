package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Operator makes rows due that wait. It is safe for concurrent use.
type Operator struct{ ledger *ledger.Ledger }

// NewOperator returns an operator on the ledger.
func NewOperator(l *ledger.Ledger) *Operator { return &Operator{ledger: l} }

// Filter chooses rows. Where OutboxIDs is empty, it chooses among the rows of
// live jobs those that are PENDING, or whose step waits in FAILED_RETRY; each
// field that is set narrows it.
type Filter struct {
	OutboxIDs []string
	TenantID  string
	JobID     string
	Lane      *int
	OlderThan time.Duration // since the row was last changed
	Limit     int           // the most rows; 0 is no limit
	Actor     string
	RequestID string
}

// Skip is a row that was not made due, and why.
type Skip struct {
	OutboxID string
	Reason   string
}

// Report says what a retry did.
type Report struct {
	Matched int
	Retried int
	Skipped []Skip
}

// Retry makes the rows due now, and the next dispatch of steps that wait for
// one. It spends no budget, and to repeat it is harmless. The errors are
// [*problem.Error]s; what was retried before stays so.
func (o *Operator) Retry(ctx context.Context, filter Filter) (Report, error) {
	var report Report
	if len(filter.OutboxIDs) > 0 {
		for _, id := range filter.OutboxIDs {
			if err := o.retryID(ctx, id, filter, &report); err != nil {
				return report, ledger.Problem(err)
			}
		}
		return report, nil
	}
	if filter.JobID != "" {
		return report, ledger.Problem(o.retryJob(ctx, filter.JobID, filter, &report))
	}
	for shard := range o.ledger.Shards() {
		if err := o.retryShard(ctx, shard, filter, &report); err != nil {
			return report, ledger.Problem(err)
		}
	}
	return report, nil
}

// retryID retries one row by its id; one that cannot be is named with its reason.
func (o *Operator) retryID(ctx context.Context, id string, filter Filter, report *Report) error {
	report.Matched++
	skip := func(reason string) { report.Skipped = append(report.Skipped, Skip{OutboxID: id, Reason: reason}) }
	parts, parseErr := ledger.ParseOutboxID(id)
	if parseErr != nil {
		skip("not an outbox id")
		return nil //nolint:nilerr // The row's reason is in the report.
	}
	agg, err := o.ledger.Job(ctx, parts.JobID)
	if errors.Is(err, ledger.ErrJobNotFound) {
		skip("there is no such row")
		return nil
	}
	if err != nil {
		return err
	}
	if parts.StepIndex >= len(agg.Steps) {
		skip("there is no such row")
		return nil
	}
	step := &agg.Steps[parts.StepIndex]
	if step.OutboxID != id {
		skip("a later attempt has taken its place")
		return nil
	}
	return o.bring(ctx, parts.JobID, step.ID, id, filter, report)
}

// retryShard retries what matches among the live jobs of one shard.
func (o *Operator) retryShard(ctx context.Context, shard int, filter Filter, report *Report) error {
	from := ""
	for {
		jobIDs, next, err := o.ledger.LiveOf(ctx, filter.TenantID, shard, 256, from)
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
		if next == "" {
			return nil
		}
		from = next
	}
}

// retryJob retries the job's waiting row, if it matches.
func (o *Operator) retryJob(ctx context.Context, jobID string, filter Filter, report *Report) error {
	agg, err := o.ledger.Job(ctx, jobID)
	if err != nil {
		return err
	}
	i, ok := agg.Active()
	if !ok || !filter.matches(agg, &agg.Steps[i], time.Now()) {
		return nil
	}
	report.Matched++
	return o.bring(ctx, jobID, agg.Steps[i].ID, agg.Steps[i].OutboxID, filter, report)
}

// matches reports whether the active step waits for a dispatch and fits.
func (f *Filter) matches(agg *statemachine.Aggregate, step *statemachine.Step, now time.Time) bool {
	waits := step.State == statemachine.StepDispatching || step.State == statemachine.StepFailedRetry
	return waits &&
		(f.TenantID == "" || agg.Job.TenantID == f.TenantID) &&
		(f.Lane == nil || step.Routing.Lane == *f.Lane) &&
		now.Sub(step.UpdatedAt) >= f.OlderThan
}

// bring brings the retry to the job.
func (o *Operator) bring(ctx context.Context, jobID, stepID, outboxID string, filter Filter, report *Report) error {
	opts := []ledger.Option{ledger.By(filter.Actor, filter.RequestID), ledger.InTenant(filter.TenantID)}
	result, err := o.ledger.Change(ctx, jobID, statemachine.Retry{StepID: stepID}, opts...)
	switch {
	case errors.Is(err, ledger.ErrJobNotFound):
		report.Skipped = append(report.Skipped, Skip{OutboxID: outboxID, Reason: "there is no such row"})
	case err != nil:
		return err
	case result.Outcome != statemachine.Applied:
		report.Skipped = append(report.Skipped, Skip{OutboxID: outboxID, Reason: result.Reason})
	default:
		report.Retried++
	}
	return nil
}
