package webhooks_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/webhooks"
)

// queue is a queue in memory.
type queue struct {
	mu         sync.Mutex
	deliveries map[string]webhooks.Delivery
	taken      map[string]time.Time // until when
	versions   map[string]int
	takeErr    error
	settleErr  error
	asked      int      // how often
	settled    []string // states, as they were written
}

func newQueue(deliveries ...webhooks.Delivery) *queue {
	q := &queue{
		deliveries: map[string]webhooks.Delivery{}, taken: map[string]time.Time{}, versions: map[string]int{},
	}
	for _, delivery := range deliveries {
		q.deliveries[delivery.ID] = delivery
	}
	return q
}

// due is a delivery that is due at once.
func due(id, url string) webhooks.Delivery {
	now := time.Now()
	return webhooks.Delivery{
		ID: id, JobID: "job", TenantID: "tenant_a", URL: url, Body: []byte("{}"), State: webhooks.StatePending, NextAttemptAt: now,
		CreatedAt: now, UpdatedAt: now,
	}
}

func (q *queue) Take(_ context.Context, limit int, hold time.Duration) ([]webhooks.Claim, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked++
	now := time.Now()
	var found []webhooks.Delivery
	for id, delivery := range q.deliveries {
		if delivery.State == webhooks.StatePending && !delivery.NextAttemptAt.After(now) && !q.taken[id].After(now) {
			found = append(found, delivery)
		}
	}
	slices.SortFunc(found, func(a, b webhooks.Delivery) int {
		return cmp.Or(a.NextAttemptAt.Compare(b.NextAttemptAt), cmp.Compare(a.ID, b.ID))
	})
	var claims []webhooks.Claim
	for _, delivery := range found[:min(limit, len(found))] {
		q.taken[delivery.ID] = now.Add(hold)
		q.versions[delivery.ID]++
		claims = append(claims, &claim{queue: q, delivery: delivery, version: q.versions[delivery.ID]})
	}
	return claims, q.takeErr
}

func (q *queue) get(id string) webhooks.Delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.deliveries[id]
}

// count is how many deliveries are in a state.
func (q *queue) count(state webhooks.State) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, delivery := range q.deliveries {
		if delivery.State == state {
			n++
		}
	}
	return n
}

type claim struct {
	queue    *queue
	delivery webhooks.Delivery
	version  int
}

func (c *claim) Delivery() webhooks.Delivery { return c.delivery }

func (c *claim) Settle(ctx context.Context, next webhooks.Delivery) (bool, error) {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	if err := errors.Join(ctx.Err(), c.queue.settleErr); err != nil {
		return false, err
	}
	id := c.delivery.ID
	if c.queue.versions[id] != c.version {
		return false, nil
	}
	c.queue.deliveries[id] = next
	c.queue.versions[id]++
	delete(c.queue.taken, id)
	c.queue.settled = append(c.queue.settled, string(next.State))
	return true, nil
}
