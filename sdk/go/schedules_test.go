package lucius_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

const (
	nightlySchedule = `{"schedule_id":"s1","tenant_id":"tenant_a","name":"nightly","rev":3,"version":2,"state":"active",` +
		`"cron":"30 2 * * *","overlap":"skip","catch_up":{"policy":"last"},"command":{"request_type":"doc.index"},"failures_in_row":1,` +
		`"next":[{"at":"2026-01-28T01:30:00.000Z","local":"2026-01-28T02:30:00+01:00","clock_change":"moved"}]}`
	firedOnce    = `{"scheduled_for":"2026-01-27T01:30:00.000Z","outcome":"fired","jobId":"j1","version":2,"late_seconds":0.4}`
	goesOn       = `{"backfill_id":"b1","state":"running","total":72,"fired":20,"left_alone":3,"refused":1,"detail":"busy"}`
	nightlyPath  = "/v1/schedules/tenant_a/nightly"
	noSuch       = `{"code":"schedule_not_found"}`
	otherRefusal = `{"code":"not_found"}`
)

func TestSchedulesAreListed(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 200, body: `{"schedules":[` + nightlySchedule + `],"next_page_token":"p2"}`}, {status: 200, body: `{"schedules":[]}`},
		{status: 200, body: nightlySchedule},
		{status: 200, body: `{"time_zone":"UTC","times":[{"at":"2026-01-28T01:30:00.000Z","local":"x"}]}`},
		{status: 200, body: `{"fires":[` + firedOnce + `],"next_page_token":"2"}`}, {status: 200, body: `{"fires":[` + firedOnce + `]}`},
	}}
	c := client(t, s)
	for one, err := range c.Schedules(t.Context(), "tenant_a", lucius.ScheduleFilter{State: lucius.ScheduleStateActive, PageSize: 9}) {
		if err != nil || one.Name != "nightly" || one.FailuresInRow != 1 || one.Next[0].ClockChange != lucius.ClockChangeMoved {
			t.Errorf("%+v, %v", one, err)
		}
	}
	one, err := c.Schedule(t.Context(), "a/b", "nightly")
	if err != nil || one.Version != 2 || string(one.Command) != `{"request_type":"doc.index"}` {
		t.Errorf("%+v, %v", one, err)
	}
	times, err := c.PreviewSchedule(t.Context(), lucius.SchedulePreviewRequest{Cron: "@daily", Count: 1})
	if err != nil || len(times) != 1 || !times[0].At.Equal(time.Date(2026, 1, 28, 1, 30, 0, 0, time.UTC)) {
		t.Errorf("%+v, %v", times, err)
	}
	fires := 0
	for fire, err := range c.ScheduleFires(t.Context(), "tenant_a", "nightly") {
		if fires++; err != nil || fire.JobID != "j1" || fire.Outcome != lucius.FireOutcomeFired {
			t.Errorf("%+v, %v", fire, err)
		}
	}
	want := []seen{
		{"GET /v1/schedules?limit=9&state=active&tenant_id=tenant_a", ""},
		{"GET /v1/schedules?limit=9&page_token=p2&state=active&tenant_id=tenant_a", ""},
		{"GET /v1/schedules/a%2Fb/nightly", ""},
		{"POST /v1/schedules:preview", `{"count":1,"cron":"@daily"}`},
		{"GET " + nightlyPath + "/fires?", ""}, {"GET " + nightlyPath + "/fires?page_token=2", ""},
	}
	if diff := cmp.Diff(want, s.seen); diff != "" || fires != 2 {
		t.Errorf("%d fires, requests (-want +got):\n%s", fires, diff)
	}
}

// Processes that start together put the schedules that they all need.
func TestAScheduleThatAnotherRequestCreatesIsPutAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{t: t, answers: []answer{
			{status: 409, body: `{"status":409,"code":"conflict"}`}, {status: 200, body: nightlySchedule},
			{status: 409, body: `{"status":409,"code":"rev_conflict"}`},
		}}
		c := client(t, s)
		if put, err := c.PutSchedule(t.Context(), "tenant_a", "nightly", lucius.ScheduleRequest{Every: "1h"}); err != nil || put.Rev != 3 {
			t.Errorf("put: %+v, %v", put, err)
		}
		changed := lucius.ScheduleRequest{Every: "1h", ExpectedRev: 2}
		if _, err := c.PutSchedule(t.Context(), "tenant_a", "nightly", changed); !lucius.HasCode(err, lucius.ProblemCodeRevConflict) {
			t.Errorf("a put at another rev: %v", err)
		}
	})
}

func TestAScheduleIsChanged(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 201, body: nightlySchedule}, {status: 200, body: nightlySchedule}, {status: 200, body: nightlySchedule},
		{status: 200, body: nightlySchedule}, {status: 404, body: noSuch}, {status: 404, body: otherRefusal},
		{status: 422, body: `{"code":"schedule_invalid"}`},
	}}
	c, ctx := client(t, s), t.Context()
	definition := lucius.ScheduleRequest{
		Every: "1h", StartAt: time.Unix(0, 0).UTC(), ExpectedRev: 2, Command: map[string]any{"request_type": "doc.index"},
	}
	put, err := c.PutSchedule(ctx, "tenant_a", "nightly", definition)
	if err != nil || put.Rev != 3 {
		t.Errorf("put: %+v, %v", put, err)
	}
	if paused, err := c.PauseSchedule(ctx, "tenant_a", "nightly", "why"); err != nil || paused.ScheduleID != "s1" {
		t.Errorf("pause: %+v, %v", paused, err)
	}
	if resumed, err := c.ResumeSchedule(ctx, "tenant_a", "nightly", ""); err != nil || resumed.ScheduleID != "s1" {
		t.Errorf("resume: %+v, %v", resumed, err)
	}
	for range 2 { // The second one finds none.
		if err := c.DeleteSchedule(ctx, "tenant_a", "nightly"); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if err := c.DeleteSchedule(ctx, "tenant_a", "nightly"); !lucius.HasCode(err, lucius.ProblemCodeNotFound) {
		t.Errorf("a delete that is refused: %v", err)
	}
	if _, err := c.PutSchedule(ctx, "tenant_a", "nightly", definition); !lucius.HasCode(err, lucius.ProblemCodeScheduleInvalid) {
		t.Errorf("a put that is refused: %v", err)
	}
	const body = `{"command":{"request_type":"doc.index"},"every":"1h","expected_rev":2,"start_at":"1970-01-01T00:00:00Z"}`
	want := []seen{
		{"PUT " + nightlyPath, body}, {"POST " + nightlyPath + ":pause", `{"reason":"why"}`}, {"POST " + nightlyPath + ":resume", `{}`},
		{"DELETE " + nightlyPath, ""}, {"DELETE " + nightlyPath, ""}, {"DELETE " + nightlyPath, ""}, {"PUT " + nightlyPath, body},
	}
	if diff := cmp.Diff(want, s.seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestAScheduleIsRunAndBackfilledOnceForEachKey(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{}, {status: 202, body: firedOnce}, {status: 200, body: firedOnce},
		{}, {status: 202, body: goesOn}, {status: 200, body: `{"backfills":[` + goesOn + `]}`},
		{status: 200, body: `{"backfill_id":"b1","state":"cancelling"}`},
	}}
	c, ctx := client(t, s), t.Context()
	for _, key := range []string{"", "k"} {
		if fire, err := c.RunSchedule(ctx, "tenant_a", "nightly", key); err != nil || fire.JobID != "j1" {
			t.Errorf("run: %+v, %v", fire, err)
		}
	}
	request := lucius.BackfillRequest{From: time.Unix(0, 0).UTC(), To: time.Unix(3600, 0).UTC(), RatePerSecond: 2, Repeat: true}
	begun, err := c.BackfillSchedule(ctx, "tenant_a", "nightly", request, "k2")
	if err != nil || begun.Total != 72 || begun.Detail != "busy" {
		t.Errorf("backfill: %+v, %v", begun, err)
	}
	if all, err := c.ScheduleBackfills(ctx, "tenant_a", "nightly"); err != nil || len(all) != 1 || all[0].Fired != 20 {
		t.Errorf("backfills: %+v, %v", all, err)
	}
	if stopped, err := c.CancelBackfill(ctx, "tenant_a", "nightly", "b1", "why"); err != nil || stopped.State != lucius.BackfillStateCancelling {
		t.Errorf("cancel: %+v, %v", stopped, err)
	}
	if s.keys[0] == "" || s.keys[0] != s.keys[1] {
		t.Errorf("a call and its repetition have the keys %q", s.keys[:2])
	}
	if diff := cmp.Diff([]string{"k", "k2", "k2", "", ""}, s.keys[2:]); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	const body = `{"from":"1970-01-01T00:00:00Z","rate_per_second":2,"repeat":true,"to":"1970-01-01T01:00:00Z"}`
	want := []seen{
		{"POST " + nightlyPath + ":run", `{}`}, {"POST " + nightlyPath + ":run", `{}`}, {"POST " + nightlyPath + ":run", `{}`},
		{"POST " + nightlyPath + ":backfill", body}, {"POST " + nightlyPath + ":backfill", body},
		{"GET " + nightlyPath + "/backfills", ""}, {"POST " + nightlyPath + "/backfills/b1:cancel", `{"reason":"why"}`},
	}
	if diff := cmp.Diff(want, s.seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}
