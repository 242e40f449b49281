package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
)

// nightly is a schedule whose next time is moved by a change of clocks.
func nightly() api.Schedule {
	return api.Schedule{
		ScheduleID: "0b9d", TenantID: "tenant_a", Name: "nightly", Rev: 3, Version: 2, State: api.ScheduleStateActive, Jitter: "2m",
		Cron: "30 2 * * *", TimeZone: "Europe/Berlin", Overlap: api.ScheduleOverlapSkip, FailuresInRow: 1, Command: json.RawMessage(`{}`),
		Next:     []api.ScheduleTime{{At: ago(-time.Hour), Local: "2026-03-29T03:00:00+02:00", ClockChange: api.ClockChangeMoved}},
		LastFire: &api.ScheduleFire{ScheduledFor: ago(time.Hour), Outcome: api.FireOutcomeRefused, Version: 2, Detail: hostile},
	}
}

func history() api.ScheduleFirePage {
	return api.ScheduleFirePage{Fires: []api.ScheduleFire{
		{ScheduledFor: ago(time.Hour), Outcome: api.FireOutcomeRefused, Version: 2, Detail: hostile},
		{ScheduledFor: ago(2 * time.Hour), Outcome: api.FireOutcomeMissed, Version: 2, From: ago(3 * time.Hour), Count: 60},
		{ScheduledFor: ago(4 * time.Hour), Outcome: api.FireOutcomeFired, Version: 2, JobID: "j1", LateSeconds: 0.4, Actor: "alice"},
	}, NextPageToken: "n1"}
}

// lostNightly says that nightly missed something.
func lostNightly() api.ScheduleLossPage {
	return api.ScheduleLossPage{Schedules: []api.ScheduleLosses{{
		ScheduleID: "0b9d", TenantID: "tenant_a", Name: "nightly", Missed: 2, FailuresInRow: 2, Since: ago(25 * time.Hour), LastFor: ago(time.Hour),
		LastAt: ago(time.Hour), Outcome: api.FireOutcomeMissed, Detail: hostile,
	}}}
}

func TestSchedules_OfATenant(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/schedules":      api.SchedulePage{Schedules: []api.Schedule{nightly()}, NextPageToken: "n1"},
		"GET /v1/schedules:lost": lostNightly(),
	})
	first := b.get(t, "/ui/schedules")
	has(t, first, "Name a tenant", "Missed or refused within a day", `href="/ui/schedules/tenant_a/nightly"`)
	hasNot(t, first, hostile)
	page := b.get(t, "/ui/schedules?tenant_id=tenant_a")
	b.asks(t, "GET /v1/schedules?tenant_id=tenant_a&limit=50")
	has(t, page, `class="bad">2</span>`)
	has(t, page, `aria-current="page">Schedules`, `href="/ui/schedules/tenant_a/nightly"`, "30 2 * * *", "in 1 h", "2026-03-29T03:00:00&#43;02:00", "page_token=n1",
		"lucius schedules list --tenant tenant_a")
	b.set("GET /v1/schedules", api.SchedulePage{})
	has(t, b.get(t, "/ui/schedules?tenant_id=tenant_a"), "The tenant has no schedules.", "lucius schedules apply")
}

func TestSchedules_PreviewWhatIsEntered(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"GET /v1/schedules:lost":     api.ScheduleLossPage{},
		"POST /v1/schedules:preview": api.SchedulePreview{Times: nightly().Next, TimeZone: "Europe/Berlin"},
	})
	page := b.get(t, "/ui/schedules?times=30+2+*+*+*&zone=Europe/Berlin")
	b.asks(t, `POST /v1/schedules:preview {"cron":"30 2 * * *","time_zone":"Europe/Berlin"}`)
	has(t, page, "2026-03-29T03:00:00&#43;02:00", "clocks skip the time", "lucius schedules next --cron &#39;30 2 * * *&#39; --zone Europe/Berlin",
		`name="times" value="30 2 * * *"`)
	b.get(t, "/ui/schedules?times=+15m+")
	b.asks(t, `POST /v1/schedules:preview {"every":"15m"}`)
	b.set("POST /v1/schedules:preview", api.SchedulePreview{})
	has(t, b.get(t, "/ui/schedules?times=0+0+30+2+*"), "There is no such time.")
	b.set("POST /v1/schedules:preview", refuse(http.StatusUnprocessableEntity, "/cron has 4 fields"))
	has(t, b.get(t, "/ui/schedules?times=%3Cscript%3E"), `role="alert">/cron has 4 fields`, `value="&lt;script&gt;"`)
	b.set("POST /v1/schedules:preview", refuse(http.StatusServiceUnavailable, "The store does not answer."))
	if w := b.send(http.MethodGet, "/ui/schedules?times=@daily", nil); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without the store it answers %d", w.Code)
	}
}

func TestSchedule_ShowsItsTimesAndHistory(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/schedules/tenant_a/nightly": nightly(), "GET /v1/schedules/tenant_a/nightly/fires": history()})
	page := b.get(t, "/ui/schedules/tenant_a/nightly")
	b.asks(t, "GET /v1/schedules/tenant_a/nightly/fires?limit=1000")
	has(t, page, "1 in a row were refused or missed", "clocks skip the time", "up to 2m", `<span class="bad">missed</span>, 60 times from`,
		`href="/ui/jobs/j1"`, "run by alice", "page_token=n1", "lucius schedules show tenant_a/nightly", `aria-label="Calendar"`,
		"By the clock in Europe/Berlin", `primary" href="/ui/do/schedule-run?schedule=tenant_a%2Fnightly"`,
		`href="/ui/do/schedule-pause?schedule=tenant_a%2Fnightly"`)
	hasNot(t, page, hostile, "do/schedule-resume")
	later := b.get(t, "/ui/schedules/tenant_a/nightly?page_token=n1")
	hasNot(t, later, `aria-label="Calendar"`)
	b.token = "reader"
	hasNot(t, b.get(t, "/ui/schedules/tenant_a/nightly"), "/ui/do/")
	b.token = ""
	paused := nightly()
	paused.State, paused.Next, paused.LastFire = api.ScheduleStatePaused, nil, nil
	b.set("GET /v1/schedules/tenant_a/nightly", paused)
	b.set("GET /v1/schedules/tenant_a/nightly/fires", api.ScheduleFirePage{})
	page = b.get(t, "/ui/schedules/tenant_a/nightly")
	has(t, page, "no further time while it is paused", "Nothing was due yet.", `primary" href="/ui/do/schedule-resume?schedule=tenant_a%2Fnightly"`)
	hasNot(t, page, "do/schedule-pause", ">○")
	paused.TimeZone = "Europe/Bonn" // A newer server knew it.
	b.set("GET /v1/schedules/tenant_a/nightly", paused)
	hasNot(t, b.get(t, "/ui/schedules/tenant_a/nightly"), `aria-label="Calendar"`)
}

// A tenant may have any printable character in its name but a slash.
func TestSchedule_OfATenantWithAnOddName(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/schedules/a#b?%41/nightly": nightly(), "GET /v1/schedules/a#b?%41/nightly/fires": history()})
	has(t, b.get(t, "/ui/schedules/a%23b%3F%2541/nightly"), `href="/ui/schedules/a%23b%3F%2541/nightly?page_token=n1"`)
}

func TestScheduleForms(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{
		"POST /v1/schedules/tenant_a/nightly:pause": nightly(), "POST /v1/schedules/tenant_a/nightly:resume": nightly(),
		"POST /v1/schedules/tenant_a/nightly:run": api.ScheduleFire{Outcome: api.FireOutcomeFired, JobID: "j1"},
	})
	form := url.Values{"schedule": {"tenant_a/nightly"}, "reason": {"the source is down"}}
	for _, verb := range []string{"pause", "resume"} {
		has(t, b.get(t, "/ui/do/schedule-"+verb+"?schedule=tenant_a/nightly"), " schedule nightly of tenant_a?", "not caught up",
			"lucius schedules "+verb+" tenant_a/nightly<")
		if to := b.submits(t, "schedule-"+verb, form); to != "/ui/schedules/tenant_a/nightly" {
			t.Errorf("%s leads to %s", verb, to)
		}
		b.asks(t, "POST /v1/schedules/tenant_a/nightly:"+verb+` {"reason":"the source is down"}`)
	}
	page := b.get(t, "/ui/do/schedule-run?schedule=tenant_a/nightly")
	has(t, page, "Run schedule nightly of tenant_a now?", "lucius schedules run tenant_a/nightly<", `type="hidden" name="key" value="`)
	if to := b.submits(t, "schedule-run", url.Values{"schedule": {"tenant_a/nightly"}, "key": {"k"}}); to != "/ui/jobs/j1" {
		t.Errorf("run leads to %s", to)
	}
	b.asks(t, `POST /v1/schedules/tenant_a/nightly:run {}`)
	b.set("POST /v1/schedules/tenant_a/nightly:run", api.ScheduleFire{Outcome: api.FireOutcomeSkipped, Detail: "Job j1 is in the line."})
	form.Set("key", "k")
	again := b.send(http.MethodPost, "/ui/do/schedule-run", form).Body.String()
	has(t, again, "It was not run, but skipped: Job j1 is in the line.", `name="key" value="`)
	hasNot(t, again, `name="key" value="k"`)
	b.set("POST /v1/schedules/tenant_a/nightly:run", refuse(http.StatusNotFound, "There is no such schedule."))
	has(t, b.send(http.MethodPost, "/ui/do/schedule-run", form).Body.String(), "There is no such schedule.")
}

// Each hour of the last week and the next day says what became of the occurrences, by the clock of the zone.
func TestCalendarOf_TheLastWeekAndTheNextDay(t *testing.T) {
	t.Parallel()
	at := func(text string) api.Time { return api.NewTime(musttest.Make(t, parseTime, text)) }
	fire := func(when string, outcome api.FireOutcome) api.ScheduleFire {
		return api.ScheduleFire{ScheduledFor: at(when), Outcome: outcome}
	}
	fires := []api.ScheduleFire{
		fire("2026-01-27T10:30:00Z", api.FireOutcomeClaimed), fire("2026-01-27T09:30:00Z", api.FireOutcomeFired), fire("2026-01-27T09:10:00Z", api.FireOutcomeRefused),
		fire("2026-01-27T08:30:00Z", api.FireOutcomeSkipped),
		{ScheduledFor: at("2026-01-26T02:30:00Z"), Outcome: api.FireOutcomeMissed, From: at("2026-01-01T00:30:00Z"), Count: 700},
	}
	s := &api.Schedule{Cron: "30 * * * *", TimeZone: "Europe/Berlin", Next: []api.ScheduleTime{{At: at("2026-01-27T11:30:00Z")}}}
	drawn, err := calendarOf(s, fires, true, musttest.Make(t, parseTime, "2026-01-27T11:00:00Z"))
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string]string{}
	for _, day := range drawn.Days {
		for hour, cell := range day.Cells {
			if cell != (calendarCell{}) {
				cells[fmt.Sprintf("%s %02d", day.Date[len("Mon "):], hour)] = cell.Class() + " " + cell.Text() + " " + cell.Words()
			}
		}
	}
	for hour, want := range map[string]string{
		"2026-01-27 09": "warn – 1 skipped", "2026-01-27 10": "bad ✗✓ 1 missed or refused, 1 fired", "2026-01-27 11": "run … 1 being fired",
		"2026-01-27 12": "idle ○ 1 to come", "2026-01-28 11": "idle ○ 1 to come", "2026-01-28 12": "", "2026-01-27 08": "",
		"2026-01-26 03": "bad ✗ 1 missed or refused", "2026-01-26 04": "", "2026-01-20 12": "bad ✗ 1 missed or refused", "2026-01-20 11": "",
	} {
		if cells[hour] != want {
			t.Errorf("%s has %q, want %q", hour, cells[hour], want)
		}
	}
	if len(drawn.Days) != 9 || drawn.Days[0].Date != "Tue 2026-01-20" || !drawn.Days[7].Today || !drawn.Since.IsZero() {
		t.Errorf("days from %s, since %s", drawn.Days[0].Date, drawn.Since)
	}
	part, err := calendarOf(s, fires[:4], false, musttest.Make(t, parseTime, "2026-01-27T11:00:00Z"))
	if err != nil || !part.Since.Equal(fires[3].ScheduledFor.Time) {
		t.Errorf("a part of the history begins at %s (%v)", part.Since, err)
	}
}

func parseTime(text string) (time.Time, error) { return time.Parse(time.RFC3339, text) }
