package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// into returns the setter of a field. The parser's error continues "LUCIUS_… is …,".
func into[T any](to *T, parse func(string) (T, error)) func(string) error {
	return func(s string) (err error) {
		*to, err = parse(s)
		return err
	}
}

// text accepts any text.
func text(s string) (string, error) { return s, nil }

// required accepts any text but the empty one.
func required(s string) (string, error) {
	if s == "" {
		return "", errors.New("must not be empty")
	}
	return s, nil
}

// oneOf accepts one of the words.
func oneOf(words ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(words, s) {
			return "", fmt.Errorf("must be one of %s", strings.Join(words, ", "))
		}
		return s, nil
	}
}

// subset accepts a comma-separated list of some of the words.
func subset(words ...string) func(string) ([]string, error) {
	return func(s string) ([]string, error) {
		parts := split(s)
		if len(parts) == 0 {
			return nil, fmt.Errorf("must name at least one of %s", strings.Join(words, ", "))
		}
		for _, part := range parts {
			if !slices.Contains(words, part) {
				return nil, fmt.Errorf("has %q, must name some of %s", part, strings.Join(words, ", "))
			}
		}
		return parts, nil
	}
}

// list accepts a comma-separated list.
func list(s string) ([]string, error) { return split(s), nil }

// split splits a comma-separated list.
func split(s string) []string {
	var parts []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// integer accepts a whole number of the range.
func integer(low, high int) func(string) (int, error) {
	return func(s string) (int, error) {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return 0, fmt.Errorf("must be a whole number from %d to %d", low, high)
		}
		return n, nil
	}
}

// fraction accepts a number from 0 to 1.
func fraction(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		return 0, errors.New("must be a number from 0 to 1")
	}
	return f, nil
}

// duration accepts 0, "off" for 0, and durations of at least a millisecond.
func duration(s string) (time.Duration, error) {
	if s == "off" {
		s = "0"
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errors.New("must be a duration such as 30s, 15m or 250ms")
	}
	if d != 0 && d < time.Millisecond {
		return 0, errors.New("must be at least 1ms")
	}
	return d, nil
}

// positive accepts durations of at least a millisecond.
func positive(s string) (time.Duration, error) {
	d, err := duration(s)
	if err == nil && d == 0 {
		err = errors.New("must be at least 1ms")
	}
	return d, err
}

// delays accepts a comma-separated list of durations; an empty one allows no retry.
func delays(s string) ([]time.Duration, error) {
	var out []time.Duration
	for _, part := range split(s) {
		d, err := duration(part)
		if err != nil {
			return nil, fmt.Errorf("has %q, which %w", part, err)
		}
		out = append(out, d)
	}
	if len(out) > 16 {
		return nil, fmt.Errorf("has %d delays, at most 16 are allowed", len(out))
	}
	return out, nil
}

// boolean accepts true and false.
func boolean(s string) (bool, error) {
	value, err := strconv.ParseBool(s)
	if err != nil {
		return false, errors.New("must be true or false")
	}
	return value, nil
}

// tableName accepts names that every store accepts for a table.
func tableName(s string) (string, error) {
	if !regexp.MustCompile(`^[a-z][a-z0-9]{2,62}$`).MatchString(s) {
		return "", errors.New("must be 3 to 63 lower-case letters and digits that begin with a letter")
	}
	return s, nil
}

// secrets accepts a list of webhook secrets.
func secrets(s string) ([]webhook.Secret, error) {
	var out []webhook.Secret
	for i, text := range split(s) {
		secret, err := webhook.ParseSecret(text)
		if err != nil {
			return nil, fmt.Errorf("has at place %d: %w", i+1, err)
		}
		out = append(out, secret)
	}
	return out, nil
}

// networks accepts a list of networks.
func networks(s string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range split(s) {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("has %q, must be networks such as 10.0.0.0/8", text)
		}
		out = append(out, prefix.Masked())
	}
	return out, nil
}

// address accepts host:port.
func address(s string) (string, error) {
	_, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", errors.New("must be host:port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", fmt.Errorf("has port %q, must be a number from 0 to 65535", port)
	}
	return s, nil
}

// issuer accepts the URL of an issuer, and the empty text.
func issuer(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	return s, auth.CheckIssuerURL(s)
}

// maxRate is the highest limit, in requests a second, that still has an effect.
const maxRate = 1e6

// rateLimit accepts RATE or RATE:BURST.
func rateLimit(s string) (limit auth.LimitConfig, err error) {
	rate, burst, bursts := strings.Cut(s, ":")
	if limit.Rate, err = strconv.ParseFloat(rate, 64); err != nil || !(limit.Rate >= 0 && limit.Rate <= maxRate) {
		return limit, errors.New("must be a number of requests a second from 0 to 1000000, or that, a colon and the burst")
	}
	if bursts {
		if limit.Burst, err = integer(1, maxRate)(burst); err != nil {
			return limit, fmt.Errorf("has the burst %q, which %w", burst, err)
		}
	}
	return limit, nil
}
