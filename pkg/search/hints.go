package search

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Index is the part of the ledger that lists index entries. It is safe for concurrent use.
type Index interface {
	Index(ctx context.Context, query ledger.IndexQuery) ([]ledger.IndexEntry, bool, error)
}

// Hint is an index entry with its tenant. The ledger writes it before the job's commit, so
// only the job itself shows whether that commit happened.
type Hint struct {
	TenantID string
	ledger.IndexEntry
}

// HintQuery selects the part of a filter's jobs to read.
type HintQuery struct {
	// Tenants are the tenants whose jobs are merged. Each takes a page in memory.
	Tenants []string
	// States are the terminal states whose jobs are merged, if the lists of ended jobs are to be
	// read. If it is empty, the filter decides what is read.
	States []statemachine.JobState
	// After is the job after which the list begins. Empty for the newest.
	After string
	// Reruns asks for [ledger.IndexEntry.SupersededBy] of ended jobs.
	Reruns bool
	// Page is about how many entries the caller will read.
	Page int
}

// list names the list of jobs to read: of the filter's document, or else of its correlation id, or of
// its first tag. If it names none, or the query asks for it, the lists by state are read. Those of jobs
// that failed or were cancelled are shorter than that of a common tag, and their rows have the tags.
func (f *Filter) list(q *HintQuery) (docID, correlationID, tag string) {
	switch {
	case len(q.States) > 0:
	case f.DocID != "":
		docID = f.DocID
	case f.CorrelationID != "":
		correlationID = f.CorrelationID
	case f.State != statemachine.JobFailedFinal && f.State != statemachine.JobCancelled:
		tag = f.Tags.First()
	}
	return docID, correlationID, tag
}

// Hints yields a hint of each job that may match the filter, newest first. It reads the list of
// the filter's document, or else of its correlation id, its first tag or its terminal state. It
// applies the filter's times roughly: it may yield jobs that do not match, but misses none. If
// CreatedAfter is zero, it goes back three months, from CreatedBefore if that is set.
// It ends after an error.
func (f *Filter) Hints(ctx context.Context, index Index, q HintQuery) iter.Seq2[Hint, error] {
	return sequence(func(yield func(Hint) bool) error {
		if docID, correlationID, _ := f.list(&q); docID+correlationID != "" {
			_, err := f.walk(ctx, index, &q, time.Time{}, yield)
			return err
		}
		oldest, newest := f.months(q.After)
		for month := newest; !month.Before(oldest); month = month.AddDate(0, -1, 0) {
			if more, err := f.walk(ctx, index, &q, month, yield); err != nil || !more {
				return err
			}
		}
		return nil
	})
}

// liveHints is [Filter.Hints] for live jobs of any age, in a ledger that lists live jobs. It reads the
// query's states or else the filter's, in the order of a job's life, so that it does not miss a job that
// advances between two reads.
func (f *Filter) liveHints(ctx context.Context, index Index, q HintQuery) iter.Seq2[Hint, error] {
	return sequence(func(yield func(Hint) bool) error {
		switch {
		case len(q.States) > 0:
		case f.State != "":
			q.States = []statemachine.JobState{f.State}
		default:
			q.States = slices.DeleteFunc(slices.Clone(statemachine.JobStates), statemachine.JobState.Terminal)
		}
		_, err := f.walk(ctx, index, &q, time.Time{}, yield)
		return err
	})
}

// clockLead is how far the clocks of other replicas may be ahead of this one's.
const clockLead = 24 * time.Hour

// months returns the first days of the oldest and of the newest month to read. It does not
// read months in which no job can have been accepted yet, however late CreatedBefore is.
func (f *Filter) months(after string) (oldest, newest time.Time) {
	end := time.Now()
	latest := end.Add(clockLead)
	if !f.CreatedBefore.IsZero() {
		end = f.CreatedBefore
	}
	if !f.EndedBefore.IsZero() && f.EndedBefore.Before(end) {
		end = f.EndedBefore // A job ends after its acceptance.
	}
	last := time.Now() // of the months that are read by default
	if end.Before(last) {
		last = end
	}
	if after != "" {
		end = ledger.IDTime(after)
	}
	if end.After(latest) {
		end = latest
	}
	newest = firstOfMonth(end)
	oldest = firstOfMonth(f.CreatedAfter.Add(-idLead)) // A job is listed in the month of its id.
	switch {
	case f.CreatedAfter.IsZero():
		oldest = firstOfMonth(last).AddDate(0, 1-defaultMonths, 0)
	case oldest.Before(newest.AddDate(0, -maxMonths, 0)):
		oldest = newest.AddDate(0, -maxMonths, 0)
	}
	return oldest, newest
}

func firstOfMonth(t time.Time) time.Time {
	t = t.UTC()
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, time.UTC)
}

// idLead is how much older a job's id may be than the job: an accept that was rolled
// forward keeps the id of the first attempt.
const idLead = 24 * time.Hour

// walk yields the hints of one month, or of all months if month is zero, newest first across
// all tenants. It reports whether to continue with an older month.
func (f *Filter) walk(ctx context.Context, index Index, q *HintQuery, month time.Time, yield func(Hint) bool) (more bool, err error) {
	docID, correlationID, tag := f.list(q)
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
				TenantID: tenant, Month: month, State: state, Reruns: q.Reruns,
				DocID: docID, Tag: tag, CorrelationID: correlationID, After: q.After, Limit: min(max(minFill, q.Page/lists), maxFill),
			}})
		}
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(listReaders) // Of many tenants most lists are empty, and take most of the time.
	// Those of one tenant are read in order, see [Filter.liveHints].
	for of := range slices.Chunk(sources, len(states)) {
		group.Go(func() (err error) {
			for i := 0; i < len(of) && err == nil; i++ {
				err = of[i].fill(groupCtx, index)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return false, err
	}
	for {
		sources = slices.DeleteFunc(sources, func(s *source) bool {
			if err == nil {
				err = s.fill(ctx, index)
			}
			return err == nil && len(s.entries) == 0
		})
		if err != nil || len(sources) == 0 {
			return err == nil, err
		}
		best := slices.MinFunc(sources, func(a, b *source) int { return strings.Compare(a.head, b.head) })
		if !f.CreatedAfter.IsZero() && ledger.IDTime(best.entries[0].JobID).Add(idLead).Before(f.CreatedAfter) {
			return false, nil // This job and all further ones are older than the filter's range.
		}
		hint := Hint{TenantID: best.query.TenantID, IndexEntry: best.entries[0]}
		if best.entries = best.entries[1:]; len(best.entries) > 0 {
			best.head = ledger.ListOrder(best.entries[0].JobID)
		}
		if !yield(hint) {
			return false, nil
		}
	}
}

// source reads the index entries of one tenant and state in a month.
type source struct {
	query   ledger.IndexQuery
	most    int // bounds query.Limit, which doubles with each read
	entries []ledger.IndexEntry
	more    bool
	head    string // sort key of entries[0]
}

// fill reads more entries if none are left.
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
