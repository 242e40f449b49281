package breaker

import "time"

// ramp limits what is admitted after a circuit has closed. It counts in whole
// rows and steps: the k-th interval admits k times RampStep rows. The zero
// ramp, of a circuit that never was open, limits nothing.
type ramp struct {
	began time.Time
	step  int // the current interval, from 0
	used  int // rows admitted in it
}

// over reports whether the ramp limits nothing any more.
func (r *ramp) over(s *Settings, now time.Time) bool {
	return r.began.IsZero() || !now.Before(r.began.Add(s.RampFor))
}

// advance goes to the interval of now. It never goes back to an earlier one.
func (r *ramp) advance(s *Settings, now time.Time) {
	if step := int(now.Sub(r.began) / s.RampInterval); step > r.step {
		r.step, r.used = step, 0
	}
}

// room is how many rows more the current interval admits.
func (r *ramp) room(s *Settings) int {
	return s.RampStep*(r.step+1) - r.used
}

// next is when the next interval begins.
func (r *ramp) next(s *Settings) time.Time {
	return r.began.Add(time.Duration(r.step+1) * s.RampInterval)
}
