package jobs

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Filter narrows a list of jobs. Its zero value is all jobs of the last months.
type Filter struct {
	TenantID    string
	State       statemachine.JobState
	RequestType string
	// CorrelationID needs TenantID.
	CorrelationID string
	// CreatedAfter and CreatedBefore, if not zero, bound the time of acceptance:
	// CreatedAfter ≤ accepted < CreatedBefore.
	CreatedAfter  time.Time
	CreatedBefore time.Time
}

const (
	// defaultMonths is how many months back a list goes without CreatedAfter.
	defaultMonths = 3
	// maxMonths bounds how far back a list may go.
	maxMonths = 120
	// maxExamined bounds the jobs that are read for one page.
	maxExamined = 2000
	// maxTenants bounds the tenants whose jobs are merged into one list.
	maxTenants = 1000
)

// List returns one page of jobs, newest first, and the position to continue after,
// empty at the end. A page may hold fewer jobs than the limit and still not be the
// last. Each job is read from its own rows. The errors are [*problem.Error]s.
func (s *Service) List(ctx context.Context, f Filter, limit int, after string) ([]*statemachine.Aggregate, string, error) {
	if err := f.check(after); err != nil {
		return nil, "", err
	}
	tenants, err := s.tenants(ctx, &f)
	if err != nil {
		return nil, "", ledger.Problem(err)
	}
	list := &listing{service: s, filter: f, limit: limit, last: after, tenants: tenants}
	if err := list.run(ctx); err != nil {
		return nil, "", ledger.Problem(err)
	}
	if list.exhausted {
		return list.found, "", nil
	}
	return list.found, list.last, nil
}

// check names the first invalid parameter.
func (f *Filter) check(after string) error {
	var message string
	switch {
	case f.CorrelationID != "" && f.TenantID == "":
		message = "parameter correlation_id needs tenant_id"
	case after != "" && ledger.ParseJobID(after) != nil:
		message = "page_token is invalid"
	case !f.CreatedAfter.IsZero() && !f.CreatedBefore.IsZero() && !f.CreatedAfter.Before(f.CreatedBefore):
		message = "parameter created_after must be before created_before"
	default:
		return nil
	}
	return &problem.Error{Code: problem.InvalidEnvelope, Errors: []problem.Violation{{Message: message}}}
}

// tenants returns the tenants whose jobs are listed.
func (s *Service) tenants(ctx context.Context, f *Filter) ([]string, error) {
	if f.TenantID != "" {
		return []string{f.TenantID}, nil
	}
	return s.ledger.Tenants(ctx, "", maxTenants)
}

// listing is a page that is being filled.
type listing struct {
	service *Service
	filter  Filter
	limit   int
	tenants []string

	found    []*statemachine.Aggregate
	last     string // the job that was looked at last
	examined int
	// exhausted says that no job comes after the last one.
	exhausted bool
}

// run looks at jobs until the page is full.
func (l *listing) run(ctx context.Context) error {
	query := HintQuery{Tenants: l.tenants, After: l.last, Page: l.limit}
	for hint, err := range l.filter.Hints(ctx, l.service.ledger, query) {
		if err != nil {
			return err
		}
		if err := l.look(ctx, hint.JobID); err != nil {
			return err
		}
		if len(l.found) == l.limit || l.examined == maxExamined {
			return nil
		}
	}
	l.exhausted = true
	return nil
}

// look reads a job, and keeps it if it matches.
func (l *listing) look(ctx context.Context, jobID string) error {
	l.last = jobID
	l.examined++
	agg, err := l.service.ledger.Job(ctx, jobID)
	if errors.Is(err, ledger.ErrJobNotFound) {
		return nil // Its accept never committed, or it is purged.
	}
	if err != nil {
		return err
	}
	if l.filter.matches(&agg.Job) {
		l.found = append(l.found, agg)
	}
	return nil
}

// matches applies the filter to the job itself.
func (f *Filter) matches(job *statemachine.Job) bool {
	return !slices.Contains([]bool{
		f.TenantID == "" || job.TenantID == f.TenantID,
		f.State == "" || job.State == f.State,
		f.RequestType == "" || job.RequestType == f.RequestType,
		f.CorrelationID == "" || job.CorrelationID == f.CorrelationID,
		f.CreatedAfter.IsZero() || !job.CreatedAt.Before(f.CreatedAfter),
		f.CreatedBefore.IsZero() || job.CreatedAt.Before(f.CreatedBefore),
	}, false)
}
