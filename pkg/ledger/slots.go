package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// ErrTenantLimit is returned for a command of a tenant whose limit of jobs in flight
// is reached. Nothing of the command is stored.
var ErrTenantLimit = errors.New("tenant has too many jobs in flight")

// The in-flight slots are the set of live jobs. A tenant with a limit of n has the
// slots 0 to n-1, taken by insert, so that the limit holds under any concurrency
// without a counter that all accepts write. Without a limit a job has a slot under
// its id.
//
// After a limit was set or lowered, some jobs hold slots beyond it. They count: an accept
// then takes only slots below a bound m, the largest with
//
//	m + taken slots outside of 0 … m-1 ≤ limit
//
// As no accept takes a slot outside of its own m, the slots there only become fewer, and
// the limit holds for all of them by the largest m.

// quota is what this process knows of the slots of a tenant with a limit.
type quota struct {
	limit int
	since time.Time // when this process first had the limit
	// until is how long no slot beyond the limit is expected. Another replica, with the
	// limit of before, may take one shortly after the limit has changed.
	until time.Time
}

// mayGuess reports whether an accept may take any slot of the limit without reading the
// taken ones: a recent read found none beyond the limit.
func (l *Ledger) mayGuess(tenantID string, limit int) bool {
	now := time.Now()
	known, _ := l.quotas.Load(tenantID)
	q, ok := known.(quota)
	if !ok || q.limit != limit {
		l.quotas.Store(tenantID, quota{limit: limit, since: now})
		return false
	}
	return now.Before(q.until)
}

// ownSlot is the slot of a job whose tenant has no limit.
func (l *Ledger) ownSlot(tenantID, jobID string) slotRef {
	return l.slotOf(l.shard(jobID), tenantID, jobID)
}

// numberedSlot is slot k of a tenant with a limit.
func (l *Ledger) numberedSlot(tenantID string, k int) slotRef {
	slot := l.slotOf(k%l.cfg.Shards, tenantID, tablestore.Pad(k, 7))
	slot.Numbered = true
	return slot
}

// rowLive begins the rows of the live set.
const rowLive = "live"

func (l *Ledger) slotOf(shard int, tenantID, name string) slotRef {
	key := l.shardKey(shard, tablestore.Join(rowLive, tenantID, name))
	return slotRef{Partition: key.Partition, Row: key.Row}
}

func (l *Ledger) slotKey(slot slotRef) tablestore.Key {
	return tablestore.Key{Table: l.tables.Schedule, Partition: slot.Partition, Row: slot.Row}
}

// columnJob names the job in rows of other partitions than its own.
const columnJob = "job_id"

// slotRow is the content of a slot's row.
type slotRow struct {
	JobID     string    `column:"job_id"`
	CreatedAt time.Time `column:"created_at"`
}

var slotCodec = tablestore.NewCodec[slotRow]()

// takeSlot takes the slot for a job.
func (l *Ledger) takeSlot(slot slotRef, jobID string, now time.Time) tablestore.Op {
	row := slotRow{JobID: jobID, CreatedAt: now}
	verb := tablestore.Put
	if slot.Numbered {
		verb = tablestore.Insert
	}
	return tablestore.Op{Verb: verb, Key: l.slotKey(slot), Properties: slotCodec.Encode(&row, nil)}
}

// releaseSlot returns the write that frees the job's slot. Another job may hold a
// numbered slot by now, so it is freed under its version.
func (l *Ledger) releaseSlot(ctx context.Context, slot slotRef, jobID string) (tablestore.Stage, error) {
	key := l.slotKey(slot)
	if slot.Row == "" {
		return nil, nil
	}
	if !slot.Numbered {
		return tablestore.Stage{{{Verb: tablestore.Discard, Key: key}}}, nil
	}
	row, err := l.ownRow(ctx, key, jobID)
	if err != nil || row.ETag == "" {
		return nil, err
	}
	return tablestore.Stage{{{Verb: tablestore.Delete, Key: key, ETag: row.ETag}}}, nil
}

// freeSlot finds a free slot of the tenant, starting at a random one, so that
// concurrent accepts seldom find the same. All rows of the tenant count towards the
// limit, also those beyond it. If the limit is reached, it reclaims the slots of ended
// jobs. It returns [ErrTenantLimit].
func (l *Ledger) freeSlot(ctx context.Context, tenantID string, limit int) (slotRef, error) {
	taken := map[string]tablestore.Row{}
	for shard := range l.cfg.Shards {
		rows, err := tablestore.ScanAll(ctx, l.store, l.slotsOf(tenantID, shard))
		if err != nil {
			return slotRef{}, fmt.Errorf("read the slots of tenant %q: %w", tenantID, err)
		}
		for _, row := range rows {
			taken[row.Key.Row] = row
		}
	}
	if len(taken) >= limit {
		if err := l.reclaimSlots(ctx, tenantID, taken); err != nil {
			return slotRef{}, err
		}
	}
	if len(taken) >= limit {
		return slotRef{}, ErrTenantLimit
	}
	bound := l.slotBound(tenantID, limit, taken)
	start := int(l.cfg.Random() * float64(bound))
	for i := range bound {
		slot := l.numberedSlot(tenantID, (start+i)%bound)
		if _, ok := taken[slot.Row]; !ok {
			return slot, nil
		}
	}
	return slotRef{}, ErrTenantLimit
}

// slotBound returns the bound m of an accept that finds these slots taken. If no slot is
// beyond the limit, m is the limit, and it notes that.
func (l *Ledger) slotBound(tenantID string, limit int, taken map[string]tablestore.Row) int {
	outside := len(taken)
	for k := range limit {
		if _, ok := taken[l.numberedSlot(tenantID, k).Row]; ok {
			outside--
		}
	}
	if known, ok := l.quotas.Load(tenantID); ok && outside == 0 && known.(quota).limit == limit {
		q, now := known.(quota), time.Now()
		q.until = now.Add(max(time.Second, now.Sub(q.since)))
		l.quotas.Store(tenantID, q)
	}
	return SlotBound(limit, outside, func(k int) bool {
		_, ok := taken[l.numberedSlot(tenantID, k).Row]
		return ok
	})
}

// SlotBound returns the bound below which a slot of a limit may be taken, if so many slots beyond the
// limit are taken: the largest m with m + taken slots outside of 0 … m-1 ≤ limit.
func SlotBound(limit, outside int, taken func(k int) bool) int {
	bound := limit
	for bound > 0 && bound+outside > limit {
		bound--
		if taken(bound) {
			outside++
		}
	}
	return bound
}

// slotsOf selects the slots in one shard of the live set, of one tenant or, if
// tenantID is empty, of all.
func (l *Ledger) slotsOf(tenantID string, shard int) tablestore.Query {
	prefix := tablestore.Join(rowLive, "")
	if tenantID != "" {
		prefix = tablestore.Join(rowLive, tenantID, "")
	}
	first := l.shardKey(shard, prefix)
	return tablestore.Query{
		Table: first.Table, Partition: first.Partition, From: first.Row, To: tablestore.PrefixEnd(first.Row),
	}
}

// reclaimSlots frees the taken slots that jobs no longer need, and deletes them from taken. It
// reads every job of the tenant, for which the caller's request waits. So one search per tenant
// runs at a time, and searches take at most a tenth of the time; a call in between does nothing.
func (l *Ledger) reclaimSlots(ctx context.Context, tenantID string, taken map[string]tablestore.Row) error {
	began, running := time.Now(), time.Time{}
	due, known := l.reclaims.LoadOrStore(tenantID, running)
	if known && (due == running || began.Before(due.(time.Time)) || !l.reclaims.CompareAndSwap(tenantID, due, running)) {
		return nil
	}
	defer func() {
		now := time.Now()
		l.reclaims.Store(tenantID, now.Add(max(time.Second, 9*now.Sub(began))))
	}()
	var mu sync.Mutex // guards taken
	var group errgroup.Group
	group.SetLimit(16)
	for _, slot := range slices.Collect(maps.Values(taken)) {
		group.Go(func() error {
			gone, err := l.reclaimSlot(ctx, slot)
			if gone {
				mu.Lock()
				defer mu.Unlock()
				delete(taken, slot.Key.Row)
			}
			return err
		})
	}
	return group.Wait()
}

// reclaimSlot frees a slot whose job has ended, was abandoned, or holds another
// slot. If the job is missing, its accept may still commit.
func (l *Ledger) reclaimSlot(ctx context.Context, slot tablestore.Row) (bool, error) {
	s, err := l.load(ctx, slot.Properties.Get(columnJob).String())
	if errors.Is(err, ErrJobNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !s.head.Tombstone && !s.agg.Job.State.Terminal() && s.head.Slot.Row == slot.Key.Row {
		return false, nil
	}
	return l.deleteVersion(ctx, slot.Key, slot.ETag)
}

// slotPage reads one page of [Ledger.slotsOf].
func (l *Ledger) slotPage(ctx context.Context, tenantID string, shard, limit int, from string) (tablestore.Page, error) {
	query := l.slotsOf(tenantID, shard)
	query.Limit, query.Continue = limit, from
	page, err := l.store.Scan(ctx, query)
	if err != nil {
		return page, fmt.Errorf("read shard %d of the live set: %w", shard, err)
	}
	return page, nil
}

// Live returns one page of the ids of live jobs in one shard, of one tenant or, if
// tenantID is empty, of all. It reads no rows of other tenants, and a page's end
// discloses none.
func (l *Ledger) Live(ctx context.Context, tenantID string, shard, limit int, from string) ([]string, string, error) {
	page, err := l.slotPage(ctx, tenantID, shard, limit, from)
	if err != nil {
		return nil, "", err
	}
	jobs := make([]string, len(page.Rows))
	for i := range page.Rows {
		jobs[i] = page.Rows[i].Properties.Get(columnJob).String()
	}
	return jobs, page.Next, nil
}
