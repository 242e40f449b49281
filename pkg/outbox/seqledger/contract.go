package seqledger

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Seq is the number of a row taken up. Numbers start at 1 and rise without
// gaps; the zero Seq is never used.
type Seq uint64

// State is the state of a seq. The numeric codes are part of the contract.
//
// Source: Stage1 seq ledger spec, State Codes.
type State uint8

// The states.
const (
	Unseen          State = 0 // not taken yet
	Dispatched      State = 1 // taken up, waits for an owner
	InFlight        State = 2 // its work is under way under a lease
	TerminalSuccess State = 3 // its work was done
	TerminalSkip    State = 4 // its work was not needed
	TerminalFail    State = 5 // its attempt failed, or its lease expired
	TerminalCancel  State = 6 // it was abandoned before or during its work
	Committed       State = 7 // its outcome is settled in the store; final
)

// states is the number of states.
const states = 8

var stateNames = [states]string{
	"UNSEEN", "DISPATCHED", "IN_FLIGHT",
	"TERMINAL_SUCCESS", "TERMINAL_SKIP", "TERMINAL_FAIL", "TERMINAL_CANCEL",
	"COMMITTED",
}

// String returns the state's name in the specification.
func (s State) String() string {
	if s >= states {
		return fmt.Sprintf("State(%d)", uint8(s))
	}
	return stateNames[s]
}

// Terminal reports whether s is one of the four TERMINAL_* states.
func (s State) Terminal() bool {
	return s >= TerminalSuccess && s <= TerminalCancel
}

// transition is one legal move, under a rule of the specification's Transition
// Contract. A guarded one needs the retry guard too.
type transition struct {
	Rule     int
	From, To State
	Guarded  bool
}

// transitions is the whole contract: a move that is not listed is illegal.
//
// Source: Stage1 seq ledger spec, Transition Contract.
var transitions = [...]transition{
	{Rule: 1, From: Unseen, To: Dispatched},
	{Rule: 2, From: Dispatched, To: InFlight},
	{Rule: 3, From: InFlight, To: TerminalSuccess},
	{Rule: 4, From: InFlight, To: TerminalSkip},
	{Rule: 5, From: InFlight, To: TerminalFail},
	{Rule: 6, From: Dispatched, To: TerminalCancel},
	{Rule: 7, From: InFlight, To: TerminalCancel},
	{Rule: 8, From: TerminalSuccess, To: Committed},
	{Rule: 9, From: TerminalSkip, To: Committed},
	{Rule: 10, From: TerminalFail, To: Committed},
	{Rule: 11, From: TerminalCancel, To: Committed},
	{Rule: 12, From: TerminalFail, To: Dispatched, Guarded: true},
}

// Legal reports whether the move is in the table. A guarded move also needs the
// retry guard.
func Legal(from, to State) bool {
	return slices.ContainsFunc(transitions[:], func(t transition) bool { return t.From == from && t.To == to })
}

// Class is the kind of a failure, as the retry guard sees it.
type Class string

// LeaseExpired is the class of an attempt that ended because its lease was
// reclaimed.
const LeaseExpired Class = "lease_expired"

// Policy is the retry guard. It is data, so that the same inputs always give
// the same decision.
//
// Source: Stage1 seq ledger spec, Retry Guard.
type Policy struct {
	// MaxAttempts is the greatest number of attempts of a seq, including the
	// first. Optional. Defaults to 1: no retry.
	MaxAttempts int
	// Retryable lists the classes that may be retried. Optional. Defaults to
	// none.
	Retryable []Class
}

// Allows reports whether a seq may be retried after that many attempts, the
// last of which failed with that class.
func (p Policy) Allows(class Class, attempts int) bool {
	return attempts < p.MaxAttempts && slices.Contains(p.Retryable, class)
}

// ErrHalted is returned by every change after an illegal transition. The
// message contains that transition.
var ErrHalted = errors.New("seq ledger is halted")

// IllegalTransitionError is the error of a move that the contract does not
// allow. It means a bug in this process, which must not continue.
//
// Source: Stage1 seq ledger spec, Illegal Transition Policy.
type IllegalTransitionError struct {
	Seq Seq
	// From is the prior state, which is unchanged.
	From State
	// To is the attempted state.
	To State
	// Owner is the token of the owner that tried the move or, if a move needs
	// no owner, of the seq's last owner. It is empty if there was none, or if
	// the seq has left the window.
	Owner string
	// At is the wall-clock time of the attempt.
	At time.Time
	// Reason names the broken rule.
	Reason string
}

// Error returns all facts in one line.
func (e *IllegalTransitionError) Error() string {
	return fmt.Sprintf("illegal transition of seq %d from %s(%d) to %s(%d) by owner %q at %s: %s",
		e.Seq, e.From, uint8(e.From), e.To, uint8(e.To), e.Owner,
		e.At.UTC().Format(time.RFC3339Nano), e.Reason)
}

// LogValue returns the facts as attributes of a structured log line.
func (e *IllegalTransitionError) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Uint64("seq", uint64(e.Seq)),
		slog.String("from", e.From.String()),
		slog.String("to", e.To.String()),
		slog.String("owner", e.Owner),
		slog.Time("at", e.At),
		slog.String("reason", e.Reason),
	)
}
