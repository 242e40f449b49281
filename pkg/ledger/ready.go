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

// WorkKind is what workers choose work by.
type WorkKind struct{ Service, StepType string }

// WorkClass is the work of a kind in one class. Each has separate partitions in the ready
// index.
type WorkClass struct {
	WorkKind

	Class statemachine.Class
}

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
	// Class and Shard are the partition of its kind that holds the hint.
	Class statemachine.Class
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

// WorkClass returns the work that the hint belongs to.
func (h *Hint) WorkClass() WorkClass { return WorkClass{h.Kind, h.Class} }

// hintOf returns the hint that the item names, which it may have left: its class is then not
// that of the job.
func (l *Ledger) hintOf(agg *statemachine.Aggregate, r *statemachine.ItemRecord) Hint {
	step := &agg.Steps[r.StepIndex]
	return Hint{
		Target: statemachine.TargetOf(&agg.Job, step), Kind: WorkKind{step.Service, step.Type},
		WorkID: r.WorkID, AttemptNo: r.AttemptNo, Rev: r.ReadyRev, Since: r.ReadySince,
		Class: r.ReadyClass, Shard: l.shard(agg.Job.ID) % l.cfg.ReadyShards,
	}
}

func (l *Ledger) hintKey(h *Hint) tablestore.Key {
	return tablestore.Key{Table: l.tables.Queue, Partition: readyPartition(h.WorkClass(), h.Shard), Row: h.Row()}
}

func readyPartition(of WorkClass, shard int) string {
	partition := tablestore.Join("ready", of.Service, of.StepType, tablestore.Pad(shard, 3))
	if of.Class != statemachine.ClassNormal {
		partition += ":" + string(of.Class)
	}
	return partition
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

func decodeHint(of WorkClass, shard int, row *tablestore.Row) (Hint, error) {
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
		Target: statemachine.Target{TenantID: parts[0], Service: of.Service}, Kind: of.WorkKind, WorkID: parts[2],
		AttemptNo: attemptNo, Rev: rev, Since: time.UnixMilli(ms).UTC(), Class: of.Class, Shard: shard,
	}
	return hint, hintCodec.Decode(row, &hint)
}

// ReadyHints returns one page of the hints of that work and shard with
// from <= [Hint.Row] < to (an empty to is the end), oldest first within each
// tenant. more is false at the end of the range. bad joins the errors of rows that
// cannot be read, which are skipped.
func (l *Ledger) ReadyHints(ctx context.Context, of WorkClass, shard int, from, to string, limit int,
) (hints []Hint, more bool, bad error, err error) {
	query := tablestore.Query{
		Table: l.tables.Queue, Partition: readyPartition(of, shard), From: from, To: to, Limit: limit,
	}
	for {
		page, err := l.store.Scan(ctx, query)
		if err != nil {
			return nil, false, nil, fmt.Errorf("read the ready items of service %q: %w", of.Service, err)
		}
		for i := range page.Rows {
			hint, err := decodeHint(of, shard, &page.Rows[i])
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
// reads no more rows than that. The share of bulk work is left out of the count.
func (l *Ledger) ReadyBefore(ctx context.Context, agg *statemachine.Aggregate, limit int) (int, error) {
	i, queued := agg.Queued()
	if !queued {
		return 0, nil
	}
	step := &agg.Steps[i]
	tenant := tablestore.Join(agg.Job.TenantID) + ":"
	own := tablestore.Join(agg.Job.TenantID, tablestore.Pad(agg.Outbox.SentAt.UnixMilli(), 13), step.OutboxID)
	of := WorkClass{WorkKind{step.Service, step.Type}, statemachine.ClassNormal}
	to := own
	if agg.Job.Class == statemachine.ClassBulk {
		to = tablestore.PrefixEnd(tenant)
	}
	count := 0
	for {
		for shard := 0; shard < l.cfg.ReadyShards && count < limit; shard++ {
			hints, _, _, err := l.ReadyHints(ctx, of, shard, tenant, to, limit-count)
			if err != nil {
				return 0, err
			}
			count += len(hints)
		}
		if of.Class == agg.Job.Class {
			return count, nil
		}
		of.Class, to = agg.Job.Class, own
	}
}

const catalogPartition = "catalog"

// WorkClasses reads the catalog: every kind of work that was ever queued, by class. bad
// joins the errors of rows that cannot be read, which are skipped.
func (l *Ledger) WorkClasses(ctx context.Context) (classes []WorkClass, bad, err error) {
	rows, err := tablestore.ScanAll(ctx, l.store, tablestore.Query{Table: l.tables.Queue, Partition: catalogPartition})
	if err != nil {
		return nil, nil, fmt.Errorf("read the catalog of the pull queue: %w", err)
	}
	for i := range rows {
		parts, err := tablestore.Split(rows[i].Key.Row)
		class, known := statemachine.ClassNormal, true
		if len(parts) == 3 {
			class, known = statemachine.ParseClass(parts[2])
			parts = parts[:2]
		}
		if err != nil || len(parts) != 2 || !known {
			bad = errors.Join(bad, fmt.Errorf("bad key %q in the catalog of the pull queue", rows[i].Key.Row))
			continue
		}
		classes = append(classes, WorkClass{WorkKind{Service: parts[0], StepType: parts[1]}, class})
	}
	return classes, bad, nil
}

// catalog makes a kind of work in a class known to processes that start later, before the
// first hint of it is written. Its row is never deleted: claims without a filter find
// the items of removed protocols too.
func (l *Ledger) catalog(ctx context.Context, of WorkClass) error {
	if _, known := l.kinds.Load(of); known {
		return nil
	}
	key := tablestore.Key{
		Table: l.tables.Queue, Partition: catalogPartition, Row: tablestore.Join(of.Service, of.StepType),
	}
	if of.Class != statemachine.ClassNormal {
		key.Row = tablestore.Join(of.Service, of.StepType, string(of.Class))
	}
	if _, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: key}}); err != nil {
		return fmt.Errorf("catalog service %q: %w", of.Service, err)
	}
	l.kinds.Store(of, true)
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
	if s.queued() && s.carries(h.WorkID, h.AttemptNo) && s.open.ReadyRev == h.Rev && s.open.ReadySince.Equal(h.Since) &&
		s.open.ReadyClass == h.Class {
		return HintNamed
	}
	return HintVoid
}
