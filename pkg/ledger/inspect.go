package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// endGrace is how long what follows the end of a job may take before a slot that
// is still held counts as a defect.
const endGrace = time.Minute

// Finding is what an inspection found at one in-flight slot.
type Finding struct {
	JobID string
	// Job is the job, nil where there is none, or it has ended.
	Job *statemachine.Aggregate
	// Repaired says what was wrong and is right again; empty where nothing was.
	Repaired string
	// Stuck says what is wrong and could not be repaired.
	Stuck string
}

// Inspect looks at one page of the slots of a shard: whether each job that is
// alive has a way forward, and each slot a job that is alive. What can be
// repaired is. It returns where the next page begins.
func (l *Ledger) Inspect(ctx context.Context, shard, limit int, from string) ([]Finding, string, error) {
	page, err := l.store.Scan(ctx, tablestore.Query{
		Table: l.tables.Inflight, Partition: tablestore.Join("live", tablestore.Pad(int64(shard), 3)),
		Limit: limit, Continue: from,
	})
	if err != nil {
		return nil, "", fmt.Errorf("read shard %d of the live set: %w", shard, err)
	}
	findings := make([]Finding, 0, len(page.Rows))
	for _, row := range page.Rows {
		finding, err := l.inspect(ctx, row)
		if err != nil {
			return findings, "", fmt.Errorf("inspect job %s: %w", finding.JobID, err)
		}
		findings = append(findings, finding)
	}
	return findings, page.Next, nil
}

// inspect looks at one slot and its job.
func (l *Ledger) inspect(ctx context.Context, slot tablestore.Row) (Finding, error) {
	found := Finding{JobID: slot.Properties.Get(columnJob).String()}
	s, err := l.load(ctx, found.JobID)
	switch {
	case errors.Is(err, ErrJobNotFound):
		return found, l.inspectOrphan(ctx, slot, &found)
	case err != nil:
		return found, err
	case s.head.tombstone || s.head.slot.Row != slot.Key.Row:
		gone, err := l.reclaimSlot(ctx, slot)
		if gone {
			found.Repaired = "slot of a job that does not hold it"
		}
		return found, err
	case s.agg.Job.State.Terminal():
		if time.Since(s.agg.Job.CompletedAt) < endGrace {
			return found, nil
		}
		found.Repaired = "end of a job not followed up"
		return found, l.settleEnded(ctx, s)
	}
	found.Job = &s.agg
	return found, l.inspectLive(ctx, s, &found)
}

// inspectOrphan gives up on a slot that names no job, past the time within which
// its accept can still come.
func (l *Ledger) inspectOrphan(ctx context.Context, slot tablestore.Row, found *Finding) error {
	var taken slotRow
	if err := slotCodec.decode(&slot, &taken); err != nil || time.Since(taken.createdAt) < orphanGrace {
		return err
	}
	buried, err := l.entomb(ctx, found.JobID)
	if err != nil || !buried {
		return err
	}
	found.Repaired = "slot of a command that never came"
	_, err = l.reclaimSlot(ctx, slot)
	return err
}

// inspectLive checks that a job that is alive has a way forward.
func (l *Ledger) inspectLive(ctx context.Context, s *snapshot, found *Finding) error {
	wake := statemachine.NextWake(&s.agg)
	ref := s.head.entry
	if s.queued() {
		if err := l.inspectQueued(ctx, s, found); err != nil || ref.Kind == "" {
			return err
		}
	}
	if ref.Kind == "" {
		switch {
		case wake.Kind != statemachine.WakeNone:
			found.Stuck = "no schedule entry stands for it"
		case s.agg.Job.State != statemachine.JobPaused:
			found.Stuck = "it is neither paused nor queued, and nothing is due"
		}
		return nil
	}
	_, err := l.store.Get(ctx, l.entryKey(found.JobID, ref))
	if err == nil || !errors.Is(err, tablestore.ErrNotFound) {
		return err
	}
	// The job may have moved on since it was loaded, and its entry with it.
	now, err := l.load(ctx, found.JobID)
	if errors.Is(err, ErrJobNotFound) || err == nil && now.head.entry != ref {
		return nil
	}
	if err != nil {
		return err
	}
	found.Repaired = "schedule entry missing"
	_, err = l.store.Commit(ctx, tablestore.Batch{l.putEntry(&now.agg, ref, reservation{})})
	return err
}

// inspectQueued checks that workers can find an attempt that waits in the pull
// queue. If this process publishes to another bus, it leaves the queue.
func (l *Ledger) inspectQueued(ctx context.Context, s *snapshot, found *Finding) error {
	if l.bus != statemachine.BusQueue {
		_, err := l.change(ctx, found.JobID, s, statemachine.DeadlinePassed{}, &options{actor: ActorSystem})
		found.Repaired = "directive waited in the pull queue, and the bus was changed"
		return err
	}
	missing, err := l.restoreHint(ctx, s)
	if missing {
		found.Repaired = "ready hint missing"
	}
	return err
}
