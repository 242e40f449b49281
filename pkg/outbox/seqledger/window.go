package seqledger

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Config configures a window.
type Config struct {
	// LeaseDuration is how long a lease lives after its last heartbeat.
	// Required.
	//
	// Source: Stage1 seq ledger spec, Lease Ownership, leaseExpiresMs.
	LeaseDuration time.Duration
	// Window is how many seqs may be open at a time: taken up and not yet
	// COMMITTED. Required.
	Window int
	// Retry is the retry guard. Optional. Defaults to no retries.
	Retry Policy
	// Fatal is called with the illegal transition that halts the window, at
	// most once, by the goroutine that tried it and without any lock held. In
	// production it logs the facts and exits the process with a non-zero code.
	// Required.
	Fatal func(*IllegalTransitionError)
}

// Window is the state of all seqs of one process. It is safe for concurrent
// use; every method is one atomic step.
type Window struct {
	cfg Config

	mu sync.Mutex // Guards all below.
	// invariant: 1 ≤ seq < next ⇒ seq ∈ open, or seq is COMMITTED.
	open map[Seq]*entry
	next Seq
	// counts is the number of seqs in each state except Unseen.
	counts [states]uint64
	// leases are those in flight. All have one duration.
	// invariant: by heartbeat, oldest first, and so by expiry.
	leases list.List
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

// Lease is the right to work on one attempt of one seq. It comes from Begin,
// belongs to the owner, and may be used from several goroutines.
//
// Source: Stage1 seq ledger spec, Lease Ownership.
type Lease struct {
	seq     Seq
	attempt int
	owner   string

	// The window's mutex guards the fields below.

	// lost says that the lease was taken away and not finished.
	lost      bool
	heartbeat time.Time
	place     *list.Element // in Window.leases
}

// New returns an empty window.
func New(cfg Config) *Window {
	return &Window{cfg: cfg, open: make(map[Seq]*entry), next: 1}
}

// Counters counts the seqs in each state at one moment.
//
// Source: Stage1 seq ledger spec, Constant-Time Counters.
type Counters struct {
	Dispatched uint64
	InFlight   uint64
	// Terminal is the four TERMINAL_* states together.
	Terminal uint64
	// Committed never decreases.
	Committed uint64
}

// Counters returns the counters, for gauges and back-pressure. It takes
// constant time and works on a halted window.
func (w *Window) Counters() Counters {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Counters{
		Dispatched: w.counts[Dispatched],
		InFlight:   w.counts[InFlight],
		Terminal: w.counts[TerminalSuccess] + w.counts[TerminalSkip] +
			w.counts[TerminalFail] + w.counts[TerminalCancel],
		Committed: w.counts[Committed],
	}
}

// ErrWindowFull is returned by Take when Config.Window seqs are open. The
// caller takes up no more rows until some are committed.
var ErrWindowFull = errors.New("seq ledger window is full")

// Take returns the next seq, in DISPATCHED and with its first attempt, or
// ErrWindowFull or ErrHalted.
func (w *Window) Take(now time.Time) (Seq, error) {
	return atomically(w, now, func() (Seq, error) {
		if len(w.open) >= w.cfg.Window {
			return 0, ErrWindowFull
		}
		e := &entry{seq: w.next, state: Unseen, attempts: 1}
		if err := w.move(e, Dispatched, "", now); err != nil {
			return 0, err
		}
		w.open[e.seq] = e
		w.next++
		return e.seq, nil
	})
}

// Begin moves a DISPATCHED seq to IN_FLIGHT under a new lease of the owner,
// whose token must not be empty. It returns ErrHalted, or an
// *IllegalTransitionError from any other state or without an owner.
//
// Source: Stage1 seq ledger spec, Lease Ownership, rule 1.
func (w *Window) Begin(seq Seq, owner string, now time.Time) (*Lease, error) {
	return atomically(w, now, func() (*Lease, error) {
		e := w.lookup(seq)
		if owner == "" {
			return nil, w.refuse(e, InFlight, owner, now, "entering IN_FLIGHT needs an owner")
		}
		if err := w.move(e, InFlight, owner, now); err != nil {
			return nil, err
		}
		e.owner = owner
		e.lease = &Lease{seq: seq, attempt: e.attempts, owner: owner, heartbeat: w.clock}
		e.lease.place = w.leases.PushBack(e.lease)
		return e.lease, nil
	})
}

// Heartbeat extends the lease to Config.LeaseDuration from now. It reports
// whether the lease is still held; an expired lease is held until Reclaim takes
// it. A heartbeat is not a transition and never fatal. It returns ErrHalted.
//
// Source: Stage1 seq ledger spec, Lease Ownership, rule 2.
func (w *Window) Heartbeat(lease *Lease, now time.Time) (held bool, err error) {
	return atomically(w, now, func() (bool, error) {
		if w.lookup(lease.seq).lease != lease {
			return false, nil
		}
		lease.heartbeat = w.clock
		w.leases.MoveToBack(lease.place)
		return true, nil
	})
}

// Finish ends the attempt with one of the four TERMINAL_* states. It reports
// whether the lease was still held: if not, it was taken away, nothing changes,
// and the caller must drop the outcome. It returns ErrHalted, or an
// *IllegalTransitionError for an outcome that is not a terminal state or a
// lease that was already finished.
//
// Source: Stage1 seq ledger spec, Atomicity, rule 2.
func (w *Window) Finish(lease *Lease, outcome State, now time.Time) (held bool, err error) {
	return atomically(w, now, func() (bool, error) {
		if lease.lost {
			return false, nil
		}
		e := w.lookup(lease.seq)
		if e.lease != lease {
			reason := fmt.Sprintf("second terminal event of attempt %d", lease.attempt)
			return false, w.refuse(e, outcome, lease.owner, now, reason)
		}
		if err := w.move(e, outcome, lease.owner, now); err != nil {
			return false, err
		}
		w.release(e, false)
		return true, nil
	})
}

// Cancel abandons a seq: DISPATCHED to TERMINAL_CANCEL before its work began,
// or IN_FLIGHT to TERMINAL_CANCEL by force, which takes the lease away. It
// returns ErrHalted, or an *IllegalTransitionError from any other state.
func (w *Window) Cancel(seq Seq, now time.Time) error {
	_, err := atomically(w, now, func() (struct{}, error) {
		e := w.lookup(seq)
		err := w.move(e, TerminalCancel, e.owner, now)
		if err == nil && e.lease != nil {
			w.release(e, true)
		}
		return struct{}{}, err
	})
	return err
}

// Retry asks for another attempt of a seq in TERMINAL_FAIL. If the class is
// retryable and attempts are left, the seq is DISPATCHED again with one
// attempt more, and retried is true; otherwise it stays in TERMINAL_FAIL. It
// returns ErrHalted, or an *IllegalTransitionError from any other state.
//
// Source: Stage1 seq ledger spec, Retry Guard.
func (w *Window) Retry(seq Seq, class Class, now time.Time) (retried bool, err error) {
	return atomically(w, now, func() (bool, error) {
		return w.retry(w.lookup(seq), class, now)
	})
}

func (w *Window) retry(e *entry, class Class, now time.Time) (bool, error) {
	// The table alone would allow an UNSEEN seq.
	if e.state != TerminalFail {
		return false, w.refuse(e, Dispatched, e.owner, now, "a retry starts from TERMINAL_FAIL only")
	}
	if !w.cfg.Retry.Allows(class, e.attempts) {
		return false, nil
	}
	if err := w.move(e, Dispatched, e.owner, now); err != nil {
		return false, err
	}
	e.attempts++
	return true, nil
}

// Commit moves a seq from a TERMINAL_* state to COMMITTED, and out of the
// window. It reports whether this call did so: committing a COMMITTED seq again
// changes nothing. It returns ErrHalted, or an *IllegalTransitionError from any
// other state.
//
// Source: Stage1 seq ledger spec, Atomicity, rule 3.
func (w *Window) Commit(seq Seq, now time.Time) (changed bool, err error) {
	return atomically(w, now, func() (bool, error) {
		e := w.lookup(seq)
		if e.state == Committed {
			return false, nil
		}
		if err := w.move(e, Committed, e.owner, now); err != nil {
			return false, err
		}
		delete(w.open, seq)
		return true, nil
	})
}

// Reclaimed is an expired lease that was taken away.
type Reclaimed struct {
	Seq Seq
	// Owner is the token of the owner that lost the lease.
	Owner string
	// Attempt is the number of the failed attempt.
	Attempt int
	// Retried says that the seq is DISPATCHED again, with the next attempt, and
	// waits for a new owner. Otherwise it is in TERMINAL_FAIL, and the caller
	// commits it.
	Retried bool
}

// Reclaim takes away every lease without a heartbeat for Config.LeaseDuration.
// Each seq goes from IN_FLIGHT to TERMINAL_FAIL, and on to DISPATCHED if the
// retry guard allows it for the class LeaseExpired. The result is ordered by
// the last heartbeat, oldest first, and depends only on the calls so far and
// their times. It costs O(leases expired). It returns ErrHalted.
//
// Source: Stage1 seq ledger spec, Lease Ownership, rules 3 and 4.
func (w *Window) Reclaim(now time.Time) ([]Reclaimed, error) {
	return atomically(w, now, func() ([]Reclaimed, error) {
		var reclaimed []Reclaimed
		for w.leases.Len() > 0 {
			lease := w.leases.Front().Value.(*Lease)
			if w.clock.Before(lease.heartbeat.Add(w.cfg.LeaseDuration)) {
				break
			}
			e := w.lookup(lease.seq)
			if err := w.move(e, TerminalFail, lease.owner, now); err != nil {
				return reclaimed, err
			}
			w.release(e, true)
			retried, err := w.retry(e, LeaseExpired, now)
			if err != nil {
				return reclaimed, err
			}
			reclaimed = append(reclaimed, Reclaimed{Seq: e.seq, Owner: lease.owner, Attempt: lease.attempt, Retried: retried})
		}
		return reclaimed, nil
	})
}

// atomically runs one change under the mutex, unless the window is halted. If the
// change halts it, the hook is called afterwards, without the mutex.
func atomically[T any](w *Window, now time.Time, change func() (T, error)) (result T, err error) {
	var illegal *IllegalTransitionError // halted the window in this change
	defer func() {
		if illegal != nil {
			w.cfg.Fatal(illegal)
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	if halted := w.halted; halted != nil {
		return result, fmt.Errorf("%w: %w", ErrHalted, halted)
	}
	if now.After(w.clock) {
		w.clock = now
	}
	result, err = change()
	illegal = w.halted
	return result, err
}

// lookup returns the entry of any seq. For a seq outside the window it is a
// temporary one.
func (w *Window) lookup(seq Seq) *entry {
	if e, ok := w.open[seq]; ok {
		return e
	}
	if seq > 0 && seq < w.next {
		return &entry{seq: seq, state: Committed}
	}
	return &entry{seq: seq, state: Unseen}
}

// move changes the state; no other function does.
func (w *Window) move(e *entry, to State, owner string, now time.Time) error {
	if !Legal(e.state, to) {
		return w.refuse(e, to, owner, now, "not in the transition table")
	}
	if e.state != Unseen {
		w.counts[e.state]--
	}
	w.counts[to]++
	e.state = to
	return nil
}

// refuse halts the window and returns the illegal transition.
func (w *Window) refuse(e *entry, to State, owner string, now time.Time, reason string) error {
	w.halted = &IllegalTransitionError{
		Seq:    e.seq,
		From:   e.state,
		To:     to,
		Owner:  owner,
		At:     now.Round(0), // A wall-clock time, without the monotonic reading.
		Reason: reason,
	}
	return w.halted
}

// release ends the entry's lease. lost says that it was taken from its owner,
// which learns of it at its next call.
func (w *Window) release(e *entry, lost bool) {
	w.leases.Remove(e.lease.place)
	e.lease.lost = lost
	e.lease = nil
}
