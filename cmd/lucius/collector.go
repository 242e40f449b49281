package main

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
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

// mindMemory adjusts the collector to what is alive until the context ends, unless
// GOMEMLIMIT says how much there may be. A limit that is near to what is alive would
// have it collect all the time, so the limit is never below twice that: what lives
// in memory may be as large as it likes.
func mindMemory(ctx context.Context) error {
	if _, ok := os.LookupEnv("GOMEMLIMIT"); ok {
		return nil
	}
	defer debug.SetMemoryLimit(math.MaxInt64)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	alive := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for {
		runtimemetrics.Read(alive)
		debug.SetMemoryLimit(memoryLimit(alive[0].Value.Uint64()))
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// memoryLimit is the limit for so many bytes that are alive.
func memoryLimit(alive uint64) int64 {
	return max(collectHarderAt, int64(min(alive, math.MaxInt64/2))*2)
}
