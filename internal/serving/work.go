package serving

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/workqueue"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// workPort serves the pull queue to HTTP.
type workPort struct{ queue *workqueue.Queue }

func (a workPort) Claim(ctx context.Context, r api.ClaimRequest, wait httpapi.Wait) ([]api.WorkItem, error) {
	reach, err := access.CallerOf(ctx).Reach(r.Services)
	if err != nil {
		return nil, err
	}
	queue := a.queue.As(workqueue.Caller{Tenants: reach.Tenants, Services: reach.Services})
	views, err := queue.Claim(ctx, workqueue.ClaimRequest{
		Owner: r.Owner, RequestID: r.RequestID, Services: r.Services, StepTypes: r.StepTypes,
		Max: int(max(r.Max, 1)), Wait: wait.Limit, Ended: wait.Ended, Lease: seconds(r.LeaseSeconds), Start: r.Start,
	})
	if err != nil {
		return nil, err
	}
	items := make([]api.WorkItem, len(views))
	for i := range views {
		if items[i], err = itemOf(&views[i]); err != nil {
			return nil, err
		}
	}
	return items, nil
}

func (a workPort) Start(ctx context.Context, workID string, r api.WorkVerb) (api.WorkItem, error) {
	return moved(a.queue.Start(ctx, workID, verb(r)))
}

func (a workPort) Heartbeat(ctx context.Context, workID string, r api.WorkVerb) (api.WorkItem, error) {
	view, err := a.queue.Heartbeat(ctx, workID, verb(r))
	item, err := moved(view, err)
	item.CancelRequested = &view.CancelRequested
	return item, err
}

func (a workPort) Complete(ctx context.Context, workID string, r api.WorkCompletion) (api.WorkItem, error) {
	request := lifecycle.Request{Actor: r.Owner, ExpectedRev: r.ExpectedRev, ID: r.RequestID}
	return moved(a.queue.Complete(ctx, workID, request, r.OutputRef, r.ResultRef))
}

func (a workPort) Fail(ctx context.Context, workID string, r api.WorkFailure) (api.WorkItem, error) {
	request := lifecycle.Request{Actor: r.Owner, ExpectedRev: r.ExpectedRev, ID: r.RequestID}
	return moved(a.queue.Fail(ctx, workID, request, workqueue.Failure{
		Retryable: r.Retryable, Code: r.Error.Code, Message: r.Error.Message, RetryAfter: seconds(r.RetryAfterSeconds),
	}))
}

func (a workPort) Item(ctx context.Context, workID string) (api.WorkItem, error) {
	return moved(a.queue.Get(ctx, workID))
}

func (a workPort) Events(ctx context.Context, workID string, page httpapi.Page) (api.WorkEventPage, error) {
	after, err := revOf(page.Token)
	if err != nil {
		return api.WorkEventPage{}, err
	}
	events, next, err := a.queue.Events(ctx, workID, after, page.Limit)
	if err != nil {
		return api.WorkEventPage{}, err
	}
	out := api.WorkEventPage{Events: make([]api.WorkEvent, len(events)), NextPageToken: revToken(next)}
	for i, e := range events {
		out.Events[i] = api.WorkEvent{
			EventID: fmt.Sprintf("%s-%d", workID, e.Rev), Rev: e.Rev, Type: api.WorkEventType(e.Type),
			At: api.NewTime(e.At), Actor: e.Actor, From: api.WorkStatus(e.From), To: api.WorkStatus(e.To),
			RequestID: e.RequestID, Attempt: e.Attempt,
		}
	}
	return out, nil
}

func (a workPort) Stall(ctx context.Context, workID string, r api.AdminWorkRequest) (api.WorkItem, error) {
	request, err := a.operator(ctx, workID, r)
	if err != nil {
		return api.WorkItem{}, err
	}
	return moved(a.queue.Stall(ctx, workID, request))
}

func (a workPort) Requeue(ctx context.Context, workID string, r api.AdminWorkRequest) (api.WorkItem, error) {
	request, err := a.operator(ctx, workID, r)
	if err != nil {
		return api.WorkItem{}, err
	}
	return moved(a.queue.Requeue(ctx, workID, request))
}

// operator fills in what an operator may leave out: the rev is then that of
// the item as it is now.
func (a workPort) operator(ctx context.Context, workID string, r api.AdminWorkRequest) (lifecycle.Request, error) {
	request := lifecycle.Request{
		Actor: string(api.ActorOperator), ExpectedRev: r.ExpectedRev, ID: cmp.Or(r.RequestID, httpapi.RequestID(ctx)),
	}
	if request.ExpectedRev > 0 {
		return request, nil
	}
	view, err := a.queue.Get(ctx, workID)
	request.ExpectedRev = view.Item.Rev
	return request, err
}

func verb(r api.WorkVerb) lifecycle.Request {
	return lifecycle.Request{Actor: r.Owner, ExpectedRev: r.ExpectedRev, ID: r.RequestID}
}

func moved(view workqueue.View, err error) (api.WorkItem, error) {
	if err != nil {
		return api.WorkItem{}, err
	}
	return itemOf(&view)
}

// itemOf is a work item on the wire.
func itemOf(v *workqueue.View) (api.WorkItem, error) {
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
