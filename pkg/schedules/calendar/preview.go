package calendar

import (
	"math"
	"time"
)

// Clock says what a change of the zone's clocks does to an occurrence.
type Clock string

// The values of [Clock], empty for an ordinary occurrence. The first that fits counts.
const (
	// Moved: clocks skip the reading that the cron expression names. This is the first instant
	// after it.
	Moved Clock = "moved"
	// FirstOfTwo: clocks show this reading twice, and this is the first time.
	FirstOfTwo Clock = "first_of_two"
	// SecondOfTwo: the second time. Only schedules that run by elapsed time fire then.
	SecondOfTwo Clock = "second_of_two"
	// Changed: the offset from UTC is not that of the occurrence before.
	Changed Clock = "changed"
)

// Occurrence is one time of a calendar.
type Occurrence struct {
	At    time.Time // in the calendar's zone
	Clock Clock
}

// Preview returns the first n occurrences after that time, fewer if there are no more.
func (c *Calendar) Preview(after time.Time, n int) []Occurrence {
	next := make([]Occurrence, 0, n)
	for len(next) < n {
		at, ok := c.Next(after)
		if !ok {
			break
		}
		found := Occurrence{At: at, Clock: c.clock(at)}
		if found.Clock == "" && len(next) > 0 {
			_, before := next[len(next)-1].At.Zone()
			if _, now := at.Zone(); now != before {
				found.Clock = Changed
			}
		}
		next, after = append(next, found), at
	}
	return next
}

func (c *Calendar) clock(at time.Time) Clock {
	now, unix := period(c.zone, at.Unix()), at.Unix()
	if c.cron != nil && !c.cron.matches(unix+now.offset) {
		return Moved
	}
	if now.to < never {
		after := period(c.zone, now.to)
		if again := unix + now.offset - after.offset; again >= after.from && again < after.to {
			return FirstOfTwo
		}
	}
	if now.from > math.MinInt64 {
		before := period(c.zone, now.from-1)
		if first := unix + now.offset - before.offset; first >= before.from && first < before.to {
			return SecondOfTwo
		}
	}
	return ""
}
