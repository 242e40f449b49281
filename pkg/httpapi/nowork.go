package httpapi

import (
	"context"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/problem"
)

// noWork stands for the pull queue where the bus is another one.
type noWork struct{}

// errNoQueue says that this deployment has no pull queue.
var errNoQueue = &problem.Error{Code: problem.NotFound, Detail: "This server has no pull queue."}

func (noWork) Claim(context.Context, api.ClaimRequest, Wait) ([]api.WorkItem, error) {
	return nil, errNoQueue
}

func (noWork) Start(context.Context, string, api.WorkVerb) (api.WorkItem, error) {
	return api.WorkItem{}, errNoQueue
}

func (noWork) Heartbeat(context.Context, string, api.WorkVerb) (api.WorkItem, error) {
	return api.WorkItem{}, errNoQueue
}

func (noWork) Complete(context.Context, string, api.WorkCompletion) (api.WorkItem, error) {
	return api.WorkItem{}, errNoQueue
}

func (noWork) Fail(context.Context, string, api.WorkFailure) (api.WorkItem, error) {
	return api.WorkItem{}, errNoQueue
}

func (noWork) Item(context.Context, string) (api.WorkItem, error) {
	return api.WorkItem{}, errNoQueue
}

func (noWork) Events(context.Context, string, Page) (api.WorkEventPage, error) {
	return api.WorkEventPage{}, errNoQueue
}

func (noWork) Stall(context.Context, string, api.AdminWorkRequest) (api.WorkItem, error) {
	return api.WorkItem{}, errNoQueue
}

func (noWork) Requeue(context.Context, string, api.AdminWorkRequest) (api.WorkItem, error) {
	return api.WorkItem{}, errNoQueue
}
