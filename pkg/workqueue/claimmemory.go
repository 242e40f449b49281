package workqueue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// One row for each owner and request remembers the candidates of a claim, so that a repeat
// finds what the claim got, even after a crash. Only its job tells whether a candidate was
// claimed. The rows lie in a fixed number of partitions, so that rows of owners that never
// return are found and deleted.
const (
	memoryParts = 16
	// One page of expirePage memories is checked after every expireAfter writes and every
	// expireEvery, so expired rows never outnumber the others.
	expireAfter = 32
	expirePage  = 64
	expireEvery = time.Minute
)

// memory is the content of a claim's row.
type memory struct {
	Digest     string             `column:"digest"`
	ExpiresAt  time.Time          `column:"expires_at"`
	Candidates []ledger.Candidate `column:"candidates"`
	etag       tablestore.ETag
}

var memoryCodec = tablestore.NewCodec[memory]()

// digest covers all fields that must be equal in a repeat of the request.
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
func (q *Queue) memoryKey(r *ClaimRequest) tablestore.Key {
	sum := sha256.Sum256([]byte(r.Owner + "\x00" + r.RequestID))
	return tablestore.Key{
		Table: q.ledger.Tables().Queue, Partition: memoryPart(int(sum[31]) % memoryParts), Row: hex.EncodeToString(sum[:16]),
	}
}

func memoryPart(n int) string { return tablestore.Join("claims", tablestore.Pad(n, 2)) }

// remember returns the write of the claim's memory. It replaces the row that the claim has
// read, under its ETag.
func (c *claim) remember(candidates []ledger.Candidate, until time.Time) tablestore.Batch {
	if least := tablestore.Now().Add(statemachine.MinMemory); until.Before(least) {
		until = least
	}
	row := memory{Digest: c.digest, ExpiresAt: until, Candidates: candidates}
	op := tablestore.Op{
		Verb: tablestore.Insert, Key: c.q.memoryKey(c.ClaimRequest), Properties: memoryCodec.Encode(&row, nil),
	}
	if c.memory != nil {
		op.Verb, op.ETag = tablestore.Replace, c.memory.etag
	}
	return tablestore.Batch{op}
}

// recall reads the memory of the request, nil if there is none.
func (q *Queue) recall(ctx context.Context, r *ClaimRequest) (*memory, error) {
	row, err := q.store.Get(ctx, q.memoryKey(r))
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the claim: %w", err)
	}
	known := &memory{etag: row.ETag}
	if err := memoryCodec.Decode(&row, known); err != nil {
		return nil, fmt.Errorf("look for the claim: %w", err)
	}
	return known, nil
}

// expiry is this process's walk over the memories.
type expiry struct {
	written atomic.Int64       // since the last walk; only the holder of the cursor lowers it
	cursor  chan expiredCursor // empty while a claim walks
}

type expiredCursor struct {
	walked time.Time // when the last walk began
	part   int
	from   string // where the next page begins; empty is the partition's start
}

// expire counts written memories, and deletes expired ones if a walk is due.
func (q *Queue) expire(ctx context.Context, written int64) {
	e := q.expiry
	e.written.Add(written)
	select {
	case at := <-e.cursor:
		defer func() { e.cursor <- at }()
		total := e.written.Load()
		if total < expireAfter && time.Since(at.walked) < expireEvery {
			return
		}
		pages := max(total/expireAfter, 1)
		e.written.Add(-min(pages*expireAfter, total))
		at.walked = time.Now()
		for range pages {
			var err error
			if at.from, err = q.expirePage(ctx, at.part, at.from); err != nil {
				q.logger.WarnContext(ctx, "expired claims not deleted", "error", err)
			}
			if at.from == "" {
				at.part = (at.part + 1) % memoryParts
			}
		}
	default:
	}
}

// expirePage deletes the expired memories of one page, and returns where the next
// page begins, empty at the end of the partition.
func (q *Queue) expirePage(ctx context.Context, part int, from string) (string, error) {
	page, err := q.store.Scan(ctx, tablestore.Query{
		Table: q.ledger.Tables().Queue, Partition: memoryPart(part), Limit: expirePage, Continue: from,
	})
	if err != nil {
		return "", fmt.Errorf("read the memories of claims: %w", err)
	}
	var batch tablestore.Batch
	at := tablestore.Now()
	for i := range page.Rows {
		if page.Rows[i].Properties.Get("expires_at").Time().Before(at) {
			batch = append(batch, tablestore.Op{Verb: tablestore.Delete, Key: page.Rows[i].Key, ETag: page.Rows[i].ETag})
		}
	}
	if len(batch) == 0 {
		return page.Next, nil
	}
	// A conflict leaves them to the next walk: another process has deleted one, or its request came again.
	if _, err := q.store.Commit(ctx, batch); err != nil && !errors.Is(err, tablestore.ErrConflict) {
		return page.Next, fmt.Errorf("delete expired claims: %w", err)
	}
	return page.Next, nil
}
