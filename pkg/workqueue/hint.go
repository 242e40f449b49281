package workqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// hintGrace is how long a hint to what is not queued is taken for one whose
// item is still being written.
const hintGrace = time.Minute

// ref says where a ready item is. It is what a hint says.
type ref struct {
	kind   kind
	tenant string
	workID string
	// since is when the item was last enqueued or requeued.
	since     time.Time
	attemptNo int
}

// refOf is the ref of a queued item: nothing moves it while it is queued, so
// its last change is when it became so.
func refOf(item *lifecycle.Item) ref {
	return ref{
		kind: kind{item.Service, item.StepType}, tenant: item.TenantID, workID: item.WorkID,
		since: item.UpdatedAt, attemptNo: item.AttemptNo,
	}
}

// hintKey addresses the hint that an item is ready: oldest first within a
// tenant. No two enqueues share one, since each brings another attempt: a late
// removal of one hint never takes the next one's.
func (s *Storage) hintKey(item ref) tablestore.Key {
	return tablestore.Key{
		Table:     s.table,
		Partition: tablestore.Join("ready", item.kind.service, item.kind.stepType),
		Row: tablestore.Join(item.tenant, tablestore.Pad(item.since.UnixMilli(), 13), item.workID,
			tablestore.Pad(int64(item.attemptNo), 6)),
	}
}

// decodeHint reads a hint from its key.
func decodeHint(k kind, row string) (ref, error) {
	parts, err := tablestore.Split(row)
	if err != nil || len(parts) != 4 {
		return ref{}, fmt.Errorf("bad key %q among the ready items", row)
	}
	ms, err := strconv.ParseInt(parts[1], 10, 64)
	attemptNo, err2 := strconv.Atoi(parts[3])
	if err := errors.Join(err, err2); err != nil {
		return ref{}, fmt.Errorf("bad key %q among the ready items: %w", row, err)
	}
	return ref{
		kind: k, tenant: parts[0], workID: parts[2], since: time.UnixMilli(ms).UTC(), attemptNo: attemptNo,
	}, nil
}

// hint is the stage that makes a queued item findable. It is written before
// the item: a hint to nothing is harmless.
func (s *Storage) hint(item *lifecycle.Item) []tablestore.Stage {
	return []tablestore.Stage{{{{Verb: tablestore.Put, Key: s.hintKey(refOf(item))}}}}
}

// unhint is the removal of the hint to an item that was queued, nothing for
// another.
func (s *Storage) unhint(item *lifecycle.Item) []tablestore.Batch {
	if item.Status != lifecycle.StatusQueued {
		return nil
	}
	return []tablestore.Batch{{{Verb: tablestore.Discard, Key: s.hintKey(refOf(item))}}}
}

// dropHint deletes a hint whose item is gone or in somebody's hands. A young
// one may be that of an item that is still being written.
func (s *Storage) dropHint(ctx context.Context, item ref) error {
	if time.Since(item.since) < hintGrace {
		return nil
	}
	if _, err := s.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Discard, Key: s.hintKey(item)}}); err != nil {
		return fmt.Errorf("delete a hint: %w", err)
	}
	return nil
}
