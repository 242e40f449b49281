package main

import (
	"context"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/background"
)

// collectAt is the heap growth, in percent, at which garbage is collected. A server
// keeps little alive and allocates much per request: at the usual 100 it would collect
// many times a second to save a few megabytes.
const collectAt = 400

// collectHarderAt is the memory of the process, in bytes, from which it collects more
// often: slow clients then cost only the memory that they hold, not five times as much.
const collectHarderAt = 320 << 20

// tuneCollector sets collectAt, unless GOGC is set.
func tuneCollector() {
	if _, ok := os.LookupEnv("GOGC"); !ok {
		debug.SetGCPercent(collectAt)
	}
}

// memoryLoop adjusts the memory limit to the live heap, unless GOMEMLIMIT is set.
func memoryLoop() background.Loop {
	loop := background.Loop{Name: "memory", Pass: func(context.Context) error { return nil }}
	if _, ok := os.LookupEnv("GOMEMLIMIT"); ok {
		return loop
	}
	used := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	loop.Pass = func(context.Context) error {
		runtimemetrics.Read(used)
		debug.SetMemoryLimit(memoryLimit(used[0].Value.Uint64(), used[1].Value.Uint64()))
		return nil
	}
	loop.Drain = func() { debug.SetMemoryLimit(math.MaxInt64) }
	return loop
}

// memoryLimit returns the limit for a live heap and stacks of that many bytes. It never
// caps the live heap: a limit near it would make the process collect all the time. Most
// of a large live heap is the store's cache and memtables, which cost little to mark. The
// limit includes stacks, which are not freed before their connections end, and which
// for many connections are as large as the heap.
func memoryLimit(live, stacks uint64) int64 {
	live = min(live, math.MaxInt64/2)
	heap := int64(live + live/2)
	return max(collectHarderAt, heap+int64(min(stacks, uint64(math.MaxInt64-heap))))
}

// maxConnections returns how many connections may be open: at most half of the files
// that the process may open, because the store needs files too and fails without.
func maxConnections(ctx context.Context, cfg *config.Config, log *slog.Logger) int {
	files, limited := openFiles()
	if !limited || uint64(cfg.MaxConnections) <= files/2 {
		return cfg.MaxConnections
	}
	log.WarnContext(ctx, "fewer connections than LUCIUS_MAX_CONNECTIONS, limited by open files",
		"connections", files/2, "max_connections", cfg.MaxConnections, "open_files", files)
	return int(files / 2)
}
