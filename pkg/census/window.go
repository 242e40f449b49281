package census

import (
	"maps"
	"math"
	"slices"
	"time"
)

// Windows of an hour hold counts by minute, and durations by span.
const (
	minute       = time.Minute
	span         = 5 * time.Minute
	hour         = time.Hour
	keepMinutes  = int64(hour / minute)
	keepSpans    = int64(hour / span)
	firstBucket  = time.Millisecond
	perDoubling  = 4   // buckets per doubling of the duration, so that neighbours differ by a fifth
	lastBucket   = 120 // 12 days
	halfOfBucket = 0.5
)

// count counts events, and failures among them.
type count struct {
	All    int64 `json:"all"`
	Failed int64 `json:"failed,omitempty"`
}

func (c *count) add(other count) {
	c.All += other.All
	c.Failed += other.Failed
}

// window counts events of the last hour, by minute, and in total.
type window struct {
	Total   count           `json:"total"`
	Minutes map[int64]count `json:"minutes,omitempty"` // by Unix time in minutes
}

// record counts one event.
func (w *window) record(at time.Time, failed bool) {
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

// prune drops what is older than the window.
func (w *window) prune(now time.Time) {
	maps.DeleteFunc(w.Minutes, func(at int64, _ count) bool { return at < now.UnixNano()/int64(minute)-keepMinutes })
}

// add adds the counts of other.
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

// minutes returns the counts of the last n minutes, of which the last is the current one.
func (w *window) minutes(now time.Time, n int) (all, failed []int) {
	all, failed = make([]int, n), make([]int, n)
	first := now.UnixNano()/int64(minute) - int64(n) + 1
	for i := range n {
		of := w.Minutes[first+int64(i)]
		all[i], failed[i] = int(of.All), int(of.Failed)
	}
	return all, failed
}

// changes says by how much a number changed in each minute of the last hour.
type changes map[int64]int

// record adds a change.
func (c *changes) record(at time.Time, change int) {
	now := at.UnixNano() / int64(minute)
	if *c == nil {
		*c = changes{}
	}
	if _, known := (*c)[now]; !known {
		c.prune(at)
	}
	(*c)[now] += change
}

// prune drops what is older than the window.
func (c *changes) prune(now time.Time) {
	maps.DeleteFunc(*c, func(at int64, _ int) bool { return at < now.UnixNano()/int64(minute)-keepMinutes })
}

// add adds the counts of other.
func (c *changes) add(other changes) {
	if *c == nil && len(other) > 0 {
		*c = changes{}
	}
	for at, change := range other {
		(*c)[at] += change
	}
}

// levels returns the number at the end of each of the last n minutes, given that it is
// present now.
func (c *changes) levels(now time.Time, n, present int) []int {
	levels := make([]int, n)
	last := now.UnixNano() / int64(minute)
	for i := n - 1; i >= 0; i-- {
		levels[i] = max(present, 0)
		present -= (*c)[last-int64(n-1-i)]
	}
	return levels
}

// rate returns the rate over the current minute so far and the minutes before it, or since
// counting began at since, if that is later.
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

// Rate says how often something happened over a time.
type Rate struct {
	Count  int64
	Failed int64
	Over   time.Duration
}

// PerSecond returns the events per second.
func (r Rate) PerSecond() float64 {
	if r.Over <= 0 {
		return 0
	}
	return float64(r.Count) / r.Over.Seconds()
}

// ErrorRate returns the fraction that failed, 0 if nothing happened.
func (r Rate) ErrorRate() float64 {
	if r.Count == 0 {
		return 0
	}
	return float64(r.Failed) / float64(r.Count)
}

// histogram counts durations by bucket, see [bucketOf].
type histogram map[uint8]int64

// durations holds a histogram for each span, by its Unix time in spans.
type durations map[int64]histogram

// record counts one duration.
func (d *durations) record(at time.Time, duration time.Duration) {
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

// prune drops what is older than the window.
func (d *durations) prune(now time.Time) {
	maps.DeleteFunc(*d, func(at int64, _ histogram) bool { return at < now.UnixNano()/int64(span)-keepSpans })
}

// bucketOf returns the bucket of a duration.
func bucketOf(duration time.Duration) uint8 {
	exact := perDoubling * math.Log2(float64(duration)/float64(firstBucket))
	return uint8(math.Ceil(min(max(exact, 0), lastBucket)))
}

// add adds the counts of other.
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

// percentiles returns the percentiles over the last hour.
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

// Percentiles are percentiles of the durations of the last hour, each accurate to a tenth of
// its value.
type Percentiles struct {
	Count         int64
	P50, P95, P99 time.Duration
}
