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
	// RampStep is by how many rows the limit grows with each RampInterval after
	// the circuit closes. Optional. Defaults to 100.
	RampStep int
	// RampInterval is the length of one step of the ramp. Optional. Defaults to
	// 1 s.
	RampInterval time.Duration
	// RampFor is how long the ramp lasts. Optional. Defaults to 30 times
	// RampInterval.
	RampFor time.Duration
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
	for _, f := range []struct {
		name     string
		value    any
		negative bool
	}{
		{"TripAfter", s.TripAfter, s.TripAfter < 0},
		{"Probes", s.Probes, s.Probes < 0},
		{"RampStep", s.RampStep, s.RampStep < 0},
		{"CoolDown", s.CoolDown, s.CoolDown < 0},
		{"MaxCoolDown", s.MaxCoolDown, s.MaxCoolDown < 0},
		{"ProbeTimeout", s.ProbeTimeout, s.ProbeTimeout < 0},
		{"RampInterval", s.RampInterval, s.RampInterval < 0},
		{"RampFor", s.RampFor, s.RampFor < 0},
	} {
		if f.negative {
			return fmt.Errorf("%s must not be negative, is %v", f.name, f.value)
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
	s.RampInterval = cmp.Or(s.RampInterval, time.Second)
	s.RampFor = cmp.Or(s.RampFor, 30*s.RampInterval)
	return s
}
