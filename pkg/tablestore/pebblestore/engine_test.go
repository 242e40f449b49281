package pebblestore

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
)

// TestBackgroundTellsAFailedFlushFromOtherErrors calls the hooks as the engine
// does.
func TestBackgroundTellsAFailedFlushFromOtherErrors(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken disk")
	full := fmt.Errorf("write table: %w", syscall.ENOSPC)
	for name, test := range map[string]struct {
		flush        error // The flush's error.
		reported     error // The error reported after it, if any.
		failed, full bool  // The store's state afterwards.
	}{
		"a good flush":                        {},
		"a flush with nothing to write":       {flush: errors.New("empty table")},
		"a failed flush":                      {flush: broken, reported: broken, failed: true},
		"a flush on a full disk":              {flush: full, reported: full, full: true},
		"a failed compaction":                 {reported: broken},
		"a compaction on a full disk":         {reported: full},
		"a compaction after a useless flush":  {flush: errors.New("empty table"), reported: broken},
		"a failed flush, reported with a why": {flush: broken, reported: fmt.Errorf("flush: %w", broken), failed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				logger := slog.New(slog.DiscardHandler)
				b := &background{space: &space{}, latch: newLatch(logger), logger: logger}
				hooks := b.listener()
				hooks.FlushEnd(pebble.FlushInfo{Err: test.flush})
				if test.reported != nil {
					hooks.BackgroundError(test.reported)
				}
				if got := b.latch.tripped(); got != test.failed {
					t.Errorf("store failed: %t, want %t", got, test.failed)
				}
				if got := b.space.verdict() != nil; got != test.full {
					t.Errorf("disk full: %t, want %t", got, test.full)
				}
				hooks.FlushEnd(pebble.FlushInfo{})
				if err := b.space.verdict(); err != nil {
					t.Errorf("after a good flush: %v", err)
				}
			})
		})
	}
}
