package protocol

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The limits of a protocol file, in addition to [MaxSteps].
const (
	maxRequestTypes   = 64
	maxRequestType    = 128 // bytes, as in a command
	maxSchemaVersions = 64
	maxSchemaVersion  = 32 // bytes, as in a command
	maxRetries        = 16
	maxAttempts       = 1000
	maxDuration       = 366 * 24 * time.Hour
)

var idPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// text returns the text of a value, and false if it is absent or not a text.
func (c *checker) text(at path, s scalar) (string, bool) {
	if s.compound {
		c.fail(at, "must be a single value")
	}
	return s.text, s.set && !s.compound
}

// id checks an id that is required.
func (c *checker) id(at path, s scalar) string {
	text, ok := c.text(at, s)
	switch {
	case !s.set:
		c.fail(at, "is required")
	case ok && !idPattern.MatchString(text):
		c.fail(at, "is %q and must be 1 to 64 of the characters A-Z a-z 0-9 . _ -", text)
	}
	return text
}

// names checks a list of texts that commands may carry.
func (c *checker) names(at path, list []scalar, count, size int) []string {
	if len(list) > count {
		c.fail(at, "holds %d entries; at most %d are allowed", len(list), count)
		return nil
	}
	var names []string
	for i, s := range list {
		text, ok := c.text(at.item(i), s)
		switch {
		case s.compound:
		case !ok || strings.TrimSpace(text) == "":
			c.fail(at.item(i), "must not be empty or blank")
		case len(text) > size:
			c.fail(at.item(i), "is %d bytes long; at most %d are allowed", len(text), size)
		case strings.ContainsFunc(text, unicode.IsControl):
			c.fail(at.item(i), "must not contain control characters")
		case slices.Contains(names, text):
			c.fail(at.item(i), "is %q, which the list holds already", text)
		}
		names = append(names, text)
	}
	return names
}

// input checks where a step's input comes from.
func (c *checker) input(at path, s scalar) statemachine.InputSource {
	text, ok := c.text(at, s)
	if !ok {
		return statemachine.InputJob
	}
	source := statemachine.InputSource(text)
	if source != statemachine.InputJob && source != statemachine.InputPrevious {
		c.fail(at, "is %q and must be %s or %s", text, statemachine.InputJob, statemachine.InputPrevious)
	}
	return source
}

// mode checks a mode.
func (c *checker) mode(at path, s scalar) routing.Mode {
	at = at.to("mode")
	text, ok := c.text(at, s)
	mode := routing.Mode(text)
	if ok && !mode.Valid() {
		c.fail(at, "is %q and must be %s or %s", text, routing.Default, routing.Burst)
	}
	return mode
}

// pointer checks a JSON pointer.
func (c *checker) pointer(at path, s scalar) string {
	text, _ := c.text(at, s)
	if !jsontext.Pointer(text).IsValid() {
		c.fail(at, "is %q and must be a JSON pointer: empty, or /name/name with ~0 for ~ and ~1 for /", text)
	}
	return text
}

// duration checks a duration; 0 stands for not set.
func (c *checker) duration(at path, s scalar) time.Duration {
	text, ok := c.text(at, s)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		c.fail(at, "is %q and must be a duration such as 30s, 15m or 1h30m", text)
	case d <= 0:
		c.fail(at, "is %s and must be longer than 0", text)
	case d > maxDuration:
		c.fail(at, "is %s and must be at most %s", text, maxDuration)
	}
	return d
}

// delays checks the delays before the retries of one cause; nil stands for not
// set.
func (c *checker) delays(at path, list []scalar) []time.Duration {
	if list == nil {
		return nil
	}
	if len(list) > maxRetries {
		c.fail(at, "holds %d delays; at most %d are allowed", len(list), maxRetries)
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

// attempts checks the cap on attempts; 0 stands for not set.
func (c *checker) attempts(at path, s scalar) int {
	text, ok := c.text(at, s)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxAttempts {
		c.fail(at, "is %q and must be a whole number from 1 to %d", text, maxAttempts)
	}
	return n
}
