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

// The functions of this file return parsers, which set *to. Their errors continue
// "LUCIUS_… is …,".

// text accepts any text.
func text(to *string) func(string) error {
	return func(s string) error {
		*to = s
		return nil
	}
}

// required accepts any text but the empty one.
func required(to *string) func(string) error {
	return func(s string) error {
		if s == "" {
			return errors.New("must not be empty")
		}
		*to = s
		return nil
	}
}

// oneOf accepts one of the words.
func oneOf(to *string, words ...string) func(string) error {
	return func(s string) error {
		if !slices.Contains(words, s) {
			return fmt.Errorf("must be one of %s", strings.Join(words, ", "))
		}
		*to = s
		return nil
	}
}

// subset accepts a comma-separated list of some of the words.
func subset(to *[]string, words ...string) func(string) error {
	return func(s string) error {
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
}

// texts accepts a comma-separated list.
func texts(to *[]string) func(string) error {
	return func(s string) error {
		*to = list(s)
		return nil
	}
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

// integer accepts a whole number of the range.
func integer(to *int, low, high int) func(string) error {
	return func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return fmt.Errorf("must be a whole number from %d to %d", low, high)
		}
		*to = n
		return nil
	}
}

// fraction accepts a number from 0 to 1.
func fraction(to *float64) func(string) error {
	return func(s string) error {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !(f >= 0 && f <= 1) {
			return errors.New("must be a number from 0 to 1")
		}
		*to = f
		return nil
	}
}

// duration accepts 0, "off" for 0, and durations of at least a millisecond.
func duration(to *time.Duration) func(string) error {
	return func(s string) error {
		if s == "off" {
			s = "0"
		}
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return errors.New("must be a duration such as 30s, 15m or 250ms")
		}
		if d != 0 && d < time.Millisecond {
			return errors.New("must be at least 1ms")
		}
		*to = d
		return nil
	}
}

// positive accepts durations of at least a millisecond.
func positive(to *time.Duration) func(string) error {
	return func(s string) error {
		var d time.Duration
		if err := duration(&d)(s); err != nil {
			return err
		}
		if d == 0 {
			return errors.New("must be at least 1ms")
		}
		*to = d
		return nil
	}
}

// delays accepts a comma-separated list of durations; an empty one allows no retry.
func delays(to *[]time.Duration) func(string) error {
	return func(s string) error {
		var out []time.Duration
		for _, part := range list(s) {
			var d time.Duration
			if err := duration(&d)(part); err != nil {
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
}

// boolean accepts true and false.
func boolean(to *bool) func(string) error {
	return func(s string) error {
		value, err := strconv.ParseBool(s)
		if err != nil {
			return errors.New("must be true or false")
		}
		*to = value
		return nil
	}
}

// tableName accepts names that every store accepts for a table.
func tableName(to *string) func(string) error {
	return func(s string) error {
		if !regexp.MustCompile(`^[a-z][a-z0-9]{2,62}$`).MatchString(s) {
			return errors.New("must be 3 to 63 lower-case letters and digits that begin with a letter")
		}
		*to = s
		return nil
	}
}

// secrets accepts a list of webhook secrets.
func secrets(to *[]webhook.Secret) func(string) error {
	return func(s string) error {
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
}

// networks accepts a list of networks.
func networks(to *[]netip.Prefix) func(string) error {
	return func(s string) error {
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
}

// address accepts host:port.
func address(to *string) func(string) error {
	return func(s string) error {
		_, port, err := net.SplitHostPort(s)
		if err != nil {
			return errors.New("must be host:port")
		}
		if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
			return fmt.Errorf("has port %q, must be a number from 0 to 65535", port)
		}
		*to = s
		return nil
	}
}

// issuer accepts the URL of an issuer, and the empty text.
func issuer(to *string) func(string) error {
	return func(s string) error {
		*to = s
		if s == "" {
			return nil
		}
		return auth.CheckIssuerURL(s)
	}
}

// maxRate is the highest limit, in requests a second, that still has an effect.
const maxRate = 1e6

// rateLimit accepts RATE or RATE:BURST.
func rateLimit(to *auth.LimitConfig) func(string) error {
	return func(s string) error {
		rate, burst, bursts := strings.Cut(s, ":")
		var limit auth.LimitConfig
		var err error
		if limit.Rate, err = strconv.ParseFloat(rate, 64); err != nil || !(limit.Rate >= 0 && limit.Rate <= maxRate) {
			return errors.New("must be a number of requests a second from 0 to 1000000, or that, a colon and the burst")
		}
		if bursts {
			if err := integer(&limit.Burst, 1, maxRate)(burst); err != nil {
				return fmt.Errorf("has the burst %q, which %w", burst, err)
			}
		}
		*to = limit
		return nil
	}
}
