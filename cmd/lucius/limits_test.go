package main

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/config"
)

// The limit never caps the live heap, and stacks, which the collector cannot free, do
// not take the heap's room.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		alive, stacks uint64
		want          int64
	}{
		{0, 0, collectHarderAt},
		{100 << 20, 0, collectHarderAt},
		{100 << 20, 100 << 20, collectHarderAt},
		{collectHarderAt, 0, 2 * collectHarderAt},
		{collectHarderAt, collectHarderAt, 3 * collectHarderAt},
		{0, 2 * collectHarderAt, 2 * collectHarderAt},
		{1 << 40, 1 << 30, 2<<40 + 1<<30},
		{math.MaxUint64, 0, math.MaxInt64 - 1},
		{math.MaxUint64, math.MaxUint64, math.MaxInt64},
	} {
		if got := memoryLimit(test.alive, test.stacks); got != test.want {
			t.Errorf("with %d bytes alive and %d of stacks it is %d, want %d", test.alive, test.stacks, got, test.want)
		}
	}
}

func TestMaxConnections_LeavesFilesToTheStore(t *testing.T) {
	t.Parallel()
	files, limited := openFiles()
	for _, test := range []struct {
		wanted int
		cut    bool
	}{
		{1, false},
		{int(files/2) + 1, limited},
	} {
		var log bytes.Buffer
		got := maxConnections(t.Context(), &config.Config{MaxConnections: test.wanted}, slog.New(slog.NewTextHandler(&log, nil)))
		if cut := got < test.wanted; cut != test.cut || cut != strings.Contains(log.String(), "max_connections=") {
			t.Errorf("%d of %d connections with %d files, and the log says %q", got, test.wanted, files, &log)
		}
		if test.cut && uint64(got) != files/2 {
			t.Errorf("%d connections with %d files", got, files)
		}
	}
}
