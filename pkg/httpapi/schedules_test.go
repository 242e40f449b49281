package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestPreviewSchedule_MarksChangesOfClocks(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	got := decoded[api.SchedulePreview](t, h.do(t, http.MethodPost, "/v1/schedules:preview",
		`{"cron":"30 2 * * *","time_zone":"Europe/Berlin","after":"2026-03-27T12:00:00Z","count":3}`))
	times := make([]string, 0, 3)
	for _, one := range got.Times {
		times = append(times, one.At.String()+" "+one.Local+" "+string(one.ClockChange))
	}
	want := []string{
		"2026-03-28T01:30:00.000Z 2026-03-28T02:30:00+01:00 ", "2026-03-29T01:00:00.000Z 2026-03-29T03:00:00+02:00 moved",
		"2026-03-30T00:30:00.000Z 2026-03-30T02:30:00+02:00 ",
	}
	if diff := cmp.Diff(want, times); diff != "" || got.TimeZone != "Europe/Berlin" {
		t.Errorf("times in %s (-want +got):\n%s", got.TimeZone, diff)
	}
	byDefault := decoded[api.SchedulePreview](t, h.do(t, http.MethodPost, "/v1/schedules:preview", `{"every":"15m"}`))
	if len(byDefault.Times) != 10 || byDefault.TimeZone != "UTC" {
		t.Errorf("got %d times in %s, want 10 in UTC", len(byDefault.Times), byDefault.TimeZone)
	}
}

func TestPreviewSchedule_NamesTheFieldThatMakesNoSense(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	tests := []struct {
		body, pointer, says string
		code                apierror.Code
	}{
		{`{}`, "/cron", "is required", apierror.ScheduleInvalid},
		{`{"cron":"@every 1h"}`, "/cron", "use every", apierror.ScheduleInvalid},
		{`{"cron":"@daily","time_zone":"Europe/Bonn"}`, "/time_zone", "Europe/Bonn", apierror.ScheduleInvalid},
		{`{"every":"5s"}`, "/every", "10s", apierror.ScheduleInvalid},
		{`{"every":"soon"}`, "/every", "duration", apierror.InvalidEnvelope},
		{`{"cron":"@daily","count":101}`, "/count", "at most 100", apierror.InvalidEnvelope},
	}
	for _, test := range tests {
		t.Run(test.body, func(t *testing.T) {
			t.Parallel()
			got := problemOf(t, h.do(t, http.MethodPost, "/v1/schedules:preview", test.body))
			if got.Code != test.code || len(got.Errors) != 1 || got.Errors[0].Pointer != test.pointer ||
				!strings.Contains(got.Errors[0].Message, test.says) {
				t.Errorf("got %+v, want %s at %s", got, test.code, test.pointer)
			}
		})
	}
}

func TestSchedules_AreMadeChangedAndDeleted(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	const path = "/v1/schedules/t/nightly"
	made := h.do(t, http.MethodPut, path, nightly(`,"jitter":"2m","excluded_dates":["2030-12-25"]`))
	one := decoded[api.Schedule](t, made)
	if made.Status != http.StatusCreated || one.Rev != 1 || one.Version != 1 || one.State != api.ScheduleStateActive || len(one.Next) != 10 {
		t.Fatalf("%d: %+v", made.Status, one)
	}
	want := api.Schedule{
		Cron: "30 2 * * *", TimeZone: "Europe/Berlin", Jitter: "2m", Overlap: api.ScheduleOverlapSkip, ExcludedDates: []string{"2030-12-25"},
		CatchUp: api.ScheduleCatchUp{Policy: api.ScheduleCatchUpPolicyLast, Window: "1h"},
	}
	got := api.Schedule{
		Cron: one.Cron, TimeZone: one.TimeZone, Jitter: one.Jitter, Overlap: one.Overlap, ExcludedDates: one.ExcludedDates, CatchUp: one.CatchUp,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("definition (-want +got):\n%s", diff)
	}
	edited := decoded[api.Schedule](t, h.do(t, http.MethodPut, path, strings.Replace(nightly(`,"expected_rev":1`), "30 2", "45 3", 1)))
	if edited.ScheduleID != one.ScheduleID || edited.Version != 2 || edited.Cron != "45 3 * * *" {
		t.Errorf("edited: %+v", edited)
	}
	wantProblem(t, h.do(t, http.MethodPut, path, nightly(`,"expected_rev":1`)), apierror.RevConflict,
		"The schedule is not at the expected revision: read it again.")
	paused := decoded[api.Schedule](t, h.do(t, http.MethodPost, path+":pause", `{"reason":"the source is down"}`))
	if paused.State != api.ScheduleStatePaused || len(paused.Next) != 0 {
		t.Errorf("paused: %+v", paused)
	}
	list := func(query string) []api.Schedule {
		return decoded[api.SchedulePage](t, h.do(t, http.MethodGet, "/v1/schedules?tenant_id=t"+query, "")).Schedules
	}
	if all, active := list("&state=paused"), list("&state=active"); len(all) != 1 || len(active) != 0 {
		t.Errorf("%d are paused, %d active", len(all), len(active))
	}
	if resumed := decoded[api.Schedule](t, h.do(t, http.MethodPost, path+":resume", "")); resumed.State != api.ScheduleStateActive {
		t.Errorf("resumed: %+v", resumed)
	}
	if deleted := decoded[api.Schedule](t, h.do(t, http.MethodDelete, path, "")); deleted.ScheduleID != one.ScheduleID {
		t.Errorf("deleted: %+v", deleted)
	}
	wantProblem(t, h.do(t, http.MethodGet, path, ""), apierror.ScheduleNotFound, "There is no such schedule.")
	if left := list(""); len(left) != 0 {
		t.Errorf("%d are left", len(left))
	}
}

func TestSchedules_RunOnceForEachKey(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	path := "/v1/schedules/" + h.scheduled(t) + "/nightly"
	first := h.do(t, http.MethodPost, path+":run", "", "Idempotency-Key: k")
	again := h.do(t, http.MethodPost, path+":run", "", "Idempotency-Key: k")
	one, repeated := decoded[api.ScheduleFire](t, first), decoded[api.ScheduleFire](t, again)
	if first.Status != http.StatusAccepted || again.Status != http.StatusOK || one.JobID == "" || one.JobID != repeated.JobID {
		t.Errorf("%d %+v, then %d %+v", first.Status, one, again.Status, repeated)
	}
	fires := decoded[api.ScheduleFirePage](t, h.do(t, http.MethodGet, path+"/fires", "")).Fires
	if len(fires) != 1 || fires[0].Outcome != api.FireOutcomeFired || fires[0].JobID != one.JobID || fires[0].Actor == "" {
		t.Errorf("history: %+v", fires)
	}
}

// Without a key a repeat may be a second run, so the answer does not say that it is safe.
func TestSchedules_WhatTheStoreDoesNotConfirm(t *testing.T) {
	t.Parallel()
	const safe = "The store did not confirm the change. Sending the request again is safe."
	tests := []struct{ verb, body, header, want string }{
		{":run", "", "Idempotency-Key: k", safe},
		{":run", "", "Other: k", "The store did not confirm the run, which may have been made. Look at the occurrences of the schedule " +
			"before you send the request again, or send it with an Idempotency-Key: then a repeat is safe."},
		{":backfill", `{"from":"2026-01-20T00:00:00Z","repeat":true}`, "Idempotency-Key: k", safe},
		{":backfill", `{"from":"2026-01-20T00:00:00Z","repeat":true}`, "Other: k",
			"The store did not confirm the backfill, which may have been made. Look at the backfills of the schedule " +
				"before you send the request again, or send it with an Idempotency-Key: then a repeat is safe."},
	}
	for _, test := range tests {
		h := newHarness(t)
		path := "/v1/schedules/" + h.scheduled(t) + "/nightly"
		h.store.fail(tablestore.ErrUnknown)
		wantProblem(t, h.do(t, http.MethodPost, path+test.verb, test.body, test.header), apierror.StoreUnavailable, test.want)
	}
}

func TestSchedules_AreBackfilledOnceForEachKey(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	path := "/v1/schedules/" + h.scheduled(t) + "/nightly"
	const body = `{"from":"2026-01-20T00:00:00Z","to":"2026-01-27T00:00:00Z","rate_per_second":0.5,"reason":"the source was down"}`
	first := h.do(t, http.MethodPost, path+":backfill", body, "Idempotency-Key: k")
	again := h.do(t, http.MethodPost, path+":backfill", body, "Idempotency-Key: k")
	one, repeated := decoded[api.ScheduleBackfill](t, first), decoded[api.ScheduleBackfill](t, again)
	if first.Status != http.StatusAccepted || again.Status != http.StatusOK || one.Total != 7 || !cmp.Equal(one, repeated) {
		t.Errorf("%d %+v, then %d %+v", first.Status, one, again.Status, repeated)
	}
	if one.State != api.BackfillStateRunning || one.RatePerSecond != 0.5 || one.Version != 1 || one.Actor == "" || !one.At.IsZero() {
		t.Errorf("backfill: %+v", one)
	}
	wantProblem(t, h.do(t, http.MethodPost, path+":backfill", body), apierror.IllegalTransition,
		"Another backfill of the schedule goes on: wait for its end, or cancel it.")
	wantProblem(t, h.do(t, http.MethodPost, path+"/backfills/none:cancel", ""), apierror.NotFound, "The schedule has no such backfill.")
	for range 2 {
		stopped := decoded[api.ScheduleBackfill](t, h.do(t, http.MethodPost, path+"/backfills/"+one.BackfillID+":cancel", `{"reason":"why"}`))
		if stopped.State != api.BackfillStateCancelling {
			t.Errorf("cancelled: %+v", stopped)
		}
	}
	all := decoded[api.ScheduleBackfills](t, h.do(t, http.MethodGet, path+"/backfills", "")).Backfills
	if len(all) != 1 || all[0].BackfillID != one.BackfillID || all[0].State != api.BackfillStateCancelling {
		t.Errorf("backfills: %+v", all)
	}
	for body, want := range map[string]struct {
		code    apierror.Code
		pointer string
	}{
		`{}`: {apierror.InvalidEnvelope, "/from"}, `{"from":"2026-01-20T00:00:00Z","rate_per_second":11}`: {apierror.InvalidEnvelope, "/rate_per_second"},
		`{"from":"2026-01-20T00:00:00Z","rate_per_second":0.001}`: {apierror.ScheduleInvalid, "/rate_per_second"},
	} {
		got := problemOf(t, h.do(t, http.MethodPost, path+":backfill", body))
		if got.Code != want.code || len(got.Errors) == 0 || got.Errors[0].Pointer != want.pointer {
			t.Errorf("%s: got %+v, want %s at %s", body, got, want.code, want.pointer)
		}
	}
}

func TestSchedules_NameWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	tests := []struct {
		name, body, pointer string
		code                apierror.Code
	}{
		{"its times", strings.Replace(nightly(""), "30 2", "30 25", 1), "/cron", apierror.ScheduleInvalid},
		{"no time in five years", strings.Replace(nightly(""), "30 2 * *", "30 2 30 2", 1), "/cron", apierror.ScheduleInvalid},
		{"the overlap", nightly(`,"overlap":"maybe"`), "/overlap", apierror.ScheduleInvalid},
		{"the jitter", nightly(`,"jitter":"2h"`), "/jitter", apierror.ScheduleInvalid},
		{"what is no duration", nightly(`,"catch_up":{"window":"long"}`), "/catch_up/window", apierror.InvalidEnvelope},
		{"the command", strings.Replace(nightly(""), `"language"`, `"tongue"`, 1), "/command/payload/language", apierror.PayloadInvalid},
		{"the tenant of the command", strings.Replace(nightly(""), `"command":{`, `"command":{"tenant_id":"o",`, 1), "/command/tenant_id", apierror.ScheduleInvalid},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := problemOf(t, h.do(t, http.MethodPut, "/v1/schedules/t/new", test.body))
			if got.Code != test.code || len(got.Errors) == 0 || got.Errors[0].Pointer != test.pointer {
				t.Errorf("got %+v, want %s at %s", got, test.code, test.pointer)
			}
		})
	}
}
