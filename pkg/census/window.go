package census

import (
	"maps"
	"math"
	"slices"
	"time"
)

// The windows: counts by minute, durations by span, each for an hour.
const (
	minute       = time.Minute
	span         = 5 * time.Minute
	hour         = time.Hour
	keepMinutes  = int64(hour / minute)
	keepSpans    = int64(hour / span)
	firstBucket  = time.Millisecond
	perDoubling  = 4   // buckets of a histogram, so that neighbours differ by a fifth
	lastBucket   = 120 // 12 days
	halfOfBucket = 0.5
)

// count counts what happened, and how much of that was a failure.
type count struct {
	All    int64 `json:"all"`
	Failed int64 `json:"failed,omitempty"`
}

func (c *count) add(other count) {
	c.All += other.All
	c.Failed += other.Failed
}

// window counts what happened in the last hour, and in total.
type window struct {
	Total   count           `json:"total"`
	Minutes map[int64]count `json:"minutes,omitempty"` // by Unix time in minutes
}

// happened counts one.
func (w *window) happened(at time.Time, failed bool) {
	one := count{All: 1}
	if failed {
		one.Failed = 1
	}
	w.Total.add(one)
	if w.Minutes == nil {
		w.Minutes = map[int64]count{}
	}
	now := at.UnixNano() / int64(minute)
	of, known := w.Minutes[now]
	if of.add(one); !known {
		w.prune(at)
	}
	w.Minutes[now] = of
}

// prune forgets what is out of the window.
func (w *window) prune(now time.Time) {
	maps.DeleteFunc(w.Minutes, func(at int64, _ count) bool { return at < now.UnixNano()/int64(minute)-keepMinutes })
}

// add adds what the other has counted.
func (w *window) add(other *window) {
	w.Total.add(other.Total)
	for at, n := range other.Minutes {
		if w.Minutes == nil {
			w.Minutes = map[int64]count{}
		}
		of := w.Minutes[at]
		of.add(n)
		w.Minutes[at] = of
	}
}

// minutes returns the counts of so many minutes, the last of them the present one.
func (w *window) minutes(now time.Time, n int) (all, failed []int) {
	all, failed = make([]int, n), make([]int, n)
	first := now.UnixNano()/int64(minute) - int64(n) + 1
	for i := range n {
		of := w.Minutes[first+int64(i)]
		all[i], failed[i] = int(of.All), int(of.Failed)
	}
	return all, failed
}

// changes are by how much a number rose or fell in each minute of the last hour.
type changes map[int64]int

// by counts a change.
func (c *changes) by(at time.Time, change int) {
	now := at.UnixNano() / int64(minute)
	if *c == nil {
		*c = changes{}
	}
	if _, known := (*c)[now]; !known {
		c.prune(at)
	}
	(*c)[now] += change
}

// prune forgets what is out of the window.
func (c *changes) prune(now time.Time) {
	maps.DeleteFunc(*c, func(at int64, _ int) bool { return at < now.UnixNano()/int64(minute)-keepMinutes })
}

// add adds what the other has counted.
func (c *changes) add(other changes) {
	if *c == nil && len(other) > 0 {
		*c = changes{}
	}
	for at, change := range other {
		(*c)[at] += change
	}
}

// levels returns what the number was at the end of so many minutes, the last of them the
// present one, in which it is present.
func (c *changes) levels(now time.Time, n, present int) []int {
	levels := make([]int, n)
	last := now.UnixNano() / int64(minute)
	for i := n - 1; i >= 0; i-- {
		levels[i] = max(present, 0)
		present -= (*c)[last-int64(n-1-i)]
	}
	return levels
}

// rate returns the count in so many minutes before the present one, and in the present
// one until now. What happened before since was not counted.
func (w *window) rate(now, since time.Time, minutes int64) Rate {
	this := now.UnixNano() / int64(minute)
	var sum count
	for at, n := range w.Minutes {
		if at >= this-minutes && at <= this {
			sum.add(n)
		}
	}
	begin := time.Unix(0, (this-minutes)*int64(minute))
	if since.After(begin) {
		begin = since
	}
	return Rate{Count: sum.All, Failed: sum.Failed, Over: max(now.Sub(begin), 0)}
}

// Rate is how often something happened.
type Rate struct {
	Count  int64
	Failed int64
	Over   time.Duration // the time in which it was counted
}

// PerSecond returns the rate per second.
func (r Rate) PerSecond() float64 {
	if r.Over <= 0 {
		return 0
	}
	return float64(r.Count) / r.Over.Seconds()
}

// ErrorRate returns the share that failed, 0 if nothing happened.
func (r Rate) ErrorRate() float64 {
	if r.Count == 0 {
		return 0
	}
	return float64(r.Failed) / float64(r.Count)
}

// histogram counts durations by the bucket in which they are.
type histogram map[uint8]int64

// durations holds histograms by Unix time, in spans.
type durations map[int64]histogram

// took counts one duration.
func (d *durations) took(at time.Time, duration time.Duration) {
	if *d == nil {
		*d = durations{}
	}
	now := at.UnixNano() / int64(span)
	if (*d)[now] == nil {
		d.prune(at)
		(*d)[now] = histogram{}
	}
	(*d)[now][bucketOf(duration)]++
}

// prune forgets what is out of the window.
func (d *durations) prune(now time.Time) {
	maps.DeleteFunc(*d, func(at int64, _ histogram) bool { return at < now.UnixNano()/int64(span)-keepSpans })
}

func bucketOf(duration time.Duration) uint8 {
	exact := perDoubling * math.Log2(float64(duration)/float64(firstBucket))
	return uint8(math.Ceil(min(max(exact, 0), lastBucket)))
}

// add adds what the other has counted.
func (d *durations) add(other durations) {
	if *d == nil && len(other) > 0 {
		*d = durations{}
	}
	for at, h := range other {
		if (*d)[at] == nil {
			(*d)[at] = histogram{}
		}
		for bucket, n := range h {
			(*d)[at][bucket] += n
		}
	}
}

// percentiles returns those of the last hour.
func (d *durations) percentiles(now time.Time) Percentiles {
	this := now.UnixNano() / int64(span)
	sum, total := histogram{}, int64(0)
	for at, h := range *d {
		if at < this-keepSpans {
			continue
		}
		for bucket, n := range h {
			sum[bucket] += n
			total += n
		}
	}
	of := func(share float64) time.Duration {
		rank := int64(math.Ceil(share * float64(total)))
		for _, bucket := range slices.Sorted(maps.Keys(sum)) {
			if rank -= sum[bucket]; rank <= 0 {
				middle := float64(firstBucket) * math.Exp2((float64(bucket)-halfOfBucket)/perDoubling)
				return time.Duration(middle).Round(time.Millisecond)
			}
		}
		return 0
	}
	return Percentiles{Count: total, P50: of(0.50), P95: of(0.95), P99: of(0.99)}
}

// Percentiles are those of the durations in the last hour, each accurate to a tenth of its
// value.
type Percentiles struct {
	Count         int64
	P50, P95, P99 time.Duration
}
