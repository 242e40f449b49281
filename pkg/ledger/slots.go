package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ErrTenantLimit is returned for a command of a tenant that has as many jobs
// in flight as it may. Nothing of the command is left.
var ErrTenantLimit = errors.New("tenant has too many jobs in flight")

// The in-flight slots are the set of live jobs. A tenant with a limit of n has
// the slots 0 to n-1, taken by insert, so that the limit holds under any
// concurrency without a row that everybody writes. Without a limit a job has a
// slot under its own id.

// ownSlot is the slot of a job whose tenant has no limit.
func (l *Ledger) ownSlot(tenantID, jobID string) slotRef {
	return slotRef{
		Partition: tablestore.Join("live", tablestore.Pad(int64(l.shard(jobID)), 3)),
		Row:       tablestore.Join(tenantID, jobID),
	}
}

// numberedSlot is slot k of a tenant with a limit.
func (l *Ledger) numberedSlot(tenantID string, k int) slotRef {
	return slotRef{
		Partition: tablestore.Join("live", tablestore.Pad(int64(k%l.shards), 3)),
		Row:       tablestore.Join(tenantID, tablestore.Pad(int64(k), 7)),
		Numbered:  true,
	}
}

func (l *Ledger) slotKey(slot slotRef) tablestore.Key {
	return tablestore.Key{Table: l.tables.Inflight, Partition: slot.Partition, Row: slot.Row}
}

// slotRow is what a slot's row stores.
type slotRow struct {
	jobID     string
	createdAt time.Time
}

// columnJob names the job in the rows outside of its partition.
const columnJob = "job_id"

var slotCodec = newCodec(
	text(columnJob, func(r *slotRow) *string { return &r.jobID }),
	instant("created_at", func(r *slotRow) *time.Time { return &r.createdAt }),
)

// takeSlot is the write that takes the slot for a job.
func (l *Ledger) takeSlot(slot slotRef, jobID string, now time.Time) tablestore.Op {
	row := slotRow{jobID: jobID, createdAt: now}
	verb := tablestore.Put
	if slot.Numbered {
		verb = tablestore.Insert
	}
	return tablestore.Op{Verb: verb, Key: l.slotKey(slot), Properties: slotCodec.encode(&row, nil)}
}

// releaseSlot is the write that frees the job's slot. A numbered slot may be
// another job's by now, so it is freed under its version only.
func (l *Ledger) releaseSlot(ctx context.Context, slot slotRef, jobID string) (tablestore.Stage, error) {
	key := l.slotKey(slot)
	if slot.Row == "" {
		return nil, nil
	}
	if !slot.Numbered {
		return tablestore.Stage{{{Verb: tablestore.Discard, Key: key}}}, nil
	}
	row, err := l.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the slot of job %s: %w", jobID, err)
	}
	if row.Properties.Get(columnJob).String() != jobID {
		return nil, nil
	}
	return tablestore.Stage{{{Verb: tablestore.Delete, Key: key, ETag: row.ETag}}}, nil
}

// freeSlot finds a free slot of the tenant; where there is none, it reclaims
// those of jobs that have ended. It returns [ErrTenantLimit].
func (l *Ledger) freeSlot(ctx context.Context, tenantID string, limit int) (slotRef, error) {
	taken, err := l.takenSlots(ctx, tenantID)
	if err != nil {
		return slotRef{}, err
	}
	if slot, ok := l.pickFree(tenantID, limit, taken); ok {
		return slot, nil
	}
	if !l.reclaims.admit(tenantID, time.Now()) {
		return slotRef{}, ErrTenantLimit
	}
	for _, row := range slices.Sorted(maps.Keys(taken)) {
		gone, err := l.reclaimSlot(ctx, taken[row])
		if err != nil {
			return slotRef{}, err
		}
		if gone {
			delete(taken, row)
		}
	}
	if slot, ok := l.pickFree(tenantID, limit, taken); ok {
		return slot, nil
	}
	return slotRef{}, ErrTenantLimit
}

// pickFree picks a free slot, from a random one on, so that two who look at
// the same time seldom pick the same. All rows of the tenant count towards the
// limit, also those from before the limit was set or lowered.
func (l *Ledger) pickFree(tenantID string, limit int, taken map[string]tablestore.Row) (slotRef, bool) {
	if len(taken) >= limit {
		return slotRef{}, false
	}
	start := int(l.random() * float64(limit))
	for i := range limit {
		slot := l.numberedSlot(tenantID, (start+i)%limit)
		if _, ok := taken[slot.Row]; !ok {
			return slot, true
		}
	}
	return slotRef{}, false
}

// takenSlots reads the tenant's slots in all partitions of the live set.
func (l *Ledger) takenSlots(ctx context.Context, tenantID string) (map[string]tablestore.Row, error) {
	taken := map[string]tablestore.Row{}
	for shard := range l.shards {
		rows, err := tablestore.ScanAll(ctx, l.store, l.slotsOf(tenantID, shard))
		if err != nil {
			return nil, fmt.Errorf("read the slots of tenant %q: %w", tenantID, err)
		}
		for _, row := range rows {
			taken[row.Key.Row] = row
		}
	}
	return taken, nil
}

// slotsOf selects the slots of a tenant, or of all with an empty text, in one
// shard of the live set.
func (l *Ledger) slotsOf(tenantID string, shard int) tablestore.Query {
	query := tablestore.Query{Table: l.tables.Inflight, Partition: tablestore.Join("live", tablestore.Pad(int64(shard), 3))}
	if tenantID != "" {
		query.From = tablestore.Join(tenantID) + ":"
		query.To = tablestore.PrefixEnd(query.From)
	}
	return query
}

// reclaimSlot frees the slot of a job that ended, that was given up on, or
// that holds another slot. One that names no job may be an accept under way.
func (l *Ledger) reclaimSlot(ctx context.Context, row tablestore.Row) (bool, error) {
	s, err := l.load(ctx, row.Properties.Get(columnJob).String())
	if errors.Is(err, ErrJobNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	held := !s.head.tombstone && !s.agg.Job.State.Terminal() && s.head.slot.Row == row.Key.Row
	if held {
		return false, nil
	}
	_, err = l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: row.Key, ETag: row.ETag}})
	if errors.Is(err, tablestore.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reclaim a slot: %w", err)
	}
	return true, nil
}

// reclaimGate lets a tenant's refusals look for slots to reclaim at most once
// a second, since each look reads every job of the tenant.
type reclaimGate struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (g *reclaimGate) admit(tenantID string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last == nil {
		g.last = map[string]time.Time{}
	}
	if now.Sub(g.last[tenantID]) < time.Second {
		return false
	}
	g.last[tenantID] = now
	return true
}

// Live returns one page of the jobs of one shard of the live set.
func (l *Ledger) Live(ctx context.Context, shard, limit int, from string) ([]string, string, error) {
	return l.LiveOf(ctx, "", shard, limit, from)
}

// LiveOf is [Ledger.Live] for the jobs of one tenant, and of all where it is
// empty. Of other tenants' jobs nothing is read, and where the page ends tells
// nothing of them.
func (l *Ledger) LiveOf(ctx context.Context, tenantID string, shard, limit int, from string) ([]string, string, error) {
	query := l.slotsOf(tenantID, shard)
	query.Limit, query.Continue = limit, from
	page, err := l.store.Scan(ctx, query)
	if err != nil {
		return nil, "", fmt.Errorf("read shard %d of the live set: %w", shard, err)
	}
	jobs := make([]string, 0, len(page.Rows))
	for i := range page.Rows {
		jobs = append(jobs, page.Rows[i].Properties.Get(columnJob).String())
	}
	return jobs, page.Next, nil
}

// settleEnded does again what follows the end of a job: its slot is freed, and
// the projections are brought up to it.
func (l *Ledger) settleEnded(ctx context.Context, s *snapshot) error {
	stage, err := l.releaseSlot(ctx, s.head.slot, s.agg.Job.ID)
	if err != nil {
		return err
	}
	if err := l.announceAgain(ctx, &s.agg.Job); err != nil {
		return err
	}
	stage = append(stage, l.retain(&s.agg.Job)...)
	if err := l.commitEach(ctx, stage); err != nil {
		return fmt.Errorf("finish the end of job %s: %w", s.agg.Job.ID, err)
	}
	return l.projectAgain(ctx, s)
}
