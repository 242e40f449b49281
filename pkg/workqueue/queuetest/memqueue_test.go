package queuetest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// memQueue is the smallest correct queue: a map with a mutex, which applies the policy.
// flaws says what is broken about it.
type memQueue struct {
	flaws flaws

	mu     sync.Mutex
	now    time.Time
	ids    []string // in the order of their enqueues
	items  map[string]statemachine.Item
	events map[string][]statemachine.ItemEvent
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
		items:  make(map[string]statemachine.Item),
		events: make(map[string][]statemachine.ItemEvent),
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

func (q *memQueue) Enqueue(_ context.Context, message statemachine.ItemMessage) (statemachine.Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := fmt.Sprintf("work-%d", len(q.ids)+1)
	change, err := statemachine.EnqueueItem(q.covering(message), id, "relay", message, q.now)
	return q.settle(statemachine.OpEnqueue, statemachine.Item{WorkID: id}, change, err)
}

// covering is the item that stands for the message, if there is one.
func (q *memQueue) covering(message statemachine.ItemMessage) *statemachine.Item {
	for _, id := range q.ids {
		if item := q.items[id]; q.flaws.covers(&item, message) {
			return &item
		}
	}
	return nil
}

func (q *memQueue) ClaimNext(_ context.Context, claim Claim) ([]statemachine.Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.flaws.wholeClaim(claim); err != nil {
		return nil, err
	}
	key := q.flaws.claimKey(claim)
	if known, ok := q.claims[key]; ok && q.flaws.recalls(known, q.now) {
		return q.answer(known, claim), nil
	}
	var items []statemachine.Item
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
func (q *memQueue) answer(known claimed, claim Claim) (items []statemachine.Item) {
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

func (q *memQueue) claim(id string, claim Claim) (statemachine.Item, error) {
	q.flaws.beforeClaim(q)
	request := statemachine.ItemRequest{Actor: claim.Owner, ExpectedRev: q.items[id].Rev, ID: claim.RequestID}
	return q.move(statemachine.OpClaimNext, id, request, func(item statemachine.Item, r statemachine.ItemRequest) (statemachine.ItemChange, error) {
		if claim.Start {
			return statemachine.ClaimAndStartItem(item, r, q.now.Add(runLease), q.now)
		}
		return statemachine.ClaimItem(item, r, q.now.Add(claim.Lease), q.now)
	})
}

// move asks the policy for the move, spoiled by the flaws, and writes the result. The mutex
// is held.
func (q *memQueue) move(
	op statemachine.ItemOperation, id string, request statemachine.ItemRequest,
	policy func(statemachine.Item, statemachine.ItemRequest) (statemachine.ItemChange, error),
) (statemachine.Item, error) {
	item, ok := q.items[id]
	if !ok {
		return statemachine.Item{}, q.flaws.notFound(id)
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
func (q *memQueue) settle(op statemachine.ItemOperation, before statemachine.Item, change statemachine.ItemChange, err error) (statemachine.Item, error) {
	if q.flaws.writes != nil && err == nil {
		q.flaws.writes(op, before, &change)
	}
	item := change.Item
	if err != nil {
		return statemachine.Item{}, fmt.Errorf("%s: %w", op, err)
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
	op statemachine.ItemOperation, id string, request statemachine.ItemRequest,
	policy func(statemachine.Item, statemachine.ItemRequest) (statemachine.ItemChange, error),
) (statemachine.Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.move(op, id, request, policy)
}

func (q *memQueue) Start(_ context.Context, id string, request statemachine.ItemRequest) (statemachine.Item, error) {
	return q.ask(statemachine.OpStart, id, request, func(item statemachine.Item, r statemachine.ItemRequest) (statemachine.ItemChange, error) {
		return statemachine.StartItem(item, r, q.now.Add(runLease), q.now)
	})
}

func (q *memQueue) Heartbeat(_ context.Context, id string, request statemachine.ItemRequest) (statemachine.Item, error) {
	return q.ask(statemachine.OpHeartbeat, id, request, func(item statemachine.Item, r statemachine.ItemRequest) (statemachine.ItemChange, error) {
		return statemachine.HeartbeatItem(item, r, q.now.Add(runLease), q.now)
	})
}

func (q *memQueue) Complete(
	_ context.Context, id string, request statemachine.ItemRequest, result json.RawMessage,
) (statemachine.Item, error) {
	return q.ask(statemachine.OpComplete, id, request, func(item statemachine.Item, r statemachine.ItemRequest) (statemachine.ItemChange, error) {
		return statemachine.CompleteItem(item, r, result, q.now)
	})
}

func (q *memQueue) Fail(
	_ context.Context, id string, request statemachine.ItemRequest, failure statemachine.ItemFailure,
) (statemachine.Item, error) {
	return q.ask(statemachine.OpFail, id, request, func(item statemachine.Item, r statemachine.ItemRequest) (statemachine.ItemChange, error) {
		return statemachine.FailItem(item, r, failure, q.now)
	})
}

func (q *memQueue) Stall(_ context.Context, id string, request statemachine.ItemRequest) (statemachine.Item, error) {
	return q.ask(statemachine.OpStall, id, request, func(item statemachine.Item, r statemachine.ItemRequest) (statemachine.ItemChange, error) {
		return statemachine.StallItem(item, r, q.now)
	})
}

func (q *memQueue) Requeue(
	_ context.Context, id string, request statemachine.ItemRequest, next statemachine.ItemDirective,
) (statemachine.Item, error) {
	return q.ask(statemachine.OpRequeueStalled, id, request, func(item statemachine.Item, r statemachine.ItemRequest) (statemachine.ItemChange, error) {
		return statemachine.RequeueItem(item, r, next, q.now)
	})
}

func (q *memQueue) Get(_ context.Context, id string) (statemachine.Item, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	item, ok := q.items[id]
	if !ok {
		return statemachine.Item{}, q.flaws.notFound(id)
	}
	return item, nil
}

func (q *memQueue) Events(_ context.Context, id string) ([]statemachine.ItemEvent, error) {
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
		harness.Message = func(_ testing.TB, message statemachine.ItemMessage) statemachine.ItemMessage {
			message.MessageID = "made/" + message.MessageID
			message.DedupeKey = message.MessageID
			return message
		}
		harness.Redispatch = func(_ testing.TB, item statemachine.Item) statemachine.ItemDirective {
			next := item.AttemptNo + 2
			return statemachine.ItemDirective{
				MessageID: fmt.Sprintf("%s/%d", item.WorkID, next), AttemptNo: next,
				LeaseID: fmt.Sprintf("lease of %s/%d", item.WorkID, next),
			}
		}
		return harness
	})
}
