package upkeep_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// hooks is a ledger of webhooks in memory. All are in the first of two shards; the
// other may fail.
type hooks struct {
	mu        sync.Mutex
	rows      map[string]ledger.WebhookRow
	taken     map[string]time.Time // until when
	versions  map[string]int
	claims    map[*ledger.WebhookRow]int // the version that a claim is of
	dueErr    error
	settleErr error
	asked     int      // how often
	settled   []string // states, as they were written
}

func newHooks(rows ...ledger.WebhookRow) *hooks {
	h := &hooks{
		rows: map[string]ledger.WebhookRow{}, taken: map[string]time.Time{}, versions: map[string]int{},
		claims: map[*ledger.WebhookRow]int{},
	}
	for _, row := range rows {
		h.rows[row.ID()] = row
	}
	return h
}

// due is a webhook of the job that is due at once.
func due(jobID, url string) ledger.WebhookRow {
	now := time.Now()
	return ledger.WebhookRow{
		JobID: jobID, TenantID: "tenant_a", URL: url, State: ledger.WebhookPending, NextAttemptAt: now, CreatedAt: now, UpdatedAt: now,
	}
}

// ended is the job of a webhook.
func ended(jobID string) *statemachine.Aggregate {
	return &statemachine.Aggregate{Job: statemachine.Job{ID: jobID, TenantID: "tenant_a", State: statemachine.JobSucceeded}}
}

func (h *hooks) Shards() int { return 2 }

func (h *hooks) Due(_ context.Context, kind ledger.Kind, shard int, now time.Time, limit int, _ string,
) ([]ledger.Entry, string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if shard == 1 {
		return nil, "", h.dueErr
	}
	h.asked++
	var entries []ledger.Entry
	for id, row := range h.rows {
		if row.State == ledger.WebhookPending && !row.NextAttemptAt.After(now) && !h.taken[id].After(now) {
			entries = append(entries, ledger.Entry{
				Kind: kind, Due: row.NextAttemptAt, JobID: row.JobID, Nonce: strconv.Itoa(row.Index),
			})
		}
	}
	slices.SortFunc(entries, func(a, b ledger.Entry) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.JobID, b.JobID))
	})
	return entries[:min(limit, len(entries))], "", nil
}

func (h *hooks) TakeWebhook(_ context.Context, entry ledger.Entry, hold time.Duration,
) (*ledger.WebhookRow, *statemachine.Aggregate, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := entry.JobID + "." + entry.Nonce
	row := h.rows[id]
	h.taken[id] = time.Now().Add(hold)
	h.versions[id]++
	h.claims[&row] = h.versions[id]
	return &row, ended(row.JobID), nil
}

func (h *hooks) SettleWebhook(ctx context.Context, taken, next *ledger.WebhookRow) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := errors.Join(ctx.Err(), h.settleErr); err != nil {
		return false, err
	}
	id := taken.ID()
	if h.versions[id] != h.claims[taken] {
		return false, nil
	}
	h.rows[id] = *next
	h.versions[id]++
	delete(h.taken, id)
	h.settled = append(h.settled, string(next.State))
	return true, nil
}

func (h *hooks) get(id string) ledger.WebhookRow {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rows[id]
}

// count is how many webhooks are in a state.
func (h *hooks) count(state ledger.WebhookState) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, row := range h.rows {
		if row.State == state {
			n++
		}
	}
	return n
}
