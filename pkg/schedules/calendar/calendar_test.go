package calendar_test

import (
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
)

var update = flag.Bool("update", false, "write testdata/clock-changes.md")

func mustParse(t testing.TB, spec calendar.Spec) *calendar.Calendar {
	t.Helper()
	return musttest.Make(t, calendar.Parse, spec)
}

// nextThree writes the next occurrences without what they share with the first.
func nextThree(c *calendar.Calendar, after time.Time) string {
	texts := make([]string, 0, 3)
	for _, next := range c.Preview(after, 3) {
		text := next.At.Format("2006-01-02 15:04Z07:00")
		if next.Clock != "" {
			text += " (" + string(next.Clock) + ")"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

func TestNext_Golden(t *testing.T) {
	t.Parallel()
	const file = "testdata/clock-changes.md"
	lines := strings.Split(string(musttest.ReadFile(t, file)), "\n")
	zone, cases := "", 0
	for i, line := range lines {
		if name, ok := strings.CutPrefix(line, "## "); ok {
			zone = name
		}
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		cases++
		c := mustParse(t, calendar.Spec{Cron: strings.Trim(cells[0], "|` "), TimeZone: zone})
		after, err := time.ParseInLocation("2006-01-02T15:04", cells[1], c.Zone())
		if err != nil {
			after, err = time.Parse("2006-01-02T15:04Z07:00", cells[1])
			musttest.NoError(t, err)
		}
		lines[i] = strings.Join([]string{cells[0], cells[1], nextThree(c, after), cells[len(cells)-1]}, " | ")
	}
	if cases < 60 {
		t.Errorf("%d cases, want at least 60", cases)
	}
	musttest.Golden(t, file, strings.Join(lines, "\n"), *update)
}

func TestParse_NamesTheFieldThatMakesNoSense(t *testing.T) {
	t.Parallel()
	day := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	tests := []struct {
		name  string
		spec  calendar.Spec
		field string
		says  string
	}{
		{"nothing", calendar.Spec{}, "cron", "is required"},
		{"both", calendar.Spec{Cron: "@daily", Every: time.Minute}, "every", "together"},
		{"a zone that makes the parser panic", calendar.Spec{Cron: "TZ=UTC"}, "cron", "time_zone"},
		{"a zone in the expression", calendar.Spec{Cron: "CRON_TZ=UTC 0 0 * * *"}, "cron", "time_zone"},
		{"an interval in the expression", calendar.Spec{Cron: "@every 1h"}, "cron", "use every"},
		{"an unknown descriptor", calendar.Spec{Cron: "@reboot"}, "cron", "@hourly"},
		{"four fields", calendar.Spec{Cron: "* * * *"}, "cron", "4 fields"},
		{"six fields", calendar.Spec{Cron: "0 * * * * *"}, "cron", "6 fields"},
		{"an hour that no clock shows", calendar.Spec{Cron: "0 24 * * *"}, "cron", `hour "24"`},
		{"a falling range", calendar.Spec{Cron: "0 0 * * FRI-SUN"}, "cron", `day of week "FRI-SUN"`},
		{"a name in the wrong field", calendar.Spec{Cron: "0 JAN * * *"}, "cron", `hour "JAN"`},
		{"an empty entry, which the parser takes for never", calendar.Spec{Cron: "0, 0 * * *"}, "cron", `minute "0,"`},
		{"a comma alone, which the parser takes for never", calendar.Spec{Cron: ", 0 * * *"}, "cron", `minute ","`},
		{"Sunday as 7", calendar.Spec{Cron: "0 0 * * 7"}, "cron", "Sunday is 0"},
		{"a step of nothing", calendar.Spec{Cron: "*/0 * * * *"}, "cron", "step"},
		{"a step over the end, which the parser takes for the first value", calendar.Spec{Cron: "*/90 * * * *"}, "cron", "step"},
		{"a range from a star, which the parser takes for the star", calendar.Spec{Cron: "*-5 * * * *"}, "cron", "range with a star"},
		{"a sign", calendar.Spec{Cron: "+5 * * * *"}, "cron", "character"},
		{"the last day of the month", calendar.Spec{Cron: "0 0 L * *"}, "cron", `day of month "L"`},
		{"a long expression", calendar.Spec{Cron: strings.Repeat("0,", 200) + "0 * * * *"}, "cron", "bytes"},
		{"an interval that is too short", calendar.Spec{Every: 9 * time.Second}, "every", "10s"},
		{"an interval of parts of a second", calendar.Spec{Every: 10*time.Second + time.Millisecond}, "every", "whole seconds"},
		{"an unknown zone", calendar.Spec{Cron: "@daily", TimeZone: "Europe/Bonn"}, "time_zone", "Europe/Bonn"},
		{"the zone of the machine", calendar.Spec{Cron: "@daily", TimeZone: "Local"}, "time_zone", "IANA"},
		{"a path", calendar.Spec{Cron: "@daily", TimeZone: "../../etc/passwd"}, "time_zone", "IANA"},
		{"an end before the start", calendar.Spec{Cron: "@daily", StartAt: day, EndAt: day.Add(-1)}, "end_at", "start_at"},
		{"half a date", calendar.Spec{Cron: "@daily", ExcludedDates: []string{"2027-02"}}, "excluded_dates", "2027-02"},
		{"a date that no year has", calendar.Spec{Cron: "@daily", ExcludedDates: []string{"2027-02-29"}}, "excluded_dates", "2027-02-29"},
		{"many dates", calendar.Spec{Cron: "@daily", ExcludedDates: make([]string, 1001)}, "excluded_dates", "1000"},
		{"a negative jitter", calendar.Spec{Cron: "@daily", Jitter: -time.Second}, "jitter", "negative"},
		{"a jitter of more than an hour", calendar.Spec{Cron: "@daily", Jitter: 61 * time.Minute}, "jitter", "1h0m0s"},
		{"a jitter of more than half a gap", calendar.Spec{Cron: "0,20 * * * *", Jitter: 11 * time.Minute}, "jitter", "10m0s"},
		{"a jitter of more than half a gap over midnight", calendar.Spec{Cron: "59,0 0,23 * * *", Jitter: time.Minute}, "jitter", "30s"},
		{"a jitter of more than half an interval", calendar.Spec{Every: 10 * time.Second, Jitter: 6 * time.Second}, "jitter", "5s"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := calendar.Parse(test.spec)
			var invalid *calendar.Error
			if !errors.As(err, &invalid) || invalid.Field != test.field || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %s: … %s …", err, test.field, test.says)
			}
		})
	}
}

func TestCheck_RefusesACalendarWithoutOccurrences(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name  string
		spec  calendar.Spec
		field string // that the error names, empty for none
	}{
		{"each day", calendar.Spec{Cron: "@daily"}, ""},
		{"leap days", calendar.Spec{Cron: "0 0 29 2 *"}, ""},
		{"a date that no year has", calendar.Spec{Cron: "0 0 30 2 *"}, "cron"},
		{"the leap day in 8 years", calendar.Spec{Cron: "0 0 29 2 *", StartAt: time.Date(2096, 3, 1, 0, 0, 0, 0, time.UTC)}, "cron"},
		{"from a time in 10 years on", calendar.Spec{Cron: "@daily", StartAt: now.AddDate(10, 0, 0)}, ""},
		{"an end that has passed", calendar.Spec{Cron: "@daily", EndAt: now}, "end_at"},
		{"an end before the first", calendar.Spec{Every: time.Hour, StartAt: now, EndAt: now.Add(time.Minute)}, "every"},
		{"the only day is excluded", calendar.Spec{Cron: "@daily", EndAt: now.Add(24 * time.Hour), ExcludedDates: []string{"2026-11-28"}}, "cron"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := mustParse(t, test.spec).Check(now)
			var invalid *calendar.Error
			if test.field == "" && err != nil || test.field != "" && (!errors.As(err, &invalid) || invalid.Field != test.field) {
				t.Errorf("got %v, want an error of %q", err, test.field)
			}
		})
	}
}

func TestNext_CountsIntervalsFromTheStart(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 10, 24, 0, 30, 0, 0, time.UTC)
	tests := []struct {
		name string
		spec calendar.Spec
		want string
	}{
		{
			"from the start on, over a change of clocks", calendar.Spec{Every: 24 * time.Hour, StartAt: start, TimeZone: "Europe/Berlin"},
			"2026-10-24 02:30+02:00, 2026-10-25 02:30+02:00 (first_of_two), 2026-10-26 01:30+01:00 (changed)",
		},
		{
			"from 1970 without a start", calendar.Spec{Every: 90 * time.Minute},
			"2026-10-24 00:00Z, 2026-10-24 01:30Z, 2026-10-24 03:00Z",
		},
		{
			"both bounds are included", calendar.Spec{Every: time.Hour, StartAt: start, EndAt: start.Add(time.Hour)},
			"2026-10-24 00:30Z, 2026-10-24 01:30Z",
		},
		{
			"not on excluded dates, which are those of the zone",
			calendar.Spec{Every: 10 * time.Hour, StartAt: start, TimeZone: "Asia/Tokyo", ExcludedDates: []string{"2026-10-25"}},
			"2026-10-24 09:30+09:00, 2026-10-24 19:30+09:00, 2026-10-26 01:30+09:00",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, nextThree(mustParse(t, test.spec), start.Add(-time.Hour))); diff != "" {
				t.Errorf("occurrences (-want +got):\n%s", diff)
			}
		})
	}
}

// Clocks of this zone go back at 00:01, so that the end of an excluded date is repeated after the
// next one has begun.
func TestNext_ExcludesADateThatComesTwice(t *testing.T) {
	t.Parallel()
	c := mustParse(t, calendar.Spec{
		Every: 20 * time.Minute, TimeZone: "America/St_Johns", StartAt: time.Date(2010, 11, 7, 2, 10, 0, 0, time.UTC),
		ExcludedDates: []string{"2010-11-06"},
	})
	want := "2010-11-07 00:00-02:30 (first_of_two), 2010-11-07 00:00-03:30 (second_of_two), 2010-11-07 00:20-03:30"
	if got := nextThree(c, time.Date(2010, 11, 6, 12, 0, 0, 0, time.UTC)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestJitter_IsTheSameEachTimeAndSpread(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	const bound = time.Minute
	seen := map[time.Duration]bool{}
	for i := range 100 {
		got := calendar.Jitter("id", at.Add(time.Duration(i)*time.Hour), bound)
		if got < 0 || got >= bound || got%time.Millisecond != 0 {
			t.Fatalf("got %s, want whole milliseconds in [0, %s)", got, bound)
		}
		seen[got] = true
	}
	if len(seen) < 90 {
		t.Errorf("%d values of 100 occurrences", len(seen))
	}
	if got := calendar.Jitter("id", at, bound); got != calendar.Jitter("id", at.In(time.FixedZone("x", 3600)), bound) {
		t.Error("the delay depends on the zone of the time")
	}
	if calendar.Jitter("id", at, bound) == calendar.Jitter("other", at, bound) {
		t.Error("two schedules have the same delay")
	}
	if got := calendar.Jitter("id", at, 0); got != 0 {
		t.Errorf("without jitter: %s", got)
	}
}

func BenchmarkNext(b *testing.B) {
	c := mustParse(b, calendar.Spec{Cron: "30 2 * * 1-5", TimeZone: "Europe/Berlin"})
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for b.Loop() {
		at, _ = c.Next(at)
	}
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		mustParse(b, calendar.Spec{Cron: "30 2 * * 1-5", TimeZone: "Europe/Berlin", Jitter: time.Minute})
	}
}
