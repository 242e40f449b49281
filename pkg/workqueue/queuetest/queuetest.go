// Package queuetest tests the contract that every work queue must fulfil. An
// implementation wraps itself as a [Queue] and runs the whole suite:
//
//	func TestQueue(t *testing.T) {
//		queuetest.Run(t, func(t testing.TB) queuetest.Harness {
//			clock := newClock()
//			return queuetest.Harness{Queue: open(t, clock), Now: clock.Now, Advance: clock.Advance}
//		})
//	}
//
// Each check names the rule of the source that it tests, and prints it when it
// fails. After each check all items that it made are read back: each must be valid
// ([statemachine.ValidateItem]), and its history must be a walk along the allowed
// transitions ([statemachine.ValidateItemHistory]).
//
// What the source leaves to the queue is not tested: the choice among the items that
// may be claimed, the length of leases, and when an item is stalled. The suite calls
// Stall itself.
//
// The tests of this package run the suite on a small correct queue, and on broken
// variants of it. The suite must catch each variant, and each check must catch one.
//
// Source: Job lifecycle plan 02, Acceptance criteria.
package queuetest

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Queue is a work queue under test. All methods may be called concurrently.
//
// Refusals are those of the lifecycle package, perhaps wrapped:
// [statemachine.ErrInvalidRequest], [statemachine.ErrNotOwner],
// [statemachine.ErrRevConflict], [statemachine.ErrIllegalTransition], and
// [statemachine.ErrNoItem] for an unknown id. A repeated request is no refusal: it
// returns the item as it is. Items are returned complete, but for Requests, which the
// suite does not look at: a queue may remember elsewhere.
type Queue interface {
	// Enqueue makes an item of the message, or returns the one that covers it.
	Enqueue(ctx context.Context, message statemachine.ItemMessage) (statemachine.Item, error)
	// ClaimNext gives items to an owner. It answers at once, with none if there is
	// nothing to claim.
	ClaimNext(ctx context.Context, claim Claim) ([]statemachine.Item, error)
	// Start marks a claimed item as running. The queue chooses the lease.
	Start(ctx context.Context, workID string, request statemachine.ItemRequest) (statemachine.Item, error)
	// Heartbeat extends the lease of a claimed or running item.
	Heartbeat(ctx context.Context, workID string, request statemachine.ItemRequest) (statemachine.Item, error)
	// Complete ends a running item with a result.
	Complete(ctx context.Context, workID string, request statemachine.ItemRequest, result json.RawMessage) (statemachine.Item, error)
	// Fail ends a running item with an error, for good.
	Fail(ctx context.Context, workID string, request statemachine.ItemRequest, failure statemachine.ItemFailure) (statemachine.Item, error)
	// Stall takes an item from its owner.
	Stall(ctx context.Context, workID string, request statemachine.ItemRequest) (statemachine.Item, error)
	// Requeue offers a stalled item again, with the next directive.
	Requeue(ctx context.Context, workID string, request statemachine.ItemRequest, next statemachine.ItemDirective) (
		statemachine.Item, error)
	Get(ctx context.Context, workID string) (statemachine.Item, error)
	// Events returns the item's history, oldest first.
	Events(ctx context.Context, workID string) ([]statemachine.ItemEvent, error)
}

// Claim is one claimNext.
type Claim struct {
	// Owner is the worker that asks. Required.
	Owner string
	// Filter narrows what is claimed. Optional.
	Filter Filter
	// Max bounds the items. Required.
	Max int
	// Lease is how long the worker may hold them before it starts. Required.
	Lease time.Duration
	// RequestID is remembered per owner. Required.
	RequestID string
	// Start says that the items are started in the same step.
	Start bool
}

// Filter narrows a claim: an item matches if each list is empty or has the item's
// value.
type Filter struct {
	Services  []string
	StepTypes []string
}

// Harness is one empty queue under test, and its clock.
type Harness struct {
	// Queue is the queue. Required.
	Queue Queue
	// Now reads the queue's clock. Required.
	Now func() time.Time
	// Advance moves the queue's clock, and stalls no item by that. Required.
	Advance func(d time.Duration)
	// Reclaims says that a claim takes stalled items too. Otherwise it must not.
	Reclaims bool
	// Message prepares the queue for a message like the given one, and returns the
	// message to enqueue. TenantID, Service and StepType must stay. Optional. Defaults
	// to nothing.
	Message func(t testing.TB, message statemachine.ItemMessage) statemachine.ItemMessage
	// Redispatch prepares the queue for the next directive of a stalled item, and
	// returns that directive. Optional. Defaults to one that the suite makes.
	Redispatch func(t testing.TB, item statemachine.Item) statemachine.ItemDirective
}

// Run runs the suite as parallel subtests of t, each on a harness of its own from
// open.
func Run(t *testing.T, open func(t testing.TB) Harness) {
	t.Helper()
	RunWithin(t, func(t *testing.T, check func(t *testing.T)) { check(t) }, open)
}

// RunWithin does what [Run] does, with each check and the opening of its harness
// inside a call of within. With [testing/synctest.Test] there, a queue that reads the
// wall clock is tested on one that can be moved.
func RunWithin(t *testing.T, within func(t *testing.T, check func(t *testing.T)), open func(t testing.TB) Harness) {
	t.Helper()
	for _, check := range checks() {
		t.Run(check.name, func(t *testing.T) {
			t.Parallel()
			within(t, func(t *testing.T) { check.runOn(t, open(t)) })
		})
	}
}

// check is one test of the suite.
type check struct {
	name string
	rule string // of the source
	run  func(t testing.TB, e *env)
}

// checks returns all checks, by capability.
func checks() []check {
	return slices.Concat(
		enqueueChecks, claimChecks, claimRepeatChecks, workChecks, recoveryChecks, transitionChecks, requestChecks,
		repeatChecks, eventChecks, raceChecks,
	)
}

// runOn runs the check on that queue, and checks every item that it made, with its
// history.
func (c check) runOn(t testing.TB, harness Harness) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("rule: %s", c.rule)
		}
	}()
	e := &env{Harness: harness}
	c.run(t, e)
	for _, id := range e.made {
		item := e.get(t, id)
		if err := statemachine.ValidateItem(item); err != nil {
			t.Errorf("read back: %v", err)
		}
		if err := statemachine.ValidateItemHistory(item, e.events(t, id)); err != nil {
			t.Errorf("history: %v", err)
		}
	}
}
