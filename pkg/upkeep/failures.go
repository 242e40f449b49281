package upkeep

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// FailuresLedger is what [Failures] needs of the ledger.
type FailuresLedger interface {
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
	History(ctx context.Context, jobID string, after int64, limit int) ([]ledger.HistoryEntry, int64, error)
	Rerun(ctx context.Context, rerun ledger.Rerun) (ledger.Accepted, error)
	Index(ctx context.Context, query ledger.IndexQuery) ([]ledger.IndexEntry, bool, error)
	Tenants(ctx context.Context, after string, limit int) ([]string, error)
	NewJobID() (string, error)
}

// FailuresConfig configures a [Failures].
type FailuresConfig struct {
	// Ledger holds the jobs. Required.
	Ledger FailuresLedger
	// Store holds the operations. Required.
	Store tablestore.Store
	// Table is the table of the operations. Required.
	Table string
	// Random returns numbers in [0, 1), for the delays after lost races. Optional.
	// Defaults to math/rand/v2. It must be safe for concurrent use.
	Random func() float64
}

// Failures shows failed jobs in groups by step type and error code, and stores the
// operations that rerun them, which [Bulk] carries out. It is safe for concurrent use,
// by any number of processes on one store.
type Failures struct{ cfg FailuresConfig }

// NewFailures returns a service. The error names the fields that are required.
func NewFailures(cfg FailuresConfig) (*Failures, error) {
	if cfg.Ledger == nil || cfg.Store == nil || cfg.Table == "" {
		return nil, errors.New("failures: Ledger, Store and Table are required")
	}
	return &Failures{cfg: cfg}, nil
}

// FailureFilter selects failed jobs. Its zero value selects all that were accepted in
// this month or the two before it.
type FailureFilter struct {
	TenantID    string
	RequestType string
	StepType    string // where the job failed
	ErrorCode   string // why the job failed
	// CreatedAfter and CreatedBefore bound the acceptance, from and to, unless they
	// are zero. A job's id holds the time of its acceptance.
	CreatedAfter  time.Time
	CreatedBefore time.Time
}

// possible reports whether a job can match.
func (f *FailureFilter) possible() bool {
	return f.CreatedAfter.IsZero() || f.CreatedBefore.IsZero() || f.CreatedAfter.Before(f.CreatedBefore)
}

func (f *FailureFilter) matches(hint *jobs.Hint) bool {
	accepted := ledger.IDTime(hint.JobID)
	return (f.RequestType == "" || hint.RequestType == f.RequestType) &&
		(f.StepType == "" || hint.StepType == f.StepType) &&
		(f.ErrorCode == "" || hint.ErrorCode == f.ErrorCode) &&
		(f.CreatedAfter.IsZero() || !accepted.Before(f.CreatedAfter)) &&
		(f.CreatedBefore.IsZero() || accepted.Before(f.CreatedBefore))
}

// invalidRequest is the problem of a request with one violation.
func invalidRequest(pointer, message string) error {
	return &problem.Error{
		Code: problem.InvalidEnvelope, Errors: []problem.Violation{{Pointer: pointer, Message: message}},
	}
}

const (
	maxExamined = 100_000 // index entries that are read for one request
	tenantPage  = 1000    // tenants whose entries are merged
	entryPage   = 1000    // index entries that are read at once
	maxGroups   = 500
	maxSamples  = 5
	maxVerified = 2000 // young jobs that are read
	readers     = 8    // jobs that are read concurrently
	// unsettled is how long after a job's end its index entry may stand for a
	// commit that is still under way.
	unsettled = 2 * time.Minute
)

// failureWalk reads the index of failed jobs.
type failureWalk struct {
	ledger FailuresLedger
	filter FailureFilter
	// truncated says that the walk ended at maxExamined entries.
	truncated bool
}

// hints yields the entries that match, the newest first among each thousand
// tenants.
func (w *failureWalk) hints(ctx context.Context) iter.Seq2[jobs.Hint, error] {
	return func(yield func(jobs.Hint, error) bool) {
		list := jobs.Filter{
			State: statemachine.JobFailedFinal, CreatedAfter: w.filter.CreatedAfter, CreatedBefore: w.filter.CreatedBefore,
		}
		examined := 0
		for tenants, err := range w.tenants(ctx) {
			if err != nil {
				yield(jobs.Hint{}, err)
				return
			}
			for hint, err := range list.Hints(ctx, w.ledger, jobs.HintQuery{Tenants: tenants, Page: entryPage}) {
				if w.truncated = err == nil && examined == maxExamined; w.truncated {
					return
				}
				examined++
				if err == nil && !w.filter.matches(&hint) {
					continue
				}
				if !yield(hint, err) || err != nil {
					return
				}
			}
		}
	}
}

// tenants yields the tenants that the filter selects, page by page.
func (w *failureWalk) tenants(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		if w.filter.TenantID != "" {
			yield([]string{w.filter.TenantID}, nil)
			return
		}
		for after := ""; ; {
			page, err := w.ledger.Tenants(ctx, after, tenantPage)
			if err == nil && len(page) == 0 || !yield(page, err) || err != nil {
				return
			}
			after = page[len(page)-1]
		}
	}
}

// FailureGroup is the failed jobs of one step type and error code.
type FailureGroup struct {
	StepType     string
	ErrorCode    string
	Count        int
	FirstAt      time.Time // when the first of them failed
	LastAt       time.Time // when the last of them failed
	SampleJobIDs []string  // the newest of them, at most 5
}

// FailureReport is the failed jobs in groups.
type FailureReport struct {
	Groups    []FailureGroup // the largest ones, the largest first; at most 500
	Truncated bool           // there are more jobs or groups
}

// tally is a group in the making, with its newest jobs.
type tally struct {
	FailureGroup
	newest []*jobs.Hint
}

// Groups returns the failed jobs by step type and error code. At most 100,000
// jobs are counted.
//
// It counts entries of the index, which are written before the commit that ends the job.
// So it reads the jobs of the newest 2,000 entries of the last two minutes, whose commit
// may be under way, and of all samples; it counts older entries unread. An end that lost
// its race to another, which is rare, may be among those. The errors are
// [*problem.Error]s.
func (s *Failures) Groups(ctx context.Context, f FailureFilter) (report FailureReport, err error) {
	defer func() { err = ledger.Problem(err) }()
	if !f.possible() {
		return report, invalidRequest("", "parameter created_after must be before created_before")
	}
	walk := &failureWalk{ledger: s.cfg.Ledger, filter: f}
	now := time.Now()
	tallies := map[[2]string]*tally{}
	var young []*jobs.Hint
	for hint, err := range walk.hints(ctx) {
		switch {
		case err != nil:
			return report, err
		case now.Sub(hint.EndedAt) < unsettled && len(young) < maxVerified:
			young = append(young, &hint)
		default:
			count(tallies, &hint)
		}
	}
	failed := map[string]bool{} // by job id, of the jobs that were read
	if err := s.verify(ctx, young, failed); err != nil {
		return report, err
	}
	for _, hint := range young {
		if failed[hint.JobID] {
			count(tallies, hint)
		}
	}
	report.Truncated = walk.truncated || len(tallies) > maxGroups
	report.Groups, err = s.largest(ctx, tallies, failed)
	return report, err
}

// largest returns the largest groups, without the samples that did not fail.
func (s *Failures) largest(ctx context.Context, tallies map[[2]string]*tally, failed map[string]bool) ([]FailureGroup, error) {
	sorted := slices.SortedFunc(maps.Values(tallies), func(a, b *tally) int { return larger(a.FailureGroup, b.FailureGroup) })
	sorted = sorted[:min(len(sorted), maxGroups)]
	var samples []*jobs.Hint
	for _, group := range sorted {
		for _, hint := range group.newest {
			if _, known := failed[hint.JobID]; !known {
				samples = append(samples, hint)
			}
		}
	}
	if err := s.verify(ctx, samples, failed); err != nil {
		return nil, err
	}
	var groups []FailureGroup
	for _, group := range sorted {
		for _, hint := range group.newest {
			if !failed[hint.JobID] {
				group.Count--
				continue
			}
			if len(group.SampleJobIDs) == 0 {
				group.LastAt = hint.EndedAt
			}
			group.SampleJobIDs = append(group.SampleJobIDs, hint.JobID)
		}
		if group.Count > 0 {
			groups = append(groups, group.FailureGroup)
		}
	}
	slices.SortFunc(groups, larger)
	return groups, nil
}

// count adds a job to its group.
func count(tallies map[[2]string]*tally, hint *jobs.Hint) {
	key := [2]string{hint.StepType, hint.ErrorCode}
	group, ok := tallies[key]
	if !ok {
		group = &tally{FailureGroup: FailureGroup{StepType: hint.StepType, ErrorCode: hint.ErrorCode, FirstAt: hint.EndedAt}}
		tallies[key] = group
	}
	group.Count++
	if hint.EndedAt.Before(group.FirstAt) {
		group.FirstAt = hint.EndedAt
	}
	if hint.EndedAt.After(group.LastAt) {
		group.LastAt = hint.EndedAt
	}
	at, _ := slices.BinarySearchFunc(group.newest, hint, func(a, b *jobs.Hint) int { return b.EndedAt.Compare(a.EndedAt) })
	if at < maxSamples {
		group.newest = slices.Insert(group.newest, at, hint)
		group.newest = group.newest[:min(len(group.newest), maxSamples)]
	}
}

// larger orders groups by count, then by the last failure, the latest first.
func larger(a, b FailureGroup) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), b.LastAt.Compare(a.LastAt),
		cmp.Compare(a.StepType, b.StepType), cmp.Compare(a.ErrorCode, b.ErrorCode))
}

// verify reads the jobs concurrently, and notes which of them failed.
func (s *Failures) verify(ctx context.Context, hints []*jobs.Hint, failed map[string]bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	var mu sync.Mutex
	for _, hint := range hints {
		group.Go(func() error {
			agg, err := s.cfg.Ledger.Job(ctx, hint.JobID)
			if err != nil && !errors.Is(err, ledger.ErrJobNotFound) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			failed[hint.JobID] = err == nil && agg.Job.State == statemachine.JobFailedFinal
			return nil
		})
	}
	return group.Wait()
}
