package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// WorkKind is what workers choose work by. Each kind has separate partitions in the
// ready index.
type WorkKind struct{ Service, StepType string }

// Hint is a row of the ready index: "this item may be claimed". It is written
// before the commit that makes the item queued, and compared with the job's rows
// when it is claimed.
//
//	invariant: head.rev < Rev ⇒ the commit that makes the hint true may still land
//	invariant: head.rev ≥ Rev ∧ no queued item names it ⇒ it is void for good
type Hint struct {
	statemachine.Target
	Kind      WorkKind
	WorkID    string
	AttemptNo int   // the attempt that the item carries
	Rev       int64 // the revision that makes it queued
	Since     time.Time
	// Shard is the partition of its kind that holds the hint.
	Shard int
}

// Row is the hint's key within its partition: oldest first within a tenant. Each
// attempt and each revision has a separate key, so that deleting one hint never
// deletes another.
func (h *Hint) Row() string {
	return tablestore.Join(h.TenantID, tablestore.Pad(h.Since.UnixMilli(), 13), h.WorkID,
		tablestore.Pad(int64(h.AttemptNo), 6), tablestore.Pad(h.Rev, 12))
}

// hintCodec holds the columns of a hint's row. The rest of the hint is its key.
var hintCodec = tablestore.NewCodec[Hint]().Without("tenant_id", "service")

// hintOf returns the hint of a queued item.
func (l *Ledger) hintOf(agg *statemachine.Aggregate, r *statemachine.ItemRecord) Hint {
	step := &agg.Steps[r.StepIndex]
	return Hint{
		Target: statemachine.TargetOf(&agg.Job, step), Kind: WorkKind{step.Service, step.Type},
		WorkID: r.WorkID, AttemptNo: r.AttemptNo, Rev: r.ReadyRev, Since: r.ReadySince,
		Shard: l.shard(agg.Job.ID) % l.cfg.ReadyShards,
	}
}

func (l *Ledger) hintKey(h *Hint) tablestore.Key {
	return tablestore.Key{Table: l.tables.Queue, Partition: readyPartition(h.Kind, h.Shard), Row: h.Row()}
}

func readyPartition(kind WorkKind, shard int) string {
	return tablestore.Join("ready", kind.Service, kind.StepType, tablestore.Pad(shard, 3))
}

// putHint writes a hint; a repeat writes the same row.
func (l *Ledger) putHint(h *Hint) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Put, Key: l.hintKey(h), Properties: hintCodec.Encode(h, nil)}
}

// discardHint deletes a hint.
func (l *Ledger) discardHint(h *Hint) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Discard, Key: l.hintKey(h)}
}

// dropHint deletes a void hint.
func (l *Ledger) dropHint(ctx context.Context, h *Hint) error {
	if _, err := l.store.Commit(ctx, tablestore.Batch{l.discardHint(h)}); err != nil {
		return fmt.Errorf("delete the ready hint of work item %s: %w", h.WorkID, err)
	}
	return nil
}

func decodeHint(kind WorkKind, shard int, row *tablestore.Row) (Hint, error) {
	parts, err := tablestore.Split(row.Key.Row)
	if err != nil || len(parts) != 5 {
		return Hint{}, fmt.Errorf("bad key %q in the ready index", row.Key.Row)
	}
	ms, err1 := strconv.ParseInt(parts[1], 10, 64)
	attemptNo, err2 := strconv.Atoi(parts[3])
	rev, err3 := strconv.ParseInt(parts[4], 10, 64)
	_, err4 := ParseOutboxID(parts[2])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return Hint{}, fmt.Errorf("bad key %q in the ready index: %w", row.Key.Row, err)
	}
	hint := Hint{
		Target: statemachine.Target{TenantID: parts[0], Service: kind.Service}, Kind: kind, WorkID: parts[2],
		AttemptNo: attemptNo, Rev: rev, Since: time.UnixMilli(ms).UTC(), Shard: shard,
	}
	return hint, hintCodec.Decode(row, &hint)
}

// ReadyHints returns one page of the hints of that kind and shard with
// from <= [Hint.Row] < to (an empty to is the end), oldest first within each
// tenant. more is false at the end of the range. bad joins the errors of rows that
// cannot be read, which are skipped.
func (l *Ledger) ReadyHints(ctx context.Context, kind WorkKind, shard int, from, to string, limit int,
) (hints []Hint, more bool, bad error, err error) {
	query := tablestore.Query{
		Table: l.tables.Queue, Partition: readyPartition(kind, shard), From: from, To: to, Limit: limit,
	}
	for {
		page, err := l.store.Scan(ctx, query)
		if err != nil {
			return nil, false, nil, fmt.Errorf("read the ready items of service %q: %w", kind.Service, err)
		}
		for i := range page.Rows {
			hint, err := decodeHint(kind, shard, &page.Rows[i])
			if err != nil {
				bad = errors.Join(bad, err)
				continue
			}
			hints = append(hints, hint)
		}
		if query.Continue = page.Next; query.Continue == "" || len(hints) > 0 {
			return hints, query.Continue != "", bad, nil
		}
		// The page was empty or unreadable, but not the last.
	}
}

// ReadyBefore counts the directives of the job's tenant and kind that workers get before
// the job's own, which waits in the pull queue; limit if there are as many or more. It
// reads no more rows than that.
func (l *Ledger) ReadyBefore(ctx context.Context, agg *statemachine.Aggregate, limit int) (int, error) {
	i, queued := agg.Queued()
	if !queued {
		return 0, nil
	}
	step := &agg.Steps[i]
	tenant := tablestore.Join(agg.Job.TenantID) + ":"
	own := tablestore.Join(agg.Job.TenantID, tablestore.Pad(agg.Outbox.SentAt.UnixMilli(), 13), step.OutboxID)
	count := 0
	for shard := 0; shard < l.cfg.ReadyShards && count < limit; shard++ {
		hints, _, _, err := l.ReadyHints(ctx, WorkKind{step.Service, step.Type}, shard, tenant, own, limit-count)
		if err != nil {
			return 0, err
		}
		count += len(hints)
	}
	return count, nil
}

const catalogPartition = "catalog"

// WorkKinds reads the catalog: every kind of work that was ever queued.
func (l *Ledger) WorkKinds(ctx context.Context) ([]WorkKind, error) {
	rows, err := tablestore.ScanAll(ctx, l.store, tablestore.Query{Table: l.tables.Queue, Partition: catalogPartition})
	if err != nil {
		return nil, fmt.Errorf("read the catalog of the pull queue: %w", err)
	}
	kinds := make([]WorkKind, len(rows))
	for i := range rows {
		parts, err := tablestore.Split(rows[i].Key.Row)
		if err != nil || len(parts) != 2 {
			return nil, fmt.Errorf("bad key %q in the catalog of the pull queue", rows[i].Key.Row)
		}
		kinds[i] = WorkKind{Service: parts[0], StepType: parts[1]}
	}
	return kinds, nil
}

// catalog makes a kind of work known to processes that start later, before the first
// hint of its kind is written. Its row is never deleted: claims without a filter find
// the items of removed protocols too.
func (l *Ledger) catalog(ctx context.Context, kind WorkKind) error {
	if _, known := l.kinds.Load(kind); known {
		return nil
	}
	key := tablestore.Key{
		Table: l.tables.Queue, Partition: catalogPartition, Row: tablestore.Join(kind.Service, kind.StepType),
	}
	if _, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: key}}); err != nil {
		return fmt.Errorf("catalog service %q: %w", kind.Service, err)
	}
	l.kinds.Store(kind, true)
	return nil
}

// HintStanding is the result of comparing a hint with its job.
type HintStanding uint8

// The standings.
const (
	// HintNamed: a queued item names the hint.
	HintNamed HintStanding = iota + 1
	// HintEarly: the commit that makes the hint true may still land. Claims skip it.
	HintEarly
	// HintVoid: no item will ever name the hint. It was deleted.
	HintVoid
)

// judgeHint compares a hint with its job, nil if that is missing. Of a missing job
// only the first revision may still commit; with any later one, the job was purged.
func judgeHint(h *Hint, s *snapshot) HintStanding {
	switch {
	case s == nil && h.Rev == 1:
		return HintEarly
	case s == nil || s.head.Tombstone:
		return HintVoid
	case s.agg.Job.Rev < h.Rev:
		return HintEarly
	}
	if s.queued() && s.carries(h.WorkID, h.AttemptNo) && s.open.ReadyRev == h.Rev && s.open.ReadySince.Equal(h.Since) {
		return HintNamed
	}
	return HintVoid
}
