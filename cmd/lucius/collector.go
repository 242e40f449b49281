package main

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"

	"github.com/lucius-project/lucius/pkg/upkeep"
)

// collectAt is the growth of the heap, in percent, at which garbage is collected.
// What a server keeps alive is small beside what it makes per request; the usual
// 100 would have it collect many times a second to save a few megabytes.
const collectAt = 400

// collectHarderAt is how much memory the process has, in bytes, when that ends:
// many slow clients then cost what they hold, and not five times as much.
const collectHarderAt = 320 << 20

// spareCollector sets collectAt, unless GOGC says otherwise.
func spareCollector() {
	if _, ok := os.LookupEnv("GOGC"); !ok {
		debug.SetGCPercent(collectAt)
	}
}

// memoryLoop adjusts the collector to what is alive, unless GOMEMLIMIT says how much
// there may be. A limit that is near to what is alive would have it collect all the
// time, so there is always room for twice that: the limit never caps the live heap.
// The limit counts stacks as well, of which nothing is freed while their connections
// last, and many have as much as the heap.
func memoryLoop() upkeep.Loop {
	loop := upkeep.Loop{Name: "memory", Pass: func(context.Context) error { return nil }}
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

// memoryLimit is the limit for so many bytes that are alive in the heap, and those of
// the stacks.
func memoryLimit(alive, stacks uint64) int64 {
	twice := int64(min(alive, math.MaxInt64/2)) * 2
	return max(collectHarderAt, twice+int64(min(stacks, uint64(math.MaxInt64-twice))))
}
