package workqueue

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Bounds of what is remembered of workers that poll. A further filter or owner evicts the
// least recently polled; claims in progress stay.
const (
	maxPollFilters = 256
	maxPollOwners  = 2048
)

// PollFilter is the work that a claim asks for. An empty list means all.
type PollFilter struct {
	Services  []string `json:"services,omitempty"`
	StepTypes []string `json:"step_types,omitempty"`
	Tenants   []string `json:"tenants,omitempty"`
}

// Covers reports whether a claim with the filter accepts such work.
func (f *PollFilter) Covers(kind ledger.WorkKind, tenant string) bool {
	return f.CoversKind(kind) && listed(f.Tenants, tenant)
}

// CoversKind reports whether a claim with the filter accepts work of the kind for some
// tenant.
func (f *PollFilter) CoversKind(kind ledger.WorkKind) bool {
	return listed(f.Services, kind.Service) && listed(f.StepTypes, kind.StepType)
}

// Client describes a worker's program and host, as its claims give them. All fields are optional.
type Client struct {
	Version string `json:"version,omitempty"` // of the worker's program
	Host    string `json:"host,omitempty"`
	Library string `json:"library,omitempty"` // the User-Agent of its requests
}

// Poller is a worker that polls with one filter; without Owner, all workers that do.
type Poller struct {
	PollFilter
	Client

	Owner string `json:"owner,omitempty"`
	// LastPoll is when its last claim ended; now, if one waits.
	LastPoll time.Time `json:"last_poll"`
	Waiting  bool      `json:"waiting,omitempty"`
}

// pollers remembers which owners poll for which work, in bounded memory.
type pollers struct {
	mu      sync.Mutex // Guards all below.
	since   time.Time  // earlier polls are not known
	filters map[string]*polledFilter
	owners  int      // in all filters
	others  []Poller // pollers of other processes
}

// polledFilter is a filter that claims had.
type polledFilter struct {
	PollFilter
	polled

	owners map[string]*polled
}

// polled holds the times of polls.
type polled struct {
	last    time.Time // when a claim last began or ended
	waiting int       // claims in progress
	client  Client    // of the last claim
}

// at is the time of the last poll: now, if a claim waits.
func (p *polled) at(now time.Time) time.Time {
	if p.waiting > 0 {
		return now
	}
	return p.last
}

func newPollers() *pollers {
	return &pollers{since: time.Now(), filters: map[string]*polledFilter{}}
}

// begin notes a claim that begins; the returned function notes its end.
func (p *pollers) begin(r *ClaimRequest, caller *Caller) (end func()) {
	services, someService := both(r.Services, caller.Services)
	tenants, someTenant := both(r.Tenants, caller.Tenants)
	if !someService || !someTenant {
		return func() {} // The caller may not see any of the work that it asks for.
	}
	f := PollFilter{Services: services, StepTypes: r.StepTypes, Tenants: tenants}
	key := strings.Join([]string{
		strings.Join(f.Services, "\x00"), strings.Join(f.StepTypes, "\x00"), strings.Join(f.Tenants, "\x00"),
	}, "\x01")
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	filter := p.filters[key]
	if filter == nil {
		if len(p.filters) >= maxPollFilters {
			p.owners -= dropIdle(p.filters, func(f *polledFilter) (*polled, int) { return &f.polled, len(f.owners) })
		}
		filter = &polledFilter{PollFilter: f, owners: map[string]*polled{}}
		p.filters[key] = filter
	}
	owner := filter.owners[r.Owner]
	if owner == nil {
		if p.owners >= maxPollOwners {
			for _, f := range p.filters {
				p.owners -= dropIdle(f.owners, func(o *polled) (*polled, int) { return o, 1 })
			}
		}
		owner = new(polled)
		filter.owners[r.Owner] = owner
		p.owners++
	}
	owner.client = r.Client
	for _, one := range []*polled{&filter.polled, owner} {
		one.last = now
		one.waiting++
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		now := time.Now()
		for _, one := range []*polled{&filter.polled, owner} {
			one.last = now
			one.waiting--
		}
	}
}

// both returns the intersection of two lists, and whether it is not empty. An empty list
// stands for all values.
func both(a, b []string) (list []string, some bool) {
	switch {
	case len(a) == 0:
		return b, true
	case len(b) == 0:
		return a, true
	}
	for _, value := range a {
		if slices.Contains(b, value) {
			list = append(list, value)
		}
	}
	return list, len(list) > 0
}

// dropIdle deletes the least recently polled half of the values, except those with a claim
// in progress, and returns the sum of the deleted weights.
func dropIdle[V any](all map[string]V, weigh func(V) (*polled, int)) (dropped int) {
	var idle []time.Time
	for _, value := range all {
		if one, _ := weigh(value); one.waiting == 0 {
			idle = append(idle, one.last)
		}
	}
	slices.SortFunc(idle, time.Time.Compare)
	for key, value := range all {
		if one, weight := weigh(value); one.waiting == 0 && !one.last.After(idle[len(idle)/2]) {
			dropped += weight
			delete(all, key)
		}
	}
	return dropped
}

// LastPoll returns when a worker last asked for work of that kind and tenant: now, if a
// claim for it is waiting. If ok is false, no worker has asked since the returned time, at
// which this process started. Polls of other processes become known seconds later. A worker
// asks whether or not a pause holds the work back.
func (q *Queue) LastPoll(kind ledger.WorkKind, tenant string) (at time.Time, ok bool) {
	p := q.pollers
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, f := range p.filters {
		if polled := f.at(now); f.Covers(kind, tenant) && polled.After(at) {
			at, ok = polled, true
		}
	}
	for i := range p.others {
		if one := &p.others[i]; one.Covers(kind, tenant) && one.LastPoll.After(at) {
			at, ok = one.LastPoll, true
		}
	}
	if !ok {
		return p.since, false
	}
	return at, true
}

// PolledElsewhere tells the queue of the last polls of other processes, as of
// [Queue.LastPolls]. The queue keeps the slice.
func (q *Queue) PolledElsewhere(pollers []Poller) {
	q.pollers.mu.Lock()
	defer q.pollers.mu.Unlock()
	q.pollers.others = pollers
}

// LastPolls returns the last poll of this process with each filter, the latest first, of
// at most 256 filters. It names no owners.
func (q *Queue) LastPolls() []Poller {
	p := q.pollers
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	found := make([]Poller, 0, len(p.filters))
	for _, f := range p.filters {
		found = append(found, Poller{PollFilter: f.PollFilter, LastPoll: f.at(now), Waiting: f.waiting > 0})
	}
	slices.SortFunc(found, func(a, b Poller) int { return b.LastPoll.Compare(a.LastPoll) })
	return found[:min(len(found), maxPollFilters)]
}

// Pollers returns the workers that have polled this process, the latest first.
func (q *Queue) Pollers() []Poller {
	p := q.pollers
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	found := make([]Poller, 0, p.owners)
	for _, f := range p.filters {
		for owner, polled := range f.owners {
			found = append(found, Poller{
				PollFilter: f.PollFilter, Client: polled.client, Owner: owner, LastPoll: polled.at(now), Waiting: polled.waiting > 0,
			})
		}
	}
	slices.SortFunc(found, func(a, b Poller) int {
		if order := b.LastPoll.Compare(a.LastPoll); order != 0 {
			return order
		}
		return strings.Compare(a.Owner, b.Owner)
	})
	return found
}
