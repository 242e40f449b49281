package main

import (
	"context"

	"github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// ownersAPI tells HTTP whose objects are.
type ownersAPI struct {
	ledger   *ledger.Ledger
	queue    *workqueue.Queue
	failures *failures.Service
}

func (a ownersAPI) Job(ctx context.Context, jobID string) (httpapi.Owner, error) {
	agg, err := a.ledger.Job(ctx, jobID)
	if err != nil {
		return httpapi.Owner{}, ledger.Problem(err)
	}
	return httpapi.Owner{TenantID: agg.Job.TenantID}, nil
}

func (a ownersAPI) Step(ctx context.Context, jobID, stepID string) (httpapi.Owner, error) {
	agg, err := a.ledger.Job(ctx, jobID)
	if err != nil {
		return httpapi.Owner{}, ledger.Problem(err)
	}
	owner := httpapi.Owner{TenantID: agg.Job.TenantID}
	for i := range agg.Steps {
		if agg.Steps[i].ID == stepID {
			owner.Service = agg.Steps[i].Service
		}
	}
	return owner, nil
}

func (a ownersAPI) Work(ctx context.Context, workID string) (httpapi.Owner, error) {
	view, err := a.queue.Get(ctx, workID)
	return httpapi.Owner{TenantID: view.Item.TenantID, Service: view.Item.Service}, err
}

func (a ownersAPI) Retry(ctx context.Context, retryID string) (httpapi.Owner, error) {
	found, err := a.failures.Get(ctx, retryID, 1, "")
	return httpapi.Owner{TenantID: found.TenantID}, err
}

func (a ownersAPI) Pause(_ context.Context, pauseID string) (httpapi.Owner, error) {
	scope, err := pauses.ParseScope(pauseID)
	if err != nil {
		return httpapi.Owner{}, &problem.Error{Code: problem.NotFound, Err: err}
	}
	return httpapi.Owner{TenantID: scope.TenantID}, nil
}

func (a ownersAPI) Webhook(ctx context.Context, webhookID string) (httpapi.Owner, error) {
	jobID, _, err := ledger.ParseWebhookID(webhookID)
	if err != nil {
		return httpapi.Owner{}, &problem.Error{Code: problem.NotFound, Err: err}
	}
	return a.Job(ctx, jobID)
}
