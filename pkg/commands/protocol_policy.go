package commands

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// policyDefinition holds the settings of a protocol or of a step.
type policyDefinition struct {
	Mode       yamlScalar      `yaml:"mode"`
	AckTimeout yamlScalar      `yaml:"ack_timeout"`
	Lease      yamlScalar      `yaml:"lease"`
	Timeout    yamlScalar      `yaml:"timeout"`
	Retry      retryDefinition `yaml:"retry"`
}

// retryDefinition is the retry block.
type retryDefinition struct {
	Dispatch    []yamlScalar `yaml:"dispatch"`
	Ack         []yamlScalar `yaml:"ack"`
	Execution   []yamlScalar `yaml:"execution"`
	MaxAttempts yamlScalar   `yaml:"max_attempts"`
}

// policy checks the timeouts and budgets of a protocol or of a step.
func (c *protocolChecker) policy(at schemaPath, d policyDefinition) statemachine.Policy {
	retry := at.to("retry")
	return statemachine.Policy{
		AckTimeout:  c.duration(at.to("ack_timeout"), d.AckTimeout),
		Lease:       c.duration(at.to("lease"), d.Lease),
		Timeout:     c.timeout(at.to("timeout"), d.Timeout),
		Dispatch:    c.delays(retry.to("dispatch"), d.Retry.Dispatch),
		Ack:         c.delays(retry.to("ack"), d.Retry.Ack),
		Execution:   c.delays(retry.to("execution"), d.Retry.Execution),
		MaxAttempts: c.whole(retry.to("max_attempts"), d.Retry.MaxAttempts, maxAttempts),
	}
}

// The limits of the settings.
const (
	MaxRetries  = 16                   // Delays in one list.
	MaxDuration = 366 * 24 * time.Hour // Of a deadline or a delay.
	maxAttempts = 1000
)

// ParseDuration reads a duration from 1ms to most. Its error continues "x is … and".
func ParseDuration(text string, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return 0, errors.New("must be a duration such as 30s, 15m or 1h30m")
	case d < time.Millisecond:
		return 0, errors.New("must be at least 1ms")
	case d > most:
		return 0, fmt.Errorf("must be at most %s", most)
	}
	return d, nil
}

// IsOff reports whether the text, off or a duration of 0, switches a deadline off.
func IsOff(text string) bool {
	d, err := time.ParseDuration(text)
	return text == "off" || err == nil && d == 0
}

// duration checks a duration; 0 stands for not set.
func (c *protocolChecker) duration(at schemaPath, s yamlScalar) time.Duration {
	text, ok := c.text(at, s)
	if !ok {
		return 0
	}
	d, err := ParseDuration(text, MaxDuration)
	if err != nil {
		c.fail(at, "is %q and %v", text, err)
	}
	return d
}

// offWord is a timeout that is switched off, so that no outer timeout applies.
const offWord time.Duration = -1

// timeout checks a timeout, which may be off; 0 stands for not set.
func (c *protocolChecker) timeout(at schemaPath, s yamlScalar) time.Duration {
	if s.set && !s.compound && IsOff(s.text) {
		return offWord
	}
	return c.duration(at, s)
}

// delays checks the delays before the retries of one cause; nil stands for not
// set.
func (c *protocolChecker) delays(at schemaPath, list []yamlScalar) []time.Duration {
	if list == nil {
		return nil
	}
	if len(list) > MaxRetries {
		c.fail(at, "holds %d delays; at most %d are allowed", len(list), MaxRetries)
		return nil
	}
	delays := make([]time.Duration, 0, len(list))
	for i, s := range list {
		if !s.set {
			c.fail(at.item(i), "must be a duration")
		}
		delays = append(delays, c.duration(at.item(i), s))
	}
	return delays
}

// whole checks a whole number from 1; 0 stands for not set.
func (c *protocolChecker) whole(at schemaPath, s yamlScalar, most int) int {
	text, ok := c.text(at, s)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		c.fail(at, "is %q and must be a whole number from 1 to %d", text, most)
	}
	return n
}
