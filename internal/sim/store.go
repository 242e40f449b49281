package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// countsPartition is the partition of the counts.
const countsPartition = "counts"

// port is a process's connection to the store. It is not a [tablestore.AtomicStore], so
// each batch of a change is a separate call.
type port struct {
	w *world
	p *process
}

// atomicPort is a port to a store that applies all batches of a change in one call.
type atomicPort struct {
	*port

	store tablestore.AtomicStore
}

var _ tablestore.AtomicStore = atomicPort{}

// Commit implements [tablestore.Store].
func (s atomicPort) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	etags, err := s.CommitAll(ctx, []tablestore.Batch{batch}, nil)
	if err != nil {
		return nil, err
	}
	return etags[0], nil
}

// GetAll implements [tablestore.AtomicStore].
func (s atomicPort) GetAll(ctx context.Context, keys []tablestore.Key) ([]tablestore.Row, error) {
	r := s.park(ctx, verbGet, fmt.Sprint(keys), func() reply {
		rows, err := s.store.GetAll(context.Background(), keys)
		position := 0
		for _, key := range keys {
			position = max(position, s.w.disk.last(key.Table, key.Partition))
		}
		return reply{rows, err, position}
	})
	rows, _ := r.value.([]tablestore.Row)
	return rows, r.err
}

// CommitAll implements [tablestore.AtomicStore].
func (s atomicPort) CommitAll(
	ctx context.Context, batches []tablestore.Batch, applied func([][]tablestore.ETag),
) ([][]tablestore.ETag, error) {
	who := actorOf(ctx)
	who.sent = time.Now()
	r := s.park(ctx, verbCommit, describe(slices.Concat(batches...)), func() reply {
		etags, err := s.store.CommitAll(context.Background(), batches, nil)
		if err != nil {
			return reply{etags, err, s.w.disk.lastOf(batches...)}
		}
		position := s.w.disk.write(batches, func() { s.w.check.committedAll(who, batches) })
		if applied != nil { // The caller may never get a reply.
			applied(etags)
		}
		return reply{etags, nil, position}
	})
	etags, _ := r.value.([][]tablestore.ETag)
	return etags, r.err
}

// Get implements [tablestore.Store].
func (s *port) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	r := s.park(ctx, verbGet, key.String(), func() reply {
		row, err := s.w.store.Get(context.Background(), key)
		return reply{row, err, s.w.disk.last(key.Table, key.Partition)}
	})
	row, _ := r.value.(tablestore.Row)
	return row, r.err
}

// Scan implements [tablestore.Store].
func (s *port) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	detail := query.Table + "/" + query.Partition + "/[" + query.From + "," + query.To + ") " +
		strconv.Itoa(query.Limit) + " " + query.Continue
	r := s.park(ctx, verbScan, detail, func() reply {
		query := query
		if limit := s.w.pageLimit(); limit > 0 && (query.Limit == 0 || query.Limit > limit) {
			query.Limit = limit
		}
		if query.Partition == countsPartition {
			s.w.counted++
		}
		page, err := s.w.store.Scan(context.Background(), query)
		return reply{page, err, s.w.disk.last(query.Table, query.Partition)}
	})
	page, _ := r.value.(tablestore.Page)
	return page, r.err
}

// Commit implements [tablestore.Store].
func (s *port) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	who := actorOf(ctx)
	who.sent = time.Now()
	r := s.park(ctx, verbCommit, describe(batch), func() reply {
		etags, err := s.w.commit(who, batch)
		return reply{value: etags, err: err}
	})
	etags, _ := r.value.([]tablestore.ETag)
	return etags, r.err
}

// Close implements [tablestore.Store].
func (s *port) Close() error { return nil }

func (s *port) park(ctx context.Context, v verb, detail string, exec func() reply) reply {
	ctx, end := s.bounded(ctx)
	defer end()
	return s.w.gate.park(&call{actor: actorOf(ctx).name, verb: v, detail: detail, proc: s.p, ctx: ctx, exec: exec})
}

// commit applies a batch, and passes it to the checker.
func (w *world) commit(who actor, batch tablestore.Batch) ([]tablestore.ETag, error) {
	before := w.check.before(batch)
	etags, err := w.store.Commit(context.Background(), batch)
	if err == nil {
		w.check.committed(who, batch, before)
	}
	return etags, err
}

// describe describes a batch, with a digest of its content.
func describe(batch tablestore.Batch) string {
	text, data := make([]byte, 0, 128*len(batch)), []byte(nil)
	h := fnv.New32a()
	for i := range batch {
		op := &batch[i]
		if i == 0 {
			text = append(append(append(text, op.Key.Table...), '/'), op.Key.Partition...)
		}
		data = append(data[:0], op.ETag...)
		data, _ = tablestore.EncodeProperties(data, op.Properties, nil)
		_, _ = h.Write(data)
		text = append(append(append(append(text, ' '), op.Verb.String()...), ' '), op.Key.Row...)
		if state := op.Properties.Get("state").String(); state != "" {
			text = append(append(text, '='), state...)
		}
	}
	return string(fmt.Appendf(text, " #%08x", h.Sum32()))
}
