package breaker

import (
	"cmp"
	"fmt"
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

// Validate returns an error that names the field that is out of range.
func (c Config) Validate() error {
	if err := c.Bus.validate(); err != nil {
		return fmt.Errorf("Bus.%w", err)
	}
	if err := c.Entity.validate(); err != nil {
		return fmt.Errorf("Entity.%w", err)
	}
	return nil
}

func (s Settings) validate() error {
	for name, value := range map[string]int64{
		"TripAfter": int64(s.TripAfter), "Probes": int64(s.Probes), "RampStep": int64(s.RampStep),
		"CoolDown": int64(s.CoolDown), "MaxCoolDown": int64(s.MaxCoolDown), "ProbeTimeout": int64(s.ProbeTimeout),
	} {
		if value < 0 {
			return fmt.Errorf("%s must not be negative, is %d", name, value)
		}
	}
	if full := s.withDefaults(); full.MaxCoolDown < full.CoolDown {
		return fmt.Errorf("MaxCoolDown must not be less than CoolDown, is %s with %s", full.MaxCoolDown, full.CoolDown)
	}
	return nil
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
