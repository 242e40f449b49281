package workqueue

import (
	"context"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Take picks the hints whose items a claim would claim.
func (q *Queue) Take(ctx context.Context, r ClaimRequest) ([]ledger.Hint, error) {
	c := q.newClaim(ctx, &r)
	return q.take(ctx, c, r.Max, time.Now())
}

// WithoutLease removes the lease id from a directive.
var WithoutLease = withoutLease

// SetSizes makes the reads small: of the head of each tenant, of a sweep, and of a
// tail when fewer than low are inside.
func (m *Mirror) SetSizes(head, sweep, tail, low int) {
	m.sizes = sizes{head: head, sweep: sweep, tail: tail, low: low}
}

// Settle, PutBack and SetAside end the pick of a hint.
func (m *Mirror) Settle(hint ledger.Hint)                { m.settle(&hint) }
func (m *Mirror) PutBack(hint ledger.Hint)               { m.putBack(&hint) }
func (m *Mirror) SetAside(hint ledger.Hint, failed bool) { m.setAside(&hint, asideFor, failed) }

// Inside is how many hints are ready to be picked and kept back, and of how many
// tenants there are queues.
func (m *Mirror) Inside() (inside, kept, tenants int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.order {
		tenants += len(s.tenants)
		for _, t := range s.tenants {
			inside += len(t.hints)
			kept += len(t.aside)
			for _, p := range t.parked {
				kept += len(p.hints)
			}
		}
	}
	if inside != m.inside || kept != m.kept {
		panic("the mirror has lost count")
	}
	return inside, kept, tenants
}

// Parked is a claim that waits for work, without its goroutine.
type Parked struct{ w *waiter }

// Park begins the wait of a claim.
func (q *Queue) Park(ctx context.Context, r ClaimRequest) (p *Parked, leave func()) {
	w, leave := q.mirror.wait(q.newClaim(ctx, &r))
	w.park()
	return &Parked{w}, leave
}

// Signal receives the wake-up of the claim, right after its wait.
func (p *Parked) Signal() { <-p.w.signal }

// Unpark ends the wait.
func (p *Parked) Unpark() *ledger.Claimed { return p.w.unpark() }
