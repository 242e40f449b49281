package console

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
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

func TestSchedules_OfATenant(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/schedules": api.SchedulePage{Schedules: []api.Schedule{nightly()}, NextPageToken: "n1"}})
	has(t, b.get(t, "/ui/schedules"), "Name a tenant")
	page := b.get(t, "/ui/schedules?tenant_id=tenant_a")
	b.asks(t, "GET /v1/schedules?tenant_id=tenant_a&limit=50")
	has(t, page, `aria-current="page">Schedules`, `href="/ui/schedules/tenant_a/nightly"`, "30 2 * * *", "in 1 h", "2026-03-29T03:00:00&#43;02:00", "page_token=n1",
		"lucius schedules list --tenant tenant_a")
	b.set("GET /v1/schedules", api.SchedulePage{})
	has(t, b.get(t, "/ui/schedules?tenant_id=tenant_a"), "The tenant has no schedules.", "lucius schedules apply")
}

func TestSchedule_ShowsItsTimesAndHistory(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/schedules/tenant_a/nightly": nightly(), "GET /v1/schedules/tenant_a/nightly/fires": history()})
	page := b.get(t, "/ui/schedules/tenant_a/nightly")
	has(t, page, "1 in a row were refused or missed", "clocks skip the time", "1 of these are within a day", "up to 2m", "missed, 60 times from",
		`href="/ui/jobs/j1"`, "run by alice", "page_token=n1", "lucius schedules fires tenant_a/nightly")
	hasNot(t, page, hostile)
	paused := nightly()
	paused.State, paused.Next, paused.LastFire = api.ScheduleStatePaused, nil, nil
	b.set("GET /v1/schedules/tenant_a/nightly", paused)
	b.set("GET /v1/schedules/tenant_a/nightly/fires", api.ScheduleFirePage{})
	has(t, b.get(t, "/ui/schedules/tenant_a/nightly"), "no further time while it is paused", "Nothing was due yet.")
}
