package breaker

import (
	"cmp"
	"time"
)

// Settings configure one circuit.
type Settings struct {
	// TripAfter is how many consecutive failures open the circuit. Optional.
	// Defaults to 1: if a topic is missing, the next row fails too.
	TripAfter int
	// CoolDown is how long the circuit stays open the first time. Each failed
	// page of probes, and each failure on the ramp, doubles it. Optional.
	// Defaults to 5 s.
	CoolDown time.Duration
	// MaxCoolDown limits the doubled cool-down. Optional. Defaults to 12 times
	// CoolDown.
	MaxCoolDown time.Duration
	// Probes is how many rows a half-open circuit admits. Optional. Defaults
	// to 10.
	Probes int
	// ProbeTimeout is how long after the last admitted probe all probes must be
	// reported; otherwise the circuit opens again. It should exceed the publish
	// deadline. Optional. Defaults to 1 min.
	ProbeTimeout time.Duration
	// RampStep is how many rows the circuit admits in the first second after it closes, and
	// a doubling number in each second after it, for [RampFor]. Optional. Defaults to 100.
	RampStep int
}

// Config configures a [Set].
type Config struct {
	// Bus configures the circuit of the whole bus. Optional.
	Bus Settings
	// Entity configures the circuit of each entity. Optional.
	Entity Settings
}

func (s Settings) withDefaults() Settings {
	s.TripAfter = cmp.Or(s.TripAfter, 1)
	s.CoolDown = cmp.Or(s.CoolDown, 5*time.Second)
	s.MaxCoolDown = cmp.Or(s.MaxCoolDown, 12*s.CoolDown)
	s.Probes = cmp.Or(s.Probes, 10)
	s.ProbeTimeout = cmp.Or(s.ProbeTimeout, time.Minute)
	s.RampStep = cmp.Or(s.RampStep, 100)
	return s
}
