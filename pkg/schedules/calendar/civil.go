package calendar

import (
	"math"
	"time"
)

// A reading of a clock is counted in seconds, as if the clock were of UTC: the reading
// 1970-01-02 00:00:00 is 86400 in each zone.

// reading returns what the clock of the time's zone reads.
func reading(at time.Time) int64 {
	_, offset := at.Zone()
	return at.Unix() + int64(offset)
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// dayOf returns the day of a reading, counted from 1970-01-01.
func dayOf(reading int64) int64 { return floorDiv(reading, secondsPerDay) }

type date struct {
	year, month, day, weekday int
}

func dateOf(day int64) date {
	at := time.Unix(day*secondsPerDay, 0).UTC()
	year, month, d := at.Date()
	return date{year, int(month), d, int(at.Weekday())}
}

func (d date) monthLength() int {
	switch d.month {
	case 2:
		if d.year%4 == 0 && (d.year%100 != 0 || d.year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

func (d date) tomorrow() date {
	d.weekday = (d.weekday + 1) % 7
	if d.day++; d.day <= d.monthLength() {
		return d
	}
	d.day = 1
	if d.month++; d.month > 12 {
		d.year, d.month = d.year+1, 1
	}
	return d
}

// walk goes through the periods in which the offset of a zone stays the same. Times are seconds
// of Unix time.
type walk struct {
	zone     *time.Location
	from, to int64 // [from, to) is the period
	offset   int64 // local(i) = i + offset
	// invariant: reached = sup{ local(i) : i < from }. So the readings from it on are reached for
	// the first time in this period or later; those below from + offset are skipped, and due at
	// from.
	reached int64
}

// never ends a zone's last period.
const never = math.MaxInt64 / 2

// repeats bounds how long readings of a clock that was put back repeat: it was never put back by
// more than a day.
const repeats = 48 * 60 * 60

// newWalk begins with the period of that time.
func newWalk(zone *time.Location, at time.Time) walk {
	w := period(zone, at.Unix())
	w.reached = math.MinInt64
	for before := w; before.from > math.MinInt64 && before.from > w.from-repeats; {
		before = period(zone, before.from-1)
		w.reached = max(w.reached, before.to+before.offset)
	}
	return w
}

// period returns the period of that time, without reached.
func period(zone *time.Location, unix int64) walk {
	at := time.Unix(unix, 0).In(zone)
	_, offset := at.Zone()
	w := walk{zone: zone, from: math.MinInt64, to: never, offset: int64(offset)}
	start, end := at.ZoneBounds()
	if !start.IsZero() {
		w.from = start.Unix()
	}
	if !end.IsZero() {
		w.to = end.Unix()
	}
	if w.to <= unix {
		// ZoneBounds ends the last period of a leap year a day too early if the year comes after the
		// changes that the data lists. Such a day goes by minutes.
		w.to = unix + 60
	}
	return w
}

func (w *walk) start() time.Time {
	if w.from == math.MinInt64 {
		return time.Time{}
	}
	return time.Unix(w.from, 0)
}

// advance goes on to the next period, and returns false after the last one.
func (w *walk) advance() bool {
	if w.to == never {
		return false
	}
	from, reached := w.to, max(w.reached, w.to+w.offset)
	*w = period(w.zone, from)
	// ZoneBounds may say that this period began earlier, with the same offset.
	w.from, w.reached = from, reached
	return true
}

// first returns min{ i : local(i) ≥ reading }, for a reading that the walk has not passed.
func (w *walk) first(reading int64) time.Time {
	for w.to+w.offset <= reading && w.advance() {
		continue
	}
	return time.Unix(max(reading-w.offset, w.from), 0)
}

func parseDates(dates []string) (map[int64]bool, error) {
	if len(dates) > MaxExcludedDates {
		return nil, invalid("excluded_dates", "must hold at most %d dates", MaxExcludedDates)
	}
	days := make(map[int64]bool, len(dates))
	for _, text := range dates {
		day, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return nil, invalid("excluded_dates", "is %q, which is not a date, for example 2027-12-24", text)
		}
		days[dayOf(day.Unix())] = true
	}
	return days, nil
}
