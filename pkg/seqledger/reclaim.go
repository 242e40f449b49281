package seqledger

import "time"

// Reclaimed is an expired lease that was taken away.
type Reclaimed struct {
	Seq Seq
	// Owner is the token of the owner that lost the lease.
	Owner string
	// Attempt is the number of the failed attempt.
	Attempt int
	// Retried says that the seq is DISPATCHED again, with the next attempt, and
	// waits for a new owner. Otherwise it is in TERMINAL_FAIL, and the caller
	// settles it.
	Retried bool
}

// Reclaim takes away every lease without a heartbeat for Config.LeaseDuration.
// Each seq goes from IN_FLIGHT to TERMINAL_FAIL, and on to DISPATCHED if the
// retry guard allows it for the class LeaseExpired. The result is ordered by
// the last heartbeat, oldest first, and depends only on the calls so far and
// their times. It costs O(leases expired). It returns ErrHalted.
//
// Source: Stage1 seq ledger spec, Lease Ownership, rules 3 and 4.
func (l *Ledger) Reclaim(now time.Time) ([]Reclaimed, error) {
	return atomically(l, now, func() ([]Reclaimed, error) {
		var reclaimed []Reclaimed
		for lease := l.leases.front; lease != nil && !l.clock.Before(l.expiry(lease)); lease = l.leases.front {
			one, err := l.reclaim(lease, now)
			if err != nil {
				return reclaimed, err
			}
			reclaimed = append(reclaimed, one)
		}
		return reclaimed, nil
	})
}

func (l *Ledger) reclaim(lease *Lease, now time.Time) (Reclaimed, error) {
	e := l.lookup(lease.seq)
	if err := l.move(e, TerminalFail, lease.owner, now); err != nil {
		return Reclaimed{}, err
	}
	l.release(e, true)
	retried, err := l.retry(e, LeaseExpired, now)
	return Reclaimed{Seq: e.seq, Owner: lease.owner, Attempt: lease.attempt, Retried: retried}, err
}

// NextExpiry returns when the first lease expires without further heartbeats;
// ok is false if no seq is in flight. A caller can sleep until then. It takes
// constant time.
func (l *Ledger) NextExpiry() (at time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leases.front == nil {
		return time.Time{}, false
	}
	return l.expiry(l.leases.front), true
}

func (l *Ledger) expiry(lease *Lease) time.Time {
	return lease.heartbeat.Add(l.cfg.LeaseDuration)
}
