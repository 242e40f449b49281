package announce

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhooks"
)

// Ledger is what the queue needs of the ledger.
type Ledger interface {
	Shards() int
	Due(ctx context.Context, kind ledger.Kind, shard int, now time.Time, limit int, from string,
	) ([]ledger.Entry, string, error)
	TakeWebhook(ctx context.Context, entry ledger.Entry, hold time.Duration,
	) (*ledger.WebhookRow, *statemachine.Aggregate, error)
	SettleWebhook(ctx context.Context, taken, next *ledger.WebhookRow) (bool, error)
}

// Queue is the due webhooks of a ledger. Any number of processes may take from
// one store.
type Queue struct {
	ledger Ledger
	shard  int // where the next pass begins
}

var _ webhooks.Queue = (*Queue)(nil)

// NewQueue returns the due webhooks of the ledger.
func NewQueue(l Ledger) *Queue { return &Queue{ledger: l} }

// Take implements [webhooks.Queue]. One that cannot be claimed is left for the
// next pass and does not hold up the others; the error joins all that went wrong.
// One call runs at a time.
func (q *Queue) Take(ctx context.Context, limit int, hold time.Duration) ([]webhooks.Claim, error) {
	var claims []webhooks.Claim
	var errs []error
	now := time.Now()
	for range q.ledger.Shards() {
		if len(claims) >= limit || ctx.Err() != nil {
			break
		}
		entries, _, err := q.ledger.Due(ctx, ledger.Webhook, q.shard, now, limit-len(claims), "")
		if err != nil {
			return claims, fmt.Errorf("announce: %w", errors.Join(append(errs, err)...))
		}
		for _, entry := range entries {
			claim, err := q.claim(ctx, entry, hold)
			if err != nil {
				errs = append(errs, err)
			}
			if claim != nil {
				claims = append(claims, claim)
			}
		}
		q.shard = (q.shard + 1) % q.ledger.Shards()
	}
	return claims, errors.Join(errs...)
}

// claim claims one webhook for one attempt, nil where there is none to be had.
func (q *Queue) claim(ctx context.Context, entry ledger.Entry, hold time.Duration) (*claim, error) {
	row, job, err := q.ledger.TakeWebhook(ctx, entry, hold)
	if err != nil || row == nil {
		return nil, err
	}
	end := webhooks.EndOf(&job.Job)
	body, err := end.Body()
	if err != nil {
		return nil, err
	}
	return &claim{ledger: q.ledger, row: row, body: body}, nil
}

// claim is a webhook that is this process's for one attempt.
type claim struct {
	ledger Ledger
	row    *ledger.WebhookRow
	body   []byte
}

// Delivery implements [webhooks.Claim].
func (c *claim) Delivery() webhooks.Delivery {
	w := c.row
	return webhooks.Delivery{
		ID: w.ID(), JobID: w.JobID, TenantID: w.TenantID, URL: w.URL, Body: c.body, State: webhooks.State(w.State),
		Attempts: w.Attempts, NextAttemptAt: w.NextAttemptAt, LastStatus: w.LastStatus, LastError: w.LastError,
		CreatedAt: w.CreatedAt, UpdatedAt: w.UpdatedAt,
	}
}

// Settle implements [webhooks.Claim].
func (c *claim) Settle(ctx context.Context, next webhooks.Delivery) (bool, error) {
	row := *c.row
	row.State, row.Attempts, row.NextAttemptAt = ledger.WebhookState(next.State), next.Attempts, next.NextAttemptAt
	row.LastStatus, row.LastError = next.LastStatus, next.LastError
	return c.ledger.SettleWebhook(ctx, c.row, &row)
}
