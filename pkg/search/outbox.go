package search

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// OutboxFilter selects jobs by the outbox row of their latest attempt. Its zero value selects
// all jobs that have one.
type OutboxFilter struct {
	State statemachine.OutboxState
	Lane  *int
}

// ListOutbox is [Service.List] for jobs with the outbox rows of their latest attempts. Unlike
// List, it includes the outbox rows of ended jobs.
func (s *Service) ListOutbox(ctx context.Context, tenantID string, f OutboxFilter, limit int, after string,
) (found []*statemachine.Aggregate, next string, err error) {
	next, err = s.search(ctx, &Filter{TenantID: tenantID, Outbox: &f}, limit, after, func(agg *statemachine.Aggregate) (bool, error) {
		found = append(found, agg)
		return len(found) == limit, nil
	})
	if err != nil {
		return nil, "", err
	}
	return found, next, nil
}

// is reports whether the filter selects only rows in that state.
func (f *OutboxFilter) is(state statemachine.OutboxState) bool { return f != nil && f.State == state }

// narrow reports whether the filter excludes so many live jobs that they should be found
// without the index of all jobs. Most rows are SENT.
func (f *OutboxFilter) narrow() bool {
	return f != nil && (f.Lane != nil || f.State != "" && f.State != statemachine.OutboxSent)
}

// fits applies the filter to the traits of a job.
func (f *OutboxFilter) fits(t *Traits) bool {
	return f == nil || t.Outbox != "" && (f.State == "" || f.State == t.Outbox) && (f.Lane == nil || *f.Lane == t.Lane)
}

// mayMatch reports whether the filter may select the ended job of an index row. If the last
// row of a job is FAILED_FINAL, the job was cancelled, or failed because the row could not be
// published.
func (f *OutboxFilter) mayMatch(row *ledger.IndexRow) bool {
	return !f.is(statemachine.OutboxPending) &&
		(!f.is(statemachine.OutboxFailedFinal) || row.ErrorCode == "" || row.ErrorCode == statemachine.ErrorDispatchExhausted)
}

// pending returns from the schedule a page of the ids of jobs whose rows wait for a relay, and
// how many entries it read. A row that went straight to the relay of the process that wrote it
// has no such entry until [ledger.Config] Hold has passed.
func (s *Service) pending(ctx context.Context, f *Filter, shard int, from string) (ids []string, read int, next string, err error) {
	entries, next, err := s.ledger.Due(ctx, ledger.Dispatch, shard, farFuture, 0, from)
	for i := range entries {
		target := &entries[i].Target
		if (f.TenantID == "" || f.TenantID == target.TenantID) && (f.Outbox.Lane == nil || *f.Outbox.Lane == target.Lane) {
			ids = append(ids, entries[i].JobID)
		}
	}
	return ids, len(entries), next, err
}

// farFuture is later than any time in the schedule.
var farFuture = time.Date(2286, 1, 1, 0, 0, 0, 0, time.UTC)
