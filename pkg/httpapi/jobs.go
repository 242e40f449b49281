package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// GetJob is GET /v1/jobs/{jobId}.
func (e *endpoints) GetJob(w http.ResponseWriter, r *http.Request, jobID api.JobID, params api.GetJobParams) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		var limit time.Duration
		if params.Wait != nil {
			var err error
			if limit, err = time.ParseDuration(*params.Wait); err != nil || limit < 0 {
				return nil, invalid("parameter wait must be a duration such as 30s", err)
			}
		}
		if limit > 0 {
			if _, err := waiting(ctx, e, limit, func(limit time.Duration, ended <-chan struct{}) (*statemachine.Aggregate, error) {
				return e.Jobs.Wait(ctx, jobID, limit, ended)
			}); err != nil {
				return nil, err
			}
		}
		job, err := e.job(ctx, jobID)
		if err != nil {
			return nil, err
		}
		return e.encodeJob(ctx, http.StatusOK, job)
	})
}

// job returns a job to be answered.
func (e *endpoints) job(ctx context.Context, jobID string) (*search.Shown, error) {
	if err := e.reserve(ctx, jobWeight); err != nil {
		return nil, err
	}
	job, err := e.Ledger.Job(ctx, jobID)
	if err != nil {
		return nil, ledger.Problem(err)
	}
	return e.jobsFor(ctx).Show(ctx, job)
}

// jobsFor returns the use case that discloses of other tenants only what the caller may
// see.
func (e *endpoints) jobsFor(ctx context.Context) *search.Service {
	if e.guard.allows(ctx, "") {
		return e.Jobs
	}
	return e.Jobs.ForOneTenant()
}

// ListJobSteps is GET /v1/jobs/{jobId}/steps.
func (e *endpoints) ListJobSteps(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		job, err := e.job(ctx, jobID)
		if err != nil {
			return nil, err
		}
		return e.encodeSteps(ctx, http.StatusOK, struct{}{}, job)
	})
}

// ListJobs is GET /v1/jobs.
func (e *endpoints) ListJobs(w http.ResponseWriter, r *http.Request, params api.ListJobsParams) {
	e.pageOfTenant(w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		if params.State != nil && !params.State.Valid() {
			states := strings.ReplaceAll(strings.Trim(fmt.Sprint(statemachine.JobStates), "[]"), " ", ", ")
			return nil, invalid("parameter state must be one of "+states, nil)
		}
		var waiting []statemachine.Reason
		for _, reason := range orZero(params.Waiting) {
			if !reason.Valid() {
				return nil, invalid("parameter waiting must be a reason that jobs wait for, such as queued or backoff", nil)
			}
			if slices.Contains(waiting, statemachine.Reason(reason)) { // Each is compared with the traits of all live jobs.
				return nil, invalid("parameter waiting must name each reason once", nil)
			}
			waiting = append(waiting, statemachine.Reason(reason))
		}
		names := []*string{
			params.CorrelationID, params.ProtocolID, params.RequestType, params.Service, params.StepType, params.ErrorCode,
		}
		if slices.ContainsFunc(names, func(name *string) bool { return len(orZero(name)) > api.MaxName }) {
			message := fmt.Sprintf("parameters correlation_id, protocol_id, request_type, service, step_type and error_code "+
				"must be at most %d bytes", api.MaxName)
			return nil, invalid(message, nil)
		}
		tags, err := queriedTags(params.DocID, params.Tag)
		if err != nil {
			return nil, err
		}
		found, page, err := e.jobsFor(ctx).List(ctx, search.Filter{
			TenantID: orZero(params.TenantID), DocID: orZero(params.DocID), Tags: tags, State: statemachine.JobState(orZero(params.State)),
			ProtocolID: orZero(params.ProtocolID), RequestType: orZero(params.RequestType), CorrelationID: orZero(params.CorrelationID),
			Service: orZero(params.Service), StepType: orZero(params.StepType), ErrorCode: orZero(params.ErrorCode), Waiting: waiting,
			CreatedAfter: orZero(params.CreatedAfter).Time, CreatedBefore: orZero(params.CreatedBefore).Time,
			EndedAfter: orZero(params.EndedAfter).Time, EndedBefore: orZero(params.EndedBefore).Time,
		}, limit, at.after)
		list := api.JobPage{
			Jobs: make([]api.Job, len(found)), NextPageToken: at.token(page.Next), SearchedTo: searchedTo(page.Next),
			TenantsOmitted: page.TenantsOmitted,
		}
		for i := range found {
			list.Jobs[i] = JobOf(&found[i])
		}
		return list, err
	})
}

// queriedTags checks the document and the tags of a query, and returns the tags.
func queriedTags(docID *string, tag *[]string) (statemachine.Tags, error) {
	if len(orZero(docID)) > api.MaxDocID {
		return "", invalid(fmt.Sprintf("parameter doc_id must be at most %d bytes", api.MaxDocID), nil)
	}
	tags, err := statemachine.ParseTags(orZero(tag))
	if err != nil {
		return "", invalid("parameter "+err.Error(), nil)
	}
	return tags, nil
}

// searchedTo returns how far a page of jobs has searched if it ends at that job, zero for
// the last page.
func searchedTo(next string) api.Time {
	if next == "" {
		return api.Time{}
	}
	return api.NewTime(ledger.IDTime(next))
}

// ListJobEvents is GET /v1/jobs/{jobId}/events.
func (e *endpoints) ListJobEvents(w http.ResponseWriter, r *http.Request, jobID api.JobID, params api.ListJobEventsParams) {
	if accepts(r, eventStream) {
		e.respond.answer(w, r, http.StatusOK, nil, e.streamEvents(w, r, jobID, orZero(params.LastEventID)))
		return
	}
	e.page(w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		rev, err := at.rev()
		if err != nil {
			return nil, err
		}
		entries, next, err := e.Jobs.History(ctx, jobID, rev, limit)
		return api.EventPage{Events: EventsOf(entries), NextPageToken: at.revToken(next)}, err
	})
}

// ListRejectedCallbacks is GET /v1/jobs/{jobId}/rejected.
func (e *endpoints) ListRejectedCallbacks(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	found, err := e.Jobs.Rejected(r.Context(), jobID)
	list := api.RejectedCallbacks{Rejected: []api.RejectedCallback{}}
	places := map[ledger.Rejection]int{} // by what repeats have in common
	for _, one := range found {
		same := one
		same.Report, same.RequestID, same.At, same.Rev, same.No = statemachine.Report{}, "", time.Time{}, 0, 0
		place, repeated := places[same]
		if !repeated {
			place = len(list.Rejected)
			places[same] = place
			list.Rejected = append(list.Rejected, api.RejectedCallback{
				StepID: one.StepID, Type: one.Kind, AttemptNo: one.AttemptNo, LeaseDigest: one.LeaseDigest,
				Status: api.ResultStatus(one.Status), Cause: string(one.Cause), Caller: one.Caller,
				Rev: one.Rev, FirstAt: api.NewTime(one.At),
			})
		}
		entry := &list.Rejected[place]
		entry.Callback, entry.RequestID, entry.LastAt = api.ReportedSending(one.Report), one.RequestID, api.NewTime(one.At)
		entry.Count++
	}
	e.respond.answer(w, r, http.StatusOK, list, err)
}

// RerunJob is POST /v1/jobs/{jobId}:rerun.
func (e *endpoints) RerunJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	serve(e, w, r, http.StatusAccepted, optional, func(ctx context.Context, request api.RerunRequest) (any, error) {
		if len(request.Resolve) > 0 {
			if err := e.guard.authorizeAs(ctx, auth.Admin); err != nil {
				return nil, err
			}
		}
		rerun := commands.Rerun{
			Rerun: ledger.Rerun{
				JobID: jobID, From: cmp.Or(ledger.RerunFrom(request.From), ledger.FromFailed), FromStep: orZero(request.FromStep),
				Newest: request.Newest, Tags: statemachine.NewTags(request.Tags),
				NoCallbacks: request.Callbacks == api.RerunCallbacksNone,
				Actor:       string(api.ActorClient), RequestID: requestStateOf(ctx).id, Reason: request.Reason,
			},
			Payload: request.Payload, PayloadPatch: request.PayloadPatch,
			InputRef: request.InputRef, OutputRef: request.OutputRef, WorkspaceRef: request.WorkspaceRef,
			Current: request.Protocol == api.RerunProtocolCurrent,
		}
		if class, named := statemachine.ParseClass(string(request.Priority)); named {
			rerun.Class = &class
		}
		rerun.Resolved = map[string]json.RawMessage{}
		for _, step := range request.Resolve {
			rerun.Resolved[step.StepID] = step.OutputRef
		}
		if request.DryRun {
			plan, err := e.Commands.PlanRerun(ctx, rerun)
			requestStateOf(ctx).previewed = err == nil
			return chosen{status: http.StatusOK, value: rerunPreviewOf(&plan)}, err
		}
		if err := e.reserve(ctx, jobWeight); err != nil {
			return nil, err
		}
		accepted, err := e.Commands.Rerun(ctx, rerun)
		return acceptedOf(w, &accepted, err)
	})
}

// rerunPreviewOf encodes what a rerun would do; the zero value if that failed.
func rerunPreviewOf(plan *commands.RerunPlan) api.RerunPreview {
	out := api.RerunPreview{DryRun: true, ExistingJobID: plan.Existing, Steps: []api.PlannedStep{}, Changes: changesOf(plan)}
	if plan.Old == nil {
		return out
	}
	out.JobID = plan.Old.Job.ID
	if out.Live = plan.Command == nil; out.Live {
		return out
	}
	out.ProtocolID, out.ProtocolVersion = plan.Command.Job.ProtocolID, plan.Command.Job.ProtocolVersion
	for i := range plan.Command.Steps {
		step := &plan.Command.Steps[i]
		out.Steps = append(out.Steps, api.PlannedStep{
			StepID: step.ID, StepType: step.Type, Service: step.Service, Outcome: api.StepOutcome(step.Outcome),
		})
	}
	return out
}

func changesOf(plan *commands.RerunPlan) []api.CommandChange {
	out := make([]api.CommandChange, len(plan.Changes))
	for i, change := range plan.Changes {
		out[i] = api.CommandChange{Pointer: change.Pointer, Before: change.Was, After: change.Is}
	}
	return out
}

// GetLineage is GET /v1/jobs/{jobId}/lineage.
func (e *endpoints) GetLineage(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	e.answer(w, r, http.StatusOK, func(ctx context.Context) (any, error) {
		found, truncated, err := e.Jobs.Lineage(ctx, jobID)
		list := api.Lineage{Jobs: make([]api.LineageJob, len(found)), Truncated: truncated}
		for i := range found {
			one := &found[i]
			list.Jobs[i] = api.LineageJob{JobID: one.JobID, Purged: one.Aggregate == nil}
			if one.Aggregate == nil {
				continue
			}
			job := &one.Aggregate.Job
			list.Jobs[i] = api.LineageJob{
				JobID: one.JobID, RerunOf: job.RerunOf, FirstStep: one.Aggregate.FirstExecuted(), RerunEdits: job.RerunEdits,
				State: api.JobState(job.State), ProtocolID: job.ProtocolID, ProtocolVersion: job.ProtocolVersion, ErrorCode: job.ErrorCode,
				Caller: one.Caller, Reason: one.Reason, CreatedAt: api.NewTime(job.CreatedAt), CompletedAt: api.NewTime(job.CompletedAt),
			}
		}
		return list, err
	})
}

// CancelJob is POST /v1/jobs/{jobId}:cancel.
func (e *endpoints) CancelJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	e.control(w, r, jobID, func(reason string) statemachine.Event { return statemachine.Cancel{Reason: reason} })
}

// PauseJob is POST /v1/jobs/{jobId}:pause.
func (e *endpoints) PauseJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	e.control(w, r, jobID, func(reason string) statemachine.Event { return statemachine.Pause{Reason: reason} })
}

// ResumeJob is POST /v1/jobs/{jobId}:resume.
func (e *endpoints) ResumeJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	e.control(w, r, jobID, func(reason string) statemachine.Event { return statemachine.Resume{Reason: reason} })
}

// RescheduleJob is POST /v1/jobs/{jobId}:reschedule.
func (e *endpoints) RescheduleJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.RescheduleRequest) (any, error) {
		notBefore, notAfter := request.Dates(time.Now())
		return e.controlled(ctx, jobID, statemachine.Reschedule{NotBefore: notBefore, NotAfter: notAfter, Reason: request.Reason})
	})
}

// PrioritizeJob is POST /v1/jobs/{jobId}:prioritize.
func (e *endpoints) PrioritizeJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.PrioritizeRequest) (any, error) {
		class, _ := statemachine.ParseClass(string(request.Priority))
		return e.controlled(ctx, jobID, statemachine.Prioritize{Class: class, Reason: request.Reason})
	})
}

// control changes a job with the event that follows from the request's reason.
func (e *endpoints) control(w http.ResponseWriter, r *http.Request, jobID string, event func(reason string) statemachine.Event) {
	serve(e, w, r, http.StatusOK, optional, func(ctx context.Context, request api.ControlRequest) (any, error) {
		return e.controlled(ctx, jobID, event(request.Reason))
	})
}

// controlled answers 202 if the event changed the job, 200 if it changed nothing.
func (e *endpoints) controlled(ctx context.Context, jobID string, event statemachine.Event) (any, error) {
	if err := e.reserve(ctx, jobWeight); err != nil {
		return nil, err
	}
	result, err := e.Ledger.Change(ctx, jobID, event, ledger.By(string(api.ActorClient), requestStateOf(ctx).id))
	if err != nil {
		return nil, ledger.Problem(err)
	}
	if err := result.Problem(); err != nil {
		return nil, err
	}
	status := http.StatusOK
	if result.Outcome == statemachine.Applied {
		status = http.StatusAccepted
	}
	return e.encodeJob(ctx, status, e.jobsFor(ctx).Changed(ctx, &result.Job))
}

// encodeJob encodes an answer of the job and its steps' payloads.
func (e *endpoints) encodeJob(ctx context.Context, status int, job *search.Shown) (any, error) {
	return e.encodeSteps(ctx, status, struct {
		api.Job

		Steps struct{} `json:"steps,omitzero"` // This field hides the job's.
	}{Job: JobOf(job)}, job)
}

// encodeSteps encodes an answer of the head, an object, to which it adds the job's steps with
// their payloads. It encodes in parts: the steps share the bytes of the payload, which may be
// large and is often the same for all. Only a few requests do this at a time.
func (e *endpoints) encodeSteps(ctx context.Context, status int, head any, job *search.Shown) (any, error) {
	payload, err := e.Ledger.Payload(ctx, job.Job.ID)
	if err != nil && status != http.StatusAccepted { // otherwise the control was applied: answer even without the payload
		return nil, ledger.Problem(err)
	}
	text, err := encode(head)
	text = bytes.TrimSuffix(text, []byte("}\n"))
	if len(text) > len("{") {
		text = append(text, ',')
	}
	text = append(text, `"steps":[`...)
	out := chosen{status: status, held: len(payload)}
	for i, step := range stepsOf(job) {
		object, failed := encode(step)
		if err = errors.Join(err, failed); i > 0 {
			text = append(text, ',')
		}
		text = append(text, bytes.TrimSuffix(object, []byte("}\n"))...)
		if part := ledger.StepPayload(payload, &job.Steps[i]); part != nil {
			text = append(text, `,"payload":`...)
			out.held += len(text)
			out.json = append(out.json, text, part)
			text = nil
		}
		text = append(text, '}')
	}
	text = append(text, "]}\n"...)
	out.json, out.held = append(out.json, text), out.held+len(text)
	return out, err
}

// JobOf encodes a job, its steps without their payloads.
func JobOf(v *search.Shown) api.Job {
	j := &v.Job
	out := api.Job{
		JobID: j.ID, TenantID: j.TenantID, TenantBucket: j.TenantBucket, RequestType: j.RequestType,
		SchemaVersion: j.SchemaVersion, ProtocolID: j.ProtocolID, ProtocolVersion: j.ProtocolVersion,
		Mode: api.Mode(j.Mode), DocID: j.DocID, Tags: j.Tags.Map(), State: api.JobState(j.State), Rev: j.Rev,
		CurrentStepID: j.CurrentStepID, CurrentStepIndex: j.CurrentStepIndex, AttemptsTotal: j.AttemptsTotal,
		IdempotencyKey: j.IdempotencyKey, IdempotencyHash: j.IdempotencyHash,
		InputRef: j.InputRef, OutputRef: j.OutputRef, FinalOutput: j.FinalOutput,
		CorrelationID: j.CorrelationID, Traceparent: j.Traceparent,
		RerunOf: j.RerunOf, RerunEdits: j.RerunEdits, SupersededBy: v.SupersededBy,
		NotBefore: api.NewTime(j.NotBefore), NotAfter: api.NewTime(j.NotAfter),
		OrderKey: j.Order.Key, OrderMode: api.OrderMode(j.Order.Mode), LineID: j.Place.Line,
		ErrorCode: j.ErrorCode, ErrorMessage: j.ErrorMessage,
		CreatedAt: api.NewTime(j.CreatedAt), UpdatedAt: api.NewTime(j.UpdatedAt), CompletedAt: api.NewTime(j.CompletedAt),
		Waiting: waitingOf(v), Steps: stepsOf(v),
	}
	if j.Class != statemachine.ClassNormal {
		out.Priority = api.Priority(j.Class.String())
	}
	return out
}

// stepsOf encodes a job's steps, without their payloads, and without the lease id, which
// is a capability.
func stepsOf(v *search.Shown) []api.Step {
	steps := make([]api.Step, len(v.Steps))
	for i := range v.Steps {
		s := &v.Steps[i]
		steps[i] = api.Step{
			StepID: s.ID, StepIndex: s.Index, StepType: s.Type, Service: s.Service,
			State: api.StepState(s.State), Outcome: api.StepOutcome(s.Outcome),
			AttemptNo: s.AttemptNo, StartedAt: api.NewTime(s.StartedAt), LeaseExpiresAt: api.NewTime(s.LeaseExpiresAt),
			NextAttemptAt: api.NewTime(s.NextAttemptAt), InputRef: s.InputRef, WorkspaceRef: v.Job.WorkspaceRef,
			OutputRef: s.OutputRef, ResultRef: s.ResultRef,
			ResolvedMode: api.Mode(s.Routing.ResolvedMode), Lane: s.Routing.Lane, RoutingKeyUsed: s.Routing.RoutingKeyUsed,
			DecisionSource: api.StepDecisionSource(s.Routing.DecisionSource), DecisionReason: s.Routing.DecisionReason,
			LastErrorCode: s.LastErrorCode, LastErrorMessage: s.LastErrorMessage,
			WorkID: s.WorkID, Owner: s.Owner, Progress: (*api.Progress)(s.Progress),
			LastCallback: api.ReportedSending(s.LastReport),
			CreatedAt:    api.NewTime(s.CreatedAt), UpdatedAt: api.NewTime(s.UpdatedAt), CompletedAt: api.NewTime(s.CompletedAt),
		}
	}
	if i, ok := v.Active(); ok {
		steps[i].Waiting = waitingOf(v)
	}
	return steps
}

// waitingOf encodes why the job waits, nil if it has ended.
func waitingOf(v *search.Shown) *api.Waiting {
	w := &v.Waiting
	if w.Reason == "" {
		return nil
	}
	out := &api.Waiting{
		Reason: api.WaitingReason(w.Reason), Since: api.NewTime(w.Since), Until: api.NewTime(w.Until), Detail: w.Detail,
	}
	if w.BlockedBy.ID != "" {
		out.BlockedBy = &api.Blocker{Type: api.BlockerType(w.BlockedBy.Type), ID: w.BlockedBy.ID}
	}
	return out
}

// EventsOf encodes history entries.
func EventsOf(entries []ledger.HistoryEntry) []api.Event {
	events := make([]api.Event, len(entries))
	for i := range entries {
		entry := &entries[i]
		actor := api.Actor(entry.Actor)
		if entry.Actor == ledger.ActorSystem {
			actor = api.ActorSweeper
		}
		events[i] = api.Event{
			EventID: entry.EventID(), Rev: entry.Rev, Type: api.EventType(entry.Type),
			At: api.NewTime(entry.At), Actor: actor, Caller: entry.Caller, Object: api.EventObject(entry.Object), ObjectID: entry.ID,
			From: entry.From, To: entry.To, AttemptNo: entry.AttemptNo, Owner: entry.Owner, Cause: entry.Cause, RequestID: entry.RequestID,
			Detail:   entry.Detail,
			Callback: api.ReportedSending(entry.Report),
		}
	}
	return events
}
