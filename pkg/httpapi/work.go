package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// ClaimWork is POST /v1/work:claim. The caller gets only items that its roles cover.
func (e *endpoints) ClaimWork(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, lenient, func(ctx context.Context, request api.ClaimRequest) (any, error) {
		reach, err := auth.CallerOf(ctx).Reach(request.Services)
		if err != nil {
			return nil, err
		}
		queue := e.Queue.As(workqueue.Caller{Tenants: reach.Tenants, Services: reach.Services})
		limit := seconds(request.WaitSeconds)
		views, err := waiting(ctx, e, limit, func(limit time.Duration, ended <-chan struct{}) ([]workqueue.View, error) {
			return queue.Claim(ctx, workqueue.ClaimRequest{
				Owner: request.Owner, Client: clientOf(r, &request), RequestID: request.RequestID,
				Services: request.Services, StepTypes: request.StepTypes,
				Max: int(max(request.Max, 1)), Wait: limit, Ended: ended, Lease: api.AskedLease(request.LeaseSeconds), Start: request.Start,
				Reserve: e.reserve,
			})
		})
		if err != nil {
			return nil, err
		}
		claimed := api.ClaimedWork{
			Items:    make([]api.WorkItem, len(views)),
			Warnings: claimWarnings(&request, reach.Services, e.Protocols.Load().Services),
		}
		for i := range views {
			if claimed.Items[i], err = itemOf(&views[i], nil); err != nil {
				return nil, err
			}
		}
		return claimed, nil
	})
}

// clientOf returns the worker's program and host, as its claim gives them.
func clientOf(r *http.Request, request *api.ClaimRequest) workqueue.Client {
	library := r.UserAgent()
	return workqueue.Client{
		Version: request.Version, Host: request.Host, Library: auth.Printable(library[:min(len(library), api.MaxName)]),
	}
}

// claimWarnings warns of the services and step types in a claim for which there is no work: no
// protocol has them, or the caller's role does not cover them. An empty list covers all
// services. The warnings name no service that the caller may not claim for.
func claimWarnings(request *api.ClaimRequest, covered []string, services map[string][]string) (warnings []api.ClaimWarning) {
	warn := func(code api.ClaimWarningCode, format string, args ...any) {
		warnings = append(warnings, api.ClaimWarning{Code: code, Message: fmt.Sprintf(format, args...)})
	}
	known := func() []string { // Sorting them takes longer than all the rest, and few claims need it.
		return slices.DeleteFunc(slices.Sorted(maps.Keys(services)), func(service string) bool {
			return len(covered) > 0 && !slices.Contains(covered, service)
		})
	}
	var asked []string
	for _, service := range request.Services {
		switch {
		case len(covered) > 0 && !slices.Contains(covered, service):
			warn(api.ClaimWarningCodeServiceNotAllowed, "the token does not cover service %s (services: %s)",
				auth.Printable(service), names(covered))
		case services[service] == nil:
			warn(api.ClaimWarningCodeServiceUnknown, "no protocol has service %s (services: %s)",
				auth.Printable(service), names(known()))
		default:
			asked = append(asked, service)
		}
	}
	if len(request.Services) == 0 && len(request.StepTypes) > 0 {
		asked = known()
	}
	for _, stepType := range request.StepTypes {
		has := func(service string) bool { return slices.Contains(services[service], stepType) }
		if len(asked) == 0 || slices.ContainsFunc(asked, has) {
			continue
		}
		var stepTypes []string
		for _, service := range asked {
			stepTypes = append(stepTypes, services[service]...)
		}
		slices.Sort(stepTypes)
		warn(api.ClaimWarningCodeStepTypeUnknown, "no protocol has step type %s for %s (step types: %s)",
			auth.Printable(stepType), names(asked), names(slices.Compact(stepTypes)))
	}
	return warnings
}

// names lists names; of many, the first ones.
func names(list []string) string {
	const most = 20
	switch {
	case len(list) == 0:
		return "none"
	case len(list) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

// StartWork is POST /v1/work/{workId}:start. The item says what is requested of its job.
func (e *endpoints) StartWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, http.StatusOK, lenient, func(ctx context.Context, request api.WorkVerb) (any, error) {
		by := statemachine.ItemRequest{Actor: request.Owner, ExpectedRev: request.ExpectedRev, ID: request.RequestID}
		return e.heldItem(ctx, func() (workqueue.View, error) { return e.Queue.Start(ctx, workID, by) })
	})
}

// HeartbeatWork is POST /v1/work/{workId}:heartbeat. The item says what is requested of
// its job.
func (e *endpoints) HeartbeatWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, http.StatusOK, lenient, func(ctx context.Context, request api.WorkHeartbeat) (any, error) {
		by := statemachine.ItemRequest{Actor: request.Owner, ExpectedRev: request.ExpectedRev, ID: request.RequestID}
		return e.heldItem(ctx, func() (workqueue.View, error) {
			return e.Queue.Heartbeat(ctx, workID, by, (*statemachine.Progress)(request.Progress))
		})
	})
}

// CompleteWork is POST /v1/work/{workId}:complete.
func (e *endpoints) CompleteWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, http.StatusOK, lenient, func(ctx context.Context, request api.WorkCompletion) (any, error) {
		by := statemachine.ItemRequest{Actor: request.Owner, ExpectedRev: request.ExpectedRev, ID: request.RequestID}
		return e.item(ctx, func() (workqueue.View, error) {
			return e.Queue.Complete(ctx, workID, by, request.Product())
		})
	})
}

// CompleteWorkBatch is POST /v1/work:complete. To the caller, an item that its roles do
// not cover does not exist.
func (e *endpoints) CompleteWorkBatch(w http.ResponseWriter, r *http.Request) {
	serve(e, w, r, http.StatusOK, lenient, func(ctx context.Context, request api.WorkCompletionBatch) (any, error) {
		results := make([]api.WorkCompletionResult, len(request.Items))
		inParallel(len(results), func(i int) {
			item := &request.Items[i]
			results[i] = api.WorkCompletionResult{WorkID: item.WorkID, Status: http.StatusOK}
			var err error
			if violations := item.Check(); len(violations) > 0 {
				err = apierror.Refused(violations)
			} else {
				by := statemachine.ItemRequest{Actor: item.Owner, ExpectedRev: item.ExpectedRev, ID: item.RequestID}
				results[i].Rev, err = contained(func() (int64, error) {
					return e.Queue.CompleteFor(ctx, item.WorkID, by, item.Product(), e.guard.sees(ctx))
				})
			}
			if err != nil {
				fault := e.respond.partOf(r, err)
				results[i].Status, results[i].Error = fault.Status, fault
			}
		})
		return api.WorkCompletionResults{Results: results}, nil
	})
}

// FailWork is POST /v1/work/{workId}:fail.
func (e *endpoints) FailWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	serve(e, w, r, http.StatusOK, lenient, func(ctx context.Context, request api.WorkFailure) (any, error) {
		by := statemachine.ItemRequest{Actor: request.Owner, ExpectedRev: request.ExpectedRev, ID: request.RequestID}
		return e.item(ctx, func() (workqueue.View, error) {
			return e.Queue.Fail(ctx, workID, by, workqueue.Failure{
				Retryable: request.Retryable, Code: request.Error.Code, Message: request.Error.Message,
				RetryAfter: seconds(request.RetryAfterSeconds), Throttled: statemachine.Throttle(request.Scope),
				EveryTenant: everyTenant(ctx),
			})
		})
	})
}

// GetWork is GET /v1/work/{workId}.
func (e *endpoints) GetWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	item, err := e.item(r.Context(), func() (workqueue.View, error) { return e.Queue.Get(r.Context(), workID) })
	e.respond.answer(w, r, http.StatusOK, item, err)
}

// ListWorkEvents is GET /v1/work/{workId}/events.
func (e *endpoints) ListWorkEvents(w http.ResponseWriter, r *http.Request, workID api.WorkID, params api.ListWorkEventsParams) {
	e.page(w, r, params.Limit, params.PageToken, func(ctx context.Context, limit int, at cursor) (any, error) {
		rev, err := at.rev()
		if err != nil {
			return nil, err
		}
		events, next, err := e.Queue.Events(ctx, workID, rev, limit)
		found := api.WorkEventPage{Events: make([]api.WorkEvent, len(events)), NextPageToken: at.revToken(next)}
		for i, event := range events {
			found.Events[i] = api.WorkEvent{
				EventID: fmt.Sprintf("%s-%d", workID, event.Rev), Rev: event.Rev, Type: api.WorkEventType(event.Type),
				At: api.NewTime(event.At), Actor: event.Actor, Caller: event.Caller,
				From: api.WorkStatus(event.From), To: api.WorkStatus(event.To),
				RequestID: event.RequestID, Attempt: event.Attempt, Detail: event.Reason,
			}
		}
		return found, err
	})
}

// StallWork is POST /v1/admin/work/{workId}:stall.
func (e *endpoints) StallWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	e.operateWork(w, r, workID, e.Queue.Stall)
}

// RequeueWork is POST /v1/admin/work/{workId}:requeue.
func (e *endpoints) RequeueWork(w http.ResponseWriter, r *http.Request, workID api.WorkID) {
	e.operateWork(w, r, workID, e.Queue.Requeue)
}

// operateWork applies an operator's verb.
func (e *endpoints) operateWork(w http.ResponseWriter, r *http.Request, workID string,
	do func(context.Context, string, statemachine.ItemRequest) (workqueue.View, error),
) {
	serve(e, w, r, http.StatusOK, strict, func(ctx context.Context, request api.AdminWorkRequest) (any, error) {
		by := statemachine.ItemRequest{
			Actor: string(api.ActorOperator), ExpectedRev: request.ExpectedRev, ID: request.RequestID, Reason: request.Reason,
		}
		return e.item(ctx, func() (workqueue.View, error) { return do(ctx, workID, by) })
	})
}

// heldItem is item for a worker that continues: the answer says what is requested of the
// job.
func (e *endpoints) heldItem(ctx context.Context, call func() (workqueue.View, error)) (api.WorkItem, error) {
	var view workqueue.View
	item, err := e.item(ctx, func() (_ workqueue.View, err error) {
		view, err = call()
		return view, err
	})
	item.CancelRequested, item.PauseRequested = &view.CancelRequested, &view.PauseRequested
	return item, err
}

// item encodes the work item that the use case returns; its directive may be large.
func (e *endpoints) item(ctx context.Context, call func() (workqueue.View, error)) (api.WorkItem, error) {
	if err := e.reserve(ctx, workqueue.ItemBytes); err != nil {
		return api.WorkItem{}, err
	}
	view, err := call()
	return itemOf(&view, err)
}

// itemOf encodes a work item, unless err is set.
func itemOf(v *workqueue.View, err error) (api.WorkItem, error) {
	if err != nil {
		return api.WorkItem{}, err
	}
	i := &v.Item
	item := api.WorkItem{
		WorkID: i.WorkID, Status: api.WorkStatus(i.Status), Attempt: i.Attempt, Rev: i.Rev, Owner: i.Owner,
		Directive: v.Directive, CreatedAt: api.NewTime(i.CreatedAt), UpdatedAt: api.NewTime(i.UpdatedAt),
	}
	if !i.LeaseExpiresAt.IsZero() {
		item.Lease = &api.WorkLease{ExpiresAt: api.NewTime(i.LeaseExpiresAt)}
	}
	if i.Error != nil {
		item.Error = &api.ReportedError{Code: i.Error.Code, Message: i.Error.Message}
	}
	if len(i.Result) > 0 {
		item.Result = &api.WorkResult{}
		if err := json.Unmarshal(i.Result, item.Result); err != nil {
			return api.WorkItem{}, fmt.Errorf("result of work item %s: %w", i.WorkID, err)
		}
	}
	return item, nil
}

// CallbackAck is POST /v1/callbacks/ack.
func (e *endpoints) CallbackAck(w http.ResponseWriter, r *http.Request) {
	callback[api.AckCallback](e, w, r)
}

// CallbackHeartbeat is POST /v1/callbacks/heartbeat.
func (e *endpoints) CallbackHeartbeat(w http.ResponseWriter, r *http.Request) {
	callback[api.HeartbeatCallback](e, w, r)
}

// CallbackResult is POST /v1/callbacks/result.
func (e *endpoints) CallbackResult(w http.ResponseWriter, r *http.Request) {
	callback[api.ResultCallback](e, w, r)
}

// everyTenant returns a function that reports whether the caller may answer for all tenants of a
// service.
func everyTenant(ctx context.Context) func(service string) bool {
	caller := auth.CallerOf(ctx)
	return func(service string) bool { return caller.MayServe("", service) }
}

// callback decodes a callback and applies it.
func callback[Body any, Callback interface {
	*Body
	api.Callback
}](e *endpoints, w http.ResponseWriter, r *http.Request) {
	serve[Body, Callback](e, w, r, http.StatusOK, lenient, func(ctx context.Context, body Body) (any, error) {
		report := Callback(&body)
		id := report.Identity()
		if err := e.guard.authorizeStep(ctx, id.TenantID, id.JobID, id.StepID); err != nil {
			return nil, err
		}
		answer, err := e.Callbacks.Apply(ctx, callbacks.Callback{
			JobID: id.JobID, StepID: id.StepID, TenantID: id.TenantID, Event: report.Event(), RequestID: requestStateOf(ctx).id,
			Caller: auth.CallerOf(ctx).Name(), EveryTenant: everyTenant(ctx),
		})
		return api.CallbackOutcome{
			Outcome: api.Outcome(answer.Outcome.String()), JobState: api.JobState(answer.JobState),
			StepState: api.StepState(answer.StepState), LeaseExpiresAt: api.NewTime(answer.LeaseExpiresAt),
			CancelRequested: answer.CancelRequested, PauseRequested: answer.PauseRequested,
		}, err
	})
}
