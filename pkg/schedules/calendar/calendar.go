// Package calendar computes the times of a schedule: by a cron expression or a fixed interval, in
// a time zone whose clocks may change. It is pure: it reads no clock, and equal arguments have
// equal results in every process of one build, because the time zone data is part of the program.
// That of the machine is never read: replicas on machines of different age would fire at different
// times, and nothing would say so.
//
// Let local(i) be the reading of the zone's clock at the instant i, and C the readings that the
// fields of a cron expression match. Its occurrences are
//
//	{ min{ i : local(i) ≥ c } : c ∈ C }    if the hour field leaves out an hour
//	{ i : local(i) ∈ C }                   if the hour field admits all 24
//
// So a daily job runs once a day: at the first instant after a reading that clocks skip, and the
// first time at a reading that they repeat. A job of every hour or minute runs by elapsed time:
// not at readings that are skipped, and each time at those that are repeated.
package calendar

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"
)

// Bounds of a [Spec].
const (
	MinEvery         = 10 * time.Second
	MaxJitter        = time.Hour
	MaxExcludedDates = 1000
	// MaxWait is how far ahead the first occurrence may be, see [Calendar.Check].
	MaxWait = 5 * 366 * 24 * time.Hour
)

// horizon bounds the search for the next occurrence: between two leap days are up to 8 years.
const horizon = 9 * 366 * 24 * time.Hour

// Spec says when a schedule fires.
type Spec struct {
	// Cron is a cron expression of five fields, or one of @hourly, @daily (or @midnight), @weekly,
	// @monthly and @yearly (or @annually). Either it or Every is required.
	Cron string `column:"cron"`
	// Every is the time between two occurrences, in whole seconds, at least [MinEvery]. They are
	// counted from StartAt, or else from 1970-01-01T00:00:00Z.
	Every time.Duration `column:"every_ms"`
	// TimeZone is the IANA name of a zone. Optional. Defaults to UTC.
	TimeZone string `column:"time_zone"`
	// Jitter bounds the delay of each occurrence, see [Jitter]. Optional. It is at most
	// [MaxJitter], and half of the smallest time between two occurrences.
	Jitter time.Duration `column:"jitter_ms"`
	// StartAt and EndAt are the first and the last instant that may be an occurrence. Optional.
	StartAt time.Time `column:"start_at"`
	EndAt   time.Time `column:"end_at"`
	// ExcludedDates are days in the time zone, as 2006-01-02, that have no occurrences. Optional,
	// at most [MaxExcludedDates].
	ExcludedDates []string `column:"excluded_dates"`
}

// Error says which field of a [Spec] makes no sense.
type Error struct {
	Field   string // as the API names it, for example time_zone
	Message string // what is wrong with it, as in "must be …"
}

func (e *Error) Error() string { return e.Field + " " + e.Message }

func invalid(field, format string, args ...any) error {
	return &Error{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Calendar is a valid [Spec]. It is immutable, and safe for concurrent use.
type Calendar struct {
	zone       *time.Location
	start, end time.Time // zero: unbounded
	excluded   map[int64]bool
	cron       *fields       // nil: every
	every      time.Duration // 0: cron
	anchor     time.Time     // of every
}

// Parse checks the spec. The error is an [*Error].
func Parse(spec Spec) (*Calendar, error) {
	zone, err := Zone(spec.TimeZone)
	if err != nil {
		return nil, err
	}
	c := &Calendar{zone: zone, start: spec.StartAt, end: spec.EndAt}
	switch {
	case spec.Cron == "" && spec.Every == 0:
		return nil, invalid("cron", "is required, unless there is every")
	case spec.Cron != "" && spec.Every != 0:
		return nil, invalid("every", "must not be set together with cron")
	case spec.Cron != "":
		if c.cron, err = parseCron(spec.Cron); err != nil {
			return nil, err
		}
	case spec.Every < MinEvery:
		return nil, invalid("every", "must be at least %s", MinEvery)
	case spec.Every%time.Second != 0:
		return nil, invalid("every", "must be whole seconds")
	default:
		c.every, c.anchor = spec.Every, time.Unix(0, 0)
		if !c.start.IsZero() {
			c.anchor = c.start
		}
	}
	if !c.end.IsZero() && c.end.Before(c.start) {
		return nil, invalid("end_at", "must not be earlier than start_at")
	}
	if c.excluded, err = parseDates(spec.ExcludedDates); err != nil {
		return nil, err
	}
	return c, c.checkJitter(spec.Jitter)
}

func (c *Calendar) checkJitter(jitter time.Duration) error {
	bound := min(MaxJitter, c.SmallestGap()/2)
	switch {
	case jitter < 0 || jitter%time.Millisecond != 0:
		return invalid("jitter", "must be whole milliseconds, and not negative")
	case jitter > bound:
		return invalid("jitter", "must be at most %s: an hour, and half of the smallest time between two occurrences", bound)
	}
	return nil
}

// Check returns an [*Error] if the calendar has no occurrence in the 5 years after now, or after
// StartAt if that is later.
func (c *Calendar) Check(now time.Time) error {
	field := "cron"
	if c.cron == nil {
		field = "every"
	}
	if !c.end.IsZero() && !c.end.After(now) {
		return invalid("end_at", "has passed")
	}
	if next, ok := c.Next(now); !ok || next.Sub(later(now, c.start)) > MaxWait {
		return invalid(field, "has no occurrence in the next 5 years, with its start, end and excluded dates")
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Zone returns the time zone. Times that the calendar returns are in it.
func (c *Calendar) Zone() *time.Location { return c.zone }

// SmallestGap returns the smallest time between two occurrences, changes of the clocks aside.
func (c *Calendar) SmallestGap() time.Duration {
	if c.cron == nil {
		return c.every
	}
	return c.cron.smallestGap()
}

// Next returns the first occurrence after that time, in the calendar's zone. It returns false if
// there is none before the end, or none in the 9 years that follow.
func (c *Calendar) Next(after time.Time) (time.Time, bool) {
	if !c.start.IsZero() && after.Before(c.start) {
		after = c.start.Add(-1)
	}
	limit := after.Add(horizon)
	if !c.end.IsZero() && c.end.Before(limit) {
		limit = c.end.Add(1)
	}
	for {
		next := c.following(after, limit)
		if next.IsZero() || !next.Before(limit) {
			return time.Time{}, false
		}
		next = next.In(c.zone)
		day := dayOf(reading(next))
		if !c.excluded[day] {
			return next, true
		}
		w := newWalk(c.zone, next)
		// On to the instant before the next day begins. It may have begun before, if clocks that
		// were put back repeat midnight.
		after = later(next, w.first((day+1)*secondsPerDay).Add(-1))
	}
}

// following returns the first occurrence after that time, excluded dates aside. It is zero if
// there is none before the limit.
func (c *Calendar) following(after, limit time.Time) time.Time {
	if c.cron != nil {
		return c.cron.next(c.zone, after, limit)
	}
	// In seconds, because a [time.Duration] ends after 292 years.
	every := int64(c.every / time.Second)
	n := floorDiv(after.Unix()-c.anchor.Unix(), every)
	next := time.Unix(c.anchor.Unix()+n*every, int64(c.anchor.Nanosecond()))
	for !next.After(after) {
		next = next.Add(c.every)
	}
	return next
}

// Jitter returns the delay of the schedule's occurrence at that time: whole milliseconds in
// [0, jitter), the same in every process.
func Jitter(scheduleID string, at time.Time, jitter time.Duration) time.Duration {
	steps := jitter.Milliseconds()
	if steps <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(scheduleID + "/" + strconv.FormatInt(at.UnixMilli(), 10)))
	return time.Duration(binary.BigEndian.Uint64(sum[:8])%uint64(steps)) * time.Millisecond
}
