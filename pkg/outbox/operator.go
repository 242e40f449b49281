package outbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Operator makes waiting rows due. It is safe for concurrent use.
type Operator struct {
	ledger *ledger.Ledger
	find   search.Finder
}

// NewOperator returns an operator on the ledger, which finds live jobs by the index. Without
// one it reads all of them.
func NewOperator(l *ledger.Ledger, live search.LiveIndex) *Operator {
	return &Operator{ledger: l, find: search.Finder{Source: l, Live: live}}
}

// RetryRequest chooses rows: those with the OutboxIDs, the row of a job, or those of the live jobs
// that Filter selects. A row is retried if it is PENDING, or if its step waits in FAILED_RETRY.
type RetryRequest struct {
	OutboxIDs []string
	JobID     string // Filter must select the job, too.
	Filter    search.Filter
	Limit     int // the maximum number of rows, of any that match; 0 means no limit
	Actor     string
	RequestID string
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
	More    bool // The time was over before all that may match were read.
}

func (r *Report) skip(outboxID, reason string) {
	r.Skipped = append(r.Skipped, Skip{OutboxID: outboxID, Reason: reason})
}

const (
	// retryTime bounds a retry of what a filter selects: the client, and a proxy before it, still wait for
	// the report.
	retryTime = 30 * time.Second
	// retriedAtOnce is how many of these rows are changed at once.
	retriedAtOnce = 16
)

// Retry makes the rows due now, and the next dispatch of steps that wait for
// one. It spends no budget and may be repeated. The errors are [*apierror.Error]s;
// the rows retried before an error stay retried.
func (o *Operator) Retry(ctx context.Context, r RetryRequest) (report Report, err error) {
	r.Filter.Retryable = true
	switch {
	case len(r.OutboxIDs) > 0:
		for i := 0; i < len(r.OutboxIDs) && err == nil; i++ {
			err = o.retryRow(ctx, r.OutboxIDs[i], r, &report)
		}
	case r.JobID != "":
		var agg *statemachine.Aggregate
		if agg, err = o.ledger.Job(ctx, r.JobID); err == nil && r.Filter.Matches(agg) {
			err = o.retryJob(ctx, agg, r, &report)
		}
	default:
		report, err = o.retryFound(ctx, r)
	}
	return report, ledger.Problem(err)
}

// retryFound retries the rows that the filter selects.
func (o *Operator) retryFound(ctx context.Context, r RetryRequest) (report Report, err error) {
	timed, cancel := context.WithTimeout(ctx, retryTime)
	defer cancel()
	group, finding := errgroup.WithContext(timed)
	group.SetLimit(retriedAtOnce)
	var mu sync.Mutex // guards the counts of the report
	begun := 0
	for found, failed := range o.find.Find(finding, &r.Filter, nil) {
		if report.More = timed.Err() != nil && ctx.Err() == nil; report.More || r.Limit > 0 && begun == r.Limit {
			break
		}
		if failed != nil {
			err = failed
			break
		}
		if found.Damaged { // The log of its relay names it.
			continue
		}
		begun++
		group.Go(func() error {
			var one Report
			err := o.retryJob(ctx, found.Job, r, &one)
			mu.Lock()
			defer mu.Unlock()
			report.Matched += one.Matched
			report.Retried += one.Retried
			report.Skipped = append(report.Skipped, one.Skipped...)
			return err
		})
	}
	if first := group.Wait(); first != nil { // It has cancelled the search.
		err = first
	}
	return report, err
}

// retryRow retries one row by its id, or reports why it cannot.
func (o *Operator) retryRow(ctx context.Context, id string, r RetryRequest, report *Report) error {
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
		return o.retryStep(ctx, parts.JobID, &agg.Steps[parts.StepIndex], r, report)
	}
	return nil
}

// retryJob retries the job's waiting row. A step that can be retried was dispatched, and is the
// current one.
func (o *Operator) retryJob(ctx context.Context, agg *statemachine.Aggregate, r RetryRequest, report *Report) error {
	report.Matched++
	return o.retryStep(ctx, agg.Job.ID, &agg.Steps[agg.Job.CurrentStepIndex], r, report)
}

// retryStep makes the step's row due.
func (o *Operator) retryStep(
	ctx context.Context, jobID string, step *statemachine.Step, r RetryRequest, report *Report,
) error {
	opts := []ledger.Option{ledger.By(r.Actor, r.RequestID), ledger.InTenant(r.Filter.TenantID)}
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
