package workqueue

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// pollInterval is how often claims look for items that another process queued.
	pollInterval = time.Second
	// rereadInterval is how often they look if there is no other process.
	rereadInterval = 5 * time.Second
	// A backlog whose head is held back is read to its end again after that many times
	// what it took.
	walkShare = 4
	// maxNamed is how many tenants a filter may name for their heads to be read one by
	// one.
	maxNamed = 32
	// pruneInterval is how often the queues of tenants without work are dropped.
	pruneInterval = time.Minute
)

// sizes are how many hints are read.
type sizes struct {
	// A sweep reads the first head hints of each tenant, so that one tenant's backlog
	// hides no other's, and at most sweep in all before claims go on.
	head, sweep int
	// tail is how much of one tenant's backlog is read at once, when fewer than low of
	// the tenant's hints are inside.
	tail, low int
}

// take picks up to limit hints that the filter admits. It reads the index on until
// it has them or has seen all that there is. What other processes queued after fresh
// is seen for sure only if nothing was to be had otherwise.
func (q *Queue) take(ctx context.Context, filter *Filter, limit int, fresh time.Time) ([]ledger.Hint, error) {
	began := time.Now()
	stale := began.Add(-pollInterval)
	if q.ledger.Exclusive() { // Every hint is told to the mirror.
		stale = began.Add(-rereadInterval)
		fresh = stale
	}
	turn := q.reread(ctx, filter, stale)
	if turn {
		defer q.mirror.endTurn()
	}
	var picked []ledger.Hint
	for {
		picked = append(picked, q.mirror.pick(filter, limit-len(picked), began)...)
		if len(picked) >= limit {
			return picked, nil
		}
		if len(picked) > 0 {
			fresh = stale
		}
		todo := q.mirror.next(filter, fresh)
		switch {
		case todo == nil && len(picked) == 0:
			return q.mirror.pickFailed(filter, limit), nil
		case todo == nil:
			return picked, nil
		case !turn: // What another claim is reading may do.
			select {
			case q.mirror.turn <- struct{}{}:
			case <-ctx.Done():
				return picked, nil
			}
			turn = true
			defer q.mirror.endTurn()
			continue
		}
		err := todo.do(ctx, q)
		if err != nil && len(picked) == 0 {
			return nil, err
		}
		if err != nil {
			q.logger.WarnContext(ctx, "ready index not read on", "error", err)
			return picked, nil
		}
	}
}

// reread reads the heads that were read before stale: another process may have
// committed an older hint than those inside. It waits for no other claim's read, and
// stops after a sweep that needs more than its budget. turn says that the claim has
// the turn now: it keeps it until it has picked, so that the next claim finds what
// this one leaves.
func (q *Queue) reread(ctx context.Context, filter *Filter, stale time.Time) (turn bool) {
	select {
	case q.mirror.turn <- struct{}{}:
	default:
		return false
	}
	for {
		todo := q.mirror.nextHead(filter, stale)
		if todo == nil {
			return true
		}
		if err := todo.do(ctx, q); err != nil {
			q.logger.WarnContext(ctx, "ready index not read again", "error", err)
			return true
		}
		if todo.what == readHeads && !todo.whole {
			return true
		}
	}
}

// endTurn lets the claim read that has waited the longest.
func (m *Mirror) endTurn() { <-m.turn }

// read is one thing to be read of the index.
type read struct {
	stream streamKey
	tenant string // of all tenants' heads if empty
	from   string // of one tenant: its head if empty
	limit  int
	began  time.Time
	what   what
	whole  bool // a sweep over the heads came to its end
}

type what uint8

const (
	readCatalog what = iota
	readHeads
	readTenant
)

// next says what is to be read for a claim of the filter that has not found enough:
// the catalog, the heads of the streams and those of the tenants that the filter
// names if they were read before fresh, and backlogs of which little is left
// inside; nil if nothing is. Only a claim that has the turn carries it out.
func (m *Mirror) next(filter *Filter, fresh time.Time) *read {
	m.mu.Lock()
	defer m.mu.Unlock()
	current := time.Now()
	if todo := m.dueHead(filter, fresh, current); todo != nil {
		return todo
	}
	return m.dueTail(filter, current)
}

// nextHead says which head is to be read again first, nil if none is.
func (m *Mirror) nextHead(filter *Filter, stale time.Time) *read {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dueHead(filter, stale, time.Now())
}

// dueHead is the catalog or the head that is to be read first, nil if there is none:
// each tenant has its first page read before any has its second. The lock is held.
func (m *Mirror) dueHead(filter *Filter, fresh, current time.Time) *read {
	if m.catalog.Before(fresh) {
		return &read{what: readCatalog, began: current}
	}
	named := filter.tenants()
	for _, s := range m.order {
		switch {
		case !filter.matches(s.kind):
		case filter.any() || len(named) > maxNamed:
			if s.resume != "" || s.swept.Before(fresh) {
				return &read{what: readHeads, stream: s.streamKey, from: s.resume, began: current}
			}
		case s.swept.Before(fresh):
			for _, tenant := range named {
				if s.tenant(tenant).headRead.Before(fresh) {
					return &read{what: readTenant, stream: s.streamKey, tenant: tenant, limit: m.sizes.head, began: current}
				}
			}
		}
	}
	return nil
}

// dueTail is the backlog that is to be read on first, nil if there is none. The lock
// is held.
func (m *Mirror) dueTail(filter *Filter, current time.Time) *read {
	for _, s := range m.order {
		if !filter.matches(s.kind) {
			continue
		}
		for _, t := range s.turn {
			if !t.more || len(t.hints) >= m.sizes.low || !filter.admits(t.tenant) {
				continue
			}
			limit := m.sizes.tail
			if m.inside >= m.limit {
				limit = m.sizes.head
			}
			return &read{what: readTenant, stream: s.streamKey, tenant: t.tenant, from: t.from, limit: limit, began: current}
		}
	}
	return nil
}

// do reads, and puts what it finds into the mirror.
func (r *read) do(ctx context.Context, q *Queue) error {
	q.mirror.begin(r)
	switch r.what {
	case readCatalog:
		kinds, err := q.ledger.WorkKinds(ctx)
		if err == nil {
			q.mirror.cataloged(kinds, q.ledger.ReadyShards(), q.firstShard, r.began)
		}
		return err
	case readHeads:
		return r.heads(ctx, q)
	case readTenant:
	}
	prefix := tenantPrefix(r.tenant)
	page, err := q.hints(ctx, r.stream, max(r.from, prefix), tablestore.PrefixEnd(prefix), r.limit)
	if err == nil {
		q.mirror.merge(r, page)
	}
	return err
}

// heads skips from tenant to tenant and reads the head of each, until the budget of
// a sweep is spent or all were seen.
func (r *read) heads(ctx context.Context, q *Queue) error {
	for left := q.mirror.sizes.sweep; left > 0; {
		page, err := q.hints(ctx, r.stream, r.from, "", q.mirror.sizes.head)
		if err != nil {
			return err
		}
		q.mirror.merge(r, page)
		if left -= max(len(page.hints), 1); page.next == "" {
			q.mirror.swept(r.stream, "", r.began)
			r.whole = true
			return nil
		}
		if r.from = page.next; page.cut != "" {
			r.from = tablestore.PrefixEnd(tenantPrefix(page.cut))
		}
	}
	q.mirror.swept(r.stream, r.from, time.Time{})
	return nil
}

// page is one page of the index.
type page struct {
	hints []entry
	next  string // where the index goes on, empty at the end of the range
	cut   string // the tenant whose hints fill the whole page and go on after it
}

// hints reads one page.
func (q *Queue) hints(ctx context.Context, s streamKey, from, to string, limit int) (page, error) {
	hints, more, bad, err := q.ledger.ReadyHints(ctx, s.kind, s.shard, from, to, limit)
	if err != nil {
		return page{}, err
	}
	if bad != nil {
		q.logger.WarnContext(ctx, "bad rows in the ready index", "error", bad)
	}
	out := page{hints: make([]entry, len(hints))}
	for i := range hints {
		out.hints[i] = entry{hint: hints[i], row: hints[i].Row()}
	}
	if n := len(hints); more && n > 0 {
		out.next = out.hints[n-1].row + "\x00"
		if hints[0].TenantID == hints[n-1].TenantID {
			out.cut = hints[0].TenantID
		}
	}
	return out, nil
}

// tenantPrefix is the part of a hint's row that all hints of its tenant share.
func tenantPrefix(tenant string) string { return tablestore.Join(tenant) + ":" }

// begin begins a read: a hint that is added to a backlog from now on may be missed by
// it.
func (m *Mirror) begin(r *read) {
	if r.what != readTenant || r.from == "" {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stream(r.stream).tenant(r.tenant).skipped = ""
}

// cataloged takes the kinds over that were ever queued. Processes begin at
// different shards. Now and then it drops the queues of tenants without work.
func (m *Mirror) cataloged(kinds []ledger.WorkKind, shards, first int, began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, kind := range kinds {
		for n := range shards {
			m.stream(streamKey{kind, (first + n) % shards})
		}
	}
	m.catalog = began
	if began.Sub(m.pruned) < pruneInterval {
		return
	}
	m.pruned = began
	for _, s := range m.order {
		for name, t := range s.tenants {
			if t.idle() && !t.inTurn && began.Sub(t.headRead) >= pruneInterval {
				delete(s.tenants, name)
			}
		}
	}
}

// swept notes where a sweep over the heads of a stream goes on, and at its end when
// it began.
func (m *Mirror) swept(key streamKey, resume string, began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stream(key)
	s.resume = resume
	if resume == "" {
		s.swept = began
	}
}

// merge puts a page in. What is known, inside or away, stays as it is.
func (m *Mirror) merge(r *read, p page) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stream(r.stream)
	tail := r.what == readTenant && r.from != ""
	switch t := s.tenants[r.tenant]; {
	case tail && t.more && t.from == r.from: // Else it was left from an earlier row since.
		t.readOn(p.next, time.Since(r.began))
	case r.what == readTenant && r.from == "":
		s.tenant(r.tenant).headRead = r.began
	}
	held := true
	for _, e := range p.hints {
		t := s.tenant(e.hint.TenantID)
		m.add(t, e)
		held = held && t.away[e.row] == placeParked
	}
	if tail || p.cut == "" {
		return
	}
	t := s.tenant(p.cut)
	if held && time.Since(t.walked) < max(rereadInterval, walkShare*t.walk) {
		return
	}
	t.leave(p.next)
	t.whole = true
	s.enter(t)
}

// readOn says that the queue was read on to next, or to its end if that is empty.
func (t *tenantQueue) readOn(next string, took time.Duration) {
	t.walk += took
	if t.skipped != "" && (next == "" || t.skipped < next) {
		next = t.skipped // It came after the read began, perhaps.
	}
	t.from, t.more = next, next != ""
	if !t.more && t.whole {
		t.walked = time.Now()
	}
}

// Count makes the counts those of the whole index. It is called once, before the
// first claim and the first commit.
func (q *Queue) Count(ctx context.Context) error {
	kinds, err := q.ledger.WorkKinds(ctx)
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		for shard := range q.ledger.ReadyShards() {
			for from, n := "", 0; ; {
				page, err := q.hints(ctx, streamKey{kind, shard}, from, "", q.mirror.sizes.tail)
				if err != nil {
					return err
				}
				if n += len(page.hints); page.next == "" {
					q.mirror.count(kind, n)
					break
				}
				from = page.next
			}
		}
	}
	return nil
}
