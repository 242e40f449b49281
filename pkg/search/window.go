package search

import (
	"cmp"
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

// Durations of the last day are counted in slots of time: the current one, and those of the day before it.
const (
	slot      = 4 * hour
	keepSlots = int64(day / slot)
	// perDoubling is how many buckets count the durations between one and twice as long, so that a
	// percentile is at most an eighth off.
	perDoubling = 3
)

// spread counts durations of the last day, by Unix time in slots, and then by bucket: b counts those from
// 2^((b-1)/perDoubling) to 2^(b/perDoubling) ms, and 0 all shorter ones.
type spread map[int64]map[int]int64

// record counts a duration.
func (s *spread) record(at time.Time, took time.Duration) {
	now := at.UnixNano() / int64(slot)
	if (*s)[now] == nil {
		s.prune(at)
		s.add(spread{now: {}})
	}
	(*s)[now][int(math.Ceil(perDoubling*math.Log2(max(took.Seconds()*1000, 1))))]++
}

// prune drops what is older than a day.
func (s *spread) prune(now time.Time) {
	maps.DeleteFunc(*s, func(at int64, _ map[int]int64) bool { return at < now.UnixNano()/int64(slot)-keepSlots })
}

// add adds the counts of other.
func (s *spread) add(other spread) {
	if *s == nil {
		*s = spread{}
	}
	for at, buckets := range other {
		if (*s)[at] == nil {
			(*s)[at] = map[int]int64{}
		}
		for bucket, n := range buckets {
			(*s)[at][bucket] += n
		}
	}
}

// beginOfDay returns when the first slot of the last day began, or since, if that is later.
func beginOfDay(now, since time.Time) time.Time {
	if first := time.Unix(0, (now.UnixNano()/int64(slot)-keepSlots)*int64(slot)); since.Before(first) {
		return first.UTC()
	}
	return since
}

// percentiles returns the percentiles of the last day, and drops what is older.
func (s *spread) percentiles(now time.Time) Percentiles {
	s.prune(now)
	var all []weighted
	for _, buckets := range *s {
		for bucket, n := range buckets {
			middle := math.Exp2((float64(bucket) - 0.5) / perDoubling)
			all = append(all, weighted{time.Duration(middle * float64(time.Millisecond)), float64(n)})
		}
	}
	return percentilesOf(all)
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

// Percentiles are percentiles of Count durations: of the last hour at most the last 500, of the last day
// to an eighth.
type Percentiles struct {
	Count         int
	P50, P95, P99 time.Duration
}
