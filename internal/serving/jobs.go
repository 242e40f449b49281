package serving

import (
	"context"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// jobsPort serves the jobs to HTTP.
type jobsPort struct{ service *jobs.Service }

func (a jobsPort) Job(ctx context.Context, jobID string, wait httpapi.Wait) (api.Job, error) {
	var view *jobs.View
	var err error
	if wait.Limit > 0 {
		view, err = a.service.Wait(ctx, jobID, wait.Limit, wait.Ended)
	} else {
		view, err = a.service.Get(ctx, jobID)
	}
	if err != nil {
		return api.Job{}, err
	}
	return JobOf(view), nil
}

func (a jobsPort) Steps(ctx context.Context, jobID string) ([]api.Step, error) {
	view, err := a.service.Get(ctx, jobID)
	if err != nil {
		return nil, err
	}
	return stepsOf(view), nil
}

func (a jobsPort) Events(ctx context.Context, jobID string, page httpapi.Page) (api.EventPage, error) {
	after, err := revOf(page.Token)
	if err != nil {
		return api.EventPage{}, err
	}
	entries, next, err := a.service.History(ctx, jobID, after, page.Limit)
	if err != nil {
		return api.EventPage{}, err
	}
	return api.EventPage{Events: EventsOf(entries), NextPageToken: revToken(next)}, nil
}

func (a jobsPort) Cancel(ctx context.Context, jobID string, r api.ControlRequest) (api.Job, bool, error) {
	return steered(a.service.Cancel(ctx, control(ctx, jobID, r)))
}

func (a jobsPort) Pause(ctx context.Context, jobID string, r api.ControlRequest) (api.Job, bool, error) {
	return steered(a.service.Pause(ctx, control(ctx, jobID, r)))
}

func (a jobsPort) Resume(ctx context.Context, jobID string, r api.ControlRequest) (api.Job, bool, error) {
	return steered(a.service.Resume(ctx, control(ctx, jobID, r)))
}

func (a jobsPort) Rerun(ctx context.Context, jobID string, r api.RerunRequest) (api.CommandAccepted, error) {
	accepted, err := a.service.Rerun(ctx, jobs.Rerun{
		Control: control(ctx, jobID, api.ControlRequest{Reason: r.Reason}), FromStart: r.From == api.RerunFromStart,
	})
	if err != nil {
		return api.CommandAccepted{}, err
	}
	return api.CommandAccepted{
		JobID: accepted.Job.ID, State: api.JobState(accepted.Job.State), Replayed: accepted.Replayed,
		CorrelationID: accepted.Job.CorrelationID,
	}, nil
}

func (a jobsPort) List(ctx context.Context, params api.ListJobsParams, page httpapi.Page) (api.JobPage, error) {
	after, err := placeOf(page.Token)
	if err != nil {
		return api.JobPage{}, err
	}
	found, next, err := a.service.List(ctx, jobs.Filter{
		TenantID: textOf(params.TenantID), State: statemachine.JobState(textOf(params.State)),
		RequestType: textOf(params.RequestType), CorrelationID: textOf(params.CorrelationID),
		CreatedAfter: timeOf(params.CreatedAfter), CreatedBefore: timeOf(params.CreatedBefore),
	}, page.Limit, after)
	if err != nil {
		return api.JobPage{}, err
	}
	out := api.JobPage{NextPageToken: pageToken(next)}
	for _, agg := range found {
		out.Jobs = append(out.Jobs, JobOf(&jobs.View{Aggregate: *agg, Payloads: make([][]byte, len(agg.Steps))}))
	}
	return out, nil
}

func (a jobsPort) Follow(ctx context.Context, jobID, after string) ([]api.Event, bool, error) {
	rev, index, err := eventID(after)
	if err != nil {
		return nil, false, err
	}
	entries, ended, err := a.service.Follow(ctx, jobID, rev, index)
	return EventsOf(entries), ended, err
}

// eventID reads the id of a history entry; none is before all.
func eventID(id string) (rev int64, index int, err error) {
	if id == "" {
		return 0, 0, nil
	}
	if _, err := fmt.Sscanf(id, "%d-%d", &rev, &index); err != nil || rev < 1 || index < 0 {
		return 0, 0, &problem.Error{Code: problem.InvalidEnvelope, Errors: []problem.Violation{{
			Message: "header Last-Event-ID is not the id of an event",
		}}}
	}
	return rev, index, nil
}

// timeOf is a parameter from the wire, the zero time where there is none.
func timeOf(t *api.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

func control(ctx context.Context, jobID string, r api.ControlRequest) jobs.Control {
	return jobs.Control{
		JobID: jobID, Reason: r.Reason, Actor: string(api.ActorClient), RequestID: httpapi.RequestID(ctx),
	}
}

func steered(view *jobs.View, applied bool, err error) (api.Job, bool, error) {
	if err != nil {
		return api.Job{}, false, err
	}
	return JobOf(view), applied, nil
}

// JobOf is a job on the wire.
func JobOf(v *jobs.View) api.Job {
	j := &v.Job
	return api.Job{
		JobID: j.ID, TenantID: j.TenantID, TenantBucket: j.TenantBucket, RequestType: j.RequestType,
		SchemaVersion: j.SchemaVersion, ProtocolID: j.ProtocolID, ProtocolVersion: j.ProtocolVersion,
		Mode: api.Mode(j.Mode), DocID: j.DocID, State: api.JobState(j.State), Rev: j.Rev,
		CurrentStepID: j.CurrentStepID, CurrentStepIndex: j.CurrentStepIndex, AttemptsTotal: j.AttemptsTotal,
		IdempotencyKey: j.IdempotencyKey, IdempotencyHash: j.IdempotencyHash,
		InputRef: j.InputRef, OutputRef: j.OutputRef, FinalOutput: j.FinalOutput,
		CorrelationID: j.CorrelationID, Traceparent: j.Traceparent, RerunOf: j.RerunOf,
		ErrorCode: j.ErrorCode, ErrorMessage: j.ErrorMessage,
		CreatedAt: api.NewTime(j.CreatedAt), UpdatedAt: api.NewTime(j.UpdatedAt), CompletedAt: api.NewTime(j.CompletedAt),
		Steps: stepsOf(v),
	}
}

// stepsOf are a job's steps on the wire. The lease id is a capability, so it
// is left out.
func stepsOf(v *jobs.View) []api.Step {
	steps := make([]api.Step, len(v.Steps))
	for i := range v.Steps {
		s := &v.Steps[i]
		steps[i] = api.Step{
			StepID: s.ID, StepIndex: s.Index, StepType: s.Type, Service: s.Service, State: api.StepState(s.State),
			AttemptNo: s.AttemptNo, LeaseExpiresAt: api.NewTime(s.LeaseExpiresAt),
			NextAttemptAt: api.NewTime(s.NextAttemptAt), InputRef: s.InputRef, WorkspaceRef: v.Job.WorkspaceRef,
			OutputRef: s.OutputRef, ResultRef: s.ResultRef, Payload: v.Payloads[i],
			ResolvedMode: api.Mode(s.Routing.ResolvedMode), Lane: s.Routing.Lane, RoutingKeyUsed: s.Routing.RoutingKeyUsed,
			DecisionSource: api.StepDecisionSource(s.Routing.DecisionSource), DecisionReason: s.Routing.DecisionReason,
			LastErrorCode: s.LastErrorCode, LastErrorMessage: s.LastErrorMessage,
			CreatedAt: api.NewTime(s.CreatedAt), UpdatedAt: api.NewTime(s.UpdatedAt), CompletedAt: api.NewTime(s.CompletedAt),
		}
	}
	return steps
}

// EventsOf are history entries on the wire.
func EventsOf(entries []ledger.HistoryEntry) []api.Event {
	events := make([]api.Event, len(entries))
	for i := range entries {
		events[i] = eventOf(&entries[i])
	}
	return events
}

// eventOf is a history entry on the wire.
func eventOf(e *ledger.HistoryEntry) api.Event {
	return api.Event{
		EventID: fmt.Sprintf("%d-%d", e.Rev, e.Index), Rev: e.Rev, Type: api.EventType(e.Type), At: api.NewTime(e.At),
		Actor: actorOf(e.Actor), Object: api.EventObject(e.Object), ObjectID: objectID(e.Transition),
		From: e.From, To: e.To, AttemptNo: e.AttemptNo, Cause: e.Cause, RequestID: e.RequestID, Detail: e.Detail,
	}
}

// objectID is left out for the job itself.
func objectID(t statemachine.Transition) string { return t.ID }

// actorOf is the kind of an actor: workers go by names of their own.
func actorOf(name string) api.Actor {
	switch actor := api.Actor(name); {
	case actor.Valid():
		return actor
	case name == ledger.ActorSystem:
		return api.ActorSweeper
	}
	return api.ActorWorker
}
