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

// pulling is the state that the pullers of a run share.
type pulling struct {
	client  *client
	tracker *tracker
	// owner is the worker's name: all pullers are one worker.
	owner string
	// last is the id of a job's last step.
	last     string
	requests atomic.Int64
}

// claimed is the part of a claim's answer that a puller reads.
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

// loop claims and starts items until the context ends, and completes each in a
// goroutine of the group, so that a slow completion does not block further claims.
// There are never more completions than jobs in flight. finish is the context of the
// completions, which outlives the claims.
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

// claim claims items, and waits if there are none.
func (p *pulling) claim(ctx context.Context) ([]item, error) {
	var answer claimed
	err := p.client.post(ctx, "/v1/work:claim", api.ClaimRequest{
		Owner: p.owner, Services: []string{service}, Max: claimMax, WaitSeconds: claimWait.Seconds(), Start: true,
		RequestID: p.requestID(),
	}, &answer)
	return answer.Items, err
}

// complete reports success, and notifies the submitter if that ended its job.
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

// requestID returns a fresh request id.
func (p *pulling) requestID() string { return fmt.Sprintf("%s-%d", p.owner, p.requests.Add(1)) }
