package sim

import (
	"math/rand/v2"
)

// Fault is a kind of fault.
type Fault string

// The faults.
const (
	None        Fault = "-"
	FailBefore  Fault = "fail-before"  // the call is refused, without effect
	FailAfter   Fault = "fail-after"   // the call is executed, but the reply is lost
	LateWrite   Fault = "late-write"   // the write times out, and lands later or never
	CrashBefore Fault = "crash-before" // the process crashes before the call is executed
	CrashAfter  Fault = "crash-after"  // the process crashes after the call was executed
	SlowReply   Fault = "slow-reply"   // the call is executed, but its reply comes later: a read is stale
	Delay       Fault = "delay"        // the call is executed later
	ShortPage   Fault = "short-page"   // a page has fewer rows than it could
	Throttle    Fault = "throttle"     // the store refuses all calls for a while
	Partition   Fault = "partition"    // one replica cannot reach the store for a while
	ClockJump   Fault = "clock-jump"   // time passes while nothing runs
	BusOutage   Fault = "bus-outage"   // the bus, or a topic, is down for a while
	Rejected    Fault = "rejected"     // the bus rejects a message because of its content
	Duplicate   Fault = "duplicate"    // the bus delivers a message again
	Expired     Fault = "expired"      // the caller's context has ended
	Unsynced    Fault = "unsynced"     // the call is executed, but its reply waits for the disk
	PowerLoss   Fault = "power-loss"   // the process crashes, and unsynced writes are undone
	DiskFailure Fault = "disk-failure" // unsynced writes are undone, and the store refuses all calls
	Undone      Fault = "undone"       // an unsynced write is undone
	Slow        Fault = "slow"         // the call takes about as long as its deadline allows
)

// callFaults strike single calls, in the order in which they are drawn.
var callFaults = []Fault{FailBefore, FailAfter, LateWrite, CrashBefore, CrashAfter, SlowReply, ShortPage, Rejected}

// worldFaults strike many calls.
var worldFaults = []Fault{Throttle, Partition, ClockJump, BusOutage}

// strikes reports whether a fault can strike a call.
func (f Fault) strikes(v verb) bool {
	switch f {
	case FailBefore:
		return v != verbLook
	case FailAfter:
		return v == verbCommit || v == verbPublish || v == verbSend
	case LateWrite:
		return v == verbCommit || v == verbSend
	case CrashBefore, CrashAfter:
		return v == verbGet || v == verbScan || v == verbCommit || v == verbPublish || v == verbSend
	case SlowReply:
		return v == verbGet || v == verbScan || v == verbCommit || v == verbSend
	case ShortPage:
		return v == verbScan
	case Rejected:
		return v == verbPublish
	default:
		return false
	}
}

// profile holds how often each fault strikes. Each seed draws one: some have few kinds of
// faults, so that others do not hide the effect of one.
type profile struct {
	rates map[Fault]float64
	delay float64 // the fraction of calls that are delayed
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
	p.rates[Rejected] *= 6 // There are few publishes.
	// A crash costs more than a lost reply, and a system that is always down tests nothing.
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

// draw draws the fault of a call.
func (p *profile) draw(rng *rand.Rand, v verb) Fault {
	draw := rng.Float64()
	for _, f := range callFaults {
		if !f.strikes(v) {
			continue
		}
		if draw -= p.rates[f]; draw < 0 {
			return f
		}
	}
	return None
}
