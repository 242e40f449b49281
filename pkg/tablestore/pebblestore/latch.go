package pebblestore

import (
	"log/slog"
	"sync"
	"sync/atomic"
)

// latch records the first failure that the store cannot survive. It is never
// reset: after a failed write or sync the content of the disk is unknown until
// the directory is opened again.
type latch struct {
	failed chan struct{} // Closed by the first trip.
	once   sync.Once
	cause  error // Written before failed is closed, read only after.
	logger *slog.Logger
	// armed is false during Open: a failure is then returned and not logged.
	armed atomic.Bool
	// folder tells whether the loss of the directory caused a failure.
	// Optional.
	folder *folder
}

func newLatch(logger *slog.Logger) *latch {
	return &latch{failed: make(chan struct{}), logger: logger}
}

// trip fails the store with that cause. Later causes are ignored.
func (l *latch) trip(cause error) {
	l.once.Do(func() {
		if l.folder != nil {
			if lost := l.folder.check(); lost != nil {
				cause = lost
			}
		}
		l.cause = cause
		close(l.failed)
		if !l.armed.Load() {
			return
		}
		l.logger.Error("local store has failed and must be opened again", "error", cause)
	})
}

// tripped reports whether the store has failed.
func (l *latch) tripped() bool {
	select {
	case <-l.failed:
		return true
	default:
		return false
	}
}

// failure is the error of a store whose latch has tripped. It wraps the cause
// without repeating its text, which is logged once.
type failure struct{ cause error }

// Error says what to do.
func (f *failure) Error() string {
	return "local store has failed and must be opened again: see the log"
}

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.cause }

// failure returns the error for callers. It is called only after the latch has
// tripped.
func (l *latch) failure() error { return &failure{l.cause} }
