package seqledger

import "time"

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

// Open returns how many seqs are in the window. Take fails if it equals
// Config.Window.
func (c Counters) Open() uint64 {
	return c.Dispatched + c.InFlight + c.Terminal
}

// Counters returns the counters, for gauges and back-pressure. It takes
// constant time and works on a halted ledger.
func (l *Ledger) Counters() Counters {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Counters{
		Dispatched: l.counts[Dispatched],
		InFlight:   l.counts[InFlight],
		Terminal: l.counts[TerminalSuccess] + l.counts[TerminalSkip] +
			l.counts[TerminalFail] + l.counts[TerminalCancel],
		Committed: l.counts[Committed],
	}
}

// Status is what the ledger knows about one seq. UNSEEN and COMMITTED seqs have
// only a state.
type Status struct {
	State State
	// Attempts counts the attempts, the current one included.
	Attempts int
	// Owner is the token of the last owner, or empty.
	Owner string
	// Heartbeat is the time of the lease's last heartbeat; the zero time unless
	// IN_FLIGHT.
	Heartbeat time.Time
	// ExpiresAt is when the lease expires; the zero time unless IN_FLIGHT.
	ExpiresAt time.Time
}

// Inspect returns the status of any seq. It works on a halted ledger.
func (l *Ledger) Inspect(seq Seq) Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.lookup(seq)
	status := Status{State: e.state, Attempts: e.attempts, Owner: e.owner}
	if e.lease != nil {
		status.Heartbeat = e.lease.heartbeat
		status.ExpiresAt = l.expiry(e.lease)
	}
	return status
}
