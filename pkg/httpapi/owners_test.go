package httpapi_test

import (
	"context"
	"strings"

	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/problem"
)

// owners says of ids that begin with "none" that there is no such object, of
// those that begin with "other" that they are of the tenant o, of those that
// begin with "no-tenant" that they are of none, and of all others that they are
// of the tenant t. Steps and work are of the service ocr, unless the id ends with
// the name of another.
type owners struct{}

// owner is whose object an id stands for, in the words of a use case.
func owner(id string, code problem.Code) (httpapi.Owner, error) {
	switch {
	case strings.HasPrefix(id, "none"):
		return httpapi.Owner{}, &problem.Error{Code: code, Detail: "Nothing is called so here."}
	case strings.HasPrefix(id, "down"):
		return httpapi.Owner{}, &problem.Error{Code: problem.StoreUnavailable}
	case strings.HasPrefix(id, "other"):
		return httpapi.Owner{TenantID: "o"}, nil
	case strings.HasPrefix(id, "no-tenant"):
		return httpapi.Owner{}, nil
	default:
		return httpapi.Owner{TenantID: "t"}, nil
	}
}

func (owners) Job(_ context.Context, id string) (httpapi.Owner, error) {
	return owner(id, problem.JobNotFound)
}

func (owners) Step(_ context.Context, jobID, stepID string) (httpapi.Owner, error) {
	found, err := owner(jobID, problem.JobNotFound)
	if found.Service = stepID; strings.HasPrefix(stepID, "none") {
		found.Service = ""
	}
	return found, err
}

func (owners) Work(_ context.Context, id string) (httpapi.Owner, error) {
	found, err := owner(id, problem.WorkNotFound)
	found.Service = "ocr"
	if strings.HasSuffix(id, "embed") {
		found.Service = "embed"
	}
	return found, err
}

func (owners) Retry(_ context.Context, id string) (httpapi.Owner, error) {
	return owner(id, problem.NotFound)
}

func (owners) Pause(_ context.Context, id string) (httpapi.Owner, error) {
	return owner(id, problem.NotFound)
}

func (owners) Webhook(_ context.Context, id string) (httpapi.Owner, error) {
	return owner(id, problem.NotFound)
}

// witness are owners that say of every job that it is of the tenant t, and note
// its id.
type witness struct{ checked *[]string }

func (w *witness) Job(_ context.Context, id string) (httpapi.Owner, error) {
	*w.checked = append(*w.checked, id)
	return httpapi.Owner{TenantID: "t"}, nil
}

func (w *witness) Step(ctx context.Context, jobID, _ string) (httpapi.Owner, error) {
	return w.Job(ctx, jobID)
}
func (w *witness) Work(ctx context.Context, id string) (httpapi.Owner, error)  { return w.Job(ctx, id) }
func (w *witness) Retry(ctx context.Context, id string) (httpapi.Owner, error) { return w.Job(ctx, id) }
func (w *witness) Pause(ctx context.Context, id string) (httpapi.Owner, error) { return w.Job(ctx, id) }
func (w *witness) Webhook(ctx context.Context, id string) (httpapi.Owner, error) {
	return w.Job(ctx, id)
}
