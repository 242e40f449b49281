package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// summaryInterval is how often lines about the store that were left out are summarised.
const summaryInterval = 10 * time.Second

// storeSummary is a log handler for outages of the store, in which every job, request and
// loop reports the same. It passes the first line of each message on, and replaces the
// others by one line in each interval that counts them.
type storeSummary struct {
	slog.Handler

	left *leftOut
}

// leftOut counts the lines left out by a handler and those derived from it.
type leftOut struct {
	summary slog.Handler

	mu sync.Mutex
	// lines counts by message. It is nil unless the last interval, or the present one,
	// had a line about the store; then a timer runs that summarises.
	lines map[string]int
	last  error // of the lines
}

// newStoreSummary returns a handler before the other.
func newStoreSummary(next slog.Handler) slog.Handler {
	return &storeSummary{next, &leftOut{summary: next}}
}

// Handle implements [slog.Handler].
func (h *storeSummary) Handle(ctx context.Context, line slog.Record) error {
	// The next start finds the work that a stop has cancelled. Hundreds of warnings about
	// it would hide one that matters.
	if ctx.Err() != nil && errorIn(&line, context.Canceled) != nil {
		return nil //nolint:nilerr // The errors are those of the line and of its work.
	}
	if cause := errorIn(&line, tablestore.ErrUnavailable, tablestore.ErrUnknown); cause != nil && h.left.leaveOut(line.Message, cause) {
		return nil
	}
	return h.Handler.Handle(ctx, line)
}

// WithAttrs implements [slog.Handler].
func (h *storeSummary) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &storeSummary{h.Handler.WithAttrs(attrs), h.left}
}

// WithGroup implements [slog.Handler].
func (h *storeSummary) WithGroup(name string) slog.Handler {
	return &storeSummary{h.Handler.WithGroup(name), h.left}
}

// errorIn returns the error of a warning or worse if it is one of these.
func errorIn(line *slog.Record, kinds ...error) (cause error) {
	if line.Level < slog.LevelWarn {
		return nil
	}
	line.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		if ok && slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) }) {
			cause = err
		}
		return cause == nil
	})
	return cause
}

// leaveOut counts a line, and reports whether its message was logged before.
func (l *leftOut) leaveOut(message string, cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lines == nil {
		l.lines = map[string]int{}
		time.AfterFunc(summaryInterval, l.summarise)
	}
	n, known := l.lines[message]
	if known {
		n++
		l.last = cause
	}
	l.lines[message] = n
	return known
}

// summarise logs how many lines were left out, and begins the next interval if there
// were any.
func (l *leftOut) summarise() {
	l.mu.Lock()
	counted, total, last := l.lines, 0, l.last
	next := make(map[string]int, len(counted))
	for message, n := range counted {
		next[message] = 0
		total += n
	}
	if l.lines = nil; total > 0 {
		l.lines = next
		time.AfterFunc(summaryInterval, l.summarise)
	}
	l.mu.Unlock()
	if total == 0 {
		return
	}
	maps.DeleteFunc(counted, func(_ string, n int) bool { return n == 0 })
	line := slog.NewRecord(time.Now(), slog.LevelWarn, "lines about an unavailable store left out", 0)
	line.AddAttrs(slog.Int("lines", total), slog.Any("messages", counted), slog.Any("last_error", last))
	_ = l.summary.Handle(context.Background(), line) // As with any line, a broken log is not reported.
}
