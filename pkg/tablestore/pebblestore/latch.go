package pebblestore

import (
	"log/slog"
	"sync"
)

// latch notes the first failure that the store cannot survive. It is never
// taken back: what the disk holds after a failed write or sync is not known,
// and only opening the directory anew finds out.
type latch struct {
	failed chan struct{} // Closed by the first trip.
	once   sync.Once
	cause  error // Written before failed is closed, read only after.
	logger *slog.Logger
}

func newLatch(logger *slog.Logger) *latch {
	return &latch{failed: make(chan struct{}), logger: logger}
}

// trip fails the store for that cause. Only the first cause counts.
func (l *latch) trip(cause error) {
	l.once.Do(func() {
		l.cause = cause
		close(l.failed)
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
