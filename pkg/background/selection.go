package background

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Kind is what an operation does to its jobs.
type Kind string

// The kinds of operations.
const (
	KindRetry  Kind = "retry" // rerun failed jobs
	KindCancel Kind = "cancel"
	KindPause  Kind = "pause"
	KindResume Kind = "resume"
)

// applies reports whether the kind changes a job in that state. A retry of named jobs
// also reruns cancelled ones.
func (k Kind) applies(state statemachine.JobState, named bool) bool {
	waits := state == statemachine.JobPausing || state == statemachine.JobPaused
	switch k {
	case KindRetry:
		return state == statemachine.JobFailedFinal || named && state == statemachine.JobCancelled
	case KindCancel:
		return !state.Terminal() && state != statemachine.JobCancelling
	case KindPause:
		return !state.Terminal() && state != statemachine.JobCancelling && !waits
	default:
		return waits
	}
}

// The limits and defaults of a [BulkRequest].
const (
	MaxBulkJobIDs   = 1000   // the most JobIDs
	MaxBulkJobs     = 10_000 // the highest Limit
	MinBulkRate     = 0.01   // the lowest RatePerSecond
	MaxBulkRate     = 1000   // the highest RatePerSecond
	DefaultBulkRate = 20     // RatePerSecond of a retry or resume, unless set
	DefaultStopRate = 200    // RatePerSecond of a cancel or pause, unless set
)

// Filter selects jobs. All fields that are set must match.
type Filter struct {
	TenantID    string                `json:"tenant_id,omitempty"`
	RequestType string                `json:"request_type,omitempty"`
	State       statemachine.JobState `json:"state,omitempty"` // of a live job
	// Service, StepType and ErrorCode are those of a failed job's failure, or of a live
	// job's current step and its last failure.
	Service   string `json:"service,omitempty"`
	StepType  string `json:"step_type,omitempty"`
	ErrorCode string `json:"error_code,omitempty"`
	// Created… bound the time of acceptance, and Failed… that of the failure of a failed
	// job: After ≤ time < Before. Without CreatedAfter, failed jobs are those accepted in
	// this month or the two before it.
	CreatedAfter  time.Time `json:"created_after,omitzero"`
	CreatedBefore time.Time `json:"created_before,omitzero"`
	FailedAfter   time.Time `json:"failed_after,omitzero"`
	FailedBefore  time.Time `json:"failed_before,omitzero"`
}

// contradiction names the first pair of bounds that are not in order.
func (f *Filter) contradiction() (first, second string) {
	switch {
	case !f.CreatedAfter.IsZero() && !f.CreatedBefore.IsZero() && !f.CreatedAfter.Before(f.CreatedBefore):
		return "created_after", "created_before"
	case !f.FailedAfter.IsZero() && !f.FailedBefore.IsZero() && !f.FailedAfter.Before(f.FailedBefore):
		return "failed_after", "failed_before"
	}
	return "", ""
}

// list returns a filter for the jobs whose failures may match.
func (f *Filter) list() search.Filter {
	list := search.Filter{State: statemachine.JobFailedFinal, CreatedAfter: f.CreatedAfter, CreatedBefore: f.CreatedBefore}
	if end := f.FailedBefore; list.CreatedBefore.IsZero() || !end.IsZero() && end.Before(list.CreatedBefore) {
		list.CreatedBefore = end // A job fails after its acceptance.
	}
	return list
}

// matchesFailure reports whether the filter selects a failed job. It takes the time of
// acceptance from the job's id.
func (f *Filter) matchesFailure(hint *search.Hint) bool {
	return fits([][2]string{
		{f.RequestType, hint.RequestType}, {f.Service, hint.Service}, {f.StepType, hint.StepType}, {f.ErrorCode, hint.ErrorCode},
	}) && within(ledger.IDTime(hint.JobID), f.CreatedAfter, f.CreatedBefore) && within(hint.EndedAt, f.FailedAfter, f.FailedBefore)
}

// matchesLive reports whether the filter selects a live job.
func (f *Filter) matchesLive(agg *statemachine.Aggregate) bool {
	traits := search.TraitsOf(agg)
	return f.matchesTraits(&traits) && within(agg.Job.CreatedAt, f.CreatedAfter, f.CreatedBefore)
}

func (f *Filter) matchesTraits(t *search.Traits) bool {
	return fits([][2]string{
		{f.TenantID, t.TenantID}, {f.RequestType, t.RequestType}, {string(f.State), string(t.State)},
		{f.Service, t.Service}, {f.StepType, t.StepType}, {f.ErrorCode, t.ErrorCode},
	})
}

// fits reports whether in each pair the wanted text is empty or equals the job's.
func fits(pairs [][2]string) bool {
	return !slices.ContainsFunc(pairs, func(pair [2]string) bool { return pair[0] != "" && pair[0] != pair[1] })
}

// within reports whether after ≤ t < before. A zero bound does not limit.
func within(t, after, before time.Time) bool {
	return (after.IsZero() || !t.Before(after)) && (before.IsZero() || t.Before(before))
}

// BulkRequest describes an operation to create.
type BulkRequest struct {
	// Kind is what to do. Optional. Defaults to [KindRetry].
	Kind Kind
	// JobIDs names the jobs, in processing order. Without it, Filter selects them: for a
	// retry, FAILED_FINAL jobs without a rerun, newest first; otherwise live jobs that the
	// operation would change.
	JobIDs []string
	Filter Filter
	// All must be set if neither JobIDs nor Filter is.
	All bool
	// From is the starting point of reruns. Optional. Defaults to the failed step.
	From ledger.RerunFrom
	// Limit is the most jobs that the filter selects. Optional. Defaults to [MaxBulkJobs].
	Limit int
	// RatePerSecond is the most jobs that are started per second. Optional. Defaults to
	// [DefaultBulkRate] or [DefaultStopRate].
	RatePerSecond float64
	// Reason and Actor go into the history of the jobs. A cancel requires a Reason.
	Reason string
	Actor  string `json:"-"`
}

// complete sets the defaults and removes repeated JobIDs. The error names the first invalid
// field.
func (r *BulkRequest) complete() error {
	r.Kind = cmp.Or(r.Kind, KindRetry)
	if r.Kind == KindRetry {
		r.From = cmp.Or(r.From, ledger.FromFailed)
	}
	r.Limit = cmp.Or(r.Limit, MaxBulkJobs)
	if r.RatePerSecond == 0 {
		r.RatePerSecond = DefaultBulkRate
		if r.Kind == KindCancel || r.Kind == KindPause {
			r.RatePerSecond = DefaultStopRate
		}
	}
	switch {
	case len(r.JobIDs) > MaxBulkJobIDs:
		return invalidRequest("/job_ids", fmt.Sprintf("must hold at most %d", MaxBulkJobIDs))
	case len(r.JobIDs) > 0 && r.Filter != Filter{}:
		return invalidRequest("/job_ids", "must not be combined with filters")
	case len(r.JobIDs) == 0 && r.Filter == Filter{} && !r.All:
		return invalidRequest("/all", "must be true to select all jobs: name job_ids or filters to select some")
	case r.Kind == KindRetry && r.From != ledger.FromFailed && r.From != ledger.FromStart:
		return invalidRequest("/from", "must be failed or start")
	case r.Limit < 0 || r.Limit > MaxBulkJobs:
		return invalidRequest("/limit", fmt.Sprintf("must be from 0 to %d", MaxBulkJobs))
	case !(r.RatePerSecond >= MinBulkRate && r.RatePerSecond <= MaxBulkRate): // This refuses NaN as well.
		return invalidRequest("/rate_per_second", fmt.Sprintf("must be 0 or from %v to %d", MinBulkRate, MaxBulkRate))
	case r.Kind == KindCancel && r.Reason == "":
		return invalidRequest("/reason", "is required and must not be empty")
	}
	if first, second := r.Filter.contradiction(); first != "" {
		return invalidRequest("/"+first, "must be before "+second)
	}
	seen := map[string]bool{}
	r.JobIDs = slices.DeleteFunc(slices.Clone(r.JobIDs), func(id string) bool {
		again := seen[id]
		seen[id] = true
		return again
	})
	return nil
}

// digest returns a hash of a complete request, without its actor.
func (r *BulkRequest) digest() string {
	text, _ := json.Marshal(r) // The rate is finite, so it always encodes.
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// invalidRequest returns the problem of a request with one violation.
func invalidRequest(pointer, message string) error {
	return &apierror.Error{
		Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{{Pointer: pointer, Message: message}},
	}
}

// candidate is a job that a request selects.
type candidate struct{ jobID, tenant string }

const (
	maxLiveRead = 20_000 // live jobs read for one request
	readPage    = 100    // jobs in memory at a time
)

// selection finds the jobs that a request selects, regardless of its limit.
type selection struct {
	OperationsConfig

	request   *BulkRequest
	truncated bool // a bound ended the walk, so there may be more
}

func (s *selection) candidates(ctx context.Context) iter.Seq2[candidate, error] {
	switch {
	case len(s.request.JobIDs) > 0:
		return s.named
	case s.request.Kind == KindRetry:
		return func(yield func(candidate, error) bool) { s.failed(ctx, yield) }
	default:
		return func(yield func(candidate, error) bool) { s.live(ctx, yield) }
	}
}

// named yields the named jobs without reading them: the worker does later.
func (s *selection) named(yield func(candidate, error) bool) {
	for _, id := range s.request.JobIDs {
		if !yield(candidate{jobID: id}, nil) {
			return
		}
	}
}

// failed yields the failed jobs without a rerun.
func (s *selection) failed(ctx context.Context, yield func(candidate, error) bool) {
	walk := &failureWalk{ledger: s.Ledger, filter: s.request.Filter}
	for failed, err := range walk.failures(ctx) {
		if err != nil {
			yield(candidate{}, err)
			return
		}
		if failed.SupersededBy == "" && !yield(candidate{jobID: failed.JobID, tenant: failed.TenantID}, nil) {
			return
		}
	}
	s.truncated = walk.truncated
}

// live yields the live jobs that the operation would change, in no particular order.
func (s *selection) live(ctx context.Context, yield func(candidate, error) bool) {
	read, seen := 0, map[string]bool{} // A job may hold two slots.
	wanted := func(t *search.Traits) bool {
		return s.request.Kind.applies(t.State, false) && s.request.Filter.matchesTraits(t)
	}
	for ids, err := range s.Live.Candidates(ctx, s.Ledger, s.request.Filter.TenantID, wanted) {
		if over := read + len(ids) - maxLiveRead; over > 0 {
			ids, s.truncated = ids[:len(ids)-over], true
		}
		read += len(ids)
		var found []*statemachine.Aggregate
		if err == nil {
			found, err = readAll(ctx, s.Ledger, ids)
		}
		if err != nil {
			yield(candidate{}, err)
			return
		}
		for _, agg := range found {
			if agg == nil || seen[agg.Job.ID] || !s.request.Kind.applies(agg.Job.State, false) || !s.request.Filter.matchesLive(agg) {
				continue
			}
			seen[agg.Job.ID] = true
			if !yield(candidate{jobID: agg.Job.ID, tenant: agg.Job.TenantID}, nil) {
				return
			}
		}
		if s.truncated {
			return
		}
	}
}

// readAll reads the jobs concurrently. Those that do not exist are nil.
func readAll(ctx context.Context, l OperationsLedger, ids []string) ([]*statemachine.Aggregate, error) {
	found := make([]*statemachine.Aggregate, len(ids))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readers)
	for i, id := range ids {
		group.Go(func() error {
			agg, err := l.Job(ctx, id)
			if errors.Is(err, ledger.ErrJobNotFound) {
				return nil
			}
			found[i] = agg
			return err
		})
	}
	return found, group.Wait()
}

// maxPreview is the most jobs in a preview's sample.
const maxPreview = 10

// Preview is what an operation would select.
type Preview struct {
	Matched   int  // how many jobs match, regardless of the limit
	Truncated bool // there may be more
	Sample    []*statemachine.Aggregate
}

// Preview returns what [Operations.Create] would select, without storing it. The errors are
// those of Create.
func (s *Operations) Preview(ctx context.Context, r BulkRequest) (preview Preview, err error) {
	defer func() { err = ledger.Problem(err) }()
	if err := r.complete(); err != nil {
		return preview, err
	}
	var sample []string
	add := func(id string) {
		if preview.Matched++; len(sample) < maxPreview {
			sample = append(sample, id)
		}
	}
	for part := range slices.Chunk(r.JobIDs, readPage) {
		named, err := readAll(ctx, s.cfg.Ledger, part)
		if err != nil {
			return preview, err
		}
		for _, agg := range named {
			if agg != nil && r.Kind.applies(agg.Job.State, true) {
				add(agg.Job.ID)
			}
		}
	}
	if len(r.JobIDs) == 0 {
		chosen := &selection{OperationsConfig: s.cfg, request: &r}
		for found, err := range chosen.candidates(ctx) {
			if err != nil {
				return preview, err
			}
			add(found.jobID)
		}
		preview.Truncated = chosen.truncated
	}
	read, err := readAll(ctx, s.cfg.Ledger, sample)
	preview.Sample = slices.DeleteFunc(read, func(agg *statemachine.Aggregate) bool { return agg == nil })
	return preview, err
}
