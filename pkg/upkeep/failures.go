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

// FailuresConfig is what a [Failures] is made of.
type FailuresConfig struct {
	// Ledger holds the jobs. Required.
	Ledger FailuresLedger
	// Store holds the operations. Required.
	Store tablestore.Store
	// Table is theirs. Required.
	Table string
	// Random returns numbers in [0, 1), for the delays after lost races. Optional.
	// Defaults to math/rand/v2. It must be safe for concurrent use.
	Random func() float64
}

// Failures shows failed jobs in groups by step type and error code, and keeps the
// operations that rerun them; [Bulk] works on those. It is
// safe for concurrent use, by any number of processes on one store.
type Failures struct{ cfg FailuresConfig }

// NewFailures returns a service. The error names the fields that are required.
func NewFailures(cfg FailuresConfig) (*Failures, error) {
	if cfg.Ledger == nil || cfg.Store == nil || cfg.Table == "" {
		return nil, errors.New("failures: Ledger, Store and Table are required")
	}
	return &Failures{cfg: cfg}, nil
}

// FailureFilter narrows the failed jobs. Its zero value is all that were accepted in
// this month or the two before it.
type FailureFilter struct {
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
func (f *FailureFilter) possible() bool {
	return f.CreatedAfter.IsZero() || f.CreatedBefore.IsZero() || f.CreatedAfter.Before(f.CreatedBefore)
}

// invalidRequest is the problem of a request with one violation.
func invalidRequest(pointer, message string) error {
	return &problem.Error{
		Code: problem.InvalidEnvelope, Errors: []problem.Violation{{Pointer: pointer, Message: message}},
	}
}

// matches holds the filter against an index entry.
func (f *FailureFilter) matches(hint *jobs.Hint) bool {
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

// failureWalk reads the index of failed jobs.
type failureWalk struct {
	ledger   FailuresLedger
	filter   FailureFilter
	examined int
	// truncated says that there are more entries than were read.
	truncated bool
}

// hints yields the entries that match, the newest first among each thousand
// tenants.
func (w *failureWalk) hints(ctx context.Context) iter.Seq2[jobs.Hint, error] {
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
func (w *failureWalk) tenants(ctx context.Context) iter.Seq2[[]string, error] {
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
func (w *failureWalk) ofTenants(ctx context.Context, tenants []string, yield func(jobs.Hint, error) bool) bool {
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

// FailureGroup is the failed jobs of one step type and error code.
type FailureGroup struct {
	StepType  string
	ErrorCode string
	Count     int
	// FirstAt and LastAt are when the first and the last of them failed.
	FirstAt time.Time
	LastAt  time.Time
	// SampleJobIDs are the newest of them, at most 5.
	SampleJobIDs []string
}

// FailureReport is the failed jobs in groups.
type FailureReport struct {
	// Groups are the largest ones, the largest first; at most 500.
	Groups []FailureGroup
	// Truncated says that there are more jobs or groups than are in the report.
	Truncated bool
}

const (
	maxGroups  = 500
	maxSamples = 5
	// unsettled is how long after its end a job's index entry may stand for a
	// commit that is still under way.
	unsettled = 2 * time.Minute
	// maxVerified bounds the jobs that are read for being that young.
	maxVerified = 2000
	// readers is how many jobs are read side by side.
	readers = 8
)

// Groups returns the failed jobs by step type and error code. At most 100,000
// jobs are counted.
//
// The counts are those of the index, whose entries are written before the end
// that they speak of. So the newest 2,000 entries of the last two minutes, whose
// end may be under way, are held against their jobs, and so are all samples;
// what is older is counted as it stands. An end that lost its race to another,
// which is rare, may be counted there. The errors are [*problem.Error]s.
func (s *Failures) Groups(ctx context.Context, f FailureFilter) (FailureReport, error) {
	if !f.possible() {
		return FailureReport{}, invalidRequest("", "parameter created_after must be before created_before")
	}
	survey := &survey{service: s, now: time.Now(), groups: map[groupKey]*tally{}, failed: map[string]bool{}}
	truncated, err := survey.take(ctx, f)
	if err != nil {
		return FailureReport{}, ledger.Problem(err)
	}
	groups, cut, err := survey.report(ctx)
	if err != nil {
		return FailureReport{}, ledger.Problem(err)
	}
	return FailureReport{Groups: groups, Truncated: truncated || cut}, nil
}

type groupKey struct{ stepType, errorCode string }

// tally is a group in the making, with its newest jobs.
type tally struct {
	FailureGroup
	newest []*jobs.Hint
}

// survey counts failed jobs.
type survey struct {
	service *Failures
	now     time.Time
	groups  map[groupKey]*tally
	// failed says of each job that was read whether it did fail.
	failed map[string]bool
}

// take counts all that the filter finds, and reports whether there is more.
func (v *survey) take(ctx context.Context, f FailureFilter) (truncated bool, err error) {
	walk := &failureWalk{ledger: v.service.cfg.Ledger, filter: f}
	var young []jobs.Hint
	for hint, err := range walk.hints(ctx) {
		if err != nil {
			return false, err
		}
		if v.now.Sub(hint.EndedAt) < unsettled && len(young) < maxVerified {
			young = append(young, hint)
			continue
		}
		v.count(&hint)
	}
	if err := v.verify(ctx, young); err != nil {
		return false, err
	}
	for i := range young {
		if v.failed[young[i].JobID] {
			v.count(&young[i])
		}
	}
	return walk.truncated, nil
}

// count adds a job to its group.
func (v *survey) count(hint *jobs.Hint) {
	key := groupKey{hint.StepType, hint.ErrorCode}
	group, ok := v.groups[key]
	if !ok {
		group = &tally{FailureGroup: FailureGroup{StepType: hint.StepType, ErrorCode: hint.ErrorCode, FirstAt: hint.EndedAt}}
		v.groups[key] = group
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

// report returns the largest groups, without samples that did not fail, and
// whether there are more.
func (v *survey) report(ctx context.Context) (groups []FailureGroup, cut bool, err error) {
	largest := slices.SortedFunc(maps.Values(v.groups), func(a, b *tally) int { return larger(&a.FailureGroup, &b.FailureGroup) })
	cut = len(largest) > maxGroups
	largest = largest[:min(len(largest), maxGroups)]
	var samples []jobs.Hint
	for _, group := range largest {
		for _, hint := range group.newest {
			if _, known := v.failed[hint.JobID]; !known {
				samples = append(samples, *hint)
			}
		}
	}
	if err := v.verify(ctx, samples); err != nil {
		return nil, false, err
	}
	for _, group := range largest {
		if v.sample(group); group.Count > 0 {
			groups = append(groups, group.FailureGroup)
		}
	}
	slices.SortFunc(groups, func(a, b FailureGroup) int { return larger(&a, &b) })
	return groups, cut, nil
}

// larger is the order of groups: by count, then the one that failed last.
func larger(a, b *FailureGroup) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), b.LastAt.Compare(a.LastAt),
		cmp.Compare(a.StepType, b.StepType), cmp.Compare(a.ErrorCode, b.ErrorCode))
}

// sample names the group's newest jobs, and takes those that did not fail off
// its count.
func (v *survey) sample(group *tally) {
	for _, hint := range group.newest {
		if !v.failed[hint.JobID] {
			group.Count--
			continue
		}
		if len(group.SampleJobIDs) == 0 {
			group.LastAt = hint.EndedAt
		}
		group.SampleJobIDs = append(group.SampleJobIDs, hint.JobID)
	}
}

// verify reads the jobs, side by side.
func (v *survey) verify(ctx context.Context, hints []jobs.Hint) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	var mu sync.Mutex
	for i := range hints {
		group.Go(func() error {
			agg, err := v.service.cfg.Ledger.Job(ctx, hints[i].JobID)
			if err != nil && !errors.Is(err, ledger.ErrJobNotFound) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			v.failed[hints[i].JobID] = err == nil && agg.Job.State == statemachine.JobFailedFinal
			return nil
		})
	}
	return group.Wait()
}
