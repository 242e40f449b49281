package workqueue

import (
	"context"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// What is read of the index, the first that is due first:
//
//	catalog ──▶ heads of all tenants ──▶ head of one tenant ──▶ tail of a backlog
//	kinds       head hints each; a       that a claim names,    when fewer than low of its
//	            sweep resumes where its  or was told of         hints are inside
//	            budget ended
//
// One claim reads at a time, and holds m.reader until it has picked; others pick what it brings.
// So no tenant has a second page read before each has its first.

const (
	// pollInterval is how often claims look for items that another process queued.
	pollInterval = time.Second
	// rereadInterval is how often they look if there is no other process.
	rereadInterval = 5 * time.Second
	// A backlog whose head is held back is read to its end again after walkShare times
	// the duration of the last such walk.
	walkShare = 4
	// maxNamed bounds the tenants of a claim whose heads are read one by one.
	maxNamed = 32
	// pruneInterval is how often the queues of tenants without work are dropped.
	pruneInterval = time.Minute
)

// sizes are how many hints are read.
type sizes struct {
	// A sweep reads the first head hints of each tenant, so that one tenant's backlog
	// hides no other's, and at most sweep in all before claims continue.
	head, sweep int
	// tail is how much of one tenant's backlog is read at once, when fewer than low of
	// the tenant's hints are inside.
	tail, low int
}

// take picks up to limit hints for the claim. It reads the index until it has that many or
// has read all of it. Items that other processes queued after fresh are certain to be found
// only if there are no others.
func (q *Queue) take(ctx context.Context, c *claim, limit int, fresh time.Time) ([]ledger.Hint, error) {
	began := time.Now()
	stale := q.stale(began)
	if q.ledger.Exclusive() {
		fresh = stale
	}
	reader := q.awaitTokens(ctx, c, limit, q.reread(ctx, c, stale))
	defer func() {
		if reader {
			q.mirror.endRead()
		}
	}()
	var picked []ledger.Hint
	for {
		picked = append(picked, q.mirror.pick(c, limit-len(picked), began, stale)...)
		if len(picked) >= limit {
			return picked, nil
		}
		if len(picked) > 0 {
			fresh = stale
		}
		due := q.mirror.nextRead(c, fresh, true)
		switch {
		case due == nil && len(picked) == 0:
			return q.mirror.pickFailed(c, limit), nil
		case due == nil:
			return picked, nil
		case !reader: // Another claim's read may bring enough.
			select {
			case q.mirror.reader <- struct{}{}:
			case <-ctx.Done():
				return picked, nil
			}
			reader = true
			continue
		}
		err := due.do(ctx, q)
		if err != nil && len(picked) == 0 {
			return nil, err
		}
		if err != nil {
			q.logger.WarnContext(ctx, "ready index not read further", "error", err)
			return picked, nil
		}
	}
}

// leaseWait bounds how long a claim waits for tokens before it takes other work.
const leaseWait = 250 * time.Millisecond

// awaitTokens waits for the tokens that the first queues for the claim lack and that can be leased now: if the
// claim were given other work, they would lapse before its worker asks again, each time. reader says that the
// claim holds the reader permit. It gives the permit up before it waits, so that others can read meanwhile, and
// returns whether it still holds it.
func (q *Queue) awaitTokens(ctx context.Context, c *claim, places int, reader bool) (holds bool) {
	var over <-chan time.Time
	for {
		leased := q.limits.Leased()
		if leased == nil || !q.mirror.lacks(c, places) {
			return reader
		}
		if over == nil {
			over = time.After(leaseWait)
		}
		if reader {
			q.mirror.endRead()
			reader = false
		}
		select {
		case <-leased:
		case <-over:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// stale returns the time before which heads must have been read to be read again.
func (q *Queue) stale(now time.Time) time.Time {
	if q.ledger.Exclusive() { // The ledger tells the mirror of every hint.
		return now.Add(-rereadInterval)
	}
	return now.Add(-q.poll)
}

// reread reads again the heads that were last read before stale: another process may have
// committed a hint that is older than those inside. It does not wait for another claim's
// read, and stops after a sweep that spent its budget. reader says that the claim holds the
// reader permit. It keeps the permit until it has picked or waits for tokens, so that the next claim finds the
// hints that it leaves. Last, it reads one backlog of bulk work that runs short: claims that find
// enough normal work read no further, and bulk work is to get its share next to that.
func (q *Queue) reread(ctx context.Context, c *claim, stale time.Time) (reader bool) {
	select {
	case q.mirror.reader <- struct{}{}:
	default:
		return false
	}
	for {
		due := q.mirror.nextRead(c, stale, false)
		last := due == nil
		if last {
			due = q.mirror.nextBulkTail(c)
		}
		if due == nil {
			return true
		}
		if err := due.do(ctx, q); err != nil {
			q.logger.WarnContext(ctx, "ready index not read again", "error", err)
			return true
		}
		if last || due.what == readHeads && !due.whole {
			return true
		}
	}
}

// endRead lets the claim that has waited longest read.
func (m *Mirror) endRead() { <-m.reader }

// read is one read of the index.
type read struct {
	what   what
	stream streamKey
	tenant string // empty for all tenants' heads
	from   string // empty for a tenant's head
	limit  int
	began  time.Time
	whole  bool // a sweep read all heads
}

type what uint8

const (
	readCatalog what = iota
	readHeads
	readTenant
)

// nextRead returns what a claim that needs more hints must read next, nil if nothing.
// First come the catalog, the heads of the streams, and those of the tenants that the
// claim names, if they were last read before fresh: no tenant has a second page read
// before each has its first. Then come, if tails says so, backlogs of which few hints
// are left inside. Bulk work is read after normal work. Only the claim that holds the reader permit
// carries it out.
func (m *Mirror) nextRead(c *claim, fresh time.Time, tails bool) *read {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := m.due(c, fresh, tails, statemachine.ClassNormal)
	if due == nil && len(m.shares) > 0 {
		due = m.due(c, fresh, tails, statemachine.ClassBulk)
	}
	return due
}

// nextBulkTail returns the read of a backlog of bulk work, nil if none is due.
func (m *Mirror) nextBulkTail(c *claim) *read {
	m.mu.Lock()
	defer m.mu.Unlock()
	due := &read{began: time.Now()}
	if len(m.shares) > 0 && m.nextTail(c, due, statemachine.ClassBulk) {
		return due
	}
	return nil
}

// due is nextRead for one class. The lock is held.
func (m *Mirror) due(c *claim, fresh time.Time, tails bool, class statemachine.Class) *read {
	due := &read{began: time.Now()}
	if m.catalog.Before(fresh) {
		return due
	}
	named, all := c.tenants()
	for _, s := range m.order {
		switch due.stream = s.streamKey; {
		case s.class != class || !c.wants(s.kind):
		case s.nextTold(c, due):
			due.what, due.limit = readTenant, m.sizes.head
			return due
		case all || len(named) > maxNamed:
			if s.resume != "" || s.swept.Before(fresh) {
				due.what, due.from = readHeads, s.resume
				return due
			}
		case s.swept.Before(fresh):
			for _, tenant := range named {
				if s.tenant(tenant).headRead.Before(fresh) {
					due.what, due.tenant, due.limit = readTenant, tenant, m.sizes.head
					return due
				}
			}
		}
	}
	if tails && m.nextTail(c, due, class) {
		return due
	}
	return nil
}

// nextTold fills in a tenant that the claim admits and for whom another process queued an
// item.
func (s *stream) nextTold(c *claim, due *read) bool {
	for tenant := range s.told {
		if c.admits(tenant) {
			due.tenant = tenant
			return true
		}
	}
	return false
}

// nextTail fills in the first backlog of which few hints are left inside, and returns
// false if there is none. The lock is held.
func (m *Mirror) nextTail(c *claim, due *read, class statemachine.Class) bool {
	low, tail := m.sizes.low, m.sizes.tail
	if m.inside >= m.limit {
		tail = m.room()
		low = min(low, tail)
	}
	for _, s := range m.order {
		if s.class != class || !c.wants(s.kind) {
			continue
		}
		for _, t := range s.queues(c) {
			if !t.more || len(t.hints) >= low || !c.admits(t.tenant) ||
				!c.q.limits.Leasable(s.kind.Service, s.kind.StepType, t.tenant) {
				continue
			}
			due.what, due.stream, due.tenant, due.from, due.limit = readTenant, s.streamKey, t.tenant, t.from, tail
			return true
		}
	}
	return false
}

// do reads, and adds the hints to the mirror.
func (r *read) do(ctx context.Context, q *Queue) error {
	m := q.mirror
	switch r.what {
	case readCatalog:
		work, bad, err := q.ledger.WorkClasses(ctx)
		if bad != nil {
			q.logger.WarnContext(ctx, "bad rows in the catalog of the pull queue", "error", bad)
		}
		if err == nil {
			m.addWork(work, q.ledger.ReadyShards(), q.firstShard, r.began)
		}
		return err
	case readHeads:
		return r.heads(ctx, q)
	case readTenant:
	}
	m.mu.Lock()
	if s := m.stream(r.stream); r.from == "" {
		delete(s.told, r.tenant) // Items queued from now on are told again.
	} else {
		s.tenant(r.tenant).skipped = "" // The read may miss hints that are added to the backlog from now on.
	}
	m.mu.Unlock()
	prefix := tenantPrefix(r.tenant)
	page, err := q.hints(ctx, r.stream, max(r.from, prefix), tablestore.PrefixEnd(prefix), r.limit)
	if err == nil {
		m.merge(r, page)
	}
	return err
}

// heads skips from tenant to tenant and reads the head of each, until the budget of
// a sweep is spent or all were read.
func (r *read) heads(ctx context.Context, q *Queue) error {
	m := q.mirror
	for left := m.sizes.sweep; left > 0 && !r.whole; {
		page, err := q.hints(ctx, r.stream, r.from, "", m.sizes.head)
		if err != nil {
			return err
		}
		m.merge(r, page)
		left -= max(len(page.hints), 1)
		r.whole = page.next == ""
		if r.from = page.next; page.cut != "" {
			r.from = tablestore.PrefixEnd(tenantPrefix(page.cut))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stream(r.stream)
	if s.resume = r.from; r.whole {
		s.swept = r.began
	}
	return nil
}

// page is one page of the index.
type page struct {
	hints []entry
	next  string // where the index continues, empty at the end of the range
	cut   string // the tenant whose hints fill the whole page and continue after it
}

// hints reads one page.
func (q *Queue) hints(ctx context.Context, s streamKey, from, to string, limit int) (page, error) {
	hints, more, bad, err := q.ledger.ReadyHints(ctx, ledger.WorkClass{WorkKind: s.kind, Class: s.class}, s.shard, from, to, limit)
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

// addWork adds the streams of all work that was ever queued. Processes begin at
// different shards. Each pruneInterval it drops the queues of tenants without work.
func (m *Mirror) addWork(work []ledger.WorkClass, shards, first int, began time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, of := range work {
		for n := range shards {
			m.stream(streamKey{of.WorkKind, of.Class, (first + n) % shards})
		}
	}
	m.catalog = began
	if began.Sub(m.pruned) < pruneInterval {
		return
	}
	m.pruned = began
	for _, s := range m.order {
		s.rotation = slices.DeleteFunc(s.rotation, func(t *tenantQueue) bool {
			t.inRotation = t.hasWork()
			return !t.inRotation
		})
		for name, t := range s.tenants {
			if !t.inRotation && len(t.away) == 0 && began.Sub(t.headRead) >= pruneInterval {
				delete(s.tenants, name)
			}
		}
	}
}

// merge adds a page. Known hints, inside or away, stay as they are.
func (m *Mirror) merge(r *read, p page) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stream(r.stream)
	tail := r.what == readTenant && r.from != ""
	switch t := s.tenants[r.tenant]; {
	case tail && t.more && t.from == r.from: // Else an earlier row was left in the store since.
		next := p.next
		if t.skipped != "" && (next == "" || t.skipped < next) {
			next = t.skipped // It may have been added after the read began.
		}
		t.from, t.more = next, next != ""
		if t.walk += time.Since(r.began); !t.more && t.whole {
			t.walked = time.Now()
		}
	case r.what == readTenant && !tail:
		s.tenant(r.tenant).headRead = r.began
	}
	held := true
	for _, e := range p.hints {
		t := s.tenant(e.hint.TenantID)
		m.add(s, t, e)
		held = held && t.away[e.row] == placeParked
	}
	if tail || p.cut == "" {
		return
	}
	t := s.tenant(p.cut)
	if held && time.Since(t.walked) < max(rereadInterval, walkShare*t.walk) {
		return
	}
	t.leaveInStore(p.next)
	t.whole = true
	s.enter(t)
}
