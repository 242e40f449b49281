package pebblestore

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// flushPause is how long a failed flush waits before the engine, which would
// try again at once, may do so.
const flushPause = 100 * time.Millisecond

// engineLogger passes the engine's messages on. What would end the process
// fails the store instead.
type engineLogger struct {
	logger *slog.Logger
	latch  *latch
}

// Infof implements [pebble.Logger].
func (l engineLogger) Infof(format string, args ...any) {
	l.logger.Debug("storage engine", "note", fmt.Sprintf(format, args...))
}

// Errorf implements [pebble.Logger].
func (l engineLogger) Errorf(format string, args ...any) {
	l.logger.Error("storage engine", "note", fmt.Sprintf(format, args...))
}

// Fatalf implements [pebble.Logger]. It returns, and the engine goes on behind
// the fence.
func (l engineLogger) Fatalf(format string, args ...any) {
	l.latch.trip(fmt.Errorf("storage engine: "+format, args...))
}

// background follows the engine's work in the background. Its methods are
// called while the engine holds its locks.
type background struct {
	space   *space
	latch   *latch
	logger  *slog.Logger
	flushed atomic.Pointer[error] // The outcome of the last flush.
}

// listener returns the hooks for the engine.
func (b *background) listener() *pebble.EventListener {
	return &pebble.EventListener{FlushEnd: b.flushEnd, BackgroundError: b.failed}
}

// flushEnd notes the outcome of a flush. An error that is one is reported to
// failed as well; a flush that had nothing to write also carries an error.
func (b *background) flushEnd(info pebble.FlushInfo) {
	b.flushed.Store(&info.Err)
	b.space.full.Store(false)
}

// failed handles an error. The engine tries again by itself: compactions can
// fail for long, but with no flush the log and the memory fill up.
func (b *background) failed(err error) {
	b.logger.Error("storage engine: background work failed", "error", err)
	if last := b.flushed.Load(); last == nil || *last == nil || !errors.Is(err, *last) {
		return
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		// The log still holds the data, so the flush can wait for space.
		b.space.full.Store(true)
		time.Sleep(flushPause)
		return
	}
	b.latch.trip(fmt.Errorf("flush: %w", err))
}
