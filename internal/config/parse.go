package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
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

// environmentColours are the colours of an environment; the first is the default.
var environmentColours = []string{"grey", "red", "amber", "green", "blue", "violet"}

// environment accepts a name with or without a colour.
func environment(s string) (Environment, error) {
	name, colour, _ := strings.Cut(s, ":")
	e := Environment{strings.TrimSpace(name), cmp.Or(strings.TrimSpace(colour), environmentColours[0])}
	switch {
	case s == "":
		return Environment{}, nil
	case e.Name == "", utf8.RuneCountInString(e.Name) > 32, strings.ContainsFunc(e.Name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return e, errors.New("must begin with a name of at most 32 characters, as in production:red")
	case !slices.Contains(environmentColours, e.Colour):
		return e, fmt.Errorf("must end with a colour that is one of %s, as in production:red", strings.Join(environmentColours, ", "))
	}
	return e, nil
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
		parts, err := list(s)
		if err == nil && len(parts) == 0 {
			err = fmt.Errorf("must name at least one of %s", strings.Join(words, ", "))
		}
		if err != nil {
			return nil, err
		}
		for _, part := range parts {
			if !slices.Contains(words, part) {
				return nil, fmt.Errorf("has %q, must name some of %s", part, strings.Join(words, ", "))
			}
		}
		return parts, nil
	}
}

// list accepts a comma-separated list without empty entries; the empty text is the
// empty list.
func list(s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	parts := strings.Split(s, ",")
	for i, part := range parts {
		if parts[i] = strings.TrimSpace(part); parts[i] == "" {
			return nil, fmt.Errorf("at place %d: must not be empty", i+1)
		}
	}
	return parts, nil
}

// listOf accepts a comma-separated list of values that parse accepts. Its error gives the
// place of a wrong entry but not the entry, which may be a secret.
func listOf[T any](parse func(string) (T, error)) func(string) ([]T, error) {
	return func(s string) ([]T, error) {
		parts, err := list(s)
		if err != nil {
			return nil, err
		}
		var entries []T
		for i, part := range parts {
			entry, err := parse(part)
			if err != nil {
				return nil, fmt.Errorf("at place %d: %w", i+1, err)
			}
			entries = append(entries, entry)
		}
		return entries, nil
	}
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

// share accepts one in some, such as 1/8, and returns the second number.
func share(s string) (int, error) {
	one, ok := strings.CutPrefix(s, "1/")
	n, err := integer(2, 1000)(one)
	if !ok || err != nil {
		return 0, errors.New("must be from 1/1000 to 1/2, with a 1 before the slash")
	}
	return n, nil
}

// duration accepts the same durations as a protocol file.
func duration(s string) (time.Duration, error) {
	return commands.ParseDuration(s, commands.MaxDuration)
}

// maxKept is the longest time for which ended jobs and keys are kept.
const maxKept = 100 * 366 * 24 * time.Hour

// kept accepts a retention time.
func kept(s string) (time.Duration, error) { return commands.ParseDuration(s, maxKept) }

// orOff accepts 0 and off as 0 too.
func orOff[T any](parse func(string) (T, error)) func(string) (T, error) {
	return func(s string) (value T, err error) {
		if commands.IsOff(s) {
			return value, nil
		}
		if value, err = parse(s); err != nil {
			err = fmt.Errorf("%w, or off", err)
		}
		return value, err
	}
}

// delays accepts a comma-separated list of durations; an empty one allows no retry.
func delays(s string) ([]time.Duration, error) {
	out, err := listOf(duration)(s)
	if err == nil && len(out) > commands.MaxRetries {
		err = fmt.Errorf("has %d delays, at most %d are allowed", len(out), commands.MaxRetries)
	}
	return out, err
}

// boolean accepts true and false.
func boolean(s string) (bool, error) {
	value, err := strconv.ParseBool(s)
	if err != nil {
		return false, errors.New("must be true or false")
	}
	return value, nil
}

// tableName accepts names that every store accepts for a table. Its error suggests the
// closest one, because the sources' names have characters that Azure Tables refuses.
func tableName(s string) (string, error) {
	legal := regexp.MustCompile(`^[a-z][a-z0-9]{2,62}$`)
	if legal.MatchString(s) {
		return s, nil
	}
	const must = "must be 3 to 63 lower-case letters and digits that begin with a letter"
	if closest := regexp.MustCompile(`[^a-z0-9]`).ReplaceAllString(strings.ToLower(s), ""); legal.MatchString(closest) {
		return "", fmt.Errorf("%s, such as %s", must, closest)
	}
	return "", errors.New(must)
}

// The names that Service Bus takes, of topics without the lane's number.
var (
	topicName        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$`)
	subscriptionName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,48}[A-Za-z0-9])?$`)
)

// topicPrefix accepts the name of a topic without its number.
func topicPrefix(s string) (string, error) {
	if !topicName.MatchString(s) {
		return "", errors.New("must be 1 to 200 of the characters A-Z a-z 0-9 . _ / - that begin with a letter or a digit")
	}
	return s, nil
}

// subscription accepts the name of a subscription.
func subscription(s string) (string, error) {
	if !subscriptionName.MatchString(s) {
		return "", errors.New("must be 1 to 50 of the characters A-Z a-z 0-9 . _ - that begin and end with a letter or a digit")
	}
	return s, nil
}

// refPrefix accepts a scheme or a prefix of references.
func refPrefix(s string) (string, error) {
	if (commands.Policy{AllowedRefs: []string{s}}).Validate() != nil {
		return "", errors.New("must be a scheme such as s3, or a prefix that begins with one, such as s3://bucket/")
	}
	return s, nil
}

// network accepts a network.
func network(s string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil || prefix.Addr().Is4In6() { // The guard compares addresses as IPv4.
		return prefix, errors.New("must be a network such as 10.0.0.0/8")
	}
	return prefix.Masked(), nil
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

// publicURL accepts the URL of a server without a path, and drops a slash at its end.
func publicURL(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	s = strings.TrimSuffix(s, "/")
	parsed, err := url.Parse(s)
	if err != nil || parsed.Scheme != "https" && parsed.Scheme != "http" || parsed.Host == "" ||
		parsed.User != nil || parsed.Path != "" || parsed.RawQuery != "" || parsed.Fragment != "" {
		return "", errors.New("must be an http or https URL of a host, without a path")
	}
	return s, nil
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
