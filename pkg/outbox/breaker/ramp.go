package breaker

import (
	"time"

	"golang.org/x/time/rate"
)

// RampFor is how long a ramp lasts unless the caller says otherwise: by its end, a rate that
// doubles each second holds nothing back.
const RampFor = 15 * time.Second

// Ramp limits what passes after an outage or a pause: at a rate that lets through a number of
// rows in the first second, the first of them at once, and twice as many in each second after
// it. It is not safe for concurrent use.
type Ramp struct {
	first   int
	second  int // the current one, from 0
	end     time.Time
	now     time.Time // the latest time that a call passed
	limiter *rate.Limiter
}

// NewRamp returns a ramp that began at that time.
func NewRamp(first int, began time.Time) *Ramp {
	r := &Ramp{first: first, end: began.Add(time.Second), limiter: rate.NewLimiter(rate.Limit(first), first)}
	r.limiter.AllowN(began, first-1) // One passes at once.
	return r
}

// Room returns how many rows may pass at that time.
func (r *Ramp) Room(now time.Time) int {
	if now.After(r.now) {
		r.now = now
	}
	for ; !r.now.Before(r.end) && r.second < 30; r.end = r.end.Add(time.Second) {
		r.second++
		r.limiter.SetLimitAt(r.end, rate.Limit(r.first<<r.second))
		r.limiter.SetBurstAt(r.end, r.first<<r.second)
	}
	return int(r.limiter.TokensAt(r.now))
}

// Take lets n rows pass, for which there is room.
func (r *Ramp) Take(n int) { r.limiter.AllowN(r.now, n) }

// next returns when there is room for a row.
func (r *Ramp) next() time.Time {
	missing := max(0, 1-r.limiter.TokensAt(r.now)) / float64(r.limiter.Limit())
	return r.now.Add(time.Duration(missing*float64(time.Second)) + 1)
}
