package search

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Source is the part of the ledger in which a [Finder] finds jobs.
type Source interface {
	Index
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
	Tenants(ctx context.Context, after string, limit int) ([]string, error)
	Live(ctx context.Context, tenantID string, shard, limit int, from string) (jobIDs []string, next string, err error)
	Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string) ([]ledger.Entry, string, error)
	Shards() int
	Atomic() bool
	ListsLive() bool
}

// LiveIndex is [Counts.Live] of one process, or nil if there is none.
type LiveIndex func(wanted func(*Traits) bool) (parts iter.Seq[[]string], known bool)

// Finder finds all jobs that a filter selects; [Service.List] finds a page of them. It is safe
// for concurrent use.
type Finder struct {
	// Source holds the jobs. Required.
	Source Source
	// Live finds live jobs by their traits. Optional: without it, all live jobs are read.
	Live LiveIndex
	// MaxLive is the most live jobs to read for one call. Optional. Defaults to all.
	MaxLive int
}

// Found is a job as a [Finder] finds it: an ended one as the index lists it, a live one as its
// rows hold it.
type Found struct {
	Hint
	Job *statemachine.Aggregate // nil if it was not read, does not exist or is Damaged
	// Damaged reports that the job's rows cannot be decoded: it exists, and may not match.
	Damaged bool
	// After is [Filter.After] of a search for the ended jobs that follow this one.
	After string

	checked bool   // the job was read
	message string // the last error message; empty if the job was not read
	wrong   bool   // the job does not match after all
}

// MoreError is returned if a search ended at a bound, so that there may be more jobs.
type MoreError struct {
	// After is [Filter.After] of the search for the others, empty if the jobs have no order.
	After string
}

// Error says that there may be more jobs.
func (*MoreError) Error() string { return "the search ended at its bound: there may be more jobs" }

const (
	maxExamined = 100_000 // index entries, and lists of a tenant and month, read for one call
	readCost    = 5       // how many entries one counts for whose job must be read
	tenantPage  = 1000    // tenants whose entries are merged
	entryPage   = 1000    // index entries or ids read at once
	maxChecked  = 2000    // ended jobs read because their entries are recent
	readPage    = 100     // jobs in memory at a time
	readers     = 8       // jobs read concurrently
	// commitGrace is how long after a job's end its index entry may precede the commit.
	commitGrace = 2 * time.Minute
)

// sequence returns what a walk yields, and then the walk's error, if there is one.
func sequence[T any](walk func(yield func(T) bool) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if err := walk(func(v T) bool { return yield(v, nil) }); err != nil {
			yield(*new(T), err)
		}
	}
}

// Find yields the jobs that match: ended ones if the filter's state is terminal, else live ones. If
// wanted is not nil, it skips those in other states. It ends after an error, which is a [*MoreError]
// or the source's.
//
// It finds ended jobs in the index, page of tenants by page, each newest first, by the fields that
// the index has and the time in the job's id. It reads each job of a document, and each success with
// a tag. Other entries are written before the commit that ends the job or makes its rerun, so it
// reads the first 2,000 whose commit may be under way; an atomic store has none. It ends after
// 100,000 entries, of which one whose job is read counts for five, as does each list of a tenant and
// month for one, so that its time has a bound with any number of tenants.
//
// It reads live jobs, in no particular order, and yields some of them twice. A job that is
// [Found.Damaged] is yielded, too. A source that lists live jobs names those that may match; without
// that and without [Finder.Live] it reads all, up to MaxLive.
func (x *Finder) Find(ctx context.Context, f *Filter, wanted func(statemachine.JobState) bool) iter.Seq2[*Found, error] {
	return sequence(func(yield func(*Found) bool) error {
		pages := x.live(ctx, f, wanted)
		if f.State.Terminal() {
			if pages = x.ended(ctx, f); wanted != nil && !wanted(f.State) {
				return nil
			}
		}
		for page, err := range pages {
			if err != nil {
				return err
			}
			for _, found := range page {
				if !found.wrong && !yield(found) {
					return nil
				}
			}
		}
		return nil
	})
}

// live yields pages of live jobs.
func (x *Finder) live(ctx context.Context, f *Filter, wanted func(statemachine.JobState) bool) iter.Seq2[[]*Found, error] {
	if wanted == nil {
		wanted = func(state statemachine.JobState) bool { return !state.Terminal() }
	}
	return sequence(func(yield func([]*Found) bool) error {
		left := cmp.Or(x.MaxLive, math.MaxInt)
		for ids, err := range x.candidates(ctx, f, wanted) {
			if err != nil {
				return err
			}
			for part := range slices.Chunk(ids[:min(left, len(ids))], readPage) {
				page := Named(part)
				if err := x.Read(ctx, page); err != nil {
					return err
				}
				page = slices.DeleteFunc(page, func(found *Found) bool {
					return !found.Damaged && (found.Job == nil || !wanted(found.Job.Job.State) || !f.Matches(found.Job))
				})
				if !yield(page) {
					return nil
				}
			}
			if left -= len(ids); left < 0 {
				return &MoreError{}
			}
		}
		return nil
	})
}

// liveIDs yields the ids of live jobs in parts, in no order, and some of them twice: of the jobs
// of the filter's document or tags, live or not; else of those whose traits fit, if the index knows
// all live jobs; else of all live jobs that the filter's tenant or pending rows leave. The error is
// the source's, or a [*MoreError] after most rows.
func (x *Finder) liveIDs(ctx context.Context, f *Filter, fits func(*Traits) bool, most int) iter.Seq2[[]string, error] {
	return sequence(func(yield func([]string) bool) error {
		if f.indexed() {
			return x.indexedIDs(ctx, f, min(most, maxExamined), yield)
		}
		if x.Live != nil {
			if parts, known := x.Live(fits); known {
				parts(yield)
				return nil
			}
		}
		for shard := range x.Source.Shards() {
			for from, more := "", true; more; more = from != "" {
				ids, read, next, err := x.livePage(ctx, f, shard, from)
				if most -= read; err == nil && most < 0 {
					err = &MoreError{}
				}
				if err != nil || !yield(ids) {
					return err
				}
				from = next
			}
		}
		return nil
	})
}

// indexedIDs yields the ids of jobs of the filter's document or tags in parts. It returns a
// [*MoreError] after most entries.
func (x *Finder) indexedIDs(ctx context.Context, f *Filter, most int, yield func([]string) bool) error {
	return f.idsOf(f.Hints(ctx, x.Source, HintQuery{Tenants: []string{f.TenantID}, Page: entryPage}), most, yield)
}

// candidates yields the ids of live jobs in the wanted states to read: of a source that lists live jobs
// those whose rows match, so that the others cost no read of their own. A report of what is retried looks
// at few live jobs, any of them.
func (x *Finder) candidates(ctx context.Context, f *Filter, wanted func(statemachine.JobState) bool) iter.Seq2[[]string, error] {
	if !x.Source.ListsLive() || f.indexed() || f.Retrying || f.Outbox == statemachine.OutboxPending {
		return x.liveIDs(ctx, f, func(t *Traits) bool { return wanted(t.State) && f.fits(t) }, math.MaxInt)
	}
	states := slices.DeleteFunc(slices.Clone(statemachine.JobStates), func(state statemachine.JobState) bool {
		return state.Terminal() || !is(f.State, state) || !wanted(state)
	})
	hints := sequence(func(yield func(Hint) bool) (err error) {
		q := HintQuery{Page: entryPage}
		for at := (cursor{}); len(states) > 0; at.tenant = q.Tenants[len(q.Tenants)-1] {
			if q.Tenants, err = x.tenants(ctx, f, at); err != nil || len(q.Tenants) == 0 {
				return err
			}
			for _, state := range states { // Not merged: a job that advances between reads is in a list that is read later.
				q.States = []statemachine.JobState{state}
				for hint, err := range f.liveHints(ctx, x.Source, q) {
					if err != nil || !yield(hint) {
						return err
					}
				}
			}
		}
		return nil
	})
	return sequence(func(yield func([]string) bool) error { return f.idsOf(hints, math.MaxInt, yield) })
}

// idsOf yields the ids of the jobs that may match in parts. It returns a [*MoreError] after most hints.
func (f *Filter) idsOf(hints iter.Seq2[Hint, error], most int, yield func([]string) bool) error {
	var ids []string
	for hint, err := range hints {
		if most--; err == nil && most < 0 {
			err = &MoreError{}
		}
		if err != nil {
			return err
		}
		if !f.mayMatch(&hint.IndexRow) || !f.CreatedBefore.IsZero() && !ledger.IDTime(hint.JobID).Before(f.CreatedBefore) {
			continue // A job is not older than its id.
		}
		if ids = append(ids, hint.JobID); len(ids) == readPage {
			if !yield(ids) {
				return nil
			}
			ids = nil
		}
	}
	yield(ids)
	return nil
}

// livePage returns a page of the ids of live jobs, and how many rows it read for them. It finds
// those whose rows wait for a relay in the schedule. A row that went straight to the relay of the
// process that wrote it has no entry there until [ledger.Config] Hold has passed.
func (x *Finder) livePage(ctx context.Context, f *Filter, shard int, from string) (ids []string, read int, next string, err error) {
	if f.Outbox != statemachine.OutboxPending {
		ids, next, err = x.Source.Live(ctx, f.TenantID, shard, entryPage, from)
		return ids, len(ids), next, err
	}
	entries, next, err := x.Source.Due(ctx, ledger.Dispatch, shard, farFuture, entryPage, from)
	if entries != nil {
		err = nil // A row that cannot be decoded must not hide the others. The relay logs it.
	}
	for i := range entries {
		if target := &entries[i].Target; is(f.TenantID, target.TenantID) && (f.Lane == nil || *f.Lane == target.Lane) {
			ids = append(ids, entries[i].JobID)
		}
	}
	return ids, len(entries), next, err
}

// farFuture is later than any time in the schedule.
var farFuture = time.Date(2286, 1, 1, 0, 0, 0, 0, time.UTC)

// ended yields pages of ended jobs.
func (x *Finder) ended(ctx context.Context, f *Filter) iter.Seq2[[]*Found, error] {
	return sequence(func(yield func([]*Found) bool) error {
		var page []*Found
		now, checks := time.Now(), maxChecked
		for found, end := range x.entries(ctx, f) {
			if end == nil {
				if page = append(page, found); len(page) < entryPage {
					continue
				}
			}
			if err := x.checkUnsure(ctx, f, page, now, &checks); err != nil {
				return err
			}
			if !yield(page) {
				return nil
			}
			if page = nil; end != nil {
				return end
			}
		}
		err := x.checkUnsure(ctx, f, page, now, &checks)
		if err == nil {
			yield(page)
		}
		return err
	})
}

// checkUnsure checks the jobs of a list that does not say how they ended; else those whose commit
// may be under way, as many as may still be checked.
func (x *Finder) checkUnsure(ctx context.Context, f *Filter, page []*Found, now time.Time, checks *int) error {
	if len(page) > 0 && page[0].EndedAt.IsZero() {
		return x.check(ctx, f, page)
	}
	if x.Source.Atomic() {
		return nil
	}
	recent := slices.DeleteFunc(slices.Clone(page), func(found *Found) bool {
		return now.Sub(found.EndedAt) >= commitGrace && now.Sub(ledger.IDTime(found.SupersededBy)) >= ledger.RerunGrace
	})
	recent = recent[:min(*checks, len(recent))]
	*checks -= len(recent)
	return x.check(ctx, f, recent)
}

// entries yields the index entries of the ended jobs that may match, after [Filter.After].
func (x *Finder) entries(ctx context.Context, f *Filter) iter.Seq2[*Found, error] {
	return sequence(func(yield func(*Found) bool) error {
		left := maxExamined
		if docID, correlationID, tag := f.list(&HintQuery{}); docID+correlationID+tag != "" {
			left /= readCost
		}
		at := cursorOf(f.After)
		for {
			tenants, err := x.tenants(ctx, f, at)
			switch {
			case err != nil || len(tenants) == 0:
				return err
			case left < 0:
				return &MoreError{After: at.String()}
			}
			oldest, newest := f.months(at.job)
			months := 12*(newest.Year()-oldest.Year()) + int(newest.Month()-oldest.Month()) + 1
			q := HintQuery{Tenants: tenants, Page: entryPage, After: at.job, Reruns: true}
			at.last = tenants[len(tenants)-1]
			for hint, err := range f.Hints(ctx, x.Source, q) {
				if err != nil {
					return err
				}
				if left--; left < 0 {
					return &MoreError{After: at.String()}
				}
				at.job = hint.JobID
				if f.mayMatch(&hint.IndexRow) && within(ledger.IDTime(hint.JobID), f.CreatedAfter, f.CreatedBefore) &&
					!yield(&Found{Hint: hint, After: at.String()}) {
					return nil
				}
			}
			at = cursor{tenant: at.last}
			left -= months * len(tenants) // not before: each search gets past some tenants
		}
	})
}

// cursor is a place among the entries: after the job, in the list of the tenants after tenant, up to
// and with last. Without a job it is before the first one of the list.
type cursor struct{ tenant, last, job string }

// String is [Filter.After]. No name has the separator.
func (c cursor) String() string { return strings.Join([]string{c.tenant, c.last, c.job}, "\x00") }

func cursorOf(text string) (c cursor) {
	c.tenant, text, _ = strings.Cut(text, "\x00")
	c.last, c.job, _ = strings.Cut(text, "\x00")
	return c
}

// tenants returns the next of the tenants that the filter selects, none at their end.
func (x *Finder) tenants(ctx context.Context, f *Filter, at cursor) (tenants []string, err error) {
	switch {
	case f.TenantID == "":
		tenants, err = x.Source.Tenants(ctx, at.tenant, tenantPage)
	case at.tenant == "":
		tenants = []string{f.TenantID}
	}
	grown := func(tenant string) bool { return at.last != "" && tenant > at.last } // The page may have since.
	return slices.DeleteFunc(tenants, grown), err
}

// check reads those jobs that have not been read. It marks the jobs that do not match, and clears
// reruns that do not exist.
func (x *Finder) check(ctx context.Context, f *Filter, ended []*Found) error {
	ended = slices.DeleteFunc(slices.Clone(ended), func(found *Found) bool { return found.checked })
	for part := range slices.Chunk(ended, readPage) {
		if err := x.Read(ctx, part); err != nil {
			return err
		}
		for _, found := range part {
			if found.checked = true; found.Damaged {
				continue
			}
			if found.wrong = found.Job == nil || !f.Matches(found.Job); !found.wrong {
				found.IndexRow, found.message = ledger.IndexRowOf(found.Job), found.Job.Job.ErrorMessage
			}
			found.Job = nil // A caller may hold many.
		}
	}
	return nil
}

// Named returns jobs by their ids, without reading them.
func Named(ids []string) []*Found {
	named := make([]*Found, len(ids))
	for i, id := range ids {
		named[i] = &Found{Hint: Hint{IndexEntry: ledger.IndexEntry{IndexRow: ledger.IndexRow{JobID: id}}}}
	}
	return named
}

// Read reads the jobs that have not been read, concurrently, and clears reruns that do not exist. It
// marks the jobs whose rows cannot be decoded. The error is an outage of the source, or the
// context's.
func (x *Finder) Read(ctx context.Context, jobs []*Found) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for _, found := range jobs {
		if found.Job != nil {
			continue
		}
		group.Go(func() error {
			agg, err := x.Source.Job(ctx, found.JobID)
			switch {
			case errors.Is(err, ledger.ErrJobNotFound):
				return nil
			case damaged(ctx, err):
				found.Damaged = true
				return nil
			case err != nil:
				return err
			}
			found.Job, found.TenantID = agg, cmp.Or(found.TenantID, agg.Job.TenantID)
			if found.SupersededBy == "" {
				return nil
			}
			_, err = x.Source.Job(ctx, found.SupersededBy)
			switch {
			case errors.Is(err, ledger.ErrJobNotFound):
				found.SupersededBy = ""
			case err != nil && !damaged(ctx, err): // A damaged one exists.
				return err
			}
			return nil
		})
	}
	return group.Wait()
}

// damaged reports whether an error of the source is that of rows that cannot be decoded, which stay so.
func damaged(ctx context.Context, err error) bool {
	return err != nil && !tablestore.IsOutage(err) && ctx.Err() == nil
}
