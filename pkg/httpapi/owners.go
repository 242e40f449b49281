package httpapi

import (
	"context"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// owner is the owner of an object.
type owner struct {
	// TenantID is empty for an object of no tenant: the caller then needs a role for
	// all tenants.
	TenantID string
	// Service is the service of the object's step, empty for an object without a step.
	Service string
}

// owners looks up the owners of objects. Its errors are the problems that the use
// cases would answer.
type owners struct {
	ledger   *ledger.Ledger
	queue    *workqueue.Queue
	failures *upkeep.Failures
}

// job returns the owner of a job.
func (o owners) job(ctx context.Context, jobID string) (owner, error) {
	agg, err := o.ledger.Job(ctx, jobID)
	if err != nil {
		return owner{}, ledger.Problem(err)
	}
	return owner{TenantID: agg.Job.TenantID}, nil
}

// step returns the owner of a step. For a step that the job does not have it is the
// job's tenant without a service.
func (o owners) step(ctx context.Context, jobID, stepID string) (owner, error) {
	agg, err := o.ledger.Job(ctx, jobID)
	if err != nil {
		return owner{}, ledger.Problem(err)
	}
	found := owner{TenantID: agg.Job.TenantID}
	for i := range agg.Steps {
		if agg.Steps[i].ID == stepID {
			found.Service = agg.Steps[i].Service
		}
	}
	return found, nil
}

// work returns the owner of a work item.
func (o owners) work(ctx context.Context, workID string) (owner, error) {
	view, err := o.queue.Get(ctx, workID)
	return owner{TenantID: view.Item.TenantID, Service: view.Item.Service}, err
}

// retry returns the owner of a retry operation.
func (o owners) retry(ctx context.Context, retryID string) (owner, error) {
	found, err := o.failures.Get(ctx, retryID, 1, "")
	return owner{TenantID: found.TenantID}, err
}

// pause returns the owner of a pause, from its id alone: the pause need not exist.
func (o owners) pause(_ context.Context, pauseID string) (owner, error) {
	scope, err := pauses.ParseScope(pauseID)
	if err != nil {
		return owner{}, &problem.Error{Code: problem.NotFound, Err: err}
	}
	return owner{TenantID: scope.TenantID}, nil
}

// webhook returns the owner of a webhook.
func (o owners) webhook(ctx context.Context, webhookID string) (owner, error) {
	jobID, _, err := ledger.ParseWebhookID(webhookID)
	if err != nil {
		return owner{}, &problem.Error{Code: problem.NotFound, Err: err}
	}
	return o.job(ctx, jobID)
}

// objects is a kind of objects that paths name.
type objects struct {
	// parameter is its name in paths.
	parameter string
	find      func(ctx context.Context, id string) (owner, error)
	// missing is the answer for a missing object.
	missing *problem.Error
}

// errNoJob is the answer for a missing or foreign job.
var errNoJob = &problem.Error{Code: problem.JobNotFound, Detail: "There is no such job."}

// missingStep is the answer for a missing step, or one of another service.
func missingStep(stepID string) *problem.Error {
	return problem.Newf(problem.StepNotFound, "the job has no step %q", stepID)
}

// kinds returns all kinds of objects that paths name.
func (o owners) kinds() []objects {
	missing := func(what string) *problem.Error {
		return &problem.Error{Code: problem.NotFound, Detail: "There is no such " + what + "."}
	}
	return []objects{
		{"jobId", o.job, errNoJob},
		{"workId", o.work, &problem.Error{Code: problem.WorkNotFound, Detail: "There is no such work item."}},
		{"retryId", o.retry, missing("retry operation")},
		{"pauseId", o.pause, missing("pause")},
		{"webhookId", o.webhook, missing("webhook")},
	}
}
