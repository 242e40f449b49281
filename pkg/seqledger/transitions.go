package seqledger

import "slices"

// Transition is one legal move.
type Transition struct {
	// Rule is the number of the rule in the specification's Transition Contract.
	Rule     int
	From, To State
	// Guarded says that the retry guard must allow the move too.
	Guarded bool
}

// transitions is the whole contract: a move that is not listed is illegal.
var transitions = [...]Transition{
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

// legal is transitions as a matrix, for lookups in constant time.
var legal = matrix(transitions[:])

func matrix(edges []Transition) (m [states][states]bool) {
	for _, edge := range edges {
		m[edge.From][edge.To] = true
	}
	return m
}

// Transitions returns a copy of the legal moves in the order of the
// specification.
//
// Source: Stage1 seq ledger spec, Transition Contract.
func Transitions() []Transition {
	return slices.Clone(transitions[:])
}

// Legal reports whether the move is in the table. A guarded move also needs the
// retry guard.
func Legal(from, to State) bool {
	return from < states && to < states && legal[from][to]
}
