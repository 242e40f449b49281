package httpapi_test

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// wait is a short name.
type wait = httpapi.Wait

// call is what a use case was asked.
type call struct {
	Operation string
	ID        string
	Request   any
	Wait      time.Duration
	Page      httpapi.Page
}

// useCases stand for all use cases: they remember what they were asked and
// answer with specimens, or with err.
type useCases struct {
	// err is the answer to everything, if set.
	err error
	// applied is what controls report.
	applied bool
	// empty makes lists nil instead of specimens.
	empty bool
	// corrupt makes items hold a directive that is no JSON.
	corrupt bool
	// hook runs within each call; its error is the call's.
	hook func(ctx context.Context, c call, wait wait) error

	mu    sync.Mutex
	calls []call
}

// asked remembers a call and returns the error to answer with.
func (u *useCases) asked(ctx context.Context, c call, wait wait) error {
	u.mu.Lock()
	u.calls = append(u.calls, c)
	u.mu.Unlock()
	if u.hook != nil {
		if err := u.hook(ctx, c, wait); err != nil {
			return err
		}
	}
	return u.err
}

// all returns the calls so far.
func (u *useCases) all() []call {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.calls
}

// The specimens that the use cases answer with.
var (
	at = api.NewTime(time.Date(2026, 1, 27, 10, 2, 0, 5_999_999, time.UTC))

	accepted = api.CommandAccepted{JobID: "j1", State: api.JobStateDispatching, CorrelationID: "c1"}

	step = api.Step{
		StepID: "ocr", StepType: "OCR", Service: "ocr", State: api.StepStateInProgress, AttemptNo: 1, LeaseExpiresAt: at,
		InputRef: json.RawMessage(`{"uri":"s3://b/<in>&.pdf","etag":7}`), Payload: json.RawMessage(`{"n":1e2}`),
		ResolvedMode: api.ModeDefault, Lane: 15, RoutingKeyUsed: "t", DecisionSource: api.StepDecisionSourceRequest,
		DecisionReason: "The request says so.", CreatedAt: at, UpdatedAt: at,
	}

	job = api.Job{
		JobID: "j1", TenantID: "t", RequestType: "doc.ingest", ProtocolID: "p", Mode: api.ModeDefault,
		State: api.JobStateInProgress, CurrentStepID: "ocr", AttemptsTotal: 1, CreatedAt: at, UpdatedAt: at,
		IdempotencyHash: "87f4", TenantBucket: "t:202601", InputRef: json.RawMessage(`{"uri":"s3://b/in"}`),
		OutputRef: json.RawMessage(`{"uri":"s3://b/out"}`), SchemaVersion: "1", Rev: 2, CorrelationID: "c1",
		Steps: []api.Step{step},
	}

	event = api.Event{
		EventID: "0000000002.01", Rev: 2, Type: api.EventTypeStepInProgress, At: at, Actor: api.ActorPlatform,
		Object: api.EventObjectStep, ObjectID: "ocr", From: "AWAITING_ACK", To: "IN_PROGRESS", AttemptNo: 1, Cause: "ACK",
	}

	outcome = api.CallbackOutcome{
		Outcome: api.OutcomeApplied, JobState: api.JobStateInProgress, StepState: api.StepStateInProgress, LeaseExpiresAt: at,
	}

	directive = json.RawMessage(`{"type":"DIRECTIVE","jobId":"j1","stepId":"ocr","tenant_id":"t","protocol_id":"p",` +
		`"step_type":"OCR","service":"ocr","attempt_no":1,"lease_id":"l1","input_ref":{"uri":"u"},"workspace_ref":null,` +
		`"output_ref":{"uri":"u"},"payload":{"a":1.50},"mode":"DEFAULT","lane":15,"routing_key_used":"t",` +
		`"correlation_id":"c1","traceparent":null}`)

	item = api.WorkItem{
		WorkID: "w1", Status: api.WorkStatusClaimed, Attempt: 1, Rev: 2, Owner: "o", Lease: &api.WorkLease{ExpiresAt: at},
		Directive: directive, CreatedAt: at, UpdatedAt: at,
	}

	workEvent = api.WorkEvent{
		EventID: "2", Rev: 2, Type: api.WorkEventTypeClaimed, At: at, Actor: "o", From: api.WorkStatusQueued,
		To: api.WorkStatusClaimed, Attempt: 1, RequestID: "r1",
	}
)

// list returns the specimen as a list, or nil where lists are to be empty.
func list[T any](u *useCases, specimen T) []T {
	if u.empty {
		return nil
	}
	return []T{specimen}
}

type commands struct{ *useCases }

func (c commands) Submit(ctx context.Context, submission httpapi.Submission) (api.CommandAccepted, error) {
	var command struct {
		TenantID string `json:"tenant_id"`
	}
	_ = json.Unmarshal(submission.Body, &command) // A body that is no JSON is of no tenant.
	if err := submission.Admit(command.TenantID); err != nil {
		return api.CommandAccepted{}, err
	}
	submission.Admit = nil
	return accepted, c.asked(ctx, call{Operation: "Submit", Request: submission}, wait{})
}

type jobs struct{ *useCases }

func (j jobs) Job(ctx context.Context, id string, wait wait) (api.Job, error) {
	found := job
	found.Steps = list(j.useCases, step)
	return found, j.asked(ctx, call{Operation: "Job", ID: id, Wait: wait.Limit}, wait)
}

func (j jobs) Steps(ctx context.Context, id string) ([]api.Step, error) {
	return list(j.useCases, step), j.asked(ctx, call{Operation: "Steps", ID: id}, wait{})
}

func (j jobs) Events(ctx context.Context, id string, page httpapi.Page) (api.EventPage, error) {
	err := j.asked(ctx, call{Operation: "JobEvents", ID: id, Page: page}, wait{})
	return api.EventPage{Events: list(j.useCases, event), NextPageToken: "next"}, err
}

func (j jobs) Cancel(ctx context.Context, id string, request api.ControlRequest) (api.Job, bool, error) {
	return job, j.applied, j.asked(ctx, call{Operation: "Cancel", ID: id, Request: request}, wait{})
}

func (j jobs) Pause(ctx context.Context, id string, request api.ControlRequest) (api.Job, bool, error) {
	return job, j.applied, j.asked(ctx, call{Operation: "Pause", ID: id, Request: request}, wait{})
}

func (j jobs) Resume(ctx context.Context, id string, request api.ControlRequest) (api.Job, bool, error) {
	return job, j.applied, j.asked(ctx, call{Operation: "Resume", ID: id, Request: request}, wait{})
}

type callbacks struct{ *useCases }

func (c callbacks) Ack(ctx context.Context, callback api.AckCallback) (api.CallbackOutcome, error) {
	return outcome, c.asked(ctx, call{Operation: "Ack", Request: callback}, wait{})
}

func (c callbacks) Heartbeat(ctx context.Context, callback api.HeartbeatCallback) (api.CallbackOutcome, error) {
	return outcome, c.asked(ctx, call{Operation: "Heartbeat", Request: callback}, wait{})
}

func (c callbacks) Result(ctx context.Context, callback api.ResultCallback) (api.CallbackOutcome, error) {
	return outcome, c.asked(ctx, call{Operation: "Result", Request: callback}, wait{})
}

type work struct{ *useCases }

// item answers for the verbs that return an item.
func (w work) item(ctx context.Context, operation, id string, request any) (api.WorkItem, error) {
	found := item
	if w.corrupt {
		found.Directive = json.RawMessage(`{"type":`)
	}
	return found, w.asked(ctx, call{Operation: operation, ID: id, Request: request}, wait{})
}

func (w work) Claim(ctx context.Context, request api.ClaimRequest, wait wait) ([]api.WorkItem, error) {
	err := w.asked(ctx, call{Operation: "Claim", Request: request, Wait: wait.Limit}, wait)
	return list(w.useCases, item), err
}

func (w work) Start(ctx context.Context, id string, request api.WorkVerb) (api.WorkItem, error) {
	return w.item(ctx, "Start", id, request)
}

func (w work) Heartbeat(ctx context.Context, id string, request api.WorkVerb) (api.WorkItem, error) {
	found, err := w.item(ctx, "HeartbeatWork", id, request)
	requested := false
	found.CancelRequested = &requested
	return found, err
}

func (w work) Complete(ctx context.Context, id string, request api.WorkCompletion) (api.WorkItem, error) {
	return w.item(ctx, "Complete", id, request)
}

func (w work) Fail(ctx context.Context, id string, request api.WorkFailure) (api.WorkItem, error) {
	return w.item(ctx, "Fail", id, request)
}

func (w work) Item(ctx context.Context, id string) (api.WorkItem, error) {
	return w.item(ctx, "Item", id, nil)
}

func (w work) Events(ctx context.Context, id string, page httpapi.Page) (api.WorkEventPage, error) {
	err := w.asked(ctx, call{Operation: "WorkEvents", ID: id, Page: page}, wait{})
	return api.WorkEventPage{Events: list(w.useCases, workEvent)}, err
}

func (w work) Stall(ctx context.Context, id string, request api.AdminWorkRequest) (api.WorkItem, error) {
	return w.item(ctx, "Stall", id, request)
}

func (w work) Requeue(ctx context.Context, id string, request api.AdminWorkRequest) (api.WorkItem, error) {
	return w.item(ctx, "Requeue", id, request)
}

type admin struct{ *useCases }

func (a admin) RetryOutbox(ctx context.Context, request api.OutboxRetryRequest) (api.OutboxRetryResult, error) {
	err := a.asked(ctx, call{Operation: "RetryOutbox", Request: request}, wait{})
	return api.OutboxRetryResult{Matched: 1, Skipped: list(a.useCases, api.OutboxSkip{OutboxID: "o1", Reason: "The row is SENT."})}, err
}

type readiness struct{ *useCases }

func (r readiness) Ready(ctx context.Context) ([]string, error) {
	return list(r.useCases, "The circuit to the bus is open."), r.asked(ctx, call{Operation: "Ready"}, wait{})
}
