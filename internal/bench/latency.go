package bench

import (
	"math"
	"slices"
	"time"
)

// Percentiles summarizes durations, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// percentiles sorts the durations and summarizes them: each percentile is the
// smallest sample that at least that share of the samples does not exceed. All
// samples are kept, so the figures are exact, without averages or buckets.
func percentiles(times []time.Duration) Percentiles {
	if len(times) == 0 {
		return Percentiles{}
	}
	slices.Sort(times)
	at := func(percent float64) float64 {
		rank := int(math.Ceil(percent / 100 * float64(len(times))))
		return milliseconds(times[max(rank, 1)-1])
	}
	return Percentiles{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// merge joins the durations of all clients.
func merge(taken [][]time.Duration) []time.Duration { return slices.Concat(taken...) }
