package serving

import (
	"context"

	"github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// ownersPort tells HTTP whose objects are.
type ownersPort struct {
	ledger   *ledger.Ledger
	queue    *workqueue.Queue
	failures *failures.Service
}

func (a ownersPort) Job(ctx context.Context, jobID string) (httpapi.Owner, error) {
	agg, err := a.ledger.Job(ctx, jobID)
	if err != nil {
		return httpapi.Owner{}, ledger.Problem(err)
	}
	return httpapi.Owner{TenantID: agg.Job.TenantID}, nil
}

func (a ownersPort) Step(ctx context.Context, jobID, stepID string) (httpapi.Owner, error) {
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

func (a ownersPort) Work(ctx context.Context, workID string) (httpapi.Owner, error) {
	view, err := a.queue.Get(ctx, workID)
	return httpapi.Owner{TenantID: view.Item.TenantID, Service: view.Item.Service}, err
}

func (a ownersPort) Retry(ctx context.Context, retryID string) (httpapi.Owner, error) {
	found, err := a.failures.Get(ctx, retryID, 1, "")
	return httpapi.Owner{TenantID: found.TenantID}, err
}

func (a ownersPort) Pause(_ context.Context, pauseID string) (httpapi.Owner, error) {
	scope, err := pauses.ParseScope(pauseID)
	if err != nil {
		return httpapi.Owner{}, &problem.Error{Code: problem.NotFound, Err: err}
	}
	return httpapi.Owner{TenantID: scope.TenantID}, nil
}

func (a ownersPort) Webhook(ctx context.Context, webhookID string) (httpapi.Owner, error) {
	jobID, _, err := ledger.ParseWebhookID(webhookID)
	if err != nil {
		return httpapi.Owner{}, &problem.Error{Code: problem.NotFound, Err: err}
	}
	return a.Job(ctx, jobID)
}
