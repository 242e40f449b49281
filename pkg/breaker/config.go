package breaker

import (
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
	counts := []struct {
		field string
		value int
	}{{"TripAfter", s.TripAfter}, {"Probes", s.Probes}, {"RampStep", s.RampStep}}
	for _, c := range counts {
		if c.value < 0 {
			return fmt.Errorf("%s must not be negative, is %d", c.field, c.value)
		}
	}
	durations := []struct {
		field string
		value time.Duration
	}{
		{"CoolDown", s.CoolDown},
		{"MaxCoolDown", s.MaxCoolDown},
		{"ProbeTimeout", s.ProbeTimeout},
		{"RampInterval", s.RampInterval},
		{"RampFor", s.RampFor},
	}
	for _, d := range durations {
		if d.value < 0 {
			return fmt.Errorf("%s must not be negative, is %s", d.field, d.value)
		}
	}
	if full := s.withDefaults(); full.MaxCoolDown < full.CoolDown {
		return fmt.Errorf("MaxCoolDown must not be less than CoolDown, is %s with %s", full.MaxCoolDown, full.CoolDown)
	}
	return nil
}

func (s Settings) withDefaults() Settings {
	setDefault(&s.TripAfter, 1)
	setDefault(&s.CoolDown, 5*time.Second)
	setDefault(&s.MaxCoolDown, 12*s.CoolDown)
	setDefault(&s.Probes, 10)
	setDefault(&s.ProbeTimeout, time.Minute)
	setDefault(&s.RampStep, 100)
	setDefault(&s.RampInterval, time.Second)
	setDefault(&s.RampFor, 30*s.RampInterval)
	return s
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// coolDown returns how long the n-th consecutive trip, counted from 1, keeps
// the circuit open.
func (s Settings) coolDown(n int) time.Duration {
	d := s.CoolDown
	for ; n > 1 && d < s.MaxCoolDown; n-- {
		d *= 2
	}
	return min(d, s.MaxCoolDown)
}
