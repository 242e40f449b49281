package failures

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Group is the failed jobs of one step type and error code.
type Group struct {
	StepType  string
	ErrorCode string
	Count     int
	// FirstAt and LastAt are when the first and the last of them failed.
	FirstAt time.Time
	LastAt  time.Time
	// SampleJobIDs are the newest of them, at most 5.
	SampleJobIDs []string
}

// Report is the failed jobs in groups.
type Report struct {
	// Groups are the largest ones, the largest first; at most 500.
	Groups []Group
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
func (s *Service) Groups(ctx context.Context, f Filter) (Report, error) {
	if !f.possible() {
		return Report{}, invalid("", "parameter created_after must be before created_before")
	}
	survey := &survey{service: s, now: time.Now(), groups: map[groupKey]*tally{}, failed: map[string]bool{}}
	truncated, err := survey.take(ctx, f)
	if err != nil {
		return Report{}, ledger.Problem(err)
	}
	groups, cut, err := survey.report(ctx)
	if err != nil {
		return Report{}, ledger.Problem(err)
	}
	return Report{Groups: groups, Truncated: truncated || cut}, nil
}

type groupKey struct{ stepType, errorCode string }

// tally is a group in the making, with its newest jobs.
type tally struct {
	Group
	newest []*jobs.Hint
}

// survey counts failed jobs.
type survey struct {
	service *Service
	now     time.Time
	groups  map[groupKey]*tally
	// failed says of each job that was read whether it did fail.
	failed map[string]bool
}

// take counts all that the filter finds, and reports whether there is more.
func (v *survey) take(ctx context.Context, f Filter) (truncated bool, err error) {
	walk := &walk{ledger: v.service.cfg.Ledger, filter: f}
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
		group = &tally{Group: Group{StepType: hint.StepType, ErrorCode: hint.ErrorCode, FirstAt: hint.EndedAt}}
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
func (v *survey) report(ctx context.Context) (groups []Group, cut bool, err error) {
	largest := slices.SortedFunc(maps.Values(v.groups), func(a, b *tally) int { return larger(&a.Group, &b.Group) })
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
			groups = append(groups, group.Group)
		}
	}
	slices.SortFunc(groups, func(a, b Group) int { return larger(&a, &b) })
	return groups, cut, nil
}

// larger is the order of groups: by count, then the one that failed last.
func larger(a, b *Group) int {
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
