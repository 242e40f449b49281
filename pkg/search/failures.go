package search

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// FailureKind is what the jobs of a [FailureGroup] have in common.
type FailureKind struct {
	StepType, Service, ErrorCode string
	// Resolved says that each of the jobs has a rerun that was not cancelled; otherwise
	// none has.
	Resolved bool
	// Retrying says that the jobs are live: their step failed and is retried.
	Retrying bool
}

// FailureGroup describes the failed jobs of one kind, or the retrying ones.
type FailureGroup struct {
	FailureKind

	Count        int
	FirstAt      time.Time // when the first job failed
	LastAt       time.Time // when the last job failed
	SampleJobIDs []string  // the jobs that failed last, at most 5
	// SampleMessage is the error message of the newest sample job that has one.
	SampleMessage string
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

// FailureReport is the result of [Finder.Failures].
type FailureReport struct {
	Groups    []FailureGroup // largest first, at most 500
	Truncated bool           // there are more jobs or groups
	// From and To bound the histograms: as the filter says, otherwise from the first
	// failure until now. They are zero if there are no groups.
	From, To time.Time
}

const (
	maxGroups  = 500
	maxSamples = 5
	maxMessage = 512 // bytes of an error message
)

// tally is a group that is still being counted.
type tally struct {
	FailureGroup
	jobs   []tallied
	newest []*Found // at most maxSamples
}

// tallied is what a tally keeps of each job.
type tallied struct {
	at     time.Time
	tenant string
}

// tallies are the groups of one report.
type tallies struct {
	of        map[FailureKind]*tally
	resolved  bool      // also count jobs that were rerun
	first     time.Time // when the first job failed
	truncated bool      // a walk ended at its bound
}

// count counts the jobs, which are all retrying or all failed. The error is the source's.
func (c *tallies) count(jobs iter.Seq2[*Found, error], retrying bool) error {
	for found, err := range jobs {
		if _, more := errors.AsType[*MoreError](err); more {
			c.truncated = true
			continue
		}
		if err != nil {
			return err
		}
		if found.SupersededBy != "" && !c.resolved || found.Damaged && found.EndedAt.IsZero() { // Its list does not say how it ended.
			continue
		}
		kind := FailureKind{found.StepType, found.Service, found.ErrorCode, found.SupersededBy != "", retrying}
		if c.of[kind] == nil {
			c.of[kind] = &tally{FailureGroup: FailureGroup{FailureKind: kind}}
		}
		c.of[kind].add(found)
		if c.first.IsZero() || found.EndedAt.Before(c.first) {
			c.first = found.EndedAt
		}
	}
	return nil
}

// Include says which groups a [FailureReport] has beside those of failed jobs without a rerun.
type Include struct {
	Resolved bool // those with a rerun
	Retrying bool // live jobs whose current step failed and is retried
}

// maxRetrying is how many live jobs are read for one report.
const maxRetrying = 2_000

// Failures is [Finder.Failures] for all tenants of the ledger.
func (s *Service) Failures(ctx context.Context, f Filter, include Include) (FailureReport, error) {
	x := s.finder()
	x.MaxLive = maxRetrying
	return x.Failures(ctx, f, include)
}

// Failures returns the failed jobs that [Finder.Find] finds in groups: the jobs without a rerun, and
// what else to include. It reads all samples, and the retrying jobs. It trusts the other entries, a
// few of which may be left from commits that lost a race. The errors are [*apierror.Error]s.
func (x *Finder) Failures(ctx context.Context, f Filter, include Include) (report FailureReport, err error) {
	if err := f.check(""); err != nil {
		return report, err
	}
	f.State = statemachine.JobFailedFinal
	counted := tallies{resolved: include.Resolved, of: map[FailureKind]*tally{}}
	err = counted.count(x.Find(ctx, &f, nil), false)
	if err == nil && include.Retrying {
		err = counted.count(x.retrying(ctx, f), true)
	}
	if err != nil {
		return report, ledger.Problem(err)
	}
	report.Truncated = counted.truncated
	if len(counted.of) == 0 {
		return report, nil
	}
	report.From, report.To = f.EndedAfter, f.EndedBefore
	if now := time.Now(); report.To.IsZero() || report.To.After(now) {
		report.To = now
	}
	if report.From.IsZero() {
		report.From = counted.first
	}
	largest := slices.SortedFunc(maps.Values(counted.of), larger)
	report.Truncated = report.Truncated || len(largest) > maxGroups
	largest = largest[:min(len(largest), maxGroups)]
	var samples []*Found
	for _, t := range largest {
		samples = append(samples, t.newest...)
	}
	if err := x.check(ctx, &f, samples); err != nil {
		return report, ledger.Problem(err)
	}
	for _, t := range largest {
		t.complete(report.From, report.To)
	}
	slices.SortFunc(largest, larger)
	for _, t := range largest {
		if t.Count > 0 {
			report.Groups = append(report.Groups, t.FailureGroup)
		}
	}
	return report, nil
}

// retrying yields, once each, the selected live jobs whose current step failed. EndedAt is when the
// step last changed.
func (x *Finder) retrying(ctx context.Context, f Filter) iter.Seq2[*Found, error] {
	live, known := f, map[string]bool{}
	live.State, live.Retrying, live.EndedAfter, live.EndedBefore = "", true, time.Time{}, time.Time{}
	return sequence(func(yield func(*Found) bool) error {
		for found, err := range x.Find(ctx, &live, nil) {
			if err != nil {
				return err
			}
			if found.Damaged { // It is of no known group.
				continue
			}
			step := &found.Job.Steps[found.Job.Job.CurrentStepIndex]
			if known[found.JobID] || !within(step.UpdatedAt, f.EndedAfter, f.EndedBefore) {
				continue
			}
			known[found.JobID] = true
			found.StepType, found.Service, found.ErrorCode, found.EndedAt = step.Type, step.Service, step.LastErrorCode, step.UpdatedAt
			found.message = step.LastErrorMessage
			found.Job, found.checked = nil, true // A report may hold many.
			if !yield(found) {
				return nil
			}
		}
		return nil
	})
}

// larger orders groups by count, then by the last failure, both descending.
func larger(a, b *tally) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), b.LastAt.Compare(a.LastAt), cmp.Compare(a.StepType, b.StepType),
		cmp.Compare(a.Service, b.Service), cmp.Compare(a.ErrorCode, b.ErrorCode))
}

// add adds a job.
func (t *tally) add(found *Found) {
	t.Count++
	t.jobs = append(t.jobs, tallied{found.EndedAt, found.TenantID})
	at, _ := slices.BinarySearchFunc(t.newest, found, func(a, b *Found) int { return b.EndedAt.Compare(a.EndedAt) })
	if at < maxSamples {
		t.newest = slices.Insert(t.newest, at, found)
		t.newest = t.newest[:min(len(t.newest), maxSamples)]
		t.LastAt = t.newest[0].EndedAt
	}
}

// complete removes the samples that did not fail, and sets what depends on the other jobs, with
// a histogram of the time between from and to.
func (t *tally) complete(from, to time.Time) {
	for _, sample := range t.newest {
		if !sample.wrong {
			t.SampleJobIDs = append(t.SampleJobIDs, sample.JobID)
			t.SampleMessage = cmp.Or(t.SampleMessage, strings.ToValidUTF8(sample.message[:min(len(sample.message), maxMessage)], ""))
			continue
		}
		at := slices.Index(t.jobs, tallied{sample.EndedAt, sample.TenantID})
		t.jobs = slices.Delete(t.jobs, at, at+1)
	}
	t.Count, t.FirstAt, t.LastAt, t.Histogram = len(t.jobs), time.Time{}, time.Time{}, make([]int, FailureBuckets)
	tenants := map[string]int{}
	for i, job := range t.jobs {
		tenants[job.tenant]++
		if i == 0 || job.at.Before(t.FirstAt) {
			t.FirstAt = job.at
		}
		if job.at.After(t.LastAt) {
			t.LastAt = job.at
		}
		part := float64(job.at.Sub(from)) / float64(max(to.Sub(from), 1))
		t.Histogram[min(max(int(part*FailureBuckets), 0), FailureBuckets-1)]++ // A replica's clock may be ahead.
	}
	for tenantID, count := range tenants {
		t.Tenants = append(t.Tenants, FailureTenant{TenantID: tenantID, Count: count})
	}
	slices.SortFunc(t.Tenants, func(a, b FailureTenant) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.TenantID, b.TenantID))
	})
	t.TenantCount, t.Tenants = len(tenants), t.Tenants[:min(len(tenants), maxSamples)]
}
