package breaker

import "time"

// unanswered is the reason of a circuit that opened because probes were not
// reported in time.
const unanswered = "probes were not answered in time"

// circuit is one circuit. It is not safe for concurrent use. Before any other
// method, advance must be called with the same time.
type circuit struct {
	settings *Settings
	state    State
	// epoch counts the changes of state. A grant holds for one epoch.
	epoch uint64
	// failures counts consecutive failures while closed.
	failures int
	// trips is Circuit.Trips.
	trips        int
	since, until time.Time
	reason       string
	page         page
	ramp         *Ramp // after the circuit has closed; otherwise nil
	rampEnd      time.Time
}

// page counts the probes that a half-open circuit has admitted.
type page struct {
	admitted int
	answered int       // without a failure
	deadline time.Time // by which the outstanding probes must be reported, if any
}

func (p page) outstanding() int { return p.admitted - p.answered }

// advance makes the state changes that are due by now.
func (c *circuit) advance(now time.Time) {
	if c.state == HalfOpen && c.page.outstanding() > 0 && !now.Before(c.page.deadline) {
		c.trip(unanswered, c.page.deadline)
	}
	if c.state == Open && !now.Before(c.until) {
		c.enter(HalfOpen)
	}
	if c.ramp != nil && !now.Before(c.rampEnd) {
		c.ramp, c.trips = nil, 0
	}
}

// room returns how many of n rows the circuit would admit.
func (c *circuit) room(n int, now time.Time) int {
	switch {
	case c.state == Open:
		return 0
	case c.state == HalfOpen:
		return min(n, c.settings.Probes-c.page.admitted)
	case c.ramp != nil:
		return min(n, c.ramp.Room(now))
	default:
		return n
	}
}

// retryAt returns when there may be room again.
func (c *circuit) retryAt() time.Time {
	switch c.state {
	case Open:
		return c.until
	case HalfOpen:
		return c.page.deadline
	default:
		return c.ramp.next()
	}
}

// take admits n rows. The circuit must have room for them.
func (c *circuit) take(n int, now time.Time) {
	switch {
	case c.state == HalfOpen:
		c.page.admitted += n
		c.page.deadline = now.Add(c.settings.ProbeTimeout)
	case c.ramp != nil:
		c.ramp.Take(n)
	}
}

// succeed records an answered row.
func (c *circuit) succeed(now time.Time) {
	c.failures = 0
	if c.state == HalfOpen && c.page.outstanding() > 0 {
		c.page.answered++
		c.closeIfAnswered(now)
	}
}

// fail records a row whose failure counts against the circuit.
func (c *circuit) fail(reason string, now time.Time) {
	c.failures++
	if c.state == HalfOpen || c.failures >= c.settings.TripAfter {
		c.trip(reason, now)
	}
}

// forgo frees the place of a row that says nothing about the circuit.
func (c *circuit) forgo(now time.Time) {
	if c.state == HalfOpen && c.page.outstanding() > 0 {
		c.page.admitted--
		c.closeIfAnswered(now)
	}
}

// closeIfAnswered closes a half-open circuit once its whole page is answered.
func (c *circuit) closeIfAnswered(now time.Time) {
	if c.page.answered > 0 && c.page.outstanding() == 0 {
		c.enter(Closed)
		c.ramp, c.rampEnd = NewRamp(c.settings.RampStep, now), now.Add(RampFor)
	}
}

// trip opens the circuit, for twice as long each time. An outage that continues keeps
// its start.
func (c *circuit) trip(reason string, now time.Time) {
	if c.state == Closed {
		c.since = now
	}
	c.trips++
	coolDown := c.settings.CoolDown
	for n := c.trips; n > 1 && coolDown < c.settings.MaxCoolDown; n-- {
		coolDown *= 2
	}
	c.until = now.Add(min(coolDown, c.settings.MaxCoolDown))
	c.reason = reason
	c.enter(Open)
}

// enter begins a new epoch in the state.
func (c *circuit) enter(state State) {
	c.state = state
	c.epoch++
	c.failures = 0
	c.page = page{}
	c.ramp = nil
}
