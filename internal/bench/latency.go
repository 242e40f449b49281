package bench

import (
	"math"
	"slices"
	"time"
)

// Percentiles sum up how long something took, in milliseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// percentiles sorts the times and sums them up: each percentile is the smallest
// time that so many percent did not exceed. All samples are kept, so these are
// exact; nothing is averaged or put into buckets.
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

// merge puts the times of all clients into one slice.
func merge(taken [][]time.Duration) []time.Duration { return slices.Concat(taken...) }
