package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
)

const (
	// claimMax is the most items that one claim takes.
	claimMax = 32
	// claimWait is how long a claim waits for its first item.
	claimWait = 20 * time.Second
)

// workers claim and do the work of one service. To the server they are one worker.
type workers struct {
	client         *client
	owner, service string
	// start makes a claim also start its items.
	start bool
	// most is how many items a claim takes at most.
	most int32
	// claimed, unless it is nil, is called for each item that is claimed, and makes a puller do its
	// items before it claims again.
	claimed func(one *item)
	// work does the items of a claim, and calls done for each.
	work func(ctx context.Context, w *workers, items []item) error
	// last is the id of a job's last step. When it has ended, ended is called with the job's
	// correlation id.
	last  string
	ended func(correlationID string, at time.Time)

	requests atomic.Int64
}

// item is the part of a claimed item that a worker reads.
type item struct {
	WorkID    string `json:"work_id"`
	Rev       int64  `json:"rev"`
	Directive struct {
		JobID         string `json:"jobId"`
		StepID        string `json:"stepId"`
		TenantID      string `json:"tenant_id"`
		AttemptNo     int32  `json:"attempt_no"`
		LeaseID       string `json:"lease_id"`
		CorrelationID string `json:"correlation_id"`
	} `json:"directive"`
}

// run starts that many pullers in the group. They claim until stop is called, and finish the
// items that they have claimed.
func (w *workers) run(ctx context.Context, group *errgroup.Group, pullers int) (stop func()) {
	claims, stop := context.WithCancel(ctx)
	for range pullers {
		group.Go(func() error { return w.pull(ctx, claims, group) })
	}
	return stop
}

// pull claims items until the claims' context ends. It does the items of each claim in a
// goroutine of the group, so that slow ones do not delay further claims.
func (w *workers) pull(ctx, claims context.Context, group *errgroup.Group) error {
	for claims.Err() == nil {
		items, err := w.claim(claims, w.most)
		if err != nil && claims.Err() == nil {
			return err
		}
		switch {
		case len(items) == 0:
		case w.claimed == nil:
			group.Go(func() error { return w.work(ctx, w, items) })
		default:
			for i := range items {
				w.claimed(&items[i])
			}
			if err := w.work(ctx, w, items); err != nil {
				return err
			}
		}
	}
	return nil
}

// done records that the item's step has ended.
func (w *workers) done(item *item) {
	if item.Directive.StepID == w.last {
		w.ended(item.Directive.CorrelationID, time.Now())
	}
}

// claim waits for items and claims at most most of them.
func (w *workers) claim(ctx context.Context, most int32) ([]item, error) {
	var claimed struct {
		Items []item `json:"items"`
	}
	err := w.client.post(ctx, "/v1/work:claim", api.ClaimRequest{
		Owner: w.owner, Services: []string{w.service}, Max: most, WaitSeconds: claimWait.Seconds(), Start: w.start,
		RequestID: w.requestID(),
	}, &claimed)
	return claimed.Items, err
}

// complete reports success of all items to the queue.
func complete(ctx context.Context, w *workers, items []item) error {
	var request api.WorkCompletionBatch
	for i := range items {
		request.Items = append(request.Items, api.ItemCompletion{
			WorkID: items[i].WorkID, Owner: w.owner, ExpectedRev: items[i].Rev, RequestID: w.requestID(), ResultRef: resultRef,
		})
	}
	var answer api.WorkCompletionResults
	if err := w.client.post(ctx, "/v1/work:complete", request, &answer); err != nil {
		return err
	}
	for i, result := range answer.Results {
		if result.Error != nil {
			return fmt.Errorf("the completion of %s was refused: %s %s", result.WorkID, result.Error.Code, result.Error.Detail)
		}
		w.done(&items[i])
	}
	return nil
}

// resultRef is the result of every step.
var resultRef = json.RawMessage(`{"uri":"bench://result"}`)

// requestID returns a new request id.
func (w *workers) requestID() string { return fmt.Sprintf("%s-%d", w.owner, w.requests.Add(1)) }

// tracker notifies each submitter of the end of its job. It identifies jobs by the correlation
// id, which the submitter chooses, because a job may end before its submitter has read the job
// id. It is safe for concurrent use.
type tracker struct {
	mu      sync.Mutex
	waiting map[string]*expected
}

// expected is a job that has not ended.
type expected struct {
	begun time.Time // when it was expected first
	ended chan time.Time
}

func newTracker() *tracker { return &tracker{waiting: map[string]*expected{}} }

// expect returns a channel that receives the time of the job's end.
func (t *tracker) expect(correlationID string) <-chan time.Time {
	one := &expected{begun: time.Now(), ended: make(chan time.Time, 1)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[correlationID] = one
	return one.ended
}

// begun returns since when the end of a job is expected, and false if it is not.
func (t *tracker) begun(correlationID string) (at time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, ok := t.waiting[correlationID]
	if !ok {
		return at, false
	}
	return one.begun, true
}

// end records that a job has ended. It ignores repetitions, and jobs of an earlier run.
func (t *tracker) end(correlationID string, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one, ok := t.waiting[correlationID]; ok {
		one.ended <- at // The channel has room, because it gets one value.
		delete(t.waiting, correlationID)
	}
}
