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

// timings holds durations of one kind.
type timings struct {
	hour lastDurations
	day  samples
}

// record adds a duration.
func (t *timings) record(at time.Time, took time.Duration) {
	t.hour.record(at, took)
	if t.day == nil {
		t.day = samples{}
	}
	t.day.record(at, took)
}

type duration struct {
	at   time.Time
	took time.Duration
}

// maxDurations bounds the durations of the last hour that are kept.
const maxDurations = 500

// lastDurations holds the last durations, as a ring that starts at oldest.
type lastDurations struct {
	ring   []duration
	oldest int
}

func (d *lastDurations) record(at time.Time, took time.Duration) {
	if len(d.ring) < maxDurations {
		d.ring = append(d.ring, duration{at, took})
		return
	}
	d.ring[d.oldest], d.oldest = duration{at, took}, (d.oldest+1)%maxDurations
}

// percentiles returns the percentiles of those of the last hour.
func (d *lastDurations) percentiles(now time.Time) Percentiles {
	var recent []weighted
	for _, one := range d.ring {
		if now.Sub(one.at) <= hour {
			recent = append(recent, weighted{one.took, 1})
		}
	}
	return percentilesOf(recent)
}

// maxSampled bounds the durations that are kept of each hour of the last day, so that percentiles take
// bounded memory and time at any rate: a report holds a lock of commits.
const maxSampled = 24

// samples holds durations of the last day, by Unix time in hours: of each hour some, chosen at random.
type samples map[int64]*sample

// sample holds some of n durations.
type sample struct {
	n    int
	kept []duration
}

func (s samples) record(at time.Time, took time.Duration) {
	now := at.UnixNano() / int64(hour)
	of := s[now]
	if of == nil {
		maps.DeleteFunc(s, func(at int64, _ *sample) bool { return at < now-int64(day/hour) })
		of = new(sample)
		s[now] = of
	}
	of.n++
	if len(of.kept) < maxSampled {
		of.kept = append(of.kept, duration{at, took})
	} else if i := rand.IntN(of.n); i < maxSampled { //nolint:gosec // Each of the n is kept with the same probability.
		of.kept[i] = duration{at, took}
	}
}

// percentiles returns the percentiles of those of the last day.
func (s samples) percentiles(now time.Time) Percentiles {
	var recent []weighted
	for _, of := range s {
		weight := float64(of.n) / float64(len(of.kept))
		for _, one := range of.kept {
			if now.Sub(one.at) <= day {
				recent = append(recent, weighted{one.took, weight})
			}
		}
	}
	return percentilesOf(recent)
}

// weighted is a duration with how many it stands for.
type weighted struct {
	took   time.Duration
	weight float64
}

// percentilesOf returns the percentiles, and how many durations all stand for. It sorts them.
func percentilesOf(all []weighted) Percentiles {
	total := 0.0
	for _, one := range all {
		total += one.weight
	}
	slices.SortFunc(all, func(a, b weighted) int { return cmp.Compare(a.took, b.took) })
	of := func(share float64) time.Duration {
		sum := 0.0
		for _, one := range all {
			if sum += one.weight; sum >= share*total {
				return one.took.Round(time.Millisecond)
			}
		}
		return 0
	}
	return Percentiles{Count: int(math.Round(total)), P50: of(0.50), P95: of(0.95), P99: of(0.99)}
}

// Percentiles are percentiles of durations: of the last hour at most the last 500, of the last day Count
// durations, of which some were kept.
type Percentiles struct {
	Count         int
	P50, P95, P99 time.Duration
}
