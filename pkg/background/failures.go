package background

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// OperationsLedger is what [Operations] needs of the ledger.
type OperationsLedger interface {
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
	Change(ctx context.Context, jobID string, event statemachine.Event, o ...ledger.Option) (ledger.Result, error)
	History(ctx context.Context, jobID string, after int64, limit int) ([]ledger.HistoryEntry, int64, error)
	Rerun(ctx context.Context, rerun ledger.Rerun) (ledger.Accepted, error)
	SupersededBy(ctx context.Context, job *statemachine.Job) (string, error)
	Index(ctx context.Context, query ledger.IndexQuery) ([]ledger.IndexEntry, bool, error)
	Tenants(ctx context.Context, after string, limit int) ([]string, error)
	Live(ctx context.Context, tenantID string, shard, limit int, from string) ([]string, string, error)
	Shards() int
	Atomic() bool
	NewJobID() (string, error)
}

// OperationsConfig configures [Operations].
type OperationsConfig struct {
	// Ledger holds the jobs. Required.
	Ledger OperationsLedger
	// Store holds the operations. Required.
	Store tablestore.Store
	// Table is the table of the operations. Required.
	Table string
	// Live finds live jobs by their traits. Optional: without it, all live jobs are read.
	Live search.LiveIndex
	// Random returns numbers in [0, 1), for the delays after write conflicts. Optional.
	// Defaults to math/rand/v2. It must be safe for concurrent use.
	Random func() float64
}

// Operations groups failed jobs, and stores operations on many jobs, which [Bulk] carries
// out. It is safe for concurrent use, by any number of processes on one store.
type Operations struct{ cfg OperationsConfig }

// NewOperations returns the service. The error names the fields that are required.
func NewOperations(cfg OperationsConfig) (*Operations, error) {
	if cfg.Ledger == nil || cfg.Store == nil || cfg.Table == "" {
		return nil, errors.New("operations: Ledger, Store and Table are required")
	}
	return &Operations{cfg: cfg}, nil
}

const (
	maxExamined = 100_000 // index entries read for one request
	tenantPage  = 1000    // tenants whose entries are merged
	entryPage   = 1000    // index entries read at once
	maxGroups   = 500
	maxSamples  = 5
	maxVerified = 2000 // jobs read because their entries are recent
	readers     = 8    // jobs read concurrently
	// commitGrace is how long after a job's end its index entry may precede the commit.
	commitGrace = 2 * time.Minute
)

// failure is a failed job as the index lists it.
type failure struct {
	search.Hint
	verified bool // the job has been read
	wrong    bool // the job did not fail after all
}

// failureWalk reads the index of failed jobs.
type failureWalk struct {
	ledger    OperationsLedger
	filter    Filter
	truncated bool // the walk ended at maxExamined entries
	recent    int  // entries whose jobs were read
}

// failures yields the failed jobs that match, in the order of [failureWalk.hints]. It reads
// the jobs of the first maxVerified entries whose commit may be under way; an atomic store
// has no such entries.
func (w *failureWalk) failures(ctx context.Context) iter.Seq2[*failure, error] {
	return func(yield func(*failure, error) bool) {
		now := time.Now()
		var chunk, unverified []*failure
		flush := func() bool {
			if err := verify(ctx, w.ledger, unverified); err != nil {
				yield(nil, err)
				return false
			}
			for _, f := range chunk {
				if !f.wrong && !yield(f, nil) {
					return false
				}
			}
			chunk, unverified = nil, nil
			return true
		}
		for hint, err := range w.hints(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			f := &failure{Hint: hint}
			rerunAt := ledger.IDTime(f.SupersededBy)
			recent := now.Sub(f.EndedAt) < commitGrace || now.Sub(rerunAt) < ledger.RerunGrace
			if recent && w.recent < maxVerified && !w.ledger.Atomic() {
				w.recent++
				unverified = append(unverified, f)
			}
			if chunk = append(chunk, f); len(chunk) == entryPage && !flush() {
				return
			}
		}
		flush()
	}
}

// hints yields the entries that match, page of tenants by page, each newest first.
func (w *failureWalk) hints(ctx context.Context) iter.Seq2[search.Hint, error] {
	return func(yield func(search.Hint, error) bool) {
		list := w.filter.list()
		examined := 0
		for tenants, err := range w.tenants(ctx) {
			if err != nil {
				yield(search.Hint{}, err)
				return
			}
			for hint, err := range list.Hints(ctx, w.ledger, search.HintQuery{Tenants: tenants, Page: entryPage}) {
				if w.truncated = err == nil && examined == maxExamined; w.truncated {
					return
				}
				examined++
				if err == nil && !w.filter.matchesFailure(&hint) {
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

// FailureGroup describes the failed jobs with the same step type, service and error code.
type FailureGroup struct {
	StepType  string
	Service   string
	ErrorCode string
	// Resolved says that each of the jobs has a rerun that was not cancelled; otherwise
	// none has.
	Resolved     bool
	Count        int
	FirstAt      time.Time // when the first job failed
	LastAt       time.Time // when the last job failed
	SampleJobIDs []string  // the jobs that failed last, at most 5
	// Tenants are the tenants with the most jobs, at most 5 of the TenantCount.
	Tenants     []FailureTenant
	TenantCount int
	// Histogram counts the failures in each of [FailureBuckets] equal parts of the
	// report's time span.
	Histogram []int
}

// FailureTenant counts a group's jobs of one tenant.
type FailureTenant struct {
	TenantID string
	Count    int
}

// FailureBuckets is the length of a [FailureGroup]'s histogram.
const FailureBuckets = 30

// FailureReport is the result of [Operations.Groups].
type FailureReport struct {
	Groups    []FailureGroup // largest first, at most 500
	Truncated bool           // there are more jobs or groups
	// From and To bound the histograms: as the filter says, otherwise from the first
	// failure until now. They are zero if there are no groups.
	From, To time.Time
}

type groupKey struct {
	stepType, service, errorCode string
	resolved                     bool
}

// tally is a group that is still being counted, with its newest jobs.
type tally struct {
	FailureGroup
	newest  []*failure
	tenants map[string]int
	ended   []time.Time
}

// Groups returns the failed jobs in groups: the jobs without a rerun and, if resolved is
// set, those with one. It counts at most 100,000 jobs.
//
// It counts index entries, which are written before the commit that ends the job or makes
// its rerun. So it reads the jobs of the first 2,000 entries whose commit may be under way,
// and all samples. It trusts the other entries, a few of which may be left from commits that
// lost a race. The errors are [*apierror.Error]s.
func (s *Operations) Groups(ctx context.Context, f Filter, resolved bool) (report FailureReport, err error) {
	defer func() { err = ledger.Problem(err) }()
	if first, second := f.contradiction(); first != "" {
		return report, invalidRequest("", "parameter "+first+" must be before "+second)
	}
	walk := &failureWalk{ledger: s.cfg.Ledger, filter: f}
	tallies := map[groupKey]*tally{}
	for failed, err := range walk.failures(ctx) {
		if err != nil {
			return report, err
		}
		if resolved || failed.SupersededBy == "" {
			count(tallies, failed)
		}
	}
	report.Truncated = walk.truncated || len(tallies) > maxGroups
	if len(tallies) == 0 {
		return report, nil
	}
	report.From, report.To = f.FailedAfter, f.FailedBefore
	if now := time.Now(); report.To.IsZero() || report.To.After(now) {
		report.To = now
	}
	for _, group := range tallies {
		if f.FailedAfter.IsZero() && (report.From.IsZero() || group.FirstAt.Before(report.From)) {
			report.From = group.FirstAt
		}
	}
	report.Groups, err = s.largest(ctx, slices.Collect(maps.Values(tallies)), report.From, report.To)
	return report, err
}

// largest returns the largest groups, with histograms of the time between from and to. It
// reads the samples and discounts those that did not fail.
func (s *Operations) largest(ctx context.Context, tallies []*tally, from, to time.Time) ([]FailureGroup, error) {
	slices.SortFunc(tallies, func(a, b *tally) int { return larger(&a.FailureGroup, &b.FailureGroup) })
	tallies = tallies[:min(len(tallies), maxGroups)]
	var samples []*failure
	for _, group := range tallies {
		samples = append(samples, group.newest...)
	}
	if err := verify(ctx, s.cfg.Ledger, samples); err != nil {
		return nil, err
	}
	var groups []FailureGroup
	for _, group := range tallies {
		for _, sample := range group.newest {
			if sample.wrong {
				group.Count--
				group.tenants[sample.TenantID]--
				at := slices.Index(group.ended, sample.EndedAt)
				group.ended = slices.Delete(group.ended, at, at+1)
				continue
			}
			if len(group.SampleJobIDs) == 0 {
				group.LastAt = sample.EndedAt
			}
			group.SampleJobIDs = append(group.SampleJobIDs, sample.JobID)
		}
		if group.Count > 0 {
			group.complete(from, to)
			groups = append(groups, group.FailureGroup)
		}
	}
	slices.SortFunc(groups, func(a, b FailureGroup) int { return larger(&a, &b) })
	return groups, nil
}

// count adds a job to its group.
func count(tallies map[groupKey]*tally, failed *failure) {
	key := groupKey{failed.StepType, failed.Service, failed.ErrorCode, failed.SupersededBy != ""}
	group, ok := tallies[key]
	if !ok {
		group = &tally{FailureGroup: FailureGroup{
			StepType: key.stepType, Service: key.service, ErrorCode: key.errorCode, Resolved: key.resolved, FirstAt: failed.EndedAt,
		}, tenants: map[string]int{}}
		tallies[key] = group
	}
	group.Count++
	group.tenants[failed.TenantID]++
	group.ended = append(group.ended, failed.EndedAt)
	if failed.EndedAt.Before(group.FirstAt) {
		group.FirstAt = failed.EndedAt
	}
	if failed.EndedAt.After(group.LastAt) {
		group.LastAt = failed.EndedAt
	}
	at, _ := slices.BinarySearchFunc(group.newest, failed, func(a, b *failure) int { return b.EndedAt.Compare(a.EndedAt) })
	if at < maxSamples {
		group.newest = slices.Insert(group.newest, at, failed)
		group.newest = group.newest[:min(len(group.newest), maxSamples)]
	}
}

// complete sets the group's tenants, and its histogram of the time between from and to.
func (t *tally) complete(from, to time.Time) {
	for tenantID, count := range t.tenants {
		if count > 0 {
			t.Tenants = append(t.Tenants, FailureTenant{TenantID: tenantID, Count: count})
		}
	}
	t.TenantCount = len(t.Tenants)
	slices.SortFunc(t.Tenants, func(a, b FailureTenant) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.TenantID, b.TenantID))
	})
	t.Tenants = t.Tenants[:min(len(t.Tenants), maxSamples)]
	t.Histogram = make([]int, FailureBuckets)
	for _, at := range t.ended {
		part := float64(at.Sub(from)) / float64(max(to.Sub(from), 1))
		t.Histogram[min(max(int(part*FailureBuckets), 0), FailureBuckets-1)]++ // A replica's clock may be ahead.
	}
}

// larger orders groups by count, then by the last failure, both descending.
func larger(a, b *FailureGroup) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), b.LastAt.Compare(a.LastAt), cmp.Compare(a.StepType, b.StepType),
		cmp.Compare(a.Service, b.Service), cmp.Compare(a.ErrorCode, b.ErrorCode))
}

// verify reads those jobs that have not been read, concurrently. It marks the jobs that did
// not fail, and clears reruns that do not exist.
func verify(ctx context.Context, l OperationsLedger, failures []*failure) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for _, f := range failures {
		if f.verified {
			continue
		}
		group.Go(func() error {
			agg, err := l.Job(ctx, f.JobID)
			if err != nil && !errors.Is(err, ledger.ErrJobNotFound) {
				return err
			}
			f.verified, f.wrong = true, err != nil || agg.Job.State != statemachine.JobFailedFinal
			if f.wrong || f.SupersededBy == "" {
				return nil
			}
			if _, err = l.Job(ctx, f.SupersededBy); errors.Is(err, ledger.ErrJobNotFound) {
				f.SupersededBy, err = "", nil
			}
			return err
		})
	}
	return group.Wait()
}
