package httpapi

import (
	"context"

	"github.com/lucius-project/lucius/pkg/problem"
)

// Owner is whose an object is.
type Owner struct {
	// TenantID is empty for an object of no tenant: then it takes a role for all
	// tenants.
	TenantID string
	// Service is the service whose step it is, empty for what is no step's.
	Service string
}

// Owners says whose objects are, so that those of others can be left out. It is
// safe for concurrent use. The errors are problems that its own use cases would
// answer as well; those that say that there is no such object are answered in
// words of the transport, the same as for an object of somebody else.
type Owners interface {
	// Job returns the owner of a job, or a problem of code job_not_found.
	Job(ctx context.Context, jobID string) (Owner, error)
	// Step returns the owner of a step, or a problem of code job_not_found. A step
	// that the job does not have is of the job's tenant and of no service.
	Step(ctx context.Context, jobID, stepID string) (Owner, error)
	// Work returns the owner of a work item, or a problem of code work_not_found.
	Work(ctx context.Context, workID string) (Owner, error)
	// Retry returns the owner of a retry operation, or a problem of code not_found.
	Retry(ctx context.Context, retryID string) (Owner, error)
	// Pause returns the owner of a pause, or a problem of code not_found. Whether
	// there is such a pause need not be known.
	Pause(ctx context.Context, pauseID string) (Owner, error)
	// Webhook returns the owner of a webhook, or a problem of code not_found.
	Webhook(ctx context.Context, webhookID string) (Owner, error)
}

// objects is a kind of object that paths name.
type objects struct {
	// parameter is its name in paths.
	parameter string
	owner     func(ctx context.Context, id string) (Owner, error)
	// missing answers for one that is not there.
	missing *problem.Error
}

// errNoJob answers for a job that is not there, or that is somebody else's.
var errNoJob = &problem.Error{Code: problem.JobNotFound, Detail: "There is no such job."}

// missingStep answers for a step that is not there, or that another service's.
func missingStep(stepID string) *problem.Error {
	return problem.Newf(problem.StepNotFound, "the job has no step %q", stepID)
}

// kinds are all kinds of objects that paths name.
func kinds(o Owners) []objects {
	missing := func(what string) *problem.Error {
		return &problem.Error{Code: problem.NotFound, Detail: "There is no such " + what + "."}
	}
	return []objects{
		{"jobId", o.Job, errNoJob},
		{"workId", o.Work, &problem.Error{Code: problem.WorkNotFound, Detail: "There is no such work item."}},
		{"retryId", o.Retry, missing("retry operation")},
		{"pauseId", o.Pause, missing("pause")},
		{"webhookId", o.Webhook, missing("webhook")},
	}
}
