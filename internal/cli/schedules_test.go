package cli_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// nightly is a schedule.
func nightly() api.Schedule {
	return api.Schedule{
		ScheduleID: "0b9d", TenantID: "t", Name: "nightly", Rev: 3, Version: 2, State: api.ScheduleStateActive,
		Cron: "30 2 * * *", TimeZone: "Europe/Berlin", Overlap: api.ScheduleOverlapSkip, FailuresInRow: 1,
		CatchUp: api.ScheduleCatchUp{Policy: api.ScheduleCatchUpPolicyLast, Window: "1h"},
		Command: json.RawMessage(`{"request_type":"doc.index"}`), CreatedAt: at(time.Hour), UpdatedAt: at(time.Hour),
		Next:     []api.ScheduleTime{{At: at(-time.Hour), Local: "2026-01-27T14:00:00+01:00", ClockChange: api.ClockChangeMoved}},
		LastFire: &api.ScheduleFire{ScheduledFor: at(time.Hour), Outcome: api.FireOutcomeMissed, Version: 2, Detail: "was not fired in time"},
	}
}

// lostNightly says that nightly missed something.
func lostNightly() api.ScheduleLossPage {
	return api.ScheduleLossPage{Schedules: []api.ScheduleLosses{{
		ScheduleID: "0b9d", TenantID: "t", Name: "nightly", Missed: 2, FailuresInRow: 2, Since: at(25 * time.Hour), LastFor: at(time.Hour),
		LastAt: at(time.Hour), Outcome: api.FireOutcomeMissed, Detail: "was not fired in time",
	}}}
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	one := nightly()
	shows(t, "schedules", "GET /v1/schedules?tenant_id=t&limit=50", api.SchedulePage{Schedules: []api.Schedule{one}}, "schedules list --tenant t")
	shows(t, "schedule", "GET /v1/schedules/t/nightly", one, "schedules show t/nightly")
	shows(t, "schedule-pause", `POST /v1/schedules/t/nightly:pause {"reason":"why"}`, one, "schedules pause t/nightly --reason why")
	shows(t, "schedule-resume", `POST /v1/schedules/t/nightly:resume {}`, one, "schedules resume t/nightly")
	shows(t, "schedule-delete", `DELETE /v1/schedules/t/nightly`, one, "schedules delete t/nightly")
	shows(t, "schedule-next", `POST /v1/schedules:preview {"count":1,"cron":"@daily","time_zone":"Europe/Berlin"}`,
		api.SchedulePreview{TimeZone: "Europe/Berlin", Times: one.Next}, "schedules next --cron @daily --zone Europe/Berlin --count 1")
	fires := api.ScheduleFirePage{Fires: []api.ScheduleFire{
		{ScheduledFor: at(0), Outcome: api.FireOutcomeFired, JobID: "j1", Version: 2, LateSeconds: 0.4, Actor: "alice"},
		{ScheduledFor: at(time.Hour), Outcome: api.FireOutcomeMissed, Version: 2, From: at(2 * time.Hour), Count: 60, Detail: "was not fired in time"},
		{ScheduledFor: at(3 * time.Hour), Outcome: api.FireOutcomeFired, JobID: "j2", Version: 2, LateSeconds: 9000, Actor: "alice", BackfillID: "b1"},
	}}
	shows(t, "schedule-fires", "GET /v1/schedules/t/nightly/fires?limit=50", fires, "schedules fires t/nightly")
	shows(t, "schedule-run", "POST /v1/schedules/t/nightly:run {}", fires.Fires[0], "schedules run t/nightly --idempotency-key k")

	shows(t, "schedule-lost", "GET /v1/schedules:lost?tenant_id=t&limit=50", lostNightly(), "schedules lost --tenant t")

	l := newLine(t, newScripted(t, map[string][]any{"GET /v1/schedules/t/none": {apierror.ScheduleNotFound}}).url)
	for line, code := range map[string]int{
		"schedules list": cli.ExitUsage, "schedules show nightly": cli.ExitUsage, "schedules show t/none": cli.ExitNotFound,
		"schedules next": cli.ExitUsage, "schedules next --cron @daily --every 1h": cli.ExitUsage, "schedules apply": cli.ExitUsage,
	} {
		if _, err := l.run(t, strings.Fields(line)...); cli.ExitCode(err) != code {
			t.Errorf("lucius %s: %v, want the exit code %d", line, err, code)
		}
	}
}

// A run without a job exits with the code of a refusal.
func TestSchedules_RunWithoutAJobFails(t *testing.T) {
	t.Parallel()
	for _, outcome := range []api.FireOutcome{api.FireOutcomeRefused, api.FireOutcomeSkipped} {
		fire := api.ScheduleFire{Outcome: outcome, Detail: "Job j0 is in the line."}
		l := newLine(t, newScripted(t, map[string][]any{"POST /v1/schedules/t/nightly:run": {fire}}).url)
		out, err := l.run(t, "schedules", "run", "t/nightly")
		if want := "The run was " + string(outcome) + ": Job j0 is in the line.\n"; cli.ExitCode(err) != cli.ExitRefused || out != want {
			t.Errorf("%v, %q", err, out)
		}
	}
}

// An answer may be lost after the run: then it is repeated with the same key.
func TestSchedules_RunsOnceWhatIsRepeated(t *testing.T) {
	t.Parallel()
	const run, backfill = "POST /v1/schedules/t/nightly:run", "POST /v1/schedules/t/nightly:backfill"
	server := newScripted(t, map[string][]any{
		run: {apierror.Internal, api.ScheduleFire{Outcome: api.FireOutcomeFired, JobID: "j1"}}, backfill: {apierror.Internal, api.ScheduleBackfill{}},
	})
	l := newLine(t, server.url)
	for _, line := range []string{"schedules run t/nightly", "schedules backfill t/nightly --from 1d --repeat"} {
		server.keys = nil
		l.must(t, strings.Fields(line)...)
		if keys := server.keys; len(keys) != 2 || keys[0] == "" || keys[0] != keys[1] {
			t.Errorf("%s: the keys are %q", line, keys)
		}
	}
	server.answers[run] = []any{apierror.Internal}
	_, err := l.run(t, "schedules", "run", "t/nightly")
	if key := server.keys[len(server.keys)-1]; cli.ExitCode(err) != cli.ExitUnavailable || !strings.Contains(fmt.Sprint(err), "--idempotency-key "+key) {
		t.Errorf("without an answer: %v", err)
	}
	_, err = l.run(t, "schedules", "run", "t/nightly", "--idempotency-key", "k")
	if cli.ExitCode(err) != cli.ExitUnavailable || strings.Contains(fmt.Sprint(err), "--idempotency-key") {
		t.Errorf("with a key of the caller: %v", err)
	}
}

func TestSchedules_Backfill(t *testing.T) {
	t.Parallel()
	one := api.ScheduleBackfill{
		BackfillID: "b1", State: api.BackfillStateRunning, Version: 2, From: at(72 * time.Hour), To: at(time.Hour), RatePerSecond: 0.5,
		Total: 72, Fired: 20, LeftAlone: 3, Refused: 1, At: at(48 * time.Hour), Detail: "Job j1 is in the line.", Actor: "alice", CreatedAt: at(time.Minute),
	}
	shows(t, "schedule-backfill", `POST /v1/schedules/t/nightly:backfill {"from":"2026-01-24T12:00:00.000Z","rate_per_second":0.5,`+
		`"reason":"why","repeat":true,"to":"2026-01-27T11:00:00.000Z"}`, one,
		"schedules backfill t/nightly --from 3d --to 2026-01-27T11:00:00Z --rate 0.5 --repeat --reason why --idempotency-key k")
	done, cancelled := one, one
	done.BackfillID, done.State, done.Fired, done.Refused = "b0", api.BackfillStateDone, 69, 0
	cancelled.State = api.BackfillStateCancelled
	shows(t, "schedule-backfills", "GET /v1/schedules/t/nightly/backfills", api.ScheduleBackfills{Backfills: []api.ScheduleBackfill{one, done}},
		"schedules backfills t/nightly")
	shows(t, "schedule-cancel-backfill", `POST /v1/schedules/t/nightly/backfills/b1:cancel {"reason":"why"}`, cancelled,
		"schedules cancel-backfill t/nightly b1 --reason why")

	const begin, list = "POST /v1/schedules/t/nightly:backfill", "GET /v1/schedules/t/nightly/backfills"
	for name, test := range map[string]struct {
		answers []any // to the list
		code    int
	}{
		"to its end":               {[]any{api.ScheduleBackfills{Backfills: []api.ScheduleBackfill{{BackfillID: "b1", State: api.BackfillStateDone, Total: 72, Fired: 72}}}}, 0},
		"until it is cancelled":    {[]any{api.ScheduleBackfills{Backfills: []api.ScheduleBackfill{one}}, api.ScheduleBackfills{Backfills: []api.ScheduleBackfill{cancelled}}}, cli.ExitFailed},
		"one of which are refused": {[]any{api.ScheduleBackfills{Backfills: []api.ScheduleBackfill{{BackfillID: "b1", State: api.BackfillStateDone, Total: 72, Refused: 1}}}}, cli.ExitFailed},
		"of a deleted schedule":    {[]any{apierror.ScheduleNotFound}, cli.ExitNotFound},
		"that is not known":        {[]any{api.ScheduleBackfills{}}, cli.ExitNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLine(t, newScripted(t, map[string][]any{begin: {one}, list: test.answers}).url)
			if out, err := l.run(t, "schedules", "backfill", "t/nightly", "--from", "3d", "--watch"); cli.ExitCode(err) != test.code {
				t.Errorf("%v, want the exit code %d: %s", err, test.code, out)
			}
		})
	}
	l := newLine(t, newScripted(t, nil).url)
	for _, line := range []string{
		"schedules backfill t/nightly", "schedules backfill nightly --from 1d", "schedules backfill t/nightly --from never",
		"schedules backfill t/nightly --from 1d --to never", "schedules cancel-backfill t/nightly", "schedules cancel-backfill nightly b1",
	} {
		if _, err := l.run(t, strings.Fields(line)...); cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("lucius %s: %v", line, err)
		}
	}
}

// Someone may change the schedule while the command asks. Its fires change the rev alone.
func TestSchedulesApply_OverwritesNoOtherChange(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nightly.yaml")
	musttest.WriteFile(t, file, "tenant_id: t\nname: nightly\nevery: 1h\ncommand: {request_type: a}\n")
	const read, put = "GET /v1/schedules/t/nightly", "PUT /v1/schedules/t/nightly"
	fired, edited, another := nightly(), nightly(), nightly()
	fired.Rev, edited.Rev, edited.Version, another.ScheduleID = 4, 4, 3, "0b9e"
	for _, test := range []struct {
		now    api.Schedule
		code   int
		wanted []string
	}{
		{fired, 0, []string{`"expected_rev":3`, "", `"expected_rev":4`}},
		{edited, cli.ExitRefused, []string{`"expected_rev":3`, ""}},
		{another, cli.ExitRefused, []string{`"expected_rev":3`, ""}},
	} {
		server := newScripted(t, map[string][]any{read: {nightly(), test.now}, put: {apierror.RevConflict, test.now}})
		l := newLine(t, server.url)
		_, err := l.run(t, "schedules", "apply", "-f", file, "--yes")
		if asked := server.asked[1:]; cli.ExitCode(err) != test.code || !slices.EqualFunc(asked, test.wanted, strings.Contains) {
			t.Errorf("%v after the requests %q", err, asked)
		}
	}
}

func TestSchedulesApply_RepeatsAPutThatMetAnother(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nightly.yaml")
	musttest.WriteFile(t, file, "tenant_id: t\nname: nightly\nevery: 1h\ncommand: {request_type: a}\n")
	for _, test := range []struct {
		answers []any
		code    int
		puts    int
	}{
		{[]any{apierror.Conflict, apierror.Conflict, nightly()}, 0, 3},
		{[]any{apierror.Conflict}, cli.ExitRefused, 4},
	} {
		server := newScripted(t, map[string][]any{
			"GET /v1/schedules/t/nightly": {apierror.ScheduleNotFound}, "PUT /v1/schedules/t/nightly": test.answers,
		})
		_, err := newLine(t, server.url).run(t, "schedules", "apply", "-f", file, "--yes")
		if puts := len(server.asked) - 1; cli.ExitCode(err) != test.code || puts != test.puts {
			t.Errorf("%v after %d puts", err, puts)
		}
	}
}

func TestSchedulesApply_FailsAsItsRequest(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nightly.yaml")
	musttest.WriteFile(t, file, "tenant_id: t\nname: nightly\nevery: 1h\ncommand: {request_type: a}\n")
	for code, want := range map[apierror.Code]int{
		apierror.StoreUnavailable: cli.ExitUnavailable, apierror.Forbidden: cli.ExitForbidden, apierror.ScheduleLimit: cli.ExitRefused,
		apierror.ScheduleInvalid: cli.ExitRefused,
	} {
		l := newLine(t, newScripted(t, map[string][]any{
			"GET /v1/schedules/t/nightly": {apierror.ScheduleNotFound}, "PUT /v1/schedules/t/nightly": {code},
		}).url)
		_, err := l.run(t, "schedules", "apply", "-f", file, "--yes")
		if cli.ExitCode(err) != want || !strings.HasPrefix(fmt.Sprint(err), "t/nightly was not applied: ") {
			t.Errorf("%s: %v, want the exit code %d", code, err, want)
		}
	}
}

func TestSchedulesApply_ComparesNumbersExactly(t *testing.T) {
	t.Parallel()
	known := nightly()
	known.Command = json.RawMessage(`{"n":9007199254740992,"x":1e2}`)
	l := newLine(t, newScripted(t, map[string][]any{"GET /v1/schedules/t/nightly": {known}}).url)
	for command, want := range map[string]string{
		`{"n":9007199254740993,"x":1e2}`: "t/nightly changes\n  command: {\"n\":9007199254740993,\"x\":1e2}, was {\"n\":9007199254740992,\"x\":1e2}\n",
		`{"x":1e2,"n":9007199254740992}`: "t/nightly is unchanged\n",
	} {
		file := filepath.Join(t.TempDir(), "nightly.json")
		musttest.WriteFile(t, file, `{"tenant_id":"t","name":"nightly","cron":"30 2 * * *","time_zone":"Europe/Berlin","command":`+command+`}`)
		if got := l.must(t, "schedules", "apply", "-f", file, "--dry-run"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSchedulesApply_RefusesAKeyTwice(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a.json": `{"tenant_id":"t","name":"a","every":"1h","every":"1m"}`,
		"a.yaml": "tenant_id: t\nname: a\nevery: 1h\nevery: 1m\n",
	} {
		file := filepath.Join(t.TempDir(), name)
		musttest.WriteFile(t, file, text)
		_, err := newLine(t, "http://127.0.0.1:1").run(t, "schedules", "apply", "-f", file)
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(err.Error(), `"every" already defined`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSchedulesApply_ShowsWhatDiffersFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	musttest.WriteFile(t, filepath.Join(dir, "a.yaml"), "tenant_id: t\nname: nightly\ncron: 45 3 * * *\ntime_zone: Europe/Berlin\n"+
		"command: {request_type: doc.index}\n")
	musttest.WriteFile(t, filepath.Join(dir, "b.yaml"), "schedules:\n- {tenant_id: t, name: hourly, every: 60m, command: {request_type: a}}\n"+
		"- {tenant_id: t, name: same, every: 1h, command: {request_type: a}}\n")
	same := nightly()
	same.Cron, same.TimeZone, same.Every, same.Name, same.Command = "", "", "1h", "same", json.RawMessage(`{"request_type":"a"}`)
	server := newScripted(t, map[string][]any{
		"GET /v1/schedules/t/nightly": {nightly(), nightly()}, "GET /v1/schedules/t/hourly": {apierror.ScheduleNotFound, apierror.ScheduleNotFound},
		"GET /v1/schedules/t/same":    {same, same},
		"PUT /v1/schedules/t/nightly": {nightly()}, "PUT /v1/schedules/t/hourly": {nightly()},
	})
	l := newLine(t, server.url)
	want := "t/nightly changes\n  cron: \"45 3 * * *\", was \"30 2 * * *\"\nt/hourly is new\nt/same is unchanged\n"
	if got := l.must(t, "schedules", "apply", "-f", dir, "--dry-run"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	l.must(t, "schedules", "apply", "-f", dir, "--yes")
	for name, text := range map[string]string{
		"no name": "tenant_id: t\n", "an unknown field": "tenant_id: t\nname: a\ncorn: x\n", "no schedule": "schedules: []\n", "no YAML": "a: [",
		"a second file": "tenant_id: t\nname: a\nevery: 1h\n---\ntenant_id: t\nname: b\nevery: 1h\n",
		"one twice":     "schedules: [{tenant_id: t, name: a}, {tenant_id: t, name: a}]\n",
	} {
		file := filepath.Join(t.TempDir(), "x.yaml")
		musttest.WriteFile(t, file, text)
		if _, err := l.run(t, "schedules", "apply", "-f", file); cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%s: %v", name, err)
		}
	}
}
