package jobs

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/census"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// OutboxFilter selects jobs by the outbox row of their latest attempt. Its zero value is all
// that have one.
type OutboxFilter struct {
	State statemachine.OutboxState
	Lane  *int
}

// ListOutbox is [Service.List] of jobs with the outbox rows of their latest attempts, which
// it does not leave out of ended ones.
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

// is reports whether the filter selects rows in that state only.
func (f *OutboxFilter) is(state statemachine.OutboxState) bool { return f != nil && f.State == state }

// narrow reports whether the filter leaves out so many live jobs that the index of all jobs
// is not read to find those that match: most rows are SENT.
func (f *OutboxFilter) narrow() bool {
	return f != nil && (f.Lane != nil || f.State != "" && f.State != statemachine.OutboxSent)
}

// fits applies the filter to what is known of a job.
func (f *OutboxFilter) fits(t *census.Traits) bool {
	return f == nil || t.Outbox != "" && (f.State == "" || f.State == t.Outbox) && (f.Lane == nil || *f.Lane == t.Lane)
}

// mayMatch reports whether the filter may select the job of an ended job's index row. A job
// whose last row is FAILED_FINAL was cancelled, or failed since it could not be published.
func (f *OutboxFilter) mayMatch(row *ledger.IndexRow) bool {
	return !f.is(statemachine.OutboxPending) &&
		(!f.is(statemachine.OutboxFailedFinal) || row.ErrorCode == "" || row.ErrorCode == statemachine.ErrorDispatchExhausted)
}

// pending returns a page of the ids of jobs whose rows wait for a relay, by the schedule, and
// how many entries it read for them. A row that the relay of the accepting process publishes
// at this moment has no such entry before [ledger.Config] Hold has passed.
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

// farFuture is after each time that the schedule can hold.
var farFuture = time.Date(2286, 1, 1, 0, 0, 0, 0, time.UTC)
