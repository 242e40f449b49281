package search

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// defaultMonths is how many months back a list goes without CreatedAfter.
	defaultMonths = 3
	// maxMonths bounds how far back a list may go.
	maxMonths = 120
	// The search for one page ends after maxRead jobs, maxSearched index rows or searchTime.
	maxRead     = 2000
	maxSearched = 20_000
	searchTime  = 5 * time.Second
	// A page has at most bytesPerJob for each job of its limit, and at most maxPageBytes.
	bytesPerJob  = 16 << 10
	maxPageBytes = 2 << 20
	// maxTenants bounds the tenants whose jobs are merged into one list.
	maxTenants = 1000
	// maxLive bounds the ids of live jobs that are read for one page if this process does not
	// know all live jobs, and the ledger does not list them by state. If there are more, the
	// index of all jobs is searched instead.
	maxLive = 50_000
	// minFill and maxFill bound how many entries of one list are read at once, which grows as
	// the list is walked; maxFilled is about how many entries of all lists are in memory.
	minFill   = 16
	maxFill   = 1000
	maxFilled = 10_000
	// listReaders is how many lists are read at once: half of the connections of a PostgreSQL store.
	listReaders = 16
)

// PageBytes returns the size in JSON at which a page of jobs ends. Its last job may exceed
// that.
func PageBytes(limit int) int { return min(limit*bytesPerJob, maxPageBytes) }

// encodedSize estimates the size in JSON of a job with its steps.
func encodedSize(agg *Shown) int {
	const names = 700 // the fields that every job and every step has
	job := &agg.Job
	size := names + len(job.InputRef) + len(job.OutputRef) + len(job.FinalOutput) + len(job.ErrorMessage) +
		2*(200+len(agg.Waiting.Detail)) // twice: with the job and with its step
	for i := range agg.Steps {
		step := &agg.Steps[i]
		size += names + len(step.InputRef) + len(job.WorkspaceRef) + len(step.OutputRef) + len(step.ResultRef) +
			len(step.LastErrorMessage) + len(step.WorkID) + len(step.Owner)
	}
	return size
}

// Page describes one page of a list of jobs.
type Page struct {
	// Next is the position to continue after, empty at the end.
	Next string
	// TenantsOmitted reports that jobs of some tenants are missing, because more than 1,000 have had
	// jobs: those of the first 1,000 by name are listed, and of others at most the live ones.
	TenantsOmitted bool
}

// List returns one page of jobs, newest first. A page with fewer jobs than the limit, or with
// none, is not the last one unless there is no position to continue after: the search for a page
// ends after 2,000 jobs, 20,000 index rows or 5 s. Each job is read from its own rows; one whose rows
// cannot be read is left out, as in [Service.ListOutbox]: [Service.Get] says why. The errors are
// [*apierror.Error]s.
func (s *Service) List(ctx context.Context, f Filter, limit int, after string) ([]Shown, Page, error) {
	var found []Shown
	size, firsts := 0, lineFirsts{}
	page, err := s.search(ctx, &f, limit, after, func(agg *statemachine.Aggregate) (full bool, err error) {
		shown, err := s.waiting(ctx, agg, firsts)
		switch {
		case s.leftOut(ctx, agg.Job.ID, err):
			return false, nil
		case err != nil || !f.waits(shown.Waiting.Reason):
			return false, err
		}
		found = append(found, shown)
		size += encodedSize(&shown)
		return len(found) == limit || size >= PageBytes(limit), nil
	})
	if err != nil {
		return nil, Page{}, err
	}
	jobs := make([]*statemachine.Job, len(found))
	for i := range found {
		jobs[i] = &found[i].Job
	}
	by, err := s.ledger.Superseded(ctx, jobs)
	for i := range by {
		found[i].SupersededBy = by[i]
	}
	return found, page, ledger.Problem(err)
}

// ListOutbox is [Service.List] for jobs with the outbox rows of their latest attempts. Unlike
// List, it includes the outbox rows of ended jobs.
func (s *Service) ListOutbox(ctx context.Context, f Filter, limit int, after string,
) (found []*statemachine.Aggregate, page Page, err error) {
	f.HasOutbox = true
	page, err = s.search(ctx, &f, limit, after, func(agg *statemachine.Aggregate) (bool, error) {
		found = append(found, agg)
		return len(found) == limit, nil
	})
	if err != nil {
		return nil, Page{}, err
	}
	return found, page, nil
}

// search calls add with the jobs that match, newest first, until the page is full or the
// search has reached its bounds.
func (s *Service) search(ctx context.Context, f *Filter, limit int, after string, add func(*statemachine.Aggregate) (full bool, err error),
) (page Page, err error) {
	if err := f.check(after); err != nil {
		return Page{}, err
	}
	begun, searched, read, added, last, full := time.Now(), 0, 0, 0, "", false
	mayAwait := f.ofLive() && s.ledger.Exclusive() && s.around.Live != nil && !s.liveKnown()
	for hint, err := range s.candidates(ctx, f, limit, after, &page) {
		if err != nil {
			return Page{}, ledger.Problem(err)
		}
		searched++
		// Skip a candidate that repeats: a job that has just ended may also be listed as live, and one whose
		// other end lost a race has two index rows.
		if f.mayMatch(&hint.IndexRow) && hint.JobID != last {
			read, last = read+1, hint.JobID
			agg, err := s.match(ctx, f, hint.JobID)
			if err == nil && agg != nil {
				added++
				full, err = add(agg)
			}
			if err != nil {
				return Page{}, err
			}
		}
		if full || searched >= s.maxSearched || read >= maxRead || time.Since(begun) >= searchTime {
			if added == 0 && mayAwait {
				rest, err := s.await(ctx, f, limit, hint.JobID, begun.Add(searchTime), add)
				rest.TenantsOmitted = rest.TenantsOmitted || page.TenantsOmitted
				return rest, err
			}
			page.Next = hint.JobID
			return page, nil
		}
	}
	return page, nil
}

// await continues a search that reached after and found nothing, in a process that does not
// know all live jobs yet. It waits until the process does, and searches on from after. At the
// time until it adds the matching live jobs that the process knows by then; a later page may
// repeat them.
func (s *Service) await(ctx context.Context, f *Filter, limit int, after string, until time.Time,
	add func(*statemachine.Aggregate) (full bool, err error),
) (page Page, err error) {
	const poll = 50 * time.Millisecond
	for time.Now().Before(until) {
		if s.liveKnown() {
			return s.search(ctx, f, limit, after, add)
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return Page{}, ledger.Problem(ctx.Err())
		}
	}
	parts, _ := s.around.Live(s.fits(f))
	found, err := f.newest(after, func(yield func([]string, error) bool) {
		parts(func(ids []string) bool { return yield(ids, nil) })
	})
	for full := false; err == nil && !full && len(found) > 0; found = found[1:] {
		var agg *statemachine.Aggregate
		if agg, err = s.match(ctx, f, found[0].id); agg != nil {
			full, err = add(agg)
		}
	}
	return Page{Next: after}, err
}

// liveKnown reports whether the process knows all live jobs.
func (s *Service) liveKnown() bool {
	_, known := s.around.Live(func(*Traits) bool { return false })
	return known
}

// leftOut reports whether the error is of the job's rows and not of the store, and logs it then.
func (s *Service) leftOut(ctx context.Context, jobID string, err error) bool {
	if err == nil || tablestore.IsOutage(err) || ctx.Err() != nil {
		return false
	}
	s.around.Logger.WarnContext(ctx, "job left out of a list: it cannot be read", "job_id", jobID, "error", err)
	return true
}

// match returns the job if it exists, can be read and matches the filter, else nil.
func (s *Service) match(ctx context.Context, f *Filter, jobID string) (*statemachine.Aggregate, error) {
	read := s.ledger.Job
	if f.HasOutbox {
		read = s.ledger.JobWithOutbox
	}
	agg, err := read(ctx, jobID)
	switch {
	case errors.Is(err, ledger.ErrJobNotFound): // Its accept never committed, or it is purged.
		return nil, nil
	case s.leftOut(ctx, jobID, err):
		return nil, nil
	case err != nil:
		return nil, ledger.Problem(err)
	case !f.Matches(agg):
		return nil, nil
	}
	return agg, nil
}

// candidates yields all jobs that may match the filter, newest first, some of them twice. It
// ends after an error, and sets what the page omits.
func (s *Service) candidates(ctx context.Context, f *Filter, limit int, after string, page *Page) iter.Seq2[Hint, error] {
	return sequence(func(yield func(Hint) bool) error {
		q := HintQuery{After: after, Page: limit}
		live, listed, err := s.live(ctx, f, q, page)
		if err != nil {
			return err
		}
		next, stop := iter.Pull2(live)
		defer stop()
		first, err, more := next()
		// liveUpTo yields the live jobs up to that sort key.
		liveUpTo := func(key string) bool {
			for ; more && err == nil && ledger.ListOrder(first.JobID) <= key; first, err, more = next() {
				if !yield(first) {
					return false
				}
			}
			return err == nil
		}
		for hint, failed := range s.indexed(ctx, f, listed, q, page) {
			if failed != nil {
				return failed
			}
			if !liveUpTo(ledger.ListOrder(hint.JobID)) || !yield(hint) {
				return err
			}
		}
		liveUpTo(maxKey)
		return err
	})
}

// indexed yields the candidates from the index. If liveListed is set, all live ones are
// known without it.
func (s *Service) indexed(ctx context.Context, f *Filter, liveListed bool, q HintQuery, page *Page) iter.Seq2[Hint, error] {
	switch {
	case !liveListed:
	case f.State != "" || len(f.Waiting) > 0 || f.Outbox == statemachine.OutboxPending: // No job ends with a row to publish.
		return func(func(Hint, error) bool) {}
	case f.Outbox == statemachine.OutboxFailedFinal:
		q.States = []statemachine.JobState{statemachine.JobFailedFinal, statemachine.JobCancelled}
	case f.ErrorCode != "":
		q.States = []statemachine.JobState{statemachine.JobFailedFinal}
	default:
		q.States = []statemachine.JobState{statemachine.JobSucceeded, statemachine.JobFailedFinal, statemachine.JobCancelled}
	}
	var err error
	if q.Tenants, err = s.tenants(ctx, f, page); err != nil {
		return func(yield func(Hint, error) bool) { yield(Hint{}, err) }
	}
	return f.Hints(ctx, s.ledger, q)
}

// tenants returns the tenants whose jobs may match, as many as can be merged.
func (s *Service) tenants(ctx context.Context, f *Filter, page *Page) (tenants []string, err error) {
	switch {
	case f.TenantID != "":
		return []string{f.TenantID}, nil
	case f.CorrelationID != "":
		tenants, err = s.ledger.CorrelatedTenants(ctx, f.CorrelationID, s.maxTenants+1)
	default:
		tenants, err = s.ledger.Tenants(ctx, "", s.maxTenants+1)
	}
	if len(tenants) > s.maxTenants {
		tenants, page.TenantsOmitted = tenants[:s.maxTenants], true
	}
	return tenants, err
}

// keyed is a job with its sort key in the list, see [ledger.ListOrder].
type keyed struct{ key, id string }

// maxKey sorts after all keys.
const maxKey = "~"

// live returns the live jobs of any age that may match, newest first, as many as one page may
// read. listed is false if they must be found in the index of all jobs, because they are too
// many or all jobs may match.
func (s *Service) live(ctx context.Context, f *Filter, q HintQuery, page *Page) (hints iter.Seq2[Hint, error], listed bool, err error) {
	none := func(func(Hint, error) bool) {}
	switch {
	case !f.ofLive():
		return none, false, nil
	case s.ledger.ListsLive() && f.Outbox != statemachine.OutboxPending:
		if q.Tenants, err = s.tenants(ctx, f, page); err != nil {
			return nil, false, err
		}
		return f.liveHints(ctx, s.ledger, q), true, nil
	}
	found, err := f.newest(q.After, s.finder().liveIDs(ctx, f, s.fits(f), s.maxLive))
	if _, more := errors.AsType[*MoreError](err); more {
		return none, false, nil
	}
	return func(yield func(Hint, error) bool) {
		for _, job := range found {
			if !yield(Hint{IndexEntry: ledger.IndexEntry{IndexRow: ledger.IndexRow{JobID: job.id}}}, nil) {
				return
			}
		}
	}, err == nil, err
}

// newest returns the jobs that follow after in the list, newest first, as many as one page may
// read. It leaves out jobs that were not accepted within the filter's times.
func (f *Filter) newest(after string, all iter.Seq2[[]string, error]) (found []keyed, err error) {
	first, last, oldest := "", maxKey, f.CreatedAfter
	if !oldest.IsZero() {
		oldest = oldest.Add(-idLead) // Jobs were accepted within idLead of their ids.
	}
	if after != "" {
		first = ledger.ListOrder(after)
	}
	for ids, err := range all {
		if err != nil {
			return nil, err
		}
		for _, id := range slices.Backward(ids) { // The last ones are usually the newest.
			created := ledger.IDTime(id)
			if created.Before(oldest) || !f.CreatedBefore.IsZero() && !created.Before(f.CreatedBefore) {
				continue // This skips most of many jobs, and an id's time is cheaper than its key.
			}
			if key := ledger.ListOrder(id); key > first && key <= last {
				found = append(found, keyed{key, id})
			}
			if len(found) == 3*maxRead {
				if found = sorted(found); len(found) == maxRead {
					last, oldest = found[maxRead-1].key, ledger.IDTime(found[maxRead-1].id)
				}
			}
		}
	}
	return sorted(found), nil
}

// sorted returns the jobs newest first, as many as one page may read.
func sorted(found []keyed) []keyed {
	slices.SortFunc(found, func(a, b keyed) int { return strings.Compare(a.key, b.key) })
	found = slices.Compact(found) // A job may hold two slots.
	return found[:min(len(found), maxRead)]
}
