package seqledger

import "fmt"

// Seq is the number of a row taken up. Numbers start at 1 and rise without
// gaps; the zero Seq is never used.
type Seq uint64

// State is the state of a seq. The numeric codes are part of the contract.
//
// Source: Stage1 seq ledger spec, State Codes.
type State uint8

// The states.
const (
	// Unseen is a seq that was not taken yet.
	Unseen State = 0
	// Dispatched is a seq that was taken up and waits for an owner.
	Dispatched State = 1
	// InFlight is a seq whose work is under way under a lease.
	InFlight State = 2
	// TerminalSuccess is a seq whose work was done.
	TerminalSuccess State = 3
	// TerminalSkip is a seq whose work was not needed.
	TerminalSkip State = 4
	// TerminalFail is a seq whose attempt failed, or whose lease expired.
	TerminalFail State = 5
	// TerminalCancel is a seq that was abandoned before or during its work.
	TerminalCancel State = 6
	// Committed is a seq whose outcome is settled in the store. It is final.
	Committed State = 7
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
