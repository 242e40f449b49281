package seqledger

import (
	"slices"
	"time"
)

// Move tries any move, so that tests reach the pairs for which the window has
// no method.
func (w *Window) Move(seq Seq, to State, owner string, now time.Time) error {
	_, err := atomically(w, now, func() (struct{}, error) {
		return struct{}{}, w.move(w.lookup(seq), to, owner, now)
	})
	return err
}

// Transitions is the table of legal moves.
func Transitions() []transition { return slices.Clone(transitions[:]) }

// Open returns how many seqs are in the window.
func (c Counters) Open() uint64 { return c.Dispatched + c.InFlight + c.Terminal }

// Seq, Attempt and Owner show what the lease is for.
func (l *Lease) Seq() Seq      { return l.seq }
func (l *Lease) Attempt() int  { return l.attempt }
func (l *Lease) Owner() string { return l.owner }

// Status is what the window knows about one seq. UNSEEN and COMMITTED seqs have
// only a state; only seqs IN_FLIGHT have the times of a lease.
type Status struct {
	State     State
	Attempts  int
	Owner     string
	Heartbeat time.Time
	ExpiresAt time.Time
}

// Inspect returns the status of any seq.
func (w *Window) Inspect(seq Seq) Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.lookup(seq)
	status := Status{State: e.state, Attempts: e.attempts, Owner: e.owner}
	if e.lease != nil {
		status.Heartbeat = e.lease.heartbeat
		status.ExpiresAt = e.lease.heartbeat.Add(w.cfg.LeaseDuration)
	}
	return status
}
