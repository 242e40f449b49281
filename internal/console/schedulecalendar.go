package console

import (
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
)

const (
	calendarPast = 7 * 24 * time.Hour
	calendarNext = 24 * time.Hour
	// mostDrawn bounds how many occurrences of a row of many are drawn: all of a week, every ten seconds.
	mostDrawn = 60_480
)

// scheduleCalendar shows the last week and the next day of a schedule, by the clock of its time zone: a row for each day, and a cell
// for each hour.
type scheduleCalendar struct {
	Days []calendarDay
	// Since is from when on the history was read, zero if all of the week was.
	Since api.Time
}

// Hours are the columns.
func (*scheduleCalendar) Hours() []int {
	hours := make([]int, 24)
	for i := range hours {
		hours[i] = i
	}
	return hours
}

type calendarDay struct {
	Date  string
	Today bool
	Cells [24]calendarCell
}

// calendarCell counts the occurrences of one hour by what became of them.
type calendarCell struct{ Lost, Skipped, Fired, Firing, Coming int }

// signs are the signs of the counts, the worst first. The colour alone would not tell them apart for all.
var signs = []struct {
	sign, class, word string
	of                func(calendarCell) int
}{
	{"✗", "bad", "missed or refused", func(c calendarCell) int { return c.Lost }},
	{"–", "warn", "skipped", func(c calendarCell) int { return c.Skipped }},
	{"✓", "ok", "fired", func(c calendarCell) int { return c.Fired }},
	{"…", "run", "being fired", func(c calendarCell) int { return c.Firing }},
	{"○", "idle", "to come", func(c calendarCell) int { return c.Coming }},
}

// Class is the style of the worst that became of an occurrence, empty without any.
func (c calendarCell) Class() string {
	for _, s := range signs {
		if s.of(c) > 0 {
			return s.class
		}
	}
	return ""
}

// Text has a sign and a count for each outcome; a single one has no count.
func (c calendarCell) Text() string {
	return c.join("", func(sign, _ string, n int) string {
		if n == 1 {
			return sign
		}
		return sign + diagnosis.Number(n)
	})
}

// Words says the same in words.
func (c calendarCell) Words() string {
	return c.join(", ", func(_, word string, n int) string { return diagnosis.Number(n) + " " + word })
}

func (c calendarCell) join(separator string, say func(sign, word string, n int) string) string {
	var parts []string
	for _, s := range signs {
		if n := s.of(c); n > 0 {
			parts = append(parts, say(s.sign, s.word, n))
		}
	}
	return strings.Join(parts, separator)
}

// count adds an occurrence with that outcome.
func count(c *calendarCell, outcome api.FireOutcome) {
	switch outcome {
	case api.FireOutcomeMissed, api.FireOutcomeRefused:
		c.Lost++
	case api.FireOutcomeSkipped:
		c.Skipped++
	case api.FireOutcomeClaimed:
		c.Firing++
	case api.FireOutcomeFired:
		c.Fired++
	}
}

// calendarOf draws a schedule by its history, newest first. all says that this is all of it.
func calendarOf(s *api.Schedule, fires []api.ScheduleFire, all bool, now time.Time) (*scheduleCalendar, error) {
	times, err := timesOf(s)
	if err != nil {
		return nil, err
	}
	zone, begin := times.Zone(), now.Add(-calendarPast)
	if n := len(fires); !all && n > 0 && fires[n-1].ScheduledFor.After(begin) {
		begin = fires[n-1].ScheduledFor.Time
	}
	drawn := &scheduleCalendar{}
	if begin.After(now.Add(-calendarPast)) {
		drawn.Since = api.NewTime(begin)
	}
	days := map[string]int{}
	first := now.Add(-calendarPast).In(zone)
	for n := range 9 {
		day := time.Date(first.Year(), first.Month(), first.Day()+n, 12, 0, 0, 0, zone)
		days[day.Format(time.DateOnly)] = len(drawn.Days)
		drawn.Days = append(drawn.Days, calendarDay{
			Date: day.Format("Mon 2006-01-02"), Today: day.Format(time.DateOnly) == now.In(zone).Format(time.DateOnly),
		})
	}
	cell := func(at time.Time) *calendarCell {
		at = at.In(zone)
		if i, ok := days[at.Format(time.DateOnly)]; ok && !at.Before(begin) {
			return &drawn.Days[i].Cells[at.Hour()]
		}
		return &calendarCell{} // It is not shown.
	}
	for i := range fires {
		one := &fires[i]
		if one.From.IsZero() {
			count(cell(one.ScheduledFor.Time), one.Outcome)
			continue
		}
		// The row stands for many, which the definition of today tells apart.
		from := one.From.Time
		if from.Before(begin) {
			from = begin
		}
		each(times, from, one.ScheduledFor.Time, func(at time.Time) { count(cell(at), one.Outcome) })
	}
	if len(s.Next) > 0 {
		each(times, s.Next[0].At.Time, now.Add(calendarNext), func(at time.Time) { cell(at).Coming++ })
	}
	return drawn, nil
}

// each calls the function with the occurrences from one time to another, both included, as far as they are drawn.
func each(times *calendar.Calendar, from, to time.Time, draw func(at time.Time)) {
	at, ok := times.Next(from.Add(-1))
	for n := 0; ok && !at.After(to) && n < mostDrawn; n++ {
		draw(at)
		at, ok = times.Next(at)
	}
}

// timesOf returns the times of a schedule.
func timesOf(s *api.Schedule) (*calendar.Calendar, error) {
	every, err := api.Span(s.Every)
	if err != nil {
		return nil, fmt.Errorf("the interval of schedule %s: %w", s.Name, err)
	}
	return calendar.Parse(calendar.Spec{
		Cron: s.Cron, Every: every, TimeZone: s.TimeZone, StartAt: s.StartAt.Time, EndAt: s.EndAt.Time, ExcludedDates: s.ExcludedDates,
	})
}
