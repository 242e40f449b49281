package bench

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// longest is the longest duration that is recorded; longer ones count as this long.
const longest = time.Hour

// latencies collects durations with three significant digits. It is safe for concurrent
// use.
type latencies struct {
	mu        sync.Mutex
	histogram *hdrhistogram.Histogram // of microseconds
}

func newLatencies() *latencies {
	return &latencies{histogram: hdrhistogram.New(1, longest.Microseconds(), 3)}
}

func (l *latencies) record(took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.histogram.RecordValue(min(took, longest).Microseconds()) // It fails only beyond longest.
}

// merge adds the durations of a run that has ended.
func (l *latencies) merge(ended *latencies) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.histogram.Merge(ended.histogram)
}

func (l *latencies) count() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.histogram.TotalCount()
}

// Percentiles summarizes durations, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func (l *latencies) percentiles() Percentiles {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := func(percent float64) float64 { return float64(l.histogram.ValueAtPercentile(percent)) / 1000 }
	return Percentiles{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}
