package workqueue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// What a claim takes is remembered by one row for each item, written with the
// claim or before it, so that a repeat finds what the claim got, crash or not.
// The row says where to look; whether the claim came is the item's to say. The
// rows lie in a fixed number of partitions, so that those of owners who never
// come back are found and dropped.
const (
	memoryParts = 16
	// For each tidyAfter memories that were written, and each tidyEvery, one page
	// of twice as many is looked at. So what is past its time can not outgrow
	// what is not.
	tidyAfter = 32
	tidyPage  = 64
	tidyEvery = time.Minute
)

// memoryKey addresses what is remembered of an item of a claim; without a work
// id, the keys of all its items begin with it.
func (s *Storage) memoryKey(owner, requestID, workID string) tablestore.Key {
	sum := sha256.Sum256([]byte(owner + "\x00" + requestID))
	return tablestore.Key{
		Table: s.table, Partition: memoryPart(int(sum[31]) % memoryParts),
		Row: tablestore.Join(hex.EncodeToString(sum[:16]), workID),
	}
}

func memoryPart(n int) string { return tablestore.Join("claims", tablestore.Pad(n, 2)) }

// memory is the write that remembers an item of a claim.
func (s *Storage) memory(r *ClaimRequest, moved *lifecycle.Item) tablestore.Batch {
	until := moved.UpdatedAt.Add(lifecycle.MinMemory)
	if moved.LeaseExpiresAt.After(until) {
		until = moved.LeaseExpiresAt
	}
	return tablestore.Batch{{
		Verb: tablestore.Put, Key: s.memoryKey(r.Owner, r.RequestID, moved.WorkID),
		Properties: tablestore.Properties{
			{Name: "v", Value: tablestore.Int(1)},
			{Name: "work_id", Value: tablestore.String(moved.WorkID)},
			{Name: "attempt_no", Value: tablestore.Int(int64(moved.AttemptNo))},
			{Name: "expires_at", Value: tablestore.Time(until)},
		},
	}}
}

// repeat answers a claim whose request was answered before, with those of its
// items that the owner still holds under it. It reports whether the request is
// known.
func (q *Queue) repeat(ctx context.Context, r *ClaimRequest) (views []View, known bool, err error) {
	prefix := q.storage.memoryKey(r.Owner, r.RequestID, "")
	rows, err := q.storage.rows(ctx, tablestore.Query{
		Table: prefix.Table, Partition: prefix.Partition, From: prefix.Row, To: tablestore.PrefixEnd(prefix.Row),
	})
	if err != nil {
		return nil, false, fmt.Errorf("look for the claim: %w", err)
	}
	for i := range rows {
		p := rows[i].Properties
		view, claimed, err := q.recall(ctx, r, p.Get("work_id").String(), int(p.Get("attempt_no").Int()))
		if err != nil {
			return nil, false, err
		}
		if view != nil {
			views = append(views, *view)
		}
		known = known || claimed
	}
	return views, known, nil
}

// recall returns an item that was claimed under the request, nil where the
// owner does not hold it under that any more, and whether it ever was. One
// whose own write was lost is claimed to the end.
func (q *Queue) recall(ctx context.Context, r *ClaimRequest, workID string, attemptNo int) (*View, bool, error) {
	one, err := q.load(ctx, workID)
	if errors.Is(err, lifecycle.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if one.item.Status == lifecycle.StatusQueued && one.item.AttemptNo == attemptNo {
		view, err := q.claimOne(ctx, r, refOf(&one.item))
		return view, view != nil, err
	}
	if !one.item.HeldUnder(r.Owner, r.RequestID) {
		request := lifecycle.Request{Actor: r.Owner, ExpectedRev: one.item.Rev, ID: r.RequestID}
		claimed, err := lifecycle.Check(one.item, lifecycle.OpClaimNext, request) // Refused: it was no such claim.
		return nil, claimed && err == nil, nil
	}
	held, err := q.stillHeld(ctx, r, one)
	if err != nil || !held {
		return nil, err == nil, err
	}
	directive, err := q.storage.message(ctx, one.id, one.item.AttemptNo)
	if errors.Is(err, lifecycle.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return &View{Item: one.item, Directive: directive}, true, nil
}

// stillHeld asks the ledger whether the pair of an item that shows the claim is
// current: its last write may have been lost. One that is behind follows first.
func (q *Queue) stillHeld(ctx context.Context, r *ClaimRequest, one *stored) (bool, error) {
	agg, err := q.ledger.Job(ctx, one.item.JobID)
	if err == nil {
		one, err = q.follow(ctx, one, agg)
	}
	switch {
	case errors.Is(err, ledger.ErrJobNotFound), errors.Is(err, lifecycle.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	return one.item.HeldUnder(r.Owner, r.RequestID), nil
}

// tidy is where this process is on its walk over the memories.
type tidy struct {
	mu      sync.Mutex
	written int
	last    time.Time
	part    int
	from    string // where the next page begins; empty is the partition's start
	walking bool
}

func newTidy(random func() float64) *tidy {
	return &tidy{part: int(random() * memoryParts), last: time.Now()}
}

// due counts written memories, and says from where on to look at how many
// pages, 0 where it is not time for one.
func (t *tidy) due(written int) (pages, part int, from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written += written
	if t.walking || t.written < tidyAfter && time.Since(t.last) < tidyEvery {
		return 0, 0, ""
	}
	pages = max(t.written/tidyAfter, 1)
	t.written, t.last, t.walking = max(t.written-pages*tidyAfter, 0), time.Now(), true
	return pages, t.part, t.from
}

// done says where the walk goes on.
func (t *tidy) done(part int, from string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.part, t.from, t.walking = part, from, false
}

// forgetClaims drops memories that are past their time: now and then, a page of
// them.
func (q *Queue) forgetClaims(ctx context.Context, written int) {
	pages, part, from := q.tidy.due(written)
	if pages == 0 {
		return
	}
	for range pages {
		var err error
		if from, err = q.storage.forget(ctx, part, from); err != nil {
			q.logger.WarnContext(ctx, "old claims not forgotten", "error", err)
		}
		if from == "" {
			part = (part + 1) % memoryParts
		}
	}
	q.tidy.done(part, from)
}

// forget drops what is past its time on one page, and returns where the next
// page begins, empty at the end.
func (s *Storage) forget(ctx context.Context, part int, from string) (string, error) {
	page, err := s.store.Scan(ctx, tablestore.Query{
		Table: s.table, Partition: memoryPart(part), Limit: tidyPage, Continue: from,
	})
	if err != nil {
		return "", fmt.Errorf("read the memories of claims: %w", err)
	}
	var batch tablestore.Batch
	at := now()
	for i := range page.Rows {
		if page.Rows[i].Properties.Get("expires_at").Time().Before(at) {
			batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: page.Rows[i].Key})
		}
	}
	if len(batch) == 0 {
		return page.Next, nil
	}
	if _, err := s.store.Commit(ctx, batch); err != nil {
		return page.Next, fmt.Errorf("drop memories of claims: %w", err)
	}
	return page.Next, nil
}
