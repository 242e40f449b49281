package queuetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
)

// memQueue is the smallest correct queue: a map with a mutex, which applies the policy.
// flaws says what is broken about it.
type memQueue struct {
	flaws flaws

	mu     sync.Mutex
	now    time.Time
	ids    []string // in the order of their enqueues
	items  map[string]lifecycle.Item
	events map[string][]lifecycle.Event
	claims map[claimKey]claimed
}

// claimKey is the key under which a claim is remembered.
type claimKey struct{ owner, requestID string }

// claimed is a remembered claim. It is kept forever, though it could be forgotten after
// until.
type claimed struct {
	ids   []string
	until time.Time
}

// runLease is how long an item may run without a heartbeat.
const runLease = 15 * time.Minute

func newMemQueue(broken flaws) *memQueue {
	return &memQueue{
		flaws:  broken,
		now:    time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC),
		items:  make(map[string]lifecycle.Item),
		events: make(map[string][]lifecycle.Event),
		claims: make(map[claimKey]claimed),
	}
}

func (q *memQueue) harness() Harness {
	return Harness{Queue: q, Now: q.clock, Advance: q.advance, Reclaims: q.flaws.reclaims}
}

func (q *memQueue) clock() time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.now
}

func (q *memQueue) advance(d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.now = q.now.Add(d)
}

func (q *memQueue) Enqueue(_ context.Context, message lifecycle.Message) (lifecycle.Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := fmt.Sprintf("work-%d", len(q.ids)+1)
	change, err := lifecycle.Enqueue(q.covering(message), id, "relay", message, q.now)
	return q.settle(lifecycle.OpEnqueue, lifecycle.Item{WorkID: id}, change, err)
}

// covering is the item that stands for the message, if there is one.
func (q *memQueue) covering(message lifecycle.Message) *lifecycle.Item {
	for _, id := range q.ids {
		if item := q.items[id]; q.flaws.covers(&item, message) {
			return &item
		}
	}
	return nil
}

func (q *memQueue) ClaimNext(_ context.Context, claim Claim) ([]lifecycle.Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.flaws.wholeClaim(claim); err != nil {
		return nil, err
	}
	key := q.flaws.claimKey(claim)
	if known, ok := q.claims[key]; ok && q.flaws.recalls(known, q.now) {
		return q.answer(known, claim), nil
	}
	var items []lifecycle.Item
	for _, id := range q.choose(claim) {
		item, err := q.claim(id, claim)
		if err != nil {
			return items, err
		}
		items = append(items, item)
	}
	if len(items) > 0 || q.flaws.remembersNothing {
		q.claims[key] = claimed{ids: workIDs(items), until: q.now.Add(claim.Lease)}
	}
	return items, nil
}

// answer returns the claim's items that its owner still holds.
func (q *memQueue) answer(known claimed, claim Claim) (items []lifecycle.Item) {
	for _, id := range known.ids {
		if item := q.items[id]; q.flaws.stillHeld(&item, claim) {
			items = append(items, item)
		}
	}
	return items
}

// choose returns what the claim takes, oldest first.
func (q *memQueue) choose(claim Claim) (chosen []string) {
	for _, id := range q.ids {
		item := q.items[id]
		if len(chosen) < q.flaws.max(claim) && q.flaws.claimable(item) && q.flaws.matches(claim.Filter, item) {
			chosen = append(chosen, id)
		}
	}
	return q.flaws.chosen(chosen)
}

func (q *memQueue) claim(id string, claim Claim) (lifecycle.Item, error) {
	q.flaws.beforeClaim(q)
	request := lifecycle.Request{Actor: claim.Owner, ExpectedRev: q.items[id].Rev, ID: claim.RequestID}
	return q.move(lifecycle.OpClaimNext, id, request, func(item lifecycle.Item, r lifecycle.Request) (lifecycle.Change, error) {
		if claim.Start {
			return lifecycle.ClaimAndStart(item, r, q.now.Add(runLease), q.now)
		}
		return lifecycle.Claim(item, r, q.now.Add(claim.Lease), q.now)
	})
}

// move asks the policy for the move, spoiled by the flaws, and writes the result. The mutex
// is held.
func (q *memQueue) move(
	op lifecycle.Operation, id string, request lifecycle.Request,
	policy func(lifecycle.Item, lifecycle.Request) (lifecycle.Change, error),
) (lifecycle.Item, error) {
	item, ok := q.items[id]
	if !ok {
		return lifecycle.Item{}, q.flaws.notFound(id)
	}
	seen := item
	seen.Requests = q.flaws.remembered(item.Requests, q.now)
	if q.flaws.asks != nil {
		q.flaws.asks(op, &seen, &request)
	}
	change, err := policy(seen, request)
	return q.settle(op, item, change, err)
}

// settle writes the change.
func (q *memQueue) settle(op lifecycle.Operation, before lifecycle.Item, change lifecycle.Change, err error) (lifecycle.Item, error) {
	if q.flaws.writes != nil && err == nil {
		q.flaws.writes(op, before, &change)
	}
	item := change.Item
	if err != nil {
		return lifecycle.Item{}, fmt.Errorf("%s: %w", op, err)
	}
	if _, known := q.items[item.WorkID]; !known {
		q.ids = append(q.ids, item.WorkID)
	}
	q.items[item.WorkID] = item
	q.events[item.WorkID] = append(q.events[item.WorkID], change.Events...)
	return item, nil
}

// ask is move for the operations that name an item.
func (q *memQueue) ask(
	op lifecycle.Operation, id string, request lifecycle.Request,
	policy func(lifecycle.Item, lifecycle.Request) (lifecycle.Change, error),
) (lifecycle.Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.move(op, id, request, policy)
}

func (q *memQueue) Start(_ context.Context, id string, request lifecycle.Request) (lifecycle.Item, error) {
	return q.ask(lifecycle.OpStart, id, request, func(item lifecycle.Item, r lifecycle.Request) (lifecycle.Change, error) {
		return lifecycle.Start(item, r, q.now.Add(runLease), q.now)
	})
}

func (q *memQueue) Heartbeat(_ context.Context, id string, request lifecycle.Request) (lifecycle.Item, error) {
	return q.ask(lifecycle.OpHeartbeat, id, request, func(item lifecycle.Item, r lifecycle.Request) (lifecycle.Change, error) {
		return lifecycle.Heartbeat(item, r, q.now.Add(runLease), q.now)
	})
}

func (q *memQueue) Complete(
	_ context.Context, id string, request lifecycle.Request, result json.RawMessage,
) (lifecycle.Item, error) {
	return q.ask(lifecycle.OpComplete, id, request, func(item lifecycle.Item, r lifecycle.Request) (lifecycle.Change, error) {
		return lifecycle.Complete(item, r, result, q.now)
	})
}

func (q *memQueue) Fail(
	_ context.Context, id string, request lifecycle.Request, failure lifecycle.Failure,
) (lifecycle.Item, error) {
	return q.ask(lifecycle.OpFail, id, request, func(item lifecycle.Item, r lifecycle.Request) (lifecycle.Change, error) {
		return lifecycle.Fail(item, r, failure, q.now)
	})
}

func (q *memQueue) Stall(_ context.Context, id string, request lifecycle.Request) (lifecycle.Item, error) {
	return q.ask(lifecycle.OpStall, id, request, func(item lifecycle.Item, r lifecycle.Request) (lifecycle.Change, error) {
		return lifecycle.Stall(item, r, q.now)
	})
}

func (q *memQueue) Requeue(
	_ context.Context, id string, request lifecycle.Request, next lifecycle.Directive,
) (lifecycle.Item, error) {
	return q.ask(lifecycle.OpRequeueStalled, id, request, func(item lifecycle.Item, r lifecycle.Request) (lifecycle.Change, error) {
		return lifecycle.Requeue(item, r, next, q.now)
	})
}

func (q *memQueue) Get(_ context.Context, id string) (lifecycle.Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	item, ok := q.items[id]
	if !ok {
		return lifecycle.Item{}, q.flaws.notFound(id)
	}
	return item, nil
}

func (q *memQueue) Events(_ context.Context, id string) ([]lifecycle.Event, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.items[id]; !ok {
		return nil, q.flaws.notFound(id)
	}
	return slices.Clone(q.events[id]), nil
}

var _ Queue = (*memQueue)(nil)

func TestACorrectQueuePasses(t *testing.T) {
	t.Parallel()
	Run(t, func(testing.TB) Harness { return newMemQueue(flaws{}).harness() })
}

func TestAQueueThatReclaimsPasses(t *testing.T) {
	t.Parallel()
	Run(t, func(testing.TB) Harness { return newMemQueue(flaws{reclaims: true}).harness() })
}

// If a queue accepts only messages and directives that it knows, the harness makes them.
func TestTheHarnessMakesMessagesAndDirectives(t *testing.T) {
	t.Parallel()
	Run(t, func(testing.TB) Harness {
		harness := newMemQueue(flaws{}).harness()
		harness.Message = func(_ testing.TB, message lifecycle.Message) lifecycle.Message {
			message.MessageID = "made/" + message.MessageID
			message.DedupeKey = message.MessageID
			return message
		}
		harness.Redispatch = func(_ testing.TB, item lifecycle.Item) lifecycle.Directive {
			next := item.AttemptNo + 2
			return lifecycle.Directive{
				MessageID: fmt.Sprintf("%s/%d", item.WorkID, next), AttemptNo: next,
				LeaseID: fmt.Sprintf("lease of %s/%d", item.WorkID, next),
			}
		}
		return harness
	})
}
