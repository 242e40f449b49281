package background

import (
	"bytes"
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

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Kind is what an operation does to its jobs.
type Kind string

// The kinds of operations.
const (
	KindRetry  Kind = "retry" // rerun ended jobs
	KindCancel Kind = "cancel"
	KindPause  Kind = "pause"
	KindResume Kind = "resume"
)

// applies reports whether the kind changes a job in that state.
func (k Kind) applies(state statemachine.JobState) bool {
	waits := state == statemachine.JobPausing || state == statemachine.JobPaused
	switch k {
	case KindRetry:
		return state.Terminal()
	case KindCancel, KindPause:
		return !state.Terminal() && state != statemachine.JobCancelling && !(k == KindPause && waits)
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
	MaxBulkPatch    = 16_384 // the most bytes of a PayloadPatch
)

// Edits say what the reruns of a retry do, see [commands.Rerun].
type Edits struct {
	// From is where they start. Optional. Defaults to the failed step, and if the filter selects jobs
	// that succeeded, to the first one.
	From         ledger.RerunFrom `json:"from,omitempty"`
	FromStep     string           `json:"from_step,omitempty"`
	PayloadPatch json.RawMessage  `json:"payload_patch,omitempty"`
	Current      bool             `json:"current,omitempty"`
	NoCallbacks  bool             `json:"no_callbacks,omitempty"`
	// Priority is the name of their class. Optional. Defaults to that of the job that each repeats.
	Priority string `json:"priority,omitempty"`
}

// rerun returns the rerun of a job.
func (e *Edits) rerun(jobID string) commands.Rerun {
	rerun := commands.Rerun{
		Rerun:        ledger.Rerun{JobID: jobID, From: e.From, FromStep: e.FromStep, NoCallbacks: e.NoCallbacks},
		PayloadPatch: e.PayloadPatch, Current: e.Current,
	}
	if class, named := statemachine.ParseClass(e.Priority); named {
		rerun.Class = &class
	}
	return rerun
}

// BulkRequest describes an operation to create.
type BulkRequest struct {
	// Kind is what to do. Optional. Defaults to [KindRetry].
	Kind Kind
	// JobIDs names the jobs. A retry reruns those of a line in this order. Without it, Filter
	// selects them: for a retry, jobs without a rerun that ended in its State, by default
	// FAILED_FINAL, newest first; otherwise live jobs that the operation would change. Of jobs that
	// SUCCEEDED it must have a CreatedBefore in the past, so that a repeat with the same one selects
	// no rerun of the operations before.
	JobIDs []string
	Filter search.Filter
	// After is a truncated operation with the same Filter. Its jobs, and all before them, are left
	// out. Optional.
	After string
	// All must be set without JobIDs and filters other than CreatedBefore and the State of a retry.
	All bool
	// Edits are those of a retry.
	Edits
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
	for _, bound := range []*time.Time{&r.Filter.CreatedAfter, &r.Filter.CreatedBefore, &r.Filter.EndedAfter, &r.Filter.EndedBefore} {
		*bound = bound.UTC().Truncate(time.Millisecond) // As answers show it.
	}
	r.Kind = cmp.Or(r.Kind, KindRetry)
	filters := r.Filter
	filters.CreatedBefore = time.Time{}
	if r.Kind == KindRetry {
		if filters.State = ""; len(r.JobIDs) == 0 {
			r.Filter.State = cmp.Or(r.Filter.State, statemachine.JobFailedFinal)
		}
		if r.From == "" && r.FromStep == "" && r.Filter.State == statemachine.JobSucceeded {
			r.From = ledger.FromStart
		}
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
	case len(r.JobIDs) > 0 && (!r.Filter.All() || r.After != ""):
		return invalidRequest("/job_ids", "must not be combined with filters")
	case len(r.JobIDs) == 0 && filters.All() && !r.All:
		return invalidRequest("/all", "must be true to select all jobs: name job_ids, or filters besides created_before, to select some")
	case r.From != "" && r.From != ledger.FromFailed && r.From != ledger.FromStart:
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
	if r.Kind == KindRetry {
		if err := r.checkRetry(); err != nil {
			return err
		}
	}
	seen := map[string]bool{}
	r.JobIDs = slices.DeleteFunc(slices.Clone(r.JobIDs), func(id string) bool { return again(seen, id) })
	return nil
}

// applies reports whether the operation changes a job in that state: a success has no failed step.
func (r *BulkRequest) applies(state statemachine.JobState) bool {
	none := r.From == ledger.FromFailed && r.FromStep == "" && !r.Current && state == statemachine.JobSucceeded
	return r.Kind.applies(state) && !none
}

// checkRetry checks what a retry has beyond other operations.
func (r *BulkRequest) checkRetry() error {
	f := &r.Filter
	switch {
	case f.State != "" && !f.State.Terminal():
		return invalidRequest("/state", "must be FAILED_FINAL, CANCELLED or SUCCEEDED")
	case f.State == statemachine.JobSucceeded && (f.CreatedBefore.IsZero() || f.CreatedBefore.After(time.Now())):
		return invalidRequest("/created_before", "is required for jobs that succeeded, and must not be in the future: "+
			"a repeat with the same time leaves out the reruns of this operation")
	case f.State != statemachine.JobFailedFinal && f.ErrorCode != "":
		return invalidRequest("/error_code", "must not be given for jobs in this state: only failed ones have a code")
	case len(r.PayloadPatch) > MaxBulkPatch:
		return invalidRequest("/payload_patch", fmt.Sprintf("must have at most %d bytes", MaxBulkPatch))
	}
	rerun := r.rerun("")
	return rerun.Check()
}

// begin returns the filter of the request, with the place where its jobs begin.
func (s *Operations) begin(ctx context.Context, r *BulkRequest) (search.Filter, error) {
	filter := r.Filter
	if r.After == "" {
		return filter, nil
	}
	before, err := s.read(ctx, r.After)
	if err != nil && !errors.Is(err, errNoOperation) {
		return filter, err
	}
	if before.Last == "" || before.Kind != r.Kind || !bytes.Equal(text(&before.Filter), text(&filter)) {
		return filter, invalidRequest("/after", "must be a truncated operation of ended jobs with the same filters, which is still kept")
	}
	filter.After = before.Last
	return filter, nil
}

// text returns the JSON of a value that always encodes.
func text(v any) []byte {
	encoded, _ := json.Marshal(v)
	return encoded
}

// digest returns a hash of a complete request, without its actor.
func (r *BulkRequest) digest() string {
	sum := sha256.Sum256(text(r)) // The rate is finite, so it always encodes.
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
// reading them. It ends after an error, which is a [*search.MoreError], or that of begin or the store.
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
		filter, err := s.begin(ctx, r)
		if err != nil {
			yield(nil, err)
			return
		}
		seen := map[string]bool{}
		for job, err := range s.find.Find(ctx, &filter, r.applies) {
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
	Sample    []Sample
}

// Sample is a job that an operation would change.
type Sample struct {
	*statemachine.Aggregate
	// Plan is what a retry would do with it, and Refused why it would skip the job. Only one is set.
	Plan    *commands.RerunPlan
	Refused *apierror.Error
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
			if job.Job != nil && r.applies(job.Job.Job.State) {
				add(job)
			}
		}
	}
	if len(r.JobIDs) == 0 {
		for job, err := range s.selected(ctx, &r) {
			if _, preview.Truncated = errors.AsType[*search.MoreError](err); preview.Truncated {
				break
			}
			if err != nil {
				return preview, err
			}
			add(job)
		}
	}
	preview.Sample, err = s.sample(ctx, &r, sample)
	return preview, err
}

// sample reads the jobs, and plans their reruns if the request is a retry.
func (s *Operations) sample(ctx context.Context, r *BulkRequest, jobs []*search.Found) (samples []Sample, err error) {
	if err := s.find.Read(ctx, jobs); err != nil {
		return nil, err
	}
	for _, job := range jobs {
		if job.Job == nil {
			continue
		}
		one := Sample{Aggregate: job.Job}
		if r.Kind == KindRetry {
			plan, err := s.cfg.Commands.PlanRerun(ctx, r.rerun(job.JobID))
			if one.Plan = &plan; err != nil {
				one.Plan, one.Refused = nil, apierror.From(err)
				if one.Refused.Code == apierror.Internal && ctx.Err() == nil {
					continue // Its rows cannot be decoded: the operation will say that it failed.
				}
				if apierror.MayPass(err) {
					return nil, err
				}
			}
		}
		samples = append(samples, one)
	}
	return samples, nil
}
