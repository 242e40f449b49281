package seqledger

import (
	"slices"
	"time"
)

// Move tries any move, so that tests reach the pairs for which the ledger has
// no method.
func (l *Ledger) Move(seq Seq, to State, owner string, now time.Time) error {
	_, err := atomically(l, now, func() (struct{}, error) {
		return struct{}{}, l.move(l.lookup(seq), to, owner, now)
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

// Status is what the ledger knows about one seq. UNSEEN and COMMITTED seqs have
// only a state; only seqs IN_FLIGHT have the times of a lease.
type Status struct {
	State     State
	Attempts  int
	Owner     string
	Heartbeat time.Time
	ExpiresAt time.Time
}

// Inspect returns the status of any seq.
func (l *Ledger) Inspect(seq Seq) Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.lookup(seq)
	status := Status{State: e.state, Attempts: e.attempts, Owner: e.owner}
	if e.lease != nil {
		status.Heartbeat = e.lease.heartbeat
		status.ExpiresAt = e.lease.heartbeat.Add(l.cfg.LeaseDuration)
	}
	return status
}
