package ledger

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/workitem"
)

// WorkKind is what workers choose work by. Each kind has partitions of its own in
// the ready index.
type WorkKind struct{ Service, StepType string }

// Hint is a row of the ready index: "this item may be claimed". It is written
// before the commit that makes the item queued, and judged by the job's own rows
// when it is claimed.
//
//	invariant: head.rev < Rev ⇒ the commit that makes the hint true may still land
//	invariant: head.rev ≥ Rev ∧ no queued item names it ⇒ it is void for good
type Hint struct {
	Kind     WorkKind
	TenantID string
	WorkID   string
	// AttemptNo is the attempt that the item carries, and Rev the revision that
	// makes it queued.
	AttemptNo int
	Rev       int64
	Since     time.Time
	// ProtocolID and Lane are the job's, for pauses.
	ProtocolID string
	Lane       int
	// Shard is the partition of its kind in which the hint lies.
	Shard int
}

// Row is the hint's key within its partition: oldest first within a tenant. No two
// attempts and no two revisions share one, so that the removal of one hint never
// takes another with it.
func (h *Hint) Row() string {
	return tablestore.Join(h.TenantID, tablestore.Pad(h.Since.UnixMilli(), 13), h.WorkID,
		tablestore.Pad(int64(h.AttemptNo), 6), tablestore.Pad(h.Rev, 12))
}

// hintCodec holds the columns of a hint's row. The rest of the hint is its key.
var hintCodec = newCodec(
	text("protocol_id", func(h *Hint) *string { return &h.ProtocolID }),
	integer("lane", func(h *Hint) *int { return &h.Lane }),
)

// hintOf is the hint that a queued item names.
func (l *Ledger) hintOf(agg *statemachine.Aggregate, r *workitem.Record) Hint {
	step := &agg.Steps[r.StepIndex]
	return Hint{
		Kind: WorkKind{step.Service, step.Type}, TenantID: agg.Job.TenantID, WorkID: r.WorkID, AttemptNo: r.AttemptNo,
		Rev: r.ReadyRev, Since: r.ReadySince, ProtocolID: agg.Job.ProtocolID, Lane: step.Routing.Lane,
		Shard: l.shard(agg.Job.ID) % l.rshards,
	}
}

// hintKey addresses the hint's row.
func (l *Ledger) hintKey(h *Hint) tablestore.Key {
	return tablestore.Key{Table: l.tables.Queue, Partition: readyPartition(h.Kind, h.Shard), Row: h.Row()}
}

func readyPartition(kind WorkKind, shard int) string {
	return tablestore.Join("ready", kind.Service, kind.StepType, tablestore.Pad(int64(shard), 3))
}

// putHint is the write of a hint, over whatever is there: a repeat writes the same.
func (l *Ledger) putHint(h *Hint) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Put, Key: l.hintKey(h), Properties: hintCodec.encode(h, nil)}
}

// discardHint is the removal of a hint.
func (l *Ledger) discardHint(h *Hint) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Discard, Key: l.hintKey(h)}
}

// decodeHint reads a hint's row.
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
		Kind: kind, TenantID: parts[0], WorkID: parts[2], AttemptNo: attemptNo, Rev: rev,
		Since: time.UnixMilli(ms).UTC(), Shard: shard,
	}
	return hint, hintCodec.decode(row, &hint)
}

// Exclusive reports whether no other process can write the store.
func (l *Ledger) Exclusive() bool { return l.atomic != nil }

// ReadyShards is the number of partitions of the ready index for each kind.
func (l *Ledger) ReadyShards() int { return l.rshards }

// ReadyHints returns one page of the hints of that kind and shard with
// from <= [Hint.Row] < to (an empty to is the end), oldest first within each
// tenant. more is false at the end of the range. A row that cannot be read is
// returned as an error beside the others, in bad.
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
		if page.Next == "" {
			return hints, false, bad, nil
		}
		if len(hints) > 0 { // A store may answer with an empty page that is not the last.
			return hints, true, bad, nil
		}
		query.Continue = page.Next
	}
}

// WorkKinds reads the catalog: every kind of work that was ever queued.
func (l *Ledger) WorkKinds(ctx context.Context) ([]WorkKind, error) {
	rows, err := tablestore.ScanAll(ctx, l.store, tablestore.Query{Table: l.tables.Queue, Partition: catalogPartition})
	if err != nil {
		return nil, fmt.Errorf("read the catalog of the pull queue: %w", err)
	}
	kinds := make([]WorkKind, 0, len(rows))
	for i := range rows {
		parts, err := tablestore.Split(rows[i].Key.Row)
		if err != nil || len(parts) != 2 {
			return nil, fmt.Errorf("bad key %q in the catalog of the pull queue", rows[i].Key.Row)
		}
		kinds = append(kinds, WorkKind{Service: parts[0], StepType: parts[1]})
	}
	return kinds, nil
}

const catalogPartition = "catalog"

// knownKinds are the kinds whose catalog rows this process knows to be written.
type knownKinds struct{ known sync.Map }

// catalog makes a kind of work known to processes that start later. It is known
// written before the first hint of its kind, and never deleted: claims without a
// filter find the items of removed protocols too.
func (l *Ledger) catalog(ctx context.Context, kind WorkKind) error {
	if _, known := l.kinds.known.Load(kind); known {
		return nil
	}
	key := tablestore.Key{
		Table: l.tables.Queue, Partition: catalogPartition, Row: tablestore.Join(kind.Service, kind.StepType),
	}
	if _, err := l.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Put, Key: key}}); err != nil {
		return fmt.Errorf("catalog service %q: %w", kind.Service, err)
	}
	l.kinds.known.Store(kind, true)
	return nil
}

// HintStanding is how a hint stands to its job.
type HintStanding uint8

// The standings.
const (
	// HintNamed: a queued item names the hint.
	HintNamed HintStanding = iota + 1
	// HintEarly: the commit that makes the hint true may still land. Claims leave it.
	HintEarly
	// HintVoid: nothing will ever name the hint. It was deleted.
	HintVoid
)

// judgeHint compares a hint with its job as it was loaded, nil for one that is not
// there. Of a missing job only the first revision may still come: any other was
// purged.
func judgeHint(h *Hint, s *snapshot) HintStanding {
	switch {
	case s == nil && h.Rev == 1:
		return HintEarly
	case s == nil || s.head.tombstone:
		return HintVoid
	case s.agg.Job.Rev < h.Rev:
		return HintEarly
	}
	if s.queued() && s.open != nil && s.open.WorkID == h.WorkID &&
		s.open.AttemptNo == h.AttemptNo && s.open.ReadyRev == h.Rev && s.open.ReadySince.Equal(h.Since) {
		return HintNamed
	}
	return HintVoid
}

// dropHint deletes a hint that is void.
func (l *Ledger) dropHint(ctx context.Context, h *Hint) error {
	if _, err := l.store.Commit(ctx, tablestore.Batch{l.discardHint(h)}); err != nil {
		return fmt.Errorf("delete the ready hint of work item %s: %w", h.WorkID, err)
	}
	return nil
}

// InspectHint looks at one hint as the reconciler does. A void one is deleted. Past
// the grace the commit of one that is early is made impossible, which repaired
// reports: the next look judges the hint again, for that commit may have landed
// first and name it.
func (l *Ledger) InspectHint(ctx context.Context, h Hint) (repaired bool, err error) {
	id, err := ParseOutboxID(h.WorkID)
	if err != nil {
		return false, err
	}
	s, err := l.load(ctx, id.JobID)
	missing := errors.Is(err, ErrJobNotFound)
	if err != nil && !missing {
		return false, err
	}
	if missing {
		s = nil
	}
	switch judgeHint(&h, s) {
	case HintVoid:
		return false, l.dropHint(ctx, &h)
	case HintNamed:
		return false, nil
	case HintEarly:
	}
	if time.Since(h.Since) < orphanGrace {
		return false, nil
	}
	if missing {
		return l.entomb(ctx, id.JobID)
	}
	_, err = l.change(ctx, id.JobID, s, statemachine.DeadlinePassed{}, &options{actor: ActorSystem})
	return err == nil, err
}

// ReadyWalk is a place on a walk over the whole ready index; the zero value is its
// beginning.
type ReadyWalk struct {
	kinds []WorkKind
	shard int
	from  string
}

// InspectReady looks at one page of the ready index, see [Ledger.InspectHint], and
// moves the walk on. It returns how many hints it saw by kind, how many it repaired,
// and whether the walk is at its end, which is its beginning again. Rows and jobs that
// cannot be read are passed over and make an error; any other error ends the page.
func (l *Ledger) InspectReady(ctx context.Context, w *ReadyWalk, limit int,
) (seen map[WorkKind]int, repaired int, ended bool, err error) {
	if len(w.kinds) == 0 {
		if w.kinds, err = l.WorkKinds(ctx); err != nil || len(w.kinds) == 0 {
			return nil, 0, err == nil, err
		}
	}
	kind := w.kinds[0]
	hints, more, bad, err := l.ReadyHints(ctx, kind, w.shard, w.from, "", limit)
	if err != nil {
		return nil, 0, false, err
	}
	seen = map[WorkKind]int{}
	for i := range hints {
		fixed, err := l.InspectHint(ctx, hints[i])
		if err != nil {
			err = fmt.Errorf("inspect the hint of work item %s: %w", hints[i].WorkID, err)
		}
		if errors.Is(err, tablestore.ErrUnavailable) || errors.Is(err, tablestore.ErrUnknown) {
			return seen, repaired, false, err
		}
		bad = errors.Join(bad, err)
		if fixed {
			repaired++
		}
		seen[kind]++
		w.from = hints[i].Row() + "\x00"
	}
	if more {
		return seen, repaired, false, bad
	}
	if w.from, w.shard = "", w.shard+1; w.shard == l.rshards {
		w.shard, w.kinds = 0, w.kinds[1:]
	}
	return seen, repaired, len(w.kinds) == 0, bad
}

// restoreHint writes the hint that a queued item names if it is missing, which is a
// defect, and reports whether it was.
func (l *Ledger) restoreHint(ctx context.Context, s *snapshot) (missing bool, err error) {
	if !s.queued() || s.open == nil {
		return false, nil
	}
	hint := l.hintOf(&s.agg, s.open)
	put := l.putHint(&hint)
	if _, err = l.store.Get(ctx, put.Key); err == nil || !errors.Is(err, tablestore.ErrNotFound) {
		return false, err
	}
	// The item may have been claimed since the job was loaded, and its hint with it.
	now, err := l.load(ctx, s.agg.Job.ID)
	if errors.Is(err, ErrJobNotFound) || err == nil && judgeHint(&hint, now) != HintNamed {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if _, err := l.store.Commit(ctx, tablestore.Batch{put}); err != nil {
		return false, fmt.Errorf("restore the ready hint of work item %s: %w", hint.WorkID, err)
	}
	l.ready(hint, true)
	return true, nil
}
