package calendar_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/schedules/calendar"
)

// Zones whose clocks change in all ways there are: by an hour in both hemispheres, by 30 minutes,
// by two hours, at midnight, one minute after it, backwards in summer (Dublin), around Ramadan
// (Casablanca), for good (Kolkata, Caracas, Pyongyang), and by a whole day (Apia, Kwajalein,
// Enderbury).
var walkedZones = []string{
	"Africa/Cairo", "Africa/Casablanca", "Africa/Khartoum", "Africa/Monrovia", "Africa/Windhoek",
	"America/Anchorage", "America/Asuncion", "America/Caracas", "America/Godthab", "America/Havana", "America/Los_Angeles",
	"America/Metlakatla", "America/Mexico_City", "America/New_York", "America/Santiago", "America/Sao_Paulo", "America/St_Johns",
	"Antarctica/Casey", "Antarctica/Troll", "Asia/Amman", "Asia/Beirut", "Asia/Gaza", "Asia/Kathmandu", "Asia/Kolkata",
	"Asia/Pyongyang", "Asia/Tehran", "Asia/Tokyo", "Atlantic/Azores", "Australia/Adelaide", "Australia/Lord_Howe",
	"Australia/Sydney", "Europe/Berlin", "Europe/Dublin", "Europe/Istanbul", "Europe/London", "Europe/Moscow",
	"Europe/Volgograd", "Pacific/Apia", "Pacific/Auckland", "Pacific/Chatham", "Pacific/Easter", "Pacific/Enderbury",
	"Pacific/Kwajalein", "Pacific/Norfolk", "UTC",
}

// From 1972-01-08 on all offsets are whole minutes, so that a walk by minutes misses nothing.
var firstWalk, lastWalk = time.Date(1972, 1, 8, 0, 0, 0, 0, time.UTC), time.Date(2060, 1, 1, 0, 0, 0, 0, time.UTC)

func drawField(t *rapid.T, name string, least, most int) string {
	number := rapid.IntRange(least, most)
	switch rapid.IntRange(0, 4).Draw(t, name) {
	case 0:
		return "*"
	case 1:
		return fmt.Sprint(number.Draw(t, name))
	case 2:
		return fmt.Sprintf("%d,%d", number.Draw(t, name), number.Draw(t, name))
	case 3:
		from := number.Draw(t, name)
		return fmt.Sprintf("%d-%d", from, rapid.IntRange(from, most).Draw(t, name))
	default:
		return fmt.Sprintf("*/%d", rapid.IntRange(1, most).Draw(t, name))
	}
}

// drawCron prefers the hours in which clocks change, and days that come often.
func drawCron(t *rapid.T) string {
	minute, hour := drawField(t, "minute", 0, 59), drawField(t, "hour", 0, 23)
	if rapid.Bool().Draw(t, "near the change") {
		hour = rapid.SampledFrom([]string{"0", "1", "2", "3", "0-3", "1,2", "2,3", "23", "*/2", "22-23"}).Draw(t, "hour")
	}
	day, month, weekday := "*", "*", "*"
	if rapid.Bool().Draw(t, "days") {
		day, weekday = drawField(t, "day", 1, 31), drawField(t, "weekday", 0, 6)
	}
	if rapid.IntRange(0, 3).Draw(t, "months") == 0 {
		month = drawField(t, "month", 1, 12)
	}
	return strings.Join([]string{minute, hour, day, month, weekday}, " ")
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

// matcher is the definition of C, read from the expression in the plainest way.
func matcher(expression string) (matches func(time.Time) bool, allHours bool) {
	parts := strings.Fields(expression)
	sets := make([][60]bool, len(parts))
	bounds := [][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 6}}
	for i, part := range parts {
		for entry := range strings.SplitSeq(part, ",") {
			from, to, step := bounds[i][0], bounds[i][1], 1
			first, last, ranged := strings.Cut(entry, "-")
			switch {
			case entry == "*":
			case strings.HasPrefix(entry, "*/"):
				step = number(entry[2:])
			case ranged:
				from, to = number(first), number(last)
			default:
				from, to = number(entry), number(entry)
			}
			for n := from; n <= to; n += step {
				sets[i][n] = true
			}
		}
	}
	either := !strings.Contains(parts[2], "*") && !strings.Contains(parts[4], "*")
	return func(at time.Time) bool {
		day, weekday := sets[2][at.Day()], sets[4][int(at.Weekday())]
		if either && (day || weekday) {
			day, weekday = true, true
		}
		return sets[0][at.Minute()] && sets[1][at.Hour()] && sets[3][int(at.Month())] && day && weekday
	}, strings.Count(fmt.Sprint(sets[1]), "true") == 24
}

// walk is the definition of the occurrences in [from, to), applied minute by minute.
func walk(expression string, zone *time.Location, from, to time.Time) []time.Time {
	matches, allHours := matcher(expression)
	reading := func(at time.Time) time.Time {
		_, offset := at.In(zone).Zone()
		return at.UTC().Add(time.Duration(offset) * time.Second)
	}
	var found []time.Time
	start := from.Add(-25 * time.Hour) // No clock was put back by more.
	reached := reading(start)
	for at := start; at.Before(to); at = at.Add(time.Minute) {
		now := reading(at)
		occurs := allHours && matches(now)
		for !reached.After(now) { // Each reading that this minute is the first to reach.
			occurs = occurs || !allHours && matches(reached)
			reached = reached.Add(time.Minute)
		}
		if occurs && !at.Before(from) {
			found = append(found, at)
		}
	}
	return found
}

// drawChange draws a change of the zone's clocks, or some time if it has none.
func drawChange(t *rapid.T, zone *time.Location) time.Time {
	days := int(lastWalk.Sub(firstWalk).Hours() / 24)
	at := firstWalk.AddDate(0, 0, rapid.IntRange(5, days).Draw(t, "day")).In(zone)
	if _, end := at.ZoneBounds(); !end.IsZero() {
		return end.UTC().Truncate(time.Minute) // In 2038 the data has a change of nothing at 7 s past.
	}
	if start, _ := at.ZoneBounds(); start.After(firstWalk.AddDate(0, 0, 5)) {
		return start.UTC().Truncate(time.Minute)
	}
	return at.UTC()
}

func TestNext_IsWhatAWalkByMinutesFinds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(walkedZones).Draw(t, "zone")
		zone, err := calendar.Zone(name)
		if err != nil {
			t.Fatal(err)
		}
		expression := drawCron(t)
		c, err := calendar.Parse(calendar.Spec{Cron: expression, TimeZone: name})
		if err != nil {
			t.Fatal(err)
		}
		change := drawChange(t, zone)
		from, to := change.Add(-12*time.Hour), change.Add(36*time.Hour)
		at := from.Add(-1)
		for _, want := range walk(expression, zone, from, to) {
			next, ok := c.Next(at)
			if !ok || !next.Equal(want) {
				t.Fatalf("%q in %s after %s:\n got %s, %t\nwant %s", expression, name, at.In(zone), next, ok, want.In(zone))
			}
			at = next
		}
		if next, ok := c.Next(at); ok && next.Before(to) {
			t.Fatalf("%q in %s after %s: got %s, want none before %s", expression, name, at.In(zone), next, to.In(zone))
		}
	})
}

// Each change of each zone from 1995 on, with an expression that it meets.
func TestNext_AtEachChangeOfEachZone(t *testing.T) {
	t.Parallel()
	first, last := time.Date(1995, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	expressions := []string{"30 2 * * *", "*/20 0-3,22-23 * * *", "17 * * * *", "0 0 * * *"}
	for i, name := range walkedZones {
		zone, err := calendar.Zone(name)
		if err != nil {
			t.Fatal(err)
		}
		expression := expressions[i%len(expressions)]
		c, err := calendar.Parse(calendar.Spec{Cron: expression, TimeZone: name})
		if err != nil {
			t.Fatal(err)
		}
		for at := first; ; {
			_, end := at.In(zone).ZoneBounds()
			if end.IsZero() || end.After(last) {
				break
			}
			if !end.After(at) { // The last day of a leap year, as in period.
				at = at.Add(24 * time.Hour)
				continue
			}
			at = end
			checkWalk(t, c, expression, at.UTC().Add(-4*time.Hour), at.UTC().Add(26*time.Hour))
		}
	}
}

func checkWalk(t *testing.T, c *calendar.Calendar, expression string, from, to time.Time) {
	t.Helper()
	at := from.Add(-1)
	for _, want := range walk(expression, c.Zone(), from, to) {
		next, ok := c.Next(at)
		if !ok || !next.Equal(want) {
			t.Fatalf("%q after %s: got %s, %t; want %s", expression, at.In(c.Zone()), next, ok, want.In(c.Zone()))
		}
		at = next
	}
}
