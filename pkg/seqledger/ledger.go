package seqledger

import (
	"fmt"
	"sync"
	"time"
)

// Ledger is the state of all seqs of one process. It is safe for concurrent
// use; every method is one atomic step.
type Ledger struct {
	cfg Config

	mu sync.Mutex
	// invariant: 1 ≤ seq < next ⇒ seq ∈ open, or seq is COMMITTED.
	open map[Seq]*entry
	next Seq
	// counts is the number of seqs in each state except Unseen.
	counts [states]uint64
	leases leaseQueue
	clock  time.Time
	// halted is the first illegal transition, if there was one.
	halted *IllegalTransitionError
}

// entry is one open seq.
type entry struct {
	seq      Seq
	state    State
	attempts int
	// owner is the last owner.
	owner string
	// invariant: lease ≠ nil ⇔ state = IN_FLIGHT.
	lease *Lease
}

// New returns an empty ledger, or the error of [Config.Validate].
func New(cfg Config) (*Ledger, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("seq ledger config: %w", err)
	}
	if cfg.Window == 0 {
		cfg.Window = DefaultWindow
	}
	return &Ledger{cfg: cfg, open: make(map[Seq]*entry), next: 1}, nil
}

// atomically runs one change under the mutex, and calls the hook afterwards if
// the change halted the ledger.
func atomically[T any](l *Ledger, now time.Time, change func() (T, error)) (T, error) {
	result, illegal, err := locked(l, now, change)
	if illegal != nil {
		l.cfg.Fatal(illegal)
	}
	return result, err
}

// locked runs the change unless the ledger is halted. It returns the illegal
// transition only to the one call that tried it.
func locked[T any](l *Ledger, now time.Time, change func() (T, error)) (result T, illegal *IllegalTransitionError, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.halted != nil {
		return result, nil, fmt.Errorf("%w: %w", ErrHalted, l.halted)
	}
	if now.After(l.clock) {
		l.clock = now
	}
	result, err = change()
	return result, l.halted, err
}

// lookup returns the entry of any seq. For a seq outside the window it is a
// temporary one.
func (l *Ledger) lookup(seq Seq) *entry {
	if e, ok := l.open[seq]; ok {
		return e
	}
	if seq > 0 && seq < l.next {
		return &entry{seq: seq, state: Committed}
	}
	return &entry{seq: seq, state: Unseen}
}

// move changes the state; no other function does.
func (l *Ledger) move(e *entry, to State, owner string, now time.Time) error {
	if !Legal(e.state, to) {
		return l.refuse(e, to, owner, now, "not in the transition table")
	}
	if e.state != Unseen {
		l.counts[e.state]--
	}
	l.counts[to]++
	e.state = to
	return nil
}

// refuse halts the ledger and returns the illegal transition.
func (l *Ledger) refuse(e *entry, to State, owner string, now time.Time, reason string) error {
	l.halted = &IllegalTransitionError{
		Seq:    e.seq,
		From:   e.state,
		To:     to,
		Owner:  owner,
		At:     now.Round(0), // A wall-clock time, without the monotonic reading.
		Reason: reason,
	}
	return l.halted
}

// release ends the entry's lease. lost says that it was taken from its owner,
// which learns of it at its next call.
func (l *Ledger) release(e *entry, lost bool) {
	l.leases.remove(e.lease)
	e.lease.lost = lost
	e.lease = nil
}
