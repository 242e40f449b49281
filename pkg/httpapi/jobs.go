package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lucius-project/lucius/api"
)

// GetJob is GET /v1/jobs/{jobId}.
func (e *endpoints) GetJob(w http.ResponseWriter, r *http.Request, jobID api.JobID, params api.GetJobParams) {
	var limit time.Duration
	if params.Wait != nil {
		var err error
		if limit, err = time.ParseDuration(*params.Wait); err != nil || limit < 0 {
			e.respond.problem(w, r, invalid("parameter wait must be a duration such as 30s", err))
			return
		}
	}
	job, err := waiting(r.Context(), e, limit, func(wait Wait) (api.Job, error) {
		return e.jobs.Job(r.Context(), jobID, wait)
	})
	e.answerJob(w, r, http.StatusOK, job, err)
}

// ListJobSteps is GET /v1/jobs/{jobId}/steps.
func (e *endpoints) ListJobSteps(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	steps, err := e.jobs.Steps(r.Context(), jobID)
	e.respond.answer(w, r, http.StatusOK, api.StepList{Steps: listed(steps)}, err)
}

// ListJobs is GET /v1/jobs.
func (e *endpoints) ListJobs(w http.ResponseWriter, r *http.Request, params api.ListJobsParams) {
	if params.State != nil && !params.State.Valid() {
		e.respond.problem(w, r, invalid("parameter state is none of a job's", nil))
		return
	}
	if max(len(textOf(params.CorrelationID)), len(textOf(params.RequestType))) > api.MaxName {
		message := fmt.Sprintf("parameters correlation_id and request_type must be at most %d bytes", api.MaxName)
		e.respond.problem(w, r, invalid(message, nil))
		return
	}
	pagedOf(e, w, r, params.TenantID, params.Limit, params.PageToken, func(ctx context.Context, page Page) (api.JobPage, error) {
		found, err := e.jobs.List(ctx, params, page)
		found.Jobs = listed(found.Jobs)
		return found, err
	})
}

// ListJobEvents is GET /v1/jobs/{jobId}/events.
func (e *endpoints) ListJobEvents(w http.ResponseWriter, r *http.Request, jobID api.JobID, params api.ListJobEventsParams) {
	if wantsStream(r) {
		e.streamEvents(w, r, jobID, params.LastEventID)
		return
	}
	paged(e, w, r, params.Limit, params.PageToken, func(ctx context.Context, page Page) (api.EventPage, error) {
		events, err := e.jobs.Events(ctx, jobID, page)
		events.Events = listed(events.Events)
		return events, err
	})
}

// RerunJob is POST /v1/jobs/{jobId}:rerun.
func (e *endpoints) RerunJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	var request api.RerunRequest
	if err := e.bodies.optional(w, r, &request); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	accepted, err := e.jobs.Rerun(r.Context(), jobID, request)
	e.answerAccepted(w, r, accepted, err)
}

// CancelJob is POST /v1/jobs/{jobId}:cancel.
func (e *endpoints) CancelJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	e.control(w, r, jobID, e.jobs.Cancel)
}

// PauseJob is POST /v1/jobs/{jobId}:pause.
func (e *endpoints) PauseJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	e.control(w, r, jobID, e.jobs.Pause)
}

// ResumeJob is POST /v1/jobs/{jobId}:resume.
func (e *endpoints) ResumeJob(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	e.control(w, r, jobID, e.jobs.Resume)
}

// verb is one of the controls of [Jobs].
type verb func(ctx context.Context, jobID string, request api.ControlRequest) (api.Job, bool, error)

// control answers 202 where the control was applied, 200 where it was so.
func (e *endpoints) control(w http.ResponseWriter, r *http.Request, jobID string, do verb) {
	var request api.ControlRequest
	if err := e.bodies.optional(w, r, &request); err != nil {
		e.respond.problem(w, r, err)
		return
	}
	job, applied, err := do(r.Context(), jobID, request)
	status := http.StatusOK
	if applied {
		status = http.StatusAccepted
	}
	e.answerJob(w, r, status, job, err)
}

// answerJob answers with the job.
func (e *endpoints) answerJob(w http.ResponseWriter, r *http.Request, status int, job api.Job, err error) {
	job.Steps = listed(job.Steps)
	e.respond.answer(w, r, status, job, err)
}
