package workqueue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// What a claim takes is remembered by one row for each owner and request, written
// with the claims or before the first of them, so that a repeat finds what the
// claim got, crash or not. The row says where to look; whether a candidate was
// claimed is its job's to say. The rows lie in a fixed number of partitions, so
// that those of owners who never come back are found and deleted.
const (
	memoryParts = 16
	// For each expireAfter memories that were written, and each expireEvery, one page
	// of twice as many is looked at. So what is past its time can not outgrow
	// what is not.
	expireAfter = 32
	expirePage  = 64
	expireEvery = time.Minute
)

// memory is what is remembered of a claim.
type memory struct {
	etag       tablestore.ETag
	digest     string
	candidates []ledger.Candidate
}

// digest stands for all that a repeat must have in common with the first request.
func (r *ClaimRequest) digest(caller *Caller) string {
	parts, err := json.Marshal([]any{
		r.Services, r.StepTypes, r.Tenants, caller.Services, caller.Tenants, r.Max, r.Lease, r.Start,
	})
	if err != nil {
		return "" // Strings, numbers and booleans can be encoded.
	}
	sum := sha256.Sum256(parts)
	return hex.EncodeToString(sum[:12])
}

// memoryKey addresses the memory of an owner's request.
func (q *Queue) memoryKey(owner, requestID string) tablestore.Key {
	sum := sha256.Sum256([]byte(owner + "\x00" + requestID))
	return tablestore.Key{
		Table: q.table, Partition: memoryPart(int(sum[31]) % memoryParts), Row: hex.EncodeToString(sum[:16]),
	}
}

func memoryPart(n int) string { return tablestore.Join("claims", tablestore.Pad(n, 2)) }

// remember is the write of the claim's memory. It replaces one that it has read
// under that version only.
func (c *claim) remember(candidates []ledger.Candidate, until time.Time) (tablestore.Batch, error) {
	list, err := json.Marshal(candidates)
	if err != nil {
		return nil, fmt.Errorf("remember the claim: %w", err)
	}
	if least := tablestore.Now().Add(lifecycle.MinMemory); until.Before(least) {
		until = least
	}
	op := tablestore.Op{
		Verb: tablestore.Insert, Key: c.q.memoryKey(c.r.Owner, c.r.RequestID),
		Properties: tablestore.AppendLarge(tablestore.Properties{
			{Name: "v", Value: tablestore.Int(1)},
			{Name: "digest", Value: tablestore.String(c.digest)},
			{Name: "expires_at", Value: tablestore.Time(until)},
		}, "candidates", list),
	}
	if c.memory != nil {
		op.Verb, op.ETag = tablestore.Replace, c.memory.etag
	}
	return tablestore.Batch{op}, nil
}

// recall reads what is remembered of the request, nil if nothing is.
func (q *Queue) recall(ctx context.Context, r *ClaimRequest) (*memory, error) {
	row, err := q.store.Get(ctx, q.memoryKey(r.Owner, r.RequestID))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the claim: %w", err)
	}
	known := &memory{etag: row.ETag, digest: row.Properties.Get("digest").String()}
	if err := json.Unmarshal(tablestore.Large(row.Properties, "candidates"), &known.candidates); err != nil {
		return nil, fmt.Errorf("row %s of the claims: %w", row.Key.Row, err)
	}
	return known, nil
}

// expiry is where this process is on its walk over the memories.
type expiry struct {
	mu      sync.Mutex
	written int
	last    time.Time
	part    int
	from    string // where the next page begins; empty is the partition's start
	walking bool
}

func newExpiry(random func() float64) *expiry {
	return &expiry{part: int(random() * memoryParts), last: time.Now()}
}

// due counts written memories, and says from where on to look at how many
// pages, 0 if it is not time for one.
func (e *expiry) due(written int) (pages, part int, from string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.written += written
	if e.walking || e.written < expireAfter && time.Since(e.last) < expireEvery {
		return 0, 0, ""
	}
	pages = max(e.written/expireAfter, 1)
	e.written, e.last, e.walking = max(e.written-pages*expireAfter, 0), time.Now(), true
	return pages, e.part, e.from
}

// done says where the walk goes on.
func (e *expiry) done(part int, from string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.part, e.from, e.walking = part, from, false
}

// expire deletes memories that are past their time: now and then, a page of them.
func (q *Queue) expire(ctx context.Context, written int) {
	pages, part, from := q.expiry.due(written)
	if pages == 0 {
		return
	}
	for range pages {
		var err error
		if from, err = q.expirePage(ctx, part, from); err != nil {
			q.logger.WarnContext(ctx, "expired claims not deleted", "error", err)
		}
		if from == "" {
			part = (part + 1) % memoryParts
		}
	}
	q.expiry.done(part, from)
}

// expirePage deletes what is past its time on one page, and returns where the next
// page begins, empty at the end.
func (q *Queue) expirePage(ctx context.Context, part int, from string) (string, error) {
	page, err := q.store.Scan(ctx, tablestore.Query{
		Table: q.table, Partition: memoryPart(part), Limit: expirePage, Continue: from,
	})
	if err != nil {
		return "", fmt.Errorf("read the memories of claims: %w", err)
	}
	var batch tablestore.Batch
	at := tablestore.Now()
	for i := range page.Rows {
		if page.Rows[i].Properties.Get("expires_at").Time().Before(at) {
			batch = append(batch, tablestore.Op{Verb: tablestore.Discard, Key: page.Rows[i].Key})
		}
	}
	if len(batch) == 0 {
		return page.Next, nil
	}
	if _, err := q.store.Commit(ctx, batch); err != nil {
		return page.Next, fmt.Errorf("delete expired claims: %w", err)
	}
	return page.Next, nil
}
