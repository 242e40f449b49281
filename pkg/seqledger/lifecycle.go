package seqledger

import (
	"errors"
	"fmt"
	"time"
)

// ErrWindowFull is returned by Take when Config.Window seqs are open. The
// caller takes up no more rows until some are committed.
var ErrWindowFull = errors.New("seq ledger window is full")

// Take returns the next seq, in DISPATCHED and with its first attempt, or
// ErrWindowFull or ErrHalted.
func (l *Ledger) Take(now time.Time) (Seq, error) {
	return atomically(l, now, func() (Seq, error) {
		if len(l.open) >= l.cfg.Window {
			return 0, ErrWindowFull
		}
		e := &entry{seq: l.next, state: Unseen, attempts: 1}
		if err := l.move(e, Dispatched, "", now); err != nil {
			return 0, err
		}
		l.open[e.seq] = e
		l.next++
		return e.seq, nil
	})
}

// Begin moves a DISPATCHED seq to IN_FLIGHT under a new lease of the owner,
// whose token must not be empty. It returns ErrHalted, or an
// *IllegalTransitionError from any other state or without an owner.
//
// Source: Stage1 seq ledger spec, Lease Ownership, rule 1.
func (l *Ledger) Begin(seq Seq, owner string, now time.Time) (*Lease, error) {
	return atomically(l, now, func() (*Lease, error) {
		e := l.lookup(seq)
		if owner == "" {
			return nil, l.refuse(e, InFlight, owner, now, "entering IN_FLIGHT needs an owner")
		}
		if err := l.move(e, InFlight, owner, now); err != nil {
			return nil, err
		}
		e.owner = owner
		e.lease = &Lease{seq: seq, attempt: e.attempts, owner: owner, heartbeat: l.clock}
		l.leases.push(e.lease)
		return e.lease, nil
	})
}

// Heartbeat extends the lease to Config.LeaseDuration from now. It reports
// whether the lease is still held; an expired lease is held until Reclaim takes
// it. A heartbeat is not a transition and never fatal. It returns ErrHalted.
//
// Source: Stage1 seq ledger spec, Lease Ownership, rule 2.
func (l *Ledger) Heartbeat(lease *Lease, now time.Time) (held bool, err error) {
	return atomically(l, now, func() (bool, error) {
		if l.lookup(lease.seq).lease != lease {
			return false, nil
		}
		l.leases.remove(lease)
		lease.heartbeat = l.clock
		l.leases.push(lease)
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
func (l *Ledger) Finish(lease *Lease, outcome State, now time.Time) (held bool, err error) {
	return atomically(l, now, func() (bool, error) {
		if lease.lost {
			return false, nil
		}
		e := l.lookup(lease.seq)
		if e.lease != lease {
			reason := fmt.Sprintf("second terminal event of attempt %d", lease.attempt)
			return false, l.refuse(e, outcome, lease.owner, now, reason)
		}
		if err := l.move(e, outcome, lease.owner, now); err != nil {
			return false, err
		}
		l.release(e, false)
		return true, nil
	})
}

// Revoke cancels the attempt under a lease without its owner: IN_FLIGHT to
// TERMINAL_CANCEL. Any grace period is the caller's. It reports whether the
// lease was still held; if not, the attempt had already ended, and nothing
// changes. It returns ErrHalted.
func (l *Ledger) Revoke(lease *Lease, now time.Time) (held bool, err error) {
	return atomically(l, now, func() (bool, error) {
		e := l.lookup(lease.seq)
		if e.lease != lease {
			return false, nil
		}
		return true, l.cancel(e, now)
	})
}

// Cancel abandons a seq: DISPATCHED to TERMINAL_CANCEL before its work began,
// or IN_FLIGHT to TERMINAL_CANCEL by force, which takes the lease away. It
// returns ErrHalted, or an *IllegalTransitionError from any other state. If an
// owner may be finishing at the same time, use Revoke.
func (l *Ledger) Cancel(seq Seq, now time.Time) error {
	_, err := atomically(l, now, func() (struct{}, error) {
		return struct{}{}, l.cancel(l.lookup(seq), now)
	})
	return err
}

func (l *Ledger) cancel(e *entry, now time.Time) error {
	if err := l.move(e, TerminalCancel, e.owner, now); err != nil {
		return err
	}
	if e.lease != nil {
		l.release(e, true)
	}
	return nil
}

// Retry asks for another attempt of a seq in TERMINAL_FAIL. If the class is
// retryable and attempts are left, the seq is DISPATCHED again with one
// attempt more, and retried is true; otherwise it stays in TERMINAL_FAIL. It
// returns ErrHalted, or an *IllegalTransitionError from any other state.
//
// Source: Stage1 seq ledger spec, Retry Guard.
func (l *Ledger) Retry(seq Seq, class Class, now time.Time) (retried bool, err error) {
	return atomically(l, now, func() (bool, error) {
		return l.retry(l.lookup(seq), class, now)
	})
}

func (l *Ledger) retry(e *entry, class Class, now time.Time) (bool, error) {
	// The table alone would allow an UNSEEN seq.
	if e.state != TerminalFail {
		return false, l.refuse(e, Dispatched, e.owner, now, "a retry starts from TERMINAL_FAIL only")
	}
	if !l.cfg.Retry.Allows(class, e.attempts) {
		return false, nil
	}
	if err := l.move(e, Dispatched, e.owner, now); err != nil {
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
func (l *Ledger) Commit(seq Seq, now time.Time) (changed bool, err error) {
	return atomically(l, now, func() (bool, error) {
		e := l.lookup(seq)
		if e.state == Committed {
			return false, nil
		}
		if err := l.move(e, Committed, e.owner, now); err != nil {
			return false, err
		}
		delete(l.open, seq)
		return true, nil
	})
}
