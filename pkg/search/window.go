package search

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A window holds counts of an hour, by minute.
const (
	minute      = time.Minute
	hour        = time.Hour
	keepMinutes = int64(hour / minute)
)

// count counts events, and failures among them.
type count struct {
	All    int64 `json:"a"`
	Failed int64 `json:"f,omitempty"`
}

// one is the count of one event.
func one(failed bool) count {
	if failed {
		return count{1, 1}
	}
	return count{All: 1}
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

// record counts n events.
func (w *window) record(at time.Time, n count) {
	w.Total.add(n)
	now := at.UnixNano() / int64(minute)
	of, known := w.Minutes[now]
	if of.add(n); !known {
		w.prune(at)
	}
	if w.Minutes == nil {
		w.Minutes = map[int64]count{}
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

// span is a time over which durations are kept: of each slot of time at most so many, chosen at
// random, so that percentiles take bounded memory and time at any rate: a report holds a lock of commits.
type span struct {
	over, slot time.Duration
	most       int
}

var (
	lastHour = span{hour, 5 * minute, 40}
	lastDay  = span{24 * hour, hour, 24}
)

// timings holds durations of one kind.
type timings struct{ hour, day durations }

// record adds a duration.
func (t *timings) record(at time.Time, took time.Duration) {
	if t.hour == nil {
		t.hour, t.day = durations{}, durations{}
	}
	t.hour.record(lastHour, at, took)
	t.day.record(lastDay, at, took)
}

// durations holds the durations of a [span], by slot.
type durations map[int64]*sample

// sample holds some of n durations.
type sample struct {
	n    int
	kept []duration
}

type duration struct {
	at   time.Time
	took time.Duration
}

func (d durations) record(of span, at time.Time, took time.Duration) {
	now := at.UnixNano() / int64(of.slot)
	s := d[now]
	if s == nil {
		maps.DeleteFunc(d, func(slot int64, _ *sample) bool { return slot < now-int64(of.over/of.slot) })
		s = new(sample)
		d[now] = s
	}
	s.n++
	if len(s.kept) < of.most {
		s.kept = append(s.kept, duration{at, took})
	} else if i := rand.IntN(s.n); i < of.most { //nolint:gosec // Each of the n is kept with the same probability.
		s.kept[i] = duration{at, took}
	}
}

// percentiles returns the percentiles of the span that ends now.
func (d durations) percentiles(of span, now time.Time) Percentiles {
	type weighted struct {
		took   time.Duration
		weight float64
	}
	var recent []weighted
	total := 0.0
	for _, s := range d {
		weight := float64(s.n) / float64(len(s.kept))
		for _, one := range s.kept {
			if now.Sub(one.at) <= of.over {
				recent = append(recent, weighted{one.took, weight})
				total += weight
			}
		}
	}
	slices.SortFunc(recent, func(a, b weighted) int { return cmp.Compare(a.took, b.took) })
	share := func(share float64) time.Duration {
		sum := 0.0
		for _, one := range recent {
			if sum += one.weight; sum >= share*total {
				return one.took.Round(time.Millisecond)
			}
		}
		return 0
	}
	return Percentiles{Count: int(math.Round(total)), P50: share(0.50), P95: share(0.95), P99: share(0.99)}
}

// Percentiles are percentiles of durations: of Count attempts, of which some were measured, chosen at
// random.
type Percentiles struct {
	Count         int
	P50, P95, P99 time.Duration
}
