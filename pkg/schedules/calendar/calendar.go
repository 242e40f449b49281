// Package calendar says when a schedule is due. It is pure: it reads no clock.
package calendar

import (
	"errors"
	"hash/fnv"
	"time"
)

// Spec says when a schedule is due: exactly one of Cron and Every is set.
type Spec struct {
	// Cron is five fields as crontab has them, or @hourly to @yearly.
	Cron string `column:"cron"`
	// Every is the elapsed time between two occurrences, the first of which is StartAt.
	Every time.Duration `column:"every_ms"`
	// TimeZone is the IANA name of the zone in which Cron is read. Empty is UTC.
	TimeZone string `column:"time_zone"`
	// Jitter delays the start of each occurrence by less than that: see [Jitter].
	Jitter time.Duration `column:"jitter_ms"`
	// StartAt and EndAt bound the occurrences, both included. Zero is no bound; the caller sets the StartAt of an
	// Every that has none.
	StartAt time.Time `column:"start_at"`
	EndAt   time.Time `column:"end_at"`
}

// Calendar is a parsed [Spec]. It is safe for concurrent use.
type Calendar struct{ spec Spec }

// Parse checks a spec. The error says what is wrong with it.
func Parse(spec Spec) (*Calendar, error) {
	if spec.Every < time.Second {
		return nil, errors.New("every must be at least a second")
	}
	return &Calendar{spec: spec}, nil
}

// Next returns the first occurrence strictly after that time, in whole seconds and without jitter; ok is false if there
// is none.
func (c *Calendar) Next(after time.Time) (at time.Time, ok bool) {
	at = c.spec.StartAt
	if !after.Before(at) {
		at = after.Add(c.spec.Every - after.Sub(at)%c.spec.Every)
	}
	if !c.spec.EndAt.IsZero() && at.After(c.spec.EndAt) {
		return time.Time{}, false
	}
	return at.UTC(), true
}

// Jitter returns by how much the start of an occurrence is delayed: the same in each process.
func Jitter(id string, at time.Time, jitter time.Duration) time.Duration {
	if jitter <= 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(id + at.UTC().Format(time.RFC3339)))
	return time.Duration(h.Sum64() % uint64(jitter)).Truncate(time.Millisecond)
}
