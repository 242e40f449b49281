package calendar

import (
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// fields are the sets of a cron expression: bit n is set if the value n matches.
type fields struct {
	minutes, hours, days, months, weekdays uint64
	// eitherDay is set if both day fields are restricted: then a day needs to match one of them.
	eitherDay bool
}

const (
	maxCron  = 256 // bytes
	allHours = 1<<24 - 1
	setBits  = 1<<60 - 1 // the parser marks a star above them
)

// The fields of an expression, with the values that they may have.
var fieldsOf = [5]struct {
	name        string
	least, most int
}{{"minute", 0, 59}, {"hour", 0, 23}, {"day of month", 1, 31}, {"month", 1, 12}, {"day of week", 0, 6}}

var descriptors = map[string]bool{
	"@hourly": true, "@daily": true, "@midnight": true, "@weekly": true, "@monthly": true, "@yearly": true, "@annually": true,
}

var parser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// parseCron reads an expression. It refuses first what the parser takes but must not: time zones
// (TZ= without a blank makes it panic), @every, and what it reads as something else.
func parseCron(text string) (*fields, error) {
	parts := strings.Fields(text)
	switch {
	case len(text) > maxCron:
		return nil, invalid("cron", "must have at most %d bytes", maxCron)
	case strings.Contains(text, "="):
		return nil, invalid("cron", "must not name a time zone: time_zone does")
	case strings.HasPrefix(text, "@every"):
		return nil, invalid("cron", "is not for @every: use every")
	case strings.HasPrefix(text, "@") && !descriptors[text]:
		return nil, invalid("cron", "is %q; there are @hourly, @daily, @weekly, @monthly and @yearly", text)
	case strings.HasPrefix(text, "@"):
		parts = nil
	case len(parts) != len(fieldsOf):
		return nil, invalid("cron", "has %d fields instead of five: minute, hour, day of month, month, day of week", len(parts))
	}
	eitherDay := parts != nil
	for i, part := range parts {
		if wrong := misread(part, fieldsOf[i].most); wrong != "" {
			return nil, invalid("cron", "has the %s %q, which %s", fieldsOf[i].name, part, wrong)
		}
		if i == 2 || i == 4 { // As crontab(5): a field with a star is not restricted, with a step neither.
			eitherDay = eitherDay && !strings.ContainsAny(part, "*?")
		}
	}
	parsed, err := parser.Parse(text)
	sets, ok := parsed.(*cron.SpecSchedule)
	if err != nil || !ok {
		return nil, unreadable(parts)
	}
	return &fields{
		minutes: sets.Minute & setBits, hours: sets.Hour & setBits, days: sets.Dom & setBits,
		months: sets.Month & setBits, weekdays: sets.Dow & setBits, eitherDay: eitherDay,
	}, nil
}

// unreadable names the field that the parser refuses: its own errors do not.
func unreadable(parts []string) error {
	for i, part := range parts {
		alone := []string{"*", "*", "*", "*", "*"}
		alone[i] = part
		if _, err := parser.Parse(strings.Join(alone, " ")); err != nil {
			what := "numbers from " + strconv.Itoa(fieldsOf[i].least) + " to " + strconv.Itoa(fieldsOf[i].most)
			if i >= 3 {
				what += ", their English names of three letters"
			}
			return invalid("cron", "has the %s %q, which is not understood: "+
				"it may have %s, rising ranges (1-5), steps (*/2), lists (1,3) and *",
				fieldsOf[i].name, part, what)
		}
	}
	return invalid("cron", "is not understood")
}

// misread says why the parser would take the field for something else than it means, or nothing.
func misread(field string, most int) string {
	for entry := range strings.SplitSeq(field, ",") {
		values, step, stepped := strings.Cut(entry, "/")
		if entry == "" {
			return "has an empty entry"
		}
		if strings.Trim(entry, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ*?/-") != "" {
			return "has a character that no field has"
		}
		if strings.ContainsAny(values, "*?") && len(values) > 1 {
			return "has a range with a star"
		}
		if n, err := strconv.Atoi(step); stepped && (err != nil || n < 1 || n > most) {
			return "has a step that is not from 1 to " + strconv.Itoa(most)
		}
		if most == 6 && strings.ContainsAny(values, "789") {
			return "is above 6: Sunday is 0 or SUN"
		}
	}
	return ""
}

// next returns the first occurrence after that time, or zero if there is none before the limit.
func (f *fields) next(zone *time.Location, after, limit time.Time) time.Time {
	w := newWalk(zone, after)
	if f.hours == allHours {
		return f.nextElapsed(&w, after, limit)
	}
	return f.nextReading(&w, after, limit)
}

// nextElapsed finds { i : local(i) ∈ C }.
func (f *fields) nextElapsed(w *walk, after, limit time.Time) time.Time {
	for w.start().Before(limit) {
		from := w.from + w.offset
		if !after.Before(w.start()) {
			from = after.Unix() + 1 + w.offset
		}
		if c, ok := f.nextMatch(from, min(limit.Unix(), w.to)+w.offset); ok && c < w.to+w.offset {
			return time.Unix(c-w.offset, 0)
		}
		if !w.advance() {
			break
		}
	}
	return time.Time{}
}

// nextReading finds { min{ i : local(i) ≥ c } : c ∈ C }.
func (f *fields) nextReading(w *walk, after, limit time.Time) time.Time {
	for w.start().Before(limit) {
		from := w.reached
		if !after.Before(w.start()) {
			from = max(from, after.Unix()+1+w.offset)
		}
		if c, ok := f.nextMatch(from, min(limit.Unix(), w.to)+w.offset); ok && c < w.to+w.offset {
			return time.Unix(max(c-w.offset, w.from), 0)
		}
		if !w.advance() {
			break
		}
	}
	return time.Time{}
}

const secondsPerDay = 24 * 60 * 60

// nextMatch returns the first reading from that one on that the fields match. It returns false
// if there is none up to the limit's day.
func (f *fields) nextMatch(from, limit int64) (int64, bool) {
	from = -60 * floorDiv(-from, 60) // The next whole minute.
	day := dayOf(from)
	minute := int(from-day*secondsPerDay) / 60
	for date := dateOf(day); day <= dayOf(limit); {
		if f.months&(1<<date.month) == 0 {
			day += int64(date.monthLength() - date.day + 1)
			date, minute = dateOf(day), 0
			continue
		}
		if f.matchesDay(date) {
			if m, ok := f.nextMinute(minute); ok {
				return day*secondsPerDay + int64(m)*60, true
			}
		}
		day++
		date, minute = date.tomorrow(), 0
	}
	return 0, false
}

func (f *fields) matchesDay(date date) bool {
	if f.months&(1<<date.month) == 0 {
		return false
	}
	day, weekday := f.days&(1<<date.day) != 0, f.weekdays&(1<<date.weekday) != 0
	if f.eitherDay {
		return day || weekday
	}
	return day && weekday
}

// nextMinute returns the first minute of a day that matches, from that one on.
func (f *fields) nextMinute(from int) (int, bool) {
	hour := from / 60
	if f.hours&(1<<hour) != 0 {
		if rest := f.minutes >> (from % 60); rest != 0 {
			return from + bits.TrailingZeros64(rest), true
		}
	}
	rest := f.hours >> (hour + 1)
	if rest == 0 {
		return 0, false
	}
	return (hour+1+bits.TrailingZeros64(rest))*60 + bits.TrailingZeros64(f.minutes), true
}

// matches tells if the reading is in C.
func (f *fields) matches(reading int64) bool {
	match, ok := f.nextMatch(reading, reading)
	return ok && match == reading
}

// smallestGap returns the smallest time between two readings in C.
func (f *fields) smallestGap() time.Duration {
	const minutesPerDay = 24 * 60
	smallest := minutesPerDay
	first, _ := f.nextMinute(0)
	last := first
	for next, ok := f.nextMinute(first + 1); ok; next, ok = f.nextMinute(next + 1) {
		smallest, last = min(smallest, next-last), next
	}
	if midnight := minutesPerDay - last + first; midnight < smallest && f.hasNeighbours() {
		smallest = midnight
	}
	return time.Duration(smallest) * time.Minute
}

// hasNeighbours tells if two days that follow each other match.
func (f *fields) hasNeighbours() bool {
	const cycle = 28 * 366 // Dates fall on the same weekdays after 28 years.
	before := false
	for day, i := dateOf(0), 0; i < cycle; day, i = day.tomorrow(), i+1 {
		now := f.matchesDay(day)
		if before && now {
			return true
		}
		before = now
	}
	return false
}
