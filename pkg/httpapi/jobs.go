package httpapi

import (
	"context"
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
	job, err := e.jobs.Job(r.Context(), jobID, e.wait(limit))
	e.answerJob(w, r, http.StatusOK, job, err)
}

// ListJobSteps is GET /v1/jobs/{jobId}/steps.
func (e *endpoints) ListJobSteps(w http.ResponseWriter, r *http.Request, jobID api.JobID) {
	steps, err := e.jobs.Steps(r.Context(), jobID)
	e.respond.answer(w, r, http.StatusOK, api.StepList{Steps: listed(steps)}, err)
}

// ListJobEvents is GET /v1/jobs/{jobId}/events.
func (e *endpoints) ListJobEvents(w http.ResponseWriter, r *http.Request, jobID api.JobID, params api.ListJobEventsParams) {
	asked, err := page(params.Limit, params.PageToken)
	if err != nil {
		e.respond.problem(w, r, err)
		return
	}
	events, err := e.jobs.Events(r.Context(), jobID, asked)
	events.Events = listed(events.Events)
	e.respond.answer(w, r, http.StatusOK, events, err)
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
