package workqueue

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// pollInterval is how often claims look for items that another process
// enqueued.
const pollInterval = time.Second

// ClaimRequest is one claim.
type ClaimRequest struct {
	// Owner is the worker that asks. Required.
	Owner string
	// RequestID is remembered per owner, so that a repeat answers with the items
	// of the first that the owner still holds. Required.
	RequestID string
	// Services, StepTypes and Tenants narrow what is claimed; an empty list takes
	// all.
	Services  []string
	StepTypes []string
	Tenants   []string
	// Max is the most items, at least 1.
	Max int
	// Wait is how long to wait for a first item.
	Wait time.Duration
	// Lease replaces the step's ACK timeout until the start, where it is not 0.
	Lease time.Duration
	// Start says that the items are started in the same step.
	Start bool
	// Ended ends the wait early; nil never does.
	Ended <-chan struct{}
}

// Claim gives ready items to a worker: as soon as there are any, or none when
// the wait is over. No item is handed out whose attempt is not current. The
// errors are [*problem.Error]s.
//
// Source: Job lifecycle plan 02, Claim.
func (q *Queue) Claim(ctx context.Context, r ClaimRequest) ([]View, error) {
	if err := r.check(); err != nil {
		return nil, asProblem(err)
	}
	views, known, err := q.repeat(ctx, &r)
	if err != nil || known {
		return views, asProblem(err)
	}
	filter := Filter{Services: r.Services, StepTypes: r.StepTypes, Tenants: r.Tenants, Caller: q.caller, held: q.held}
	deadline := time.NewTimer(r.Wait)
	defer deadline.Stop()
	signal, leave := q.ready.wait(filter)
	defer leave()
	for {
		views, err := q.claimReady(ctx, &r, &filter)
		if err != nil || len(views) > 0 {
			return views, asProblem(err)
		}
		select {
		case <-signal:
			continue // Work comes before the end of the wait, always: no lot is drawn.
		default:
		}
		poll := time.NewTimer(pollInterval)
		select {
		case <-signal:
		case <-poll.C:
		case <-deadline.C:
			return nil, nil
		case <-r.Ended:
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
		poll.Stop()
	}
}

// check names the field that makes no sense.
func (r *ClaimRequest) check() error {
	switch {
	case r.Owner == "":
		return &lifecycle.RequestError{Field: "owner", Reason: "is required"}
	case r.RequestID == "":
		return &lifecycle.RequestError{Field: "request_id", Reason: "is required"}
	case r.Max < 1:
		return &lifecycle.RequestError{Field: "max", Reason: "must be at least 1"}
	case r.Wait < 0:
		return &lifecycle.RequestError{Field: "wait_seconds", Reason: "must not be negative"}
	case r.Lease < 0:
		return &lifecycle.RequestError{Field: "lease_seconds", Reason: "must not be negative"}
	}
	return nil
}

// claimReady claims what is ready now. What other processes enqueued is looked
// for about once a second also while this one's own work goes on.
func (q *Queue) claimReady(ctx context.Context, r *ClaimRequest, filter *Filter) ([]View, error) {
	if err := q.refill(ctx, filter); err != nil {
		return nil, err
	}
	picked := q.ready.pick(filter, r.Max)
	views, err := q.claimAll(ctx, r, picked)
	q.forgetClaims(ctx, len(views))
	if err != nil && len(views) > 0 {
		q.logger.WarnContext(ctx, "some items were not claimed", "owner", r.Owner, "error", err)
		err = nil
	}
	return views, err
}

// claimAll claims the items side by side, and leaves out those that cannot be
// had. The error is that of the first that failed.
func (q *Queue) claimAll(ctx context.Context, r *ClaimRequest, picked []ref) ([]View, error) {
	slots := make([]*View, len(picked))
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, item := range picked {
		group.Go(func() (err error) {
			if slots[i], err = q.claimOne(ctx, r, item); err != nil {
				q.ready.putBack(item)
			} else {
				q.ready.settle(item)
			}
			return err
		})
	}
	err := group.Wait()
	views := make([]View, 0, len(slots))
	for _, view := range slots {
		if view != nil {
			views = append(views, *view)
		}
	}
	return views, err
}
