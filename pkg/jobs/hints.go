package jobs

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Index is the index that lists of jobs are read from.
type Index interface {
	Index(ctx context.Context, query ledger.IndexQuery) ([]ledger.IndexEntry, bool, error)
}

// Hint is an index entry with its tenant. It is written before the job's commit, so
// only the job itself shows whether the commit happened.
type Hint struct {
	TenantID string
	ledger.IndexEntry
}

// HintQuery selects the part of a filter's jobs to read.
type HintQuery struct {
	// Tenants are the tenants whose jobs are merged. Each has a page in memory.
	Tenants []string
	// States are the terminal states whose jobs are merged. Without one they are those of
	// the filter's state.
	States []statemachine.JobState
	// After is the job after which the list begins, or empty.
	After string
	// Page is about how many entries are wanted.
	Page int
}

// Hints yields a hint of each job that may match the filter, the newest first. It
// applies the filter's terminal state, correlation id and, by months and to a day's
// precision, times: it may yield too much, never too little. If CreatedAfter is zero,
// it goes three months back. An error of the store is yielded last.
func (f *Filter) Hints(ctx context.Context, index Index, q HintQuery) iter.Seq2[Hint, error] {
	return func(yield func(Hint, error) bool) {
		if f.CorrelationID != "" {
			f.walk(ctx, index, &q, time.Time{}, yield)
			return
		}
		oldest, newest := f.months(q.After)
		for month := newest; !month.Before(oldest); month = month.AddDate(0, -1, 0) {
			if !f.walk(ctx, index, &q, month, yield) {
				return
			}
		}
	}
}

// months returns the first days of the oldest and of the newest month to read.
func (f *Filter) months(after string) (oldest, newest time.Time) {
	end := time.Now()
	if !f.CreatedBefore.IsZero() {
		end = f.CreatedBefore
	}
	if after != "" {
		end = ledger.IDTime(after)
	}
	newest = firstOfMonth(end)
	oldest = firstOfMonth(f.CreatedAfter)
	switch {
	case f.CreatedAfter.IsZero():
		oldest = firstOfMonth(time.Now()).AddDate(0, 1-defaultMonths, 0)
	case oldest.Before(newest.AddDate(0, -maxMonths, 0)):
		oldest = newest.AddDate(0, -maxMonths, 0)
	}
	return oldest, newest
}

func firstOfMonth(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// idLead is how much older a job's id may be than the job: an accept that was
// rolled forward has the id of the first try.
const idLead = 24 * time.Hour

// walk yields the hints of one month, of all tenants merged in the order of the index,
// newest first. It reports whether more are wanted.
func (f *Filter) walk(ctx context.Context, index Index, q *HintQuery, month time.Time, yield func(Hint, error) bool) bool {
	states := q.States
	switch {
	case len(states) > 0:
	case f.State.Terminal():
		states = []statemachine.JobState{f.State}
	default:
		states = []statemachine.JobState{""} // All jobs.
	}
	lists := len(q.Tenants) * len(states)
	sources := make([]*source, 0, lists)
	for _, tenant := range q.Tenants {
		for _, state := range states {
			sources = append(sources, &source{more: true, most: min(max(minFill, maxFilled/lists), maxFill), query: ledger.IndexQuery{
				TenantID: tenant, Month: month, State: state, CorrelationID: f.CorrelationID, After: q.After,
				Limit: min(max(minFill, q.Page/lists), maxFill),
			}})
		}
	}
	for {
		var err error
		sources = slices.DeleteFunc(sources, func(s *source) bool {
			if err == nil {
				err = s.fill(ctx, index)
			}
			return err == nil && len(s.entries) == 0
		})
		if err != nil {
			yield(Hint{}, err)
			return false
		}
		if len(sources) == 0 {
			return true
		}
		best := slices.MinFunc(sources, func(a, b *source) int { return strings.Compare(a.head, b.head) })
		if !f.CreatedAfter.IsZero() && ledger.IDTime(best.entries[0].JobID).Add(idLead).Before(f.CreatedAfter) {
			return false // This job, and so every later one in the list, was accepted before the filter's range.
		}
		hint := Hint{TenantID: best.query.TenantID, IndexEntry: best.entries[0]}
		if best.entries = best.entries[1:]; len(best.entries) > 0 {
			best.head = ledger.ListOrder(best.entries[0].JobID)
		}
		if !yield(hint, nil) {
			return false
		}
	}
}

// source reads one tenant's part of a month.
type source struct {
	query   ledger.IndexQuery
	most    int // That its limit may become.
	entries []ledger.IndexEntry
	more    bool
	head    string // The place of the first entry in the list.
}

// fill reads the next entries if none are left.
func (s *source) fill(ctx context.Context, index Index) error {
	if len(s.entries) > 0 || !s.more {
		return nil
	}
	var err error
	if s.entries, s.more, err = index.Index(ctx, s.query); err != nil {
		return err
	}
	if n := len(s.entries); n > 0 {
		s.query.After, s.query.Limit = s.entries[n-1].JobID, min(2*s.query.Limit, max(s.query.Limit, s.most))
		s.head = ledger.ListOrder(s.entries[0].JobID)
	}
	return nil
}
