package config

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/webhook"
)

// required takes any text that is not empty.
func required(to *string, s string) error {
	if s == "" {
		return fmt.Errorf("must not be empty")
	}
	*to = s
	return nil
}

// oneOf takes one of the words.
func oneOf(to *string, s string, words ...string) error {
	if !slices.Contains(words, s) {
		return fmt.Errorf("must be one of %s", strings.Join(words, ", "))
	}
	*to = s
	return nil
}

// subset takes a comma-separated list of some of the words.
func subset(to *[]string, s string, words ...string) error {
	parts := list(s)
	if len(parts) == 0 {
		return fmt.Errorf("must name at least one of %s", strings.Join(words, ", "))
	}
	for _, part := range parts {
		if !slices.Contains(words, part) {
			return fmt.Errorf("has %q, must name some of %s", part, strings.Join(words, ", "))
		}
	}
	*to = parts
	return nil
}

// list splits a comma-separated list.
func list(s string) []string {
	var parts []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// integer takes a whole number of the range.
func integer(to *int, s string, low, high int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < low || n > high {
		return fmt.Errorf("must be a whole number from %d to %d", low, high)
	}
	*to = n
	return nil
}

// fraction takes a number from 0 to 1.
func fraction(to *float64, s string) error {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return fmt.Errorf("must be a number from 0 to 1")
	}
	*to = f
	return nil
}

// duration takes a duration that is not negative; "off" is 0.
func duration(to *time.Duration, s string) error {
	if s == "off" {
		s = "0"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return fmt.Errorf("must be a duration such as 30s, 15m or 250ms")
	}
	if d != 0 && d < time.Millisecond {
		return fmt.Errorf("must be at least 1ms")
	}
	*to = d
	return nil
}

// positive takes a duration of at least a millisecond.
func positive(to *time.Duration, s string) error {
	var d time.Duration
	if err := duration(&d, s); err != nil {
		return err
	}
	if d == 0 {
		return fmt.Errorf("must be at least 1ms")
	}
	*to = d
	return nil
}

// delays takes a comma-separated list of durations; an empty one allows no retry.
func delays(to *[]time.Duration, s string) error {
	var out []time.Duration
	for _, part := range list(s) {
		var d time.Duration
		if err := duration(&d, part); err != nil {
			return fmt.Errorf("has %q, which %w", part, err)
		}
		out = append(out, d)
	}
	if len(out) > 16 {
		return fmt.Errorf("has %d delays, at most 16 are allowed", len(out))
	}
	*to = out
	return nil
}

// boolean takes true or false.
func boolean(to *bool, s string) error {
	value, err := strconv.ParseBool(s)
	if err != nil {
		return fmt.Errorf("must be true or false")
	}
	*to = value
	return nil
}

// tableName takes a name that every store accepts for a table.
func tableName(to *string, s string) error {
	if !regexp.MustCompile(`^[a-z][a-z0-9]{2,62}$`).MatchString(s) {
		return fmt.Errorf("must be 3 to 63 lower-case letters and digits that begin with a letter")
	}
	*to = s
	return nil
}

// secrets takes a list of webhook secrets.
func secrets(to *[]webhook.Secret, s string) error {
	*to = nil
	for i, text := range list(s) {
		secret, err := webhook.ParseSecret(text)
		if err != nil {
			return fmt.Errorf("has at place %d: %w", i+1, err)
		}
		*to = append(*to, secret)
	}
	return nil
}

// networks takes a list of networks.
func networks(to *[]netip.Prefix, s string) error {
	*to = nil
	for _, text := range list(s) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("has %q, must be networks such as 10.0.0.0/8", text)
		}
		*to = append(*to, prefix.Masked())
	}
	return nil
}
