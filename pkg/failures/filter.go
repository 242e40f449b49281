package failures

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Filter narrows the failed jobs. Its zero value is all that were accepted in
// this month or the two before it.
type Filter struct {
	TenantID    string
	RequestType string
	// StepType and ErrorCode are where and why the job failed.
	StepType  string
	ErrorCode string
	// CreatedAfter and CreatedBefore bound the acceptance, from and to, where
	// they are not zero. It is taken from the job's id.
	CreatedAfter  time.Time
	CreatedBefore time.Time
}

// possible reports whether a job can match.
func (f *Filter) possible() bool {
	return f.CreatedAfter.IsZero() || f.CreatedBefore.IsZero() || f.CreatedAfter.Before(f.CreatedBefore)
}

// invalid is the problem of a request with one violation.
func invalid(pointer, message string) error {
	return &problem.Error{
		Code: problem.InvalidEnvelope, Errors: []problem.Violation{{Pointer: pointer, Message: message}},
	}
}

// matches holds the filter against an index entry.
func (f *Filter) matches(hint *jobs.Hint) bool {
	accepted := ledger.IDTime(hint.JobID)
	return !slices.Contains([]bool{
		f.RequestType == "" || hint.RequestType == f.RequestType,
		f.StepType == "" || hint.StepType == f.StepType,
		f.ErrorCode == "" || hint.ErrorCode == f.ErrorCode,
		f.CreatedAfter.IsZero() || !accepted.Before(f.CreatedAfter),
		f.CreatedBefore.IsZero() || accepted.Before(f.CreatedBefore),
	}, false)
}

const (
	// maxExamined bounds the index entries that are read for one question.
	maxExamined = 100_000
	// tenantPage is how many tenants' entries are merged.
	tenantPage = 1000
	// entryPage is how many entries are read at once.
	entryPage = 1000
)

// walk reads the index of failed jobs.
type walk struct {
	ledger   Ledger
	filter   Filter
	examined int
	// truncated says that there are more entries than were read.
	truncated bool
}

// hints yields the entries that match, the newest first among each thousand
// tenants.
func (w *walk) hints(ctx context.Context) iter.Seq2[jobs.Hint, error] {
	return func(yield func(jobs.Hint, error) bool) {
		for tenants, err := range w.tenants(ctx) {
			if err != nil {
				yield(jobs.Hint{}, err)
				return
			}
			if !w.ofTenants(ctx, tenants, yield) {
				return
			}
		}
	}
}

// tenants yields those whose jobs are asked for, page by page.
func (w *walk) tenants(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		if w.filter.TenantID != "" {
			yield([]string{w.filter.TenantID}, nil)
			return
		}
		after := ""
		for {
			page, err := w.ledger.Tenants(ctx, after, tenantPage)
			if err == nil && len(page) == 0 {
				return
			}
			if !yield(page, err) || err != nil {
				return
			}
			after = page[len(page)-1]
		}
	}
}

// ofTenants yields the entries of these tenants, and reports whether more are
// wanted.
func (w *walk) ofTenants(ctx context.Context, tenants []string, yield func(jobs.Hint, error) bool) bool {
	list := jobs.Filter{
		State: statemachine.JobFailedFinal, CreatedAfter: w.filter.CreatedAfter, CreatedBefore: w.filter.CreatedBefore,
	}
	for hint, err := range list.Hints(ctx, w.ledger, jobs.HintQuery{Tenants: tenants, Page: entryPage}) {
		if err != nil {
			yield(hint, err)
			return false
		}
		if w.examined == maxExamined {
			w.truncated = true
			return false
		}
		w.examined++
		if w.filter.matches(&hint) && !yield(hint, nil) {
			return false
		}
	}
	return true
}
