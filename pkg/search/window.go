package search

import (
	"maps"
	"math"
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

// maxDurations bounds the durations of one kind that are kept.
const maxDurations = 500

// durations holds the last durations of one kind, as a ring that starts at oldest.
type durations struct {
	ring   []duration
	oldest int
}

type duration struct {
	at   time.Time
	took time.Duration
}

// record adds a duration.
func (d *durations) record(at time.Time, took time.Duration) {
	if len(d.ring) < maxDurations {
		d.ring = append(d.ring, duration{at, took})
		return
	}
	d.ring[d.oldest], d.oldest = duration{at, took}, (d.oldest+1)%maxDurations
}

// percentiles returns the percentiles of those of the last hour.
func (d *durations) percentiles(now time.Time) Percentiles {
	var recent []time.Duration
	for _, one := range d.ring {
		if now.Sub(one.at) <= hour {
			recent = append(recent, one.took)
		}
	}
	slices.Sort(recent)
	of := func(share float64) time.Duration {
		if len(recent) == 0 {
			return 0
		}
		return recent[int(math.Ceil(share*float64(len(recent))))-1].Round(time.Millisecond)
	}
	return Percentiles{Count: len(recent), P50: of(0.50), P95: of(0.95), P99: of(0.99)}
}

// Percentiles are percentiles of the last durations, at most 500 of the last hour.
type Percentiles struct {
	Count         int
	P50, P95, P99 time.Duration
}
