package jobs

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
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
	// After is the job after which the list begins, or empty.
	After string
	// Page is the most entries in memory at a time, of all tenants together.
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

// walk yields the hints of one month, of all tenants merged, and reports
// whether more are wanted.
func (f *Filter) walk(ctx context.Context, index Index, q *HintQuery, month time.Time, yield func(Hint, error) bool) bool {
	var sources []*source
	for _, tenant := range q.Tenants {
		query := ledger.IndexQuery{
			TenantID: tenant, Month: month, CorrelationID: f.CorrelationID, After: q.After,
			Limit: max(16, q.Page/len(q.Tenants)),
		}
		if f.State.Terminal() {
			query.State = f.State
		}
		sources = append(sources, &source{query: query, more: true})
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
		best := slices.MinFunc(sources, newestFirst)
		if f.tooOld(best.head) || !yield(best.take(), nil) {
			return false
		}
	}
}

// idLead is how much older a job's id may be than the job: an accept that was
// rolled forward has the id of the first try.
const idLead = 24 * time.Hour

// tooOld reports whether a job with an id of that time, and so every later one in the
// list, was accepted before the filter's range.
func (f *Filter) tooOld(id time.Time) bool {
	return !f.CreatedAfter.IsZero() && id.Add(idLead).Before(f.CreatedAfter)
}

// source reads one tenant's part of a month.
type source struct {
	query   ledger.IndexQuery
	entries []ledger.IndexEntry
	more    bool
	// head is the time in the id of the first entry.
	head time.Time
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
		s.query.After = s.entries[n-1].JobID
		s.head = ledger.IDTime(s.entries[0].JobID)
	}
	return nil
}

// take removes the first entry.
func (s *source) take() Hint {
	hint := Hint{TenantID: s.query.TenantID, IndexEntry: s.entries[0]}
	if s.entries = s.entries[1:]; len(s.entries) > 0 {
		s.head = ledger.IDTime(s.entries[0].JobID)
	}
	return hint
}

// newestFirst is the order of the index: by the time in the id, then by the id.
func newestFirst(a, b *source) int {
	if byTime := b.head.Compare(a.head); byTime != 0 {
		return byTime
	}
	return strings.Compare(a.entries[0].JobID, b.entries[0].JobID)
}
