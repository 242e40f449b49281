package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

const (
	// claimMax is the most items that one claim takes.
	claimMax = 32
	// claimWait is how long a claim waits for a first item.
	claimWait = 20 * time.Second
)

// pulling is what the pullers of a run share.
type pulling struct {
	client  *client
	tracker *tracker
	// owner is the worker's name, for all of them: they are threads of one.
	owner string
	// last is the id of the step that ends a job.
	last     string
	requests atomic.Int64
}

// claimed is as much of a claim's answer as a puller reads.
type claimed struct {
	Items []item `json:"items"`
}

// item is one piece of work.
type item struct {
	WorkID    string `json:"work_id"`
	Rev       int64  `json:"rev"`
	Directive struct {
		StepID        string `json:"stepId"`
		CorrelationID string `json:"correlation_id"`
	} `json:"directive"`
}

// loop claims and starts work until the context ends, and has each item
// completed on the group: a slow completion keeps no other from being claimed.
// There are never more under way than jobs in flight. finish is the context of
// the completions, which outlives the claims.
func (p *pulling) loop(ctx, finish context.Context, group *errgroup.Group) error {
	for ctx.Err() == nil {
		items, err := p.claim(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		for i := range items {
			group.Go(func() error { return p.complete(finish, &items[i]) })
		}
	}
	return nil
}

// claim takes work, and waits for it where there is none.
func (p *pulling) claim(ctx context.Context) ([]item, error) {
	var answer claimed
	err := p.client.post(ctx, "/v1/work:claim", api.ClaimRequest{
		Owner: p.owner, Services: []string{service}, Max: claimMax, WaitSeconds: claimWait.Seconds(), Start: true,
		RequestID: p.requestID(),
	}, &answer)
	return answer.Items, err
}

// complete reports success, and tells the submitter where that ended its job.
func (p *pulling) complete(ctx context.Context, work *item) error {
	err := p.client.post(ctx, "/v1/work/"+work.WorkID+":complete", api.WorkCompletion{
		Owner: p.owner, ExpectedRev: work.Rev, RequestID: p.requestID(),
		ResultRef: json.RawMessage(`{"uri":"bench://result"}`),
	}, nil)
	if err != nil {
		return err
	}
	if work.Directive.StepID == p.last {
		p.tracker.end(work.Directive.CorrelationID, time.Now())
	}
	return nil
}

// requestID is fresh for each request.
func (p *pulling) requestID() string { return fmt.Sprintf("%s-%d", p.owner, p.requests.Add(1)) }
