package sim

import (
	"math/rand/v2"
)

// Fault is one kind of thing that goes wrong.
type Fault string

// The faults.
const (
	None        Fault = "-"
	FailBefore  Fault = "fail-before"  // refused; nothing happened
	FailAfter   Fault = "fail-after"   // done, and the reply lost
	LateWrite   Fault = "late-write"   // timed out, and done later, or never
	CrashBefore Fault = "crash-before" // the process dies; nothing happened
	CrashAfter  Fault = "crash-after"  // done, and the process dies
	SlowReply   Fault = "slow-reply"   // done, and the reply comes later: a read is stale
	Delay       Fault = "delay"        // the call itself is held up
	ShortPage   Fault = "short-page"   // a page ends earlier than it had to
	Throttle    Fault = "throttle"     // the store takes nothing in for a while
	Partition   Fault = "partition"    // one replica loses the store for a while
	ClockJump   Fault = "clock-jump"   // time passes, and nobody gets on
	BusOutage   Fault = "bus-outage"   // the bus takes nothing in for a while
	Rejected    Fault = "rejected"     // the bus refuses a message for its own sake
	Duplicate   Fault = "duplicate"    // the bus delivers a message again
	Expired     Fault = "expired"      // the caller's time was over
)

// callFaults are those that strike single calls, in the order in which lots are
// drawn.
var callFaults = []Fault{FailBefore, FailAfter, LateWrite, CrashBefore, CrashAfter, SlowReply, ShortPage, Rejected}

// worldFaults are those that strike all, or many.
var worldFaults = []Fault{Throttle, Partition, ClockJump, BusOutage}

// strikes reports whether a fault makes sense for a call.
func (f Fault) strikes(v verb) bool {
	switch f {
	case FailBefore:
		return v != verbLook
	case FailAfter:
		return v == verbCommit || v == verbPublish
	case LateWrite:
		return v == verbCommit
	case CrashBefore, CrashAfter:
		return v == verbGet || v == verbScan || v == verbCommit || v == verbPublish
	case SlowReply:
		return v == verbGet || v == verbScan || v == verbCommit
	case ShortPage:
		return v == verbScan
	case Rejected:
		return v == verbPublish
	default:
		return false
	}
}

// profile says how often which fault strikes. Each seed has its own: some have
// few kinds, so that one of them is seen without the noise of the others.
type profile struct {
	rates map[Fault]float64
	delay float64 // of calls that are held up
}

// newProfile draws a profile.
func newProfile(rng *rand.Rand) profile {
	p := profile{rates: map[Fault]float64{}}
	intensity := []float64{0.002, 0.01, 0.03}[rng.IntN(3)]
	for _, f := range callFaults {
		if rng.IntN(2) == 0 {
			p.rates[f] = intensity * (0.5 + rng.Float64())
		}
	}
	// A crash costs more than a lost reply: a world that is always down learns
	// nothing.
	p.rates[Rejected] *= 6 // Publishes are few.
	p.rates[CrashBefore] /= 4
	p.rates[CrashAfter] /= 4
	for _, f := range worldFaults {
		if rng.IntN(3) == 0 {
			p.rates[f] = intensity / 20 * (0.5 + rng.Float64())
		}
	}
	if rng.IntN(2) == 0 {
		p.delay = 0.02 + 0.1*rng.Float64()
	}
	return p
}

// draw draws the fault of one call.
func (p *profile) draw(rng *rand.Rand, v verb) Fault {
	lot := rng.Float64()
	for _, f := range callFaults {
		if !f.strikes(v) {
			continue
		}
		if lot -= p.rates[f]; lot < 0 {
			return f
		}
	}
	return None
}
