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

// BulkRequest describes an operation to create.
type BulkRequest struct {
	// Kind is what to do. Optional. Defaults to [KindRetry].
	Kind Kind
	// JobIDs names the jobs, in processing order. Without it, Filter selects them: for a
	// retry, FAILED_FINAL jobs without a rerun, newest first; otherwise live jobs that the
	// operation would change.
	JobIDs []string
	Filter search.Filter
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
	case len(r.JobIDs) > 0 && !r.Filter.All():
		return invalidRequest("/job_ids", "must not be combined with filters")
	case len(r.JobIDs) == 0 && r.Filter.All() && !r.All:
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
	if field, fault := r.Filter.Fault(); field != "" {
		return invalidRequest("/"+field, fault)
	}
	seen := map[string]bool{}
	r.JobIDs = slices.DeleteFunc(slices.Clone(r.JobIDs), func(id string) bool { return again(seen, id) })
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
	return apierror.Refused([]apierror.Violation{{Pointer: pointer, Message: message}})
}

// again reports whether it was called with the id before.
func again(seen map[string]bool, id string) bool {
	defer func() { seen[id] = true }()
	return seen[id]
}

const (
	maxLiveRead = 20_000 // live jobs read for one request
	readPage    = 100    // named jobs in memory at a time
)

// selected yields the jobs that a request selects, regardless of its limit; named ones without
// reading them. It ends after an error, which is [search.ErrMore] or the store's.
func (s *Operations) selected(ctx context.Context, r *BulkRequest) iter.Seq2[*search.Found, error] {
	return func(yield func(*search.Found, error) bool) {
		for _, job := range search.Named(r.JobIDs) {
			if !yield(job, nil) {
				return
			}
		}
		if len(r.JobIDs) > 0 {
			return
		}
		filter, seen := r.Filter, map[string]bool{}
		if r.Kind == KindRetry {
			filter.State = statemachine.JobFailedFinal
		}
		for job, err := range s.find.Find(ctx, &filter, func(state statemachine.JobState) bool { return r.Kind.applies(state, false) }) {
			if err == nil && (job.SupersededBy != "" || r.Kind != KindRetry && again(seen, job.JobID)) {
				continue
			}
			if !yield(job, err) {
				return
			}
		}
	}
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
	var sample []*search.Found
	add := func(job *search.Found) {
		if preview.Matched++; len(sample) < maxPreview {
			sample = append(sample, job)
		}
	}
	for ids := range slices.Chunk(r.JobIDs, readPage) {
		named := search.Named(ids)
		if err := s.find.Read(ctx, named); err != nil {
			return preview, err
		}
		for _, job := range named {
			if job.Job != nil && r.Kind.applies(job.Job.Job.State, true) {
				add(job)
			}
		}
	}
	if len(r.JobIDs) == 0 {
		for job, err := range s.selected(ctx, &r) {
			if preview.Truncated = errors.Is(err, search.ErrMore); preview.Truncated {
				break
			}
			if err != nil {
				return preview, err
			}
			add(job)
		}
	}
	if err := s.find.Read(ctx, sample); err != nil {
		return preview, err
	}
	for _, job := range sample {
		if job.Job != nil {
			preview.Sample = append(preview.Sample, job.Job)
		}
	}
	return preview, nil
}
