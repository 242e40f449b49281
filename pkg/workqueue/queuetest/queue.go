package queuetest

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Queue is a work queue under test. All methods may be called concurrently.
//
// Refusals are those of the lifecycle package, perhaps wrapped:
// [lifecycle.ErrInvalidRequest], [lifecycle.ErrNotOwner],
// [lifecycle.ErrRevConflict], [lifecycle.ErrIllegalTransition], and
// [lifecycle.ErrNotFound] for an unknown id. A repeated request is no refusal:
// it returns the item as it is. Items are returned whole, but for Requests,
// which the suite does not look at: a queue may remember elsewhere.
type Queue interface {
	// Enqueue makes an item of the message, or returns the one that covers it.
	Enqueue(ctx context.Context, message lifecycle.Message) (lifecycle.Item, error)
	// ClaimNext gives items to an owner. It answers at once, with none where
	// there is nothing to claim.
	ClaimNext(ctx context.Context, claim Claim) ([]lifecycle.Item, error)
	// Start marks a claimed item as running. How long the lease is from then on
	// is the queue's business.
	Start(ctx context.Context, workID string, request lifecycle.Request) (lifecycle.Item, error)
	// Heartbeat extends the lease of a claimed or running item.
	Heartbeat(ctx context.Context, workID string, request lifecycle.Request) (lifecycle.Item, error)
	// Complete ends a running item with a result.
	Complete(ctx context.Context, workID string, request lifecycle.Request, result json.RawMessage) (lifecycle.Item, error)
	// Fail ends a running item with an error, for good.
	Fail(ctx context.Context, workID string, request lifecycle.Request, failure lifecycle.Failure) (lifecycle.Item, error)
	// Stall takes an item from its owner.
	Stall(ctx context.Context, workID string, request lifecycle.Request) (lifecycle.Item, error)
	// Requeue offers a stalled item again, with the next directive.
	Requeue(ctx context.Context, workID string, request lifecycle.Request, next lifecycle.Directive) (lifecycle.Item, error)
	// Get returns the item.
	Get(ctx context.Context, workID string) (lifecycle.Item, error)
	// Events returns the item's history, oldest first.
	Events(ctx context.Context, workID string) ([]lifecycle.Event, error)
}

// Claim is one claimNext.
type Claim struct {
	// Owner is the worker that asks. Required.
	Owner string
	// Filter narrows what is claimed. Optional.
	Filter Filter
	// Max is the most items that the claim takes. Required.
	Max int
	// Lease is how long the worker may hold them before it starts. Required.
	Lease time.Duration
	// RequestID is remembered per owner. Required.
	RequestID string
	// Start says that the items are started in the same step.
	Start bool
}

// Filter narrows a claim: an item matches when each list is empty or has the
// item's value.
type Filter struct {
	Services  []string
	StepTypes []string
}

// Harness is one queue under test, with nothing in it, and its clock.
type Harness struct {
	// Queue is the queue. Required.
	Queue Queue
	// Now reads the queue's clock. Required.
	Now func() time.Time
	// Advance moves the queue's clock and does nothing else: no item is stalled
	// by it. Required.
	Advance func(d time.Duration)
	// Reclaims says that a claim takes stalled items too. Otherwise it must not.
	Reclaims bool
	// Message does what it takes for the queue to accept a message like the one
	// that the suite made up, and returns the message to enqueue. TenantID,
	// Service and StepType must stay. Optional. Defaults to nothing.
	Message func(t testing.TB, message lifecycle.Message) lifecycle.Message
	// Redispatch does what it takes for the queue to accept a next directive for
	// a stalled item, and returns that directive. Optional. Defaults to one that
	// the suite makes up.
	Redispatch func(t testing.TB, item lifecycle.Item) lifecycle.Directive
}
