package breaker

import "time"

// unanswered is the reason of a circuit whose probes were never reported.
const unanswered = "probes were not answered in time"

// circuit is one circuit. It is not safe for concurrent use. Its methods want
// advance to be called with the same time first.
type circuit struct {
	settings *Settings
	state    State
	// epoch counts the changes of state. A grant holds for one epoch.
	epoch uint64
	// failures counts those in a row while closed.
	failures int
	// trips is Circuit.Trips.
	trips        int
	since, until time.Time
	reason       string
	page         page
	ramp         ramp
}

// page is what a half-open circuit has admitted.
type page struct {
	admitted int
	// answered is how many of them were answered, without a failure.
	answered int
	// deadline is when the rest must have been, if there is a rest.
	deadline time.Time
}

func (p page) outstanding() int { return p.admitted - p.answered }

// advance makes the changes that time alone brings.
func (c *circuit) advance(now time.Time) {
	if c.state == HalfOpen && c.page.outstanding() > 0 && !now.Before(c.page.deadline) {
		c.trip(unanswered, c.page.deadline)
	}
	if c.state == Open && !now.Before(c.until) {
		c.enter(HalfOpen)
	}
	if c.state != Closed {
		return
	}
	if c.ramp.over(c.settings, now) {
		c.ramp, c.trips = ramp{}, 0
		return
	}
	c.ramp.advance(c.settings, now)
}

// room is how many rows of n the circuit would admit.
func (c *circuit) room(n int) int {
	switch {
	case c.state == Open:
		return 0
	case c.state == HalfOpen:
		return min(n, c.settings.Probes-c.page.admitted)
	case c.ramping():
		return min(n, c.ramp.room(c.settings))
	default:
		return n
	}
}

// retryAt is when there may be room again.
func (c *circuit) retryAt() time.Time {
	switch c.state {
	case Open:
		return c.until
	case HalfOpen:
		return c.page.deadline
	default:
		return c.ramp.next(c.settings)
	}
}

// take admits n rows, for which there must be room.
func (c *circuit) take(n int, now time.Time) {
	switch {
	case c.state == HalfOpen:
		c.page.admitted += n
		c.page.deadline = now.Add(c.settings.ProbeTimeout)
	case c.ramping():
		c.ramp.used += n
	}
}

func (c *circuit) ramping() bool { return !c.ramp.began.IsZero() }

// succeed takes note of a row that was answered.
func (c *circuit) succeed(now time.Time) {
	c.failures = 0
	if c.state == HalfOpen && c.page.outstanding() > 0 {
		c.page.answered++
		c.judge(now)
	}
}

// fail takes note of a row that failed by the circuit's fault.
func (c *circuit) fail(reason string, now time.Time) {
	c.failures++
	if c.state == HalfOpen || c.failures >= c.settings.TripAfter {
		c.trip(reason, now)
	}
}

// forgo takes a row back that says nothing about the circuit.
func (c *circuit) forgo(now time.Time) {
	if c.state == HalfOpen && c.page.outstanding() > 0 {
		c.page.admitted--
		c.judge(now)
	}
}

// judge closes a half-open circuit whose page was answered as a whole.
func (c *circuit) judge(now time.Time) {
	if c.page.answered > 0 && c.page.outstanding() == 0 {
		c.enter(Closed)
		c.ramp.began = now
	}
}

// trip opens the circuit. An outage that goes on keeps its beginning.
func (c *circuit) trip(reason string, now time.Time) {
	if c.state == Closed {
		c.since = now
	}
	c.trips++
	c.until = now.Add(c.settings.coolDown(c.trips))
	c.reason = reason
	c.enter(Open)
}

// enter begins a new epoch in the state.
func (c *circuit) enter(state State) {
	c.state = state
	c.epoch++
	c.failures = 0
	c.page = page{}
	c.ramp = ramp{}
}
