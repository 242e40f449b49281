package search

import (
	"reflect"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Filter selects jobs. All fields that are set must match, so its zero value selects all jobs.
// Lists and the walk of ended jobs go back three months, from CreatedBefore if that is set, unless
// CreatedAfter is.
type Filter struct {
	TenantID    string                `json:"tenant_id,omitempty"`
	ProtocolID  string                `json:"protocol_id,omitempty"`
	RequestType string                `json:"request_type,omitempty"`
	State       statemachine.JobState `json:"state,omitempty"`
	// Service and StepType are those of the failed or current step. ErrorCode is that of a
	// failed job, or of the last failure of a live job's current step; other jobs have none.
	Service   string `json:"service,omitempty"`
	StepType  string `json:"step_type,omitempty"`
	ErrorCode string `json:"error_code,omitempty"`
	// CorrelationID, if set, selects jobs of any age.
	CorrelationID string `json:"correlation_id,omitempty"`
	// DocID, if set, selects jobs of any age. Tags are tags of the job, all of which it must have.
	// Both need TenantID.
	DocID string            `json:"doc_id,omitempty"`
	Tags  statemachine.Tags `json:"tags,omitempty"`
	// Created… bound the time of acceptance, and Ended… that of the end of an ended job:
	// After ≤ time < Before.
	CreatedAfter  time.Time `json:"created_after,omitzero"`
	CreatedBefore time.Time `json:"created_before,omitzero"`
	EndedAfter    time.Time `json:"ended_after,omitzero"`
	EndedBefore   time.Time `json:"ended_before,omitzero"`

	// HasOutbox selects jobs that have an outbox row of their latest attempt. Outbox is the
	// state of that row. Lane is that of the current step.
	HasOutbox bool                     `json:"has_outbox,omitempty"`
	Outbox    statemachine.OutboxState `json:"outbox,omitempty"`
	Lane      *int                     `json:"lane,omitempty"`
	// Retryable selects jobs whose next dispatch an operator can make due, and UnchangedSince
	// jobs whose current step has not changed after that time.
	Retryable bool `json:"retryable,omitempty"`
	// Retrying selects live jobs whose current step failed and is retried.
	Retrying       bool      `json:"retrying,omitempty"`
	UnchangedSince time.Time `json:"unchanged_since,omitzero"`
	// After is where a [Finder] begins among the ended jobs: after [Found.After] or [MoreError.After]
	// of an earlier search with the same filter. Lists have a parameter for it.
	After string `json:"-"`
	// Waiting selects live jobs that wait for one of these reasons. [Finder] ignores it: only
	// [Service.List] knows what a job depends on outside its rows.
	Waiting []statemachine.Reason `json:"-"`
}

// All reports whether the filter selects all jobs.
func (f *Filter) All() bool { return reflect.ValueOf(f).Elem().IsZero() }

// Fault returns the first invalid field, and what is wrong with it.
func (f *Filter) Fault() (field, message string) {
	disordered := func(a, b time.Time) bool { return !a.IsZero() && !b.IsZero() && !a.Before(b) }
	switch {
	case disordered(f.CreatedAfter, f.CreatedBefore):
		return "created_after", "must be before created_before"
	case disordered(f.EndedAfter, f.EndedBefore):
		return "ended_after", "must be before ended_before"
	case f.ended() && f.State != "" && !f.State.Terminal():
		return "state", "must be that of ended jobs with ended_after or ended_before"
	case f.indexed() && f.TenantID == "":
		return "tenant_id", "is required to find jobs by document or tag"
	}
	return "", ""
}

// ended reports whether the filter bounds the time at which a job ended.
func (f *Filter) ended() bool { return !f.EndedAfter.IsZero() || !f.EndedBefore.IsZero() }

// check returns a problem that names the first invalid parameter.
func (f *Filter) check(after string) error {
	message := ""
	if field, fault := f.Fault(); field != "" {
		message = "parameter " + field + " " + fault
	}
	switch {
	case len(f.Waiting) > 0 && f.State.Terminal():
		message = "parameter waiting selects live jobs, but state=" + string(f.State) + " ended ones"
	case len(f.Waiting) > 0 && f.ended():
		message = "parameter waiting selects live jobs, but ended_after and ended_before ended ones"
	}
	if after != "" && ledger.ParseJobID(after) != nil {
		message = "page_token is invalid"
	}
	if message == "" {
		return nil
	}
	return apierror.Refused([]apierror.Violation{{Message: message}})
}

// indexed reports whether the jobs of the filter's document, or of its first tag, are enough.
func (f *Filter) indexed() bool { return f.DocID != "" || f.Tags != "" }

// ofLive reports whether to look for matching live jobs of any age. Otherwise any job may
// match, and the jobs in the index are enough.
func (f *Filter) ofLive() bool {
	return (f.State != "" || len(f.Waiting) > 0 || f.ProtocolID != "" || f.Service != "" || f.StepType != "" || f.RequestType != "" ||
		f.ErrorCode != "" || f.Retryable || f.Retrying || f.Lane != nil ||
		f.Outbox != "" && f.Outbox != statemachine.OutboxSent) && // Most rows are SENT.
		!f.State.Terminal() && !f.ended() && f.CorrelationID == "" && !f.indexed()
}

// mayMatch reports whether the filter may select the job of an index row. A row of all jobs
// says no more than the id. If the last outbox row of an ended job is FAILED_FINAL, the job was
// cancelled, has expired, or failed because the row could not be published.
func (f *Filter) mayMatch(row *ledger.IndexRow) bool {
	if !is(f.DocID, row.DocID) || !row.Tags.Include(f.Tags) {
		return false
	}
	if row.EndedAt.IsZero() && row.RequestType == "" {
		return true
	}
	if !row.EndedAt.IsZero() && (f.Outbox == statemachine.OutboxPending || f.Outbox == statemachine.OutboxFailedFinal &&
		!slices.Contains([]string{"", statemachine.ErrorExpired, statemachine.ErrorDispatchExhausted}, row.ErrorCode)) {
		return false
	}
	return is(f.RequestType, row.RequestType) && is(f.Service, row.Service) && is(f.StepType, row.StepType) &&
		is(f.ErrorCode, row.ErrorCode) && within(row.EndedAt, f.EndedAfter, f.EndedBefore)
}

// Matches reports whether the filter selects the job.
func (f *Filter) Matches(agg *statemachine.Aggregate) bool {
	if len(agg.Steps) == 0 {
		return false
	}
	job, traits := &agg.Job, TraitsOf(agg)
	switch {
	case job.State == statemachine.JobFailedFinal:
		traits.ErrorCode = job.ErrorCode
	case job.State.Terminal():
		traits.ErrorCode = ""
	}
	return f.fits(&traits) && is(f.CorrelationID, job.CorrelationID) && is(f.DocID, job.DocID) && job.Tags.Include(f.Tags) &&
		within(job.CreatedAt, f.CreatedAfter, f.CreatedBefore) &&
		(!f.ended() || job.State.Terminal() && within(job.CompletedAt, f.EndedAfter, f.EndedBefore)) &&
		(f.UnchangedSince.IsZero() || !agg.Steps[job.CurrentStepIndex].UpdatedAt.After(f.UnchangedSince))
}

// fits applies the filter to the traits of a job, which do not include its times.
func (f *Filter) fits(t *Traits) bool {
	return is(f.TenantID, t.TenantID) && is(f.ProtocolID, t.ProtocolID) && is(f.State, t.State) && is(f.RequestType, t.RequestType) &&
		is(f.Service, t.Service) && is(f.StepType, t.StepType) && is(f.ErrorCode, t.ErrorCode) && is(f.Outbox, t.Outbox) &&
		(!f.HasOutbox || t.Outbox != "") && (f.Lane == nil || *f.Lane == t.Lane) && (!f.Retryable || t.Retryable) &&
		(!f.Retrying || t.ErrorCode != "")
}

// waits reports whether the filter selects jobs that wait for one of these reasons.
func (f *Filter) waits(reasons ...statemachine.Reason) bool {
	return len(f.Waiting) == 0 || slices.ContainsFunc(reasons, func(r statemachine.Reason) bool { return slices.Contains(f.Waiting, r) })
}

// is reports whether a job has the wanted text, if there is one.
func is[Text ~string](wanted, has Text) bool { return wanted == "" || wanted == has }

// within reports whether after ≤ t < before. A zero bound does not limit.
func within(t, after, before time.Time) bool {
	return (after.IsZero() || !t.Before(after)) && (before.IsZero() || t.Before(before))
}
