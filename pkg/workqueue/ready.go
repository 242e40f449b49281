package workqueue

import (
	"slices"
	"sync"
)

// kind is what workers choose work by.
type kind struct{ service, stepType string }

// ready mirrors in memory which items may be claimed, so that claims neither
// scan nor race each other within the process. It is a hint: only the item's
// row and the ledger say whether an item can be had. No method blocks.
type ready struct {
	mu      sync.Mutex
	limit   int
	kinds   map[kind]*tenants
	order   []kind
	known   map[string]bool // inside, or picked and not yet settled
	missed  bool            // something did not fit: a scan will find it
	waiting []*waiter
}

// tenants is the ready work of one kind, in turns.
type tenants struct {
	queues map[string][]ref
	order  []string
}

// waiter is a claim that waits for work.
type waiter struct {
	filter Filter
	signal chan struct{}
}

func newReady(limit int) *ready {
	return &ready{limit: limit, kinds: map[kind]*tenants{}, known: map[string]bool{}}
}

// add puts an item in, unless it is known, and wakes a claim that can use it.
func (r *ready) add(item ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[item.workID] {
		return
	}
	if len(r.known) >= r.limit || r.waitingFor(item) >= max(r.limit/8, 1) {
		r.missed = true
		return
	}
	r.known[item.workID] = true
	r.push(item)
}

// waitingFor is how many items of the item's tenant and kind are inside: one
// tenant's backlog must not fill the mirror.
func (r *ready) waitingFor(item ref) int {
	if t := r.kinds[item.kind]; t != nil {
		return len(t.queues[item.tenant])
	}
	return 0
}

// push puts an item into its tenant's queue by its age: items of another
// process are found later than they were enqueued.
func (r *ready) push(item ref) {
	t := r.kinds[item.kind]
	if t == nil {
		t = &tenants{queues: map[string][]ref{}}
		r.kinds[item.kind] = t
		r.order = append(r.order, item.kind)
	}
	queue := t.queues[item.tenant]
	if len(queue) == 0 {
		t.order = append(t.order, item.tenant)
	}
	at := len(queue)
	for at > 0 && queue[at-1].since.After(item.since) {
		at--
	}
	t.queues[item.tenant] = slices.Insert(queue, at, item)
	r.wake(func(f *Filter) bool { return f.matches(item.kind) && f.admits(item.tenant) })
}

// wake tells the first waiting claim whose filter fits.
func (r *ready) wake(fits func(*Filter) bool) {
	for _, w := range r.waiting {
		if !fits(&w.filter) {
			continue
		}
		select {
		case w.signal <- struct{}{}:
			return
		default:
		}
	}
}

// pick takes up to limit items out, in turns over the tenants, oldest first
// within one. Each is to be settled or put back.
func (r *ready) pick(filter *Filter, limit int) []ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	var picked []ref
	for i := 0; i < len(r.order) && len(picked) < limit; i++ {
		k := r.order[i]
		if filter.matches(k) {
			picked = r.kinds[k].take(picked, limit, filter)
		}
	}
	if len(picked) > 0 && len(r.order) > 1 { // The next claim begins with another kind.
		r.order = append(r.order[1:], r.order[0])
	}
	return picked
}

// take takes one item of each tenant in turn. Tenants that the filter leaves
// out keep their turn.
func (t *tenants) take(picked []ref, limit int, filter *Filter) []ref {
	var passed []string
	for len(picked) < limit && len(t.order) > 0 {
		tenant := t.order[0]
		t.order = t.order[1:]
		if !filter.admits(tenant) {
			passed = append(passed, tenant)
			continue
		}
		queue := t.queues[tenant]
		picked = append(picked, queue[0])
		if len(queue) == 1 {
			delete(t.queues, tenant)
			continue
		}
		t.queues[tenant] = queue[1:]
		t.order = append(t.order, tenant)
	}
	if len(passed) > 0 {
		t.order = append(passed, t.order...)
	}
	return picked
}

// serves reports whether there is work that the filter admits.
func (t *tenants) serves(filter *Filter) bool {
	return slices.ContainsFunc(t.order, filter.admits)
}

// settle forgets a picked item.
func (r *ready) settle(item ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, item.workID)
}

// putBack returns a picked item to its place.
func (r *ready) putBack(item ref) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.push(item)
}

// wait registers a claim; leave ends that, and hands a wake-up that came too
// late for it to the next.
func (r *ready) wait(filter Filter) (signal <-chan struct{}, leave func()) {
	w := &waiter{filter: filter, signal: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, w)
	return w.signal, func() { r.leave(w) }
}

func (r *ready) leave(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(other *waiter) bool { return other == w })
	for _, k := range r.order {
		if t := r.kinds[k]; len(t.order) > 0 {
			r.wake(func(f *Filter) bool { return f.matches(k) && t.serves(f) })
		}
	}
}

// overflowed reports, once, that something did not fit and may fit now.
func (r *ready) overflowed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.missed || len(r.known) > r.limit/2 {
		return false
	}
	r.missed = false
	return true
}

// size is the number of items that may be picked, by service.
func (r *ready) size() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	sizes := map[string]int{}
	for k, t := range r.kinds {
		for _, queue := range t.queues {
			sizes[k.service] += len(queue)
		}
	}
	return sizes
}
