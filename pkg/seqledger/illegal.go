package seqledger

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// ErrHalted is returned by every change after an illegal transition. The
// message contains that transition.
var ErrHalted = errors.New("seq ledger is halted")

// IllegalTransitionError is the error of a move that the contract does not
// allow. It means a bug in this process, which must not continue.
//
// Source: Stage1 seq ledger spec, Illegal Transition Policy.
type IllegalTransitionError struct {
	// Seq is the seq of the attempted move.
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
