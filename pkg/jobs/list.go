package jobs

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/census"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Filter narrows a list of jobs. Its zero value is all jobs of the last months.
type Filter struct {
	TenantID    string
	State       statemachine.JobState
	RequestType string
	// Service is that of the failed or current step. ErrorCode is that of the failure, or of
	// the last failure of a live job's current step: other ended jobs have none.
	Service   string
	ErrorCode string
	// CorrelationID selects jobs however old they are.
	CorrelationID string
	// Outbox, if not nil, selects jobs by the outbox row of their latest attempt.
	Outbox *OutboxFilter
	// CreatedAfter and CreatedBefore, if not zero, bound the time of acceptance:
	// CreatedAfter ≤ accepted < CreatedBefore.
	CreatedAfter  time.Time
	CreatedBefore time.Time
}

const (
	// defaultMonths is how many months back a list goes without CreatedAfter.
	defaultMonths = 3
	// maxMonths bounds how far back a list may go.
	maxMonths = 120
	// maxRead bounds the jobs that are read for one page, maxSearched the index rows that are
	// looked at, and searchTime the time.
	maxRead     = 2000
	maxSearched = 20_000
	searchTime  = 5 * time.Second
	// bytesPerJob times its limit bounds a page, but maxPageBytes at most.
	bytesPerJob  = 16 << 10
	maxPageBytes = 2 << 20
	// maxTenants bounds the tenants whose jobs are merged into one list.
	maxTenants = 1000
	// maxLive bounds the live jobs whose ids are read for one page if they are not known
	// without. Beyond it they are found among all jobs.
	maxLive = 50_000
	// minFill and maxFill are how many entries of one list are read at once, the more the
	// longer it is walked; maxFilled is about how many of all lists are in memory.
	minFill   = 16
	maxFill   = 1000
	maxFilled = 10_000
)

// PageBytes is how many bytes a page of jobs may have in JSON, not counting the job with
// which it exceeds them.
func PageBytes(limit int) int { return min(limit*bytesPerJob, maxPageBytes) }

// encodedSize is about the size of a job in JSON, with its steps.
func encodedSize(agg *Shown) int {
	const names = 700 // The fields that every job and step has.
	job := &agg.Job
	size := names + len(job.InputRef) + len(job.OutputRef) + len(job.FinalOutput) + len(job.ErrorMessage) +
		2*(200+len(agg.Waiting.Detail)) // It is shown with the job and with its step.
	for i := range agg.Steps {
		step := &agg.Steps[i]
		size += names + len(step.InputRef) + len(job.WorkspaceRef) + len(step.OutputRef) + len(step.ResultRef) +
			len(step.LastErrorMessage) + len(step.WorkID) + len(step.Owner)
	}
	return size
}

// List returns one page of jobs, newest first, and the position to continue after,
// empty at the end. A page may hold fewer jobs than the limit, or none, and still not be
// the last: it ends after maxRead jobs, maxSearched index rows or searchTime, and all jobs
// before the position have been looked at. Each job is read from its own rows. The errors
// are [*problem.Error]s.
func (s *Service) List(ctx context.Context, f Filter, limit int, after string) ([]Shown, string, error) {
	var found []Shown
	size := 0
	next, err := s.search(ctx, &f, limit, after, func(agg *statemachine.Aggregate) (full bool, err error) {
		shown, err := s.listed(ctx, agg)
		if err != nil {
			return false, err
		}
		found = append(found, shown)
		size += encodedSize(&shown)
		return len(found) == limit || size >= PageBytes(limit), nil
	})
	if err != nil {
		return nil, "", err
	}
	return found, next, nil
}

// search adds the jobs that match to a page, the newest first, until it is full or has read
// as much as a page may. It returns the position to continue after, empty at the end.
func (s *Service) search(ctx context.Context, f *Filter, limit int, after string, add func(*statemachine.Aggregate) (full bool, err error),
) (next string, err error) {
	if err := f.check(after); err != nil {
		return "", err
	}
	begun, searched, read, last, full := time.Now(), 0, 0, "", false
	for hint, err := range s.candidates(ctx, f, limit, after) {
		if err != nil {
			return "", ledger.Problem(err)
		}
		searched++
		// A job that has just ended is live as well, and one that nearly ended otherwise has two index rows.
		if f.mayMatch(&hint.IndexRow) && hint.JobID != last {
			read, last = read+1, hint.JobID
			agg, err := s.match(ctx, f, hint.JobID)
			if err == nil && agg != nil {
				full, err = add(agg)
			}
			if err != nil {
				return "", err
			}
		}
		if full || searched >= s.maxSearched || read >= maxRead || time.Since(begun) >= searchTime {
			return hint.JobID, nil
		}
	}
	return "", nil
}

// match returns the job if it exists and matches the filter, else nil.
func (s *Service) match(ctx context.Context, f *Filter, jobID string) (*statemachine.Aggregate, error) {
	read := s.ledger.Job
	if f.Outbox != nil {
		read = s.ledger.JobWithOutbox
	}
	agg, err := read(ctx, jobID)
	switch {
	case errors.Is(err, ledger.ErrJobNotFound): // Its accept never committed, or it is purged.
		return nil, nil
	case err != nil:
		return nil, ledger.Problem(err)
	case !f.matches(agg):
		return nil, nil
	}
	return agg, nil
}

// candidates yields all jobs that may match the filter, the newest first, some of them
// twice. An error of the store is yielded last.
func (s *Service) candidates(ctx context.Context, f *Filter, limit int, after string) iter.Seq2[Hint, error] {
	return func(yield func(Hint, error) bool) {
		live, listed, err := s.live(ctx, f, after)
		if err != nil {
			yield(Hint{}, err)
			return
		}
		// older yields the live jobs up to that place.
		older := func(place string) bool {
			for ; len(live) > 0 && live[0].place <= place; live = live[1:] {
				if !yield(Hint{IndexEntry: ledger.IndexEntry{IndexRow: ledger.IndexRow{JobID: live[0].id}}}, nil) {
					return false
				}
			}
			return true
		}
		for hint, err := range s.indexed(ctx, f, listed, HintQuery{After: after, Page: limit}) {
			if err != nil {
				yield(Hint{}, err)
				return
			}
			if !older(ledger.ListOrder(hint.JobID)) || !yield(hint, nil) {
				return
			}
		}
		older(maxPlace)
	}
}

// indexed yields those candidates that the index lists, if all live ones are listed without
// those.
func (s *Service) indexed(ctx context.Context, f *Filter, liveListed bool, q HintQuery) iter.Seq2[Hint, error] {
	return func(yield func(Hint, error) bool) {
		switch {
		case !liveListed:
		case f.State != "" || f.Outbox.is(statemachine.OutboxPending): // No job ends with a row to publish.
			return
		case f.Outbox.is(statemachine.OutboxFailedFinal):
			q.States = []statemachine.JobState{statemachine.JobFailedFinal, statemachine.JobCancelled}
		case f.ErrorCode != "":
			q.States = []statemachine.JobState{statemachine.JobFailedFinal}
		default:
			q.States = []statemachine.JobState{statemachine.JobSucceeded, statemachine.JobFailedFinal, statemachine.JobCancelled}
		}
		var err error
		switch q.Tenants = []string{f.TenantID}; {
		case f.TenantID != "":
		case f.CorrelationID != "":
			q.Tenants, err = s.ledger.CorrelatedTenants(ctx, f.CorrelationID, maxTenants)
		default:
			q.Tenants, err = s.ledger.Tenants(ctx, "", maxTenants)
		}
		if err != nil {
			yield(Hint{}, err)
			return
		}
		f.Hints(ctx, s.ledger, q)(yield)
	}
}

// placed is a job with its place in the list.
type placed struct{ place, id string }

// maxPlace is after all places.
const maxPlace = "~"

// live returns the live jobs that may match, the newest first, however old they are: as
// many as one page may read. If the index has to be read for them, since they are too many
// or all jobs may match, listed is false.
func (s *Service) live(ctx context.Context, f *Filter, after string) (found []placed, listed bool, err error) {
	if f.State == "" && f.Service == "" && f.RequestType == "" && f.ErrorCode == "" && !f.Outbox.narrow() ||
		f.State.Terminal() || f.CorrelationID != "" {
		return nil, false, nil
	}
	last, worst := "", maxPlace
	if after != "" {
		last = ledger.ListOrder(after)
	}
	for ids, err := range s.liveIDs(ctx, f) {
		if errors.Is(err, errTooManyLive) {
			return nil, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		for _, id := range slices.Backward(ids) { // The last ones are the newest, as a rule.
			place, made := ledger.ListOrder(id), ledger.IDTime(id) // It was accepted within idLead.
			if place > last && place <= worst && (f.CreatedAfter.IsZero() || !made.Add(idLead).Before(f.CreatedAfter)) &&
				(f.CreatedBefore.IsZero() || made.Before(f.CreatedBefore)) {
				found = append(found, placed{place, id})
			}
			if len(found) == 3*maxRead {
				if found = newest(found); len(found) == maxRead {
					worst = found[maxRead-1].place
				}
			}
		}
	}
	return newest(found), true, nil
}

// errTooManyLive says that there are more than maxLive live jobs.
var errTooManyLive = errors.New("too many live jobs")

// liveIDs yields the ids of the live jobs that may match, in parts and in no order. The
// error is [errTooManyLive] or that of the store.
func (s *Service) liveIDs(ctx context.Context, f *Filter) iter.Seq2[[]string, error] {
	if s.around.Live != nil {
		if parts, known := s.around.Live(f.fits); known {
			return func(yield func([]string, error) bool) {
				parts(func(ids []string) bool { return yield(ids, nil) })
			}
		}
	}
	page := s.slotted
	if f.Outbox.is(statemachine.OutboxPending) {
		page = s.pending
	}
	return func(yield func([]string, error) bool) {
		total := 0
		for shard := range s.ledger.Shards() {
			for from, more := "", true; more; more = from != "" {
				ids, read, next, err := page(ctx, f, shard, from)
				if total += read; err == nil && total > s.maxLive {
					err = errTooManyLive
				}
				if from = next; !yield(ids, err) || err != nil {
					return
				}
			}
		}
	}
}

// slotted returns a page of the ids of live jobs, and how many rows it read for them.
func (s *Service) slotted(ctx context.Context, f *Filter, shard int, from string) (ids []string, read int, next string, err error) {
	ids, next, err = s.ledger.Live(ctx, f.TenantID, shard, 0, from)
	return ids, len(ids), next, err
}

// newest returns the jobs in order, the newest first, as many as one page may read.
func newest(found []placed) []placed {
	slices.SortFunc(found, func(a, b placed) int { return strings.Compare(a.place, b.place) })
	found = slices.Compact(found) // A job may hold two slots.
	return found[:min(len(found), maxRead)]
}

// check names the first invalid parameter.
func (f *Filter) check(after string) error {
	var message string
	switch {
	case after != "" && ledger.ParseJobID(after) != nil:
		message = "page_token is invalid"
	case !f.CreatedAfter.IsZero() && !f.CreatedBefore.IsZero() && !f.CreatedAfter.Before(f.CreatedBefore):
		message = "parameter created_after must be before created_before"
	default:
		return nil
	}
	return &problem.Error{Code: problem.InvalidEnvelope, Errors: []problem.Violation{{Message: message}}}
}

// mayMatch reports whether the filter may select the job of an index row. Only the rows of
// ended jobs say more than its id.
func (f *Filter) mayMatch(row *ledger.IndexRow) bool {
	return row.EndedAt.IsZero() || f.Outbox.mayMatch(row) && (f.RequestType == "" || row.RequestType == f.RequestType) &&
		(f.Service == "" || row.Service == f.Service) &&
		(f.ErrorCode == "" || row.ErrorCode == f.ErrorCode)
}

// matches applies the filter to the job itself.
func (f *Filter) matches(agg *statemachine.Aggregate) bool {
	job, traits := &agg.Job, census.TraitsOf(agg)
	if job.State == statemachine.JobFailedFinal {
		traits.ErrorCode = job.ErrorCode
	} else if job.State.Terminal() {
		traits.ErrorCode = ""
	}
	return f.fits(&traits) && (f.CorrelationID == "" || job.CorrelationID == f.CorrelationID) &&
		(f.CreatedAfter.IsZero() || !job.CreatedAt.Before(f.CreatedAfter)) &&
		(f.CreatedBefore.IsZero() || job.CreatedAt.Before(f.CreatedBefore))
}

// fits applies the filter to what is known of a job without its times.
func (f *Filter) fits(t *census.Traits) bool {
	return (f.TenantID == "" || t.TenantID == f.TenantID) &&
		(f.State == "" || t.State == f.State) &&
		(f.RequestType == "" || t.RequestType == f.RequestType) &&
		(f.Service == "" || t.Service == f.Service) &&
		(f.ErrorCode == "" || t.ErrorCode == f.ErrorCode) &&
		f.Outbox.fits(t)
}

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
