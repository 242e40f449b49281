package ledger

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Kind is a kind of schedule entry. Each has partitions of its own, so that a
// backlog of one hides none of another.
type Kind string

// The kinds.
const (
	Dispatch Kind = "dispatch" // a relay is to publish the job's outbox row
	Timer    Kind = "timer"    // the sweeper is to look at the job
	// An ended job may have any number of these, beside the one entry that its
	// row names.
	Webhook   Kind = "webhook"   // an announcement of its end is to be sent
	Retention Kind = "retention" // it may be purged
)

// Kinds lists all kinds.
var Kinds = []Kind{Dispatch, Timer, Webhook, Retention}

// Entry is a schedule entry: "look at this job then". It is a hint; only the
// job's own rows say what is due.
type Entry struct {
	Kind  Kind
	Shard int
	Due   time.Time
	JobID string
	Nonce string
	// Rev is the revision that the entry's change makes. Below it the change
	// may still be under way.
	Rev int64
	// Topic is where the directive of a dispatch entry goes, and Lane its lane.
	Topic string
	Lane  int
	// TenantID and ProtocolID are the job's.
	TenantID   string
	ProtocolID string
	// reserved is what an accept has reserved before its commit, to be freed
	// if that never comes.
	reserved reservation
}

// reservation is what an accept wrote before its commit.
type reservation struct {
	claim string
	slot  slotRef
}

// entryCodec holds the columns of an entry's row. The rest of the entry is its key.
var entryCodec = newCodec(
	integer("rev", func(e *Entry) *int64 { return &e.Rev }),
	text("topic", func(e *Entry) *string { return &e.Topic }),
	integer("lane", func(e *Entry) *int { return &e.Lane }),
	text("tenant_id", func(e *Entry) *string { return &e.TenantID }),
	text("protocol_id", func(e *Entry) *string { return &e.ProtocolID }),
	text("claim", func(e *Entry) *string { return &e.reserved.claim }),
	text("slot_partition", func(e *Entry) *string { return &e.reserved.slot.Partition }),
	text("slot_row", func(e *Entry) *string { return &e.reserved.slot.Row }),
	flag("slot_numbered", func(e *Entry) *bool { return &e.reserved.slot.Numbered }),
)

// entryKey addresses an entry's row.
func (l *Ledger) entryKey(jobID string, ref entryRef) tablestore.Key {
	return tablestore.Key{
		Table:     l.tables.Schedule,
		Partition: tablestore.Join(string(ref.Kind), tablestore.Pad(int64(l.shard(jobID)), 3)),
		Row:       tablestore.Join(tablestore.Pad(ref.Due.UnixMilli(), 13), jobID, ref.Nonce),
	}
}

// putEntry is the write of an entry that stands for the aggregate.
func (l *Ledger) putEntry(agg *statemachine.Aggregate, ref entryRef, r reservation) tablestore.Op {
	entry := Entry{Rev: agg.Job.Rev, TenantID: agg.Job.TenantID, ProtocolID: agg.Job.ProtocolID, reserved: r}
	if ref.Kind == Dispatch {
		entry.Topic, entry.Lane = agg.Outbox.Routing.Topic, agg.Outbox.Routing.Lane
	}
	return tablestore.Op{Verb: tablestore.Put, Key: l.entryKey(agg.Job.ID, ref), Properties: entryCodec.encode(&entry, nil)}
}

// discardEntry is the removal of an entry.
func (l *Ledger) discardEntry(jobID string, ref entryRef) tablestore.Op {
	return tablestore.Op{Verb: tablestore.Discard, Key: l.entryKey(jobID, ref)}
}

// discardEntries are the removals of entries, as few batches as can be.
func (l *Ledger) discardEntries(jobID string, refs []entryRef) tablestore.Stage {
	var stage tablestore.Stage
	for _, ref := range refs {
		stage = inBatches(stage, l.discardEntry(jobID, ref))
	}
	return stage
}

// inBatches adds an op to the last batch of the stage, or to a new one where its
// partition is another.
func inBatches(stage tablestore.Stage, op tablestore.Op) tablestore.Stage {
	if n := len(stage); n > 0 && stage[n-1][0].Key.Partition == op.Key.Partition {
		stage[n-1] = append(stage[n-1], op)
		return stage
	}
	return append(stage, tablestore.Batch{op})
}

// Due returns one page of entries of that kind and shard that are due at now,
// oldest first, and where the next page begins.
func (l *Ledger) Due(ctx context.Context, kind Kind, shard int, now time.Time, limit int, from string,
) ([]Entry, string, error) {
	page, err := l.store.Scan(ctx, tablestore.Query{
		Table:     l.tables.Schedule,
		Partition: tablestore.Join(string(kind), tablestore.Pad(int64(shard), 3)),
		To:        tablestore.Pad(now.UnixMilli()+1, 13),
		Limit:     limit,
		Continue:  from,
	})
	if err != nil {
		return nil, "", fmt.Errorf("read the schedule of %s %d: %w", kind, shard, err)
	}
	entries := make([]Entry, 0, len(page.Rows))
	for i := range page.Rows {
		entry, err := decodeEntry(kind, shard, &page.Rows[i])
		if err != nil {
			return nil, "", err
		}
		entries = append(entries, entry)
	}
	return entries, page.Next, nil
}

// decodeEntry reads an entry from its key and properties.
func decodeEntry(kind Kind, shard int, row *tablestore.Row) (Entry, error) {
	parts, err := tablestore.Split(row.Key.Row)
	if err != nil || len(parts) != 3 {
		return Entry{}, fmt.Errorf("bad key %q in the schedule", row.Key.Row)
	}
	ms, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil {
		return Entry{}, fmt.Errorf("bad key %q in the schedule", row.Key.Row)
	}
	entry := Entry{Kind: kind, Shard: shard, Due: time.UnixMilli(ms).UTC(), JobID: parts[1], Nonce: parts[2]}
	err = entryCodec.decode(row, &entry)
	return entry, err
}

func (e *Entry) ref() entryRef { return entryRef{Kind: e.Kind, Due: e.Due, Nonce: e.Nonce} }

// wakeRef is the entry that a wake asks for.
func wakeRef(wake statemachine.Wake, nonce string) entryRef {
	switch wake.Kind {
	case statemachine.WakeDispatch:
		return entryRef{Kind: Dispatch, Due: wake.At, Nonce: nonce}
	case statemachine.WakeTimer:
		return entryRef{Kind: Timer, Due: wake.At, Nonce: nonce}
	case statemachine.WakeNone:
	}
	return entryRef{}
}

// serves reports whether the entry that HEAD names can stay for this wake. A
// timer may fire early and is replaced then; a dispatch entry never stands for
// a later time.
func (r entryRef) serves(wake entryRef) bool {
	if r.Kind == "" || r.Kind != wake.Kind {
		return false
	}
	if r.Kind == Timer {
		return !r.Due.After(wake.Due)
	}
	return r.Due.Equal(wake.Due)
}
