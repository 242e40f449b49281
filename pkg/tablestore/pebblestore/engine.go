package pebblestore

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// flushPause is the delay after a failed flush, which the engine would
// otherwise retry at once.
const flushPause = 100 * time.Millisecond

// engineLogger forwards the engine's messages. A fatal error fails the store
// instead of ending the process.
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

// Fatalf implements [pebble.Logger]. It returns, and the engine continues with
// all its writes dropped by the fence.
func (l engineLogger) Fatalf(format string, args ...any) {
	l.latch.trip(fmt.Errorf("storage engine: %s", firstLine(fmt.Errorf(format, args...))))
}

// background handles events of the engine's background work. The engine calls
// its methods while it holds its locks.
type background struct {
	space   *space
	latch   *latch
	logger  *slog.Logger
	flushed atomic.Pointer[error] // The outcome of the last flush.
}

// listener returns the hooks for the engine.
func (b *background) listener() *pebble.EventListener {
	return &pebble.EventListener{FlushEnd: b.flushEnd, BackgroundError: b.failed, DataCorruption: b.damaged}
}

// damaged fails the store: it is unknown which other parts of the file can be
// read.
func (b *background) damaged(info pebble.DataCorruptionInfo) {
	b.latch.trip(damaged(filepath.Dir(info.Path), filepath.Base(info.Path)+" is damaged ("+firstLine(info.Details)+")"))
}

// flushEnd records the outcome of a flush. The engine also reports a real error
// to failed, but not the error of a flush that had nothing to write.
func (b *background) flushEnd(info pebble.FlushInfo) {
	b.flushed.Store(&info.Err)
	b.space.full.Store(false)
}

// failed handles a background error. The engine retries by itself: compactions
// may keep failing for long, but without flushes the log and the memory fill
// up.
func (b *background) failed(err error) {
	if b.latch.tripped() {
		return // The engine keeps retrying; the store's failure is already logged.
	}
	b.logger.Error("storage engine: background work failed", "error", firstLine(err))
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
