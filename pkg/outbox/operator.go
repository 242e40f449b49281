package outbox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Operator lists rows, and makes waiting rows due. It is safe for concurrent use.
type Operator struct{ ledger *ledger.Ledger }

// NewOperator returns an operator on the ledger.
func NewOperator(l *ledger.Ledger) *Operator { return &Operator{ledger: l} }

// Filter chooses rows. Without OutboxIDs it chooses among the rows of live jobs those
// that are PENDING, or whose step waits in FAILED_RETRY; each field that is set
// narrows the choice.
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
// one. It spends no budget and may be repeated. The errors are [*problem.Error]s;
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
		for shard := 0; shard < o.ledger.Shards() && err == nil; shard++ {
			err = o.retryShard(ctx, shard, filter, &report)
		}
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

// retryShard retries the matching rows of the live jobs of one shard.
func (o *Operator) retryShard(ctx context.Context, shard int, filter Filter, report *Report) error {
	from := ""
	for {
		jobIDs, next, err := o.ledger.Live(ctx, filter.TenantID, shard, 256, from)
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
	if !ok {
		return nil
	}
	step := &agg.Steps[i]
	waits := step.State == statemachine.StepDispatching || step.State == statemachine.StepFailedRetry
	if !waits ||
		filter.TenantID != "" && agg.Job.TenantID != filter.TenantID ||
		filter.Lane != nil && step.Routing.Lane != *filter.Lane ||
		time.Since(step.UpdatedAt) < filter.OlderThan {
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

// Row is an outbox row of a job.
type Row struct {
	statemachine.Outbox
	JobID    string
	TenantID string
}

// ListFilter narrows a list of rows; each field that is set does.
type ListFilter struct {
	State    statemachine.OutboxState
	TenantID string
	Lane     *int
}

const (
	maxExamined = 2000 // How many jobs are read for one page of rows.
	endedMonths = 3    // How many months of ended jobs are listed, by their acceptance.
)

// endStates are the states of ended jobs, in the order in which their rows are listed.
var endStates = []statemachine.JobState{statemachine.JobFailedFinal, statemachine.JobCancelled, statemachine.JobSucceeded}

// listing is one page of rows in the making.
type listing struct {
	ListFilter
	*Operator
	limit    int
	rows     []Row
	examined int
}

// room is how many jobs may still be read for the page.
func (l *listing) room() int { return min(l.limit-len(l.rows), maxExamined-l.examined) }

// add lists the row of the job's latest attempt, if it matches.
func (l *listing) add(agg *statemachine.Aggregate) {
	row := agg.Outbox
	if row != nil &&
		(l.State == "" || row.State == l.State) &&
		(l.TenantID == "" || agg.Job.TenantID == l.TenantID) &&
		(l.Lane == nil || row.Routing.Lane == *l.Lane) {
		l.rows = append(l.rows, Row{Outbox: *row, JobID: agg.Job.ID, TenantID: agg.Job.TenantID})
	}
}

// List returns one page of the rows of the latest attempts, and the page token to
// continue with, empty at the end: first those of live jobs, in no particular order, then
// those of jobs that have ended, by tenant and month of acceptance, of the last three
// months. A job that ends in between may be listed twice. A page may be shorter than the
// limit without being the last. If the filter names a tenant, only its jobs are read, and
// the token names no others. The errors are [*problem.Error]s.
func (o *Operator) List(ctx context.Context, f ListFilter, limit int, after string) ([]Row, string, error) {
	l := &listing{ListFilter: f, Operator: o, limit: limit}
	at, err := parseToken(after, o.ledger.Shards())
	if err == nil && at.tenant != "" && f.TenantID != "" && at.tenant != f.TenantID {
		err = invalidToken(after)
	}
	if err != nil {
		return nil, "", err
	}
	next := ""
	if at.tenant == "" {
		next, err = l.live(ctx, at.shard, at.from)
		at.from = ""
	}
	if err == nil && next == "" && f.State != statemachine.OutboxPending { // No job ends with a row to publish.
		next, err = l.ended(ctx, at)
	}
	if err != nil {
		return nil, "", ledger.Problem(err)
	}
	return l.rows, next, nil
}

// live lists the rows of live jobs, shard by shard.
func (l *listing) live(ctx context.Context, shard int, from string) (next string, err error) {
	for shard < l.ledger.Shards() {
		// Whole pages are read, so that none is cut short by the limit.
		page := l.room()
		if page <= 0 {
			return strconv.Itoa(shard) + "/" + from, nil
		}
		jobs, next, err := l.ledger.LiveJobs(ctx, l.TenantID, shard, page, from)
		if err != nil {
			return "", err
		}
		for _, agg := range jobs {
			l.add(agg)
		}
		l.examined += page
		if from = next; from == "" {
			shard++
		}
	}
	return "", nil
}

// ended lists the rows of jobs that have ended, tenant by tenant. The list of a tenant
// is one of its months and end states.
func (l *listing) ended(ctx context.Context, at place) (next string, err error) {
	now := time.Now().UTC()
	month := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	for tenant := at.tenant; ; at = (place{}) {
		if at.tenant == "" {
			if tenant, err = l.tenantAfter(ctx, tenant); err != nil || tenant == "" {
				return "", err
			}
		}
		for list := at.list; list < endedMonths*len(endStates); list, at.from = list+1, "" {
			query := ledger.IndexQuery{
				TenantID: tenant, Month: month.AddDate(0, -list/len(endStates), 0), State: endStates[list%len(endStates)], After: at.from,
			}
			for more := true; more; {
				if query.Limit = l.room(); query.Limit <= 0 {
					return fmt.Sprintf("ended/%s/%d/%s", tablestore.Escape(tenant), list, query.After), nil
				}
				if more, err = l.endedPage(ctx, &query); err != nil {
					return "", err
				}
			}
		}
	}
}

// endedPage lists the rows of one page of ended jobs, moves the query past it, and
// reports whether there is more.
func (l *listing) endedPage(ctx context.Context, query *ledger.IndexQuery) (more bool, err error) {
	entries, more, err := l.ledger.Index(ctx, *query)
	if err != nil {
		return false, err
	}
	for i := range entries {
		query.After = entries[i].JobID
		agg, err := l.ledger.EndedJob(ctx, query.After)
		switch {
		case errors.Is(err, ledger.ErrJobNotFound): // It is purged.
		case err != nil:
			return false, err
		case agg.Job.State == query.State:
			l.add(agg)
		}
	}
	l.examined += max(1, len(entries))
	return more, nil
}

// tenantAfter returns the tenant whose ended jobs come next, empty at the end.
func (l *listing) tenantAfter(ctx context.Context, tenant string) (string, error) {
	if l.TenantID != "" {
		if tenant == "" {
			return l.TenantID, nil
		}
		return "", nil
	}
	names, err := l.ledger.Tenants(ctx, tenant, 1)
	if err != nil || len(names) == 0 {
		return "", err
	}
	return names[0], nil
}

// place is where a page begins: at a shard of the live jobs, or at a list of a tenant's
// ended ones, after the job from.
type place struct {
	shard  int
	tenant string
	list   int
	from   string
}

// parseToken reads a page token: "<shard>/<from>" or "ended/<tenant>/<list>/<job id>".
func parseToken(token string, shards int) (at place, err error) {
	if token == "" {
		return place{}, nil
	}
	number, rest, ok := strings.Cut(token, "/")
	if number != "ended" {
		at.from = rest
		at.shard, err = strconv.Atoi(number)
		if err != nil || !ok || at.shard < 0 || at.shard >= shards {
			return place{}, invalidToken(token)
		}
		return at, nil
	}
	parts := strings.Split(rest, "/")
	if len(parts) != 3 || parts[2] != "" && ledger.ParseJobID(parts[2]) != nil {
		return place{}, invalidToken(token)
	}
	at.from = parts[2]
	if at.tenant, err = tablestore.Unescape(parts[0]); err != nil || at.tenant == "" {
		return place{}, invalidToken(token)
	}
	if at.list, err = strconv.Atoi(parts[1]); err != nil || at.list < 0 {
		return place{}, invalidToken(token)
	}
	return at, nil
}

func invalidToken(token string) error {
	return &problem.Error{
		Code: problem.InvalidEnvelope, Err: fmt.Errorf("page token %q", token),
		Errors: []problem.Violation{{Message: "page_token is invalid"}},
	}
}
