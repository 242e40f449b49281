package cli_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// busy returns a state with everything that the overview shows.
func busy() (api.Overview, api.ServiceList) {
	rates := func(minute, hour, total int) api.Rates {
		return api.Rates{
			LastMinute: api.Rate{Count: minute, PerSecond: float64(minute) / 60}, LastHour: api.Rate{Count: hour, ErrorRate: 0.125}, Total: total,
		}
	}
	all := api.Overview{
		Exact: true, AsOf: at(2 * time.Second), Since: at(time.Hour), CompleteSince: at(5 * time.Minute), Jobs: map[string]int{"DISPATCHING": 12, "PAUSED": 1}, Backlog: 11, Running: 2,
		Accepted: rates(30, 400, 5000), Ended: map[string]api.Rates{"SUCCEEDED": rates(28, 390, 4900), "FAILED_FINAL": rates(1, 3, 9)},
		OldestWaiting: api.OldestWaiting{Service: "embed", StepType: "EMBED", At: at(90 * time.Second), Seconds: 90}, OldestPendingSeconds: new(4.2),
		Inbox:    &api.InboxCounts{Refused: 2, OldestRefusedAt: at(time.Hour), Waiting: 14, OldestWaitingAt: at(12 * time.Minute)},
		Stuck:    api.StuckCount{Count: 1, RoundEndedAt: at(time.Minute)},
		Pauses:   []api.Pause{{PauseID: "service:ocr", Actor: "ops-1", CreatedAt: at(time.Hour), Reason: "OCR is down", State: api.PauseStatePaused, Until: at(-2 * time.Hour), Service: "ocr"}},
		Circuits: []api.Circuit{{Name: "global-bus-p1", State: "open", Since: at(time.Minute), Until: api.NewTime(now.Add(9 * time.Second)), Reason: "timeout"}},
	}
	return all, api.ServiceList{Services: []api.Service{
		{Service: "embed", StepType: "EMBED", Backlog: 11, OldestWaitingSeconds: 90, Attempts: rates(0, 0, 0), Workers: []api.ServiceWorker{}},
		{
			Service: "extract", StepType: "EXTRACT", Running: 2, Claimed: 1, Backoff: 3, WorkersTotal: 4, Attempts: rates(28, 390, 4900),
			DurationSeconds: api.Percentiles{Count: 390, P95: 1.2345}, Workers: []api.ServiceWorker{},
		},
	}}
}

// watched holds the answers of a server with that state, on which two more things are wrong.
func watched(all api.Overview, services api.ServiceList) map[string]any {
	return map[string]any{
		"GET /v1/admin/overview": all, "GET /v1/admin/services": services, "GET /readyz": api.Readiness{Warnings: []string{"the disk is nearly full"}},
		"GET /v1/whoami":         api.Identity{Grants: []api.Grant{{Role: api.GrantRoleRead, Tenants: []string{"*"}}}},
		"GET /v1/admin/webhooks": api.WebhookPage{},
		"GET /v1/admin/marks":    api.MarkList{},
		"GET /v1/admin/limits": api.StartLimitList{Limits: []api.StartLimit{{
			ID: "service:ocr", Service: "ocr",
			Closed: &api.Closure{Until: at(-5 * time.Minute), Since: at(time.Minute), By: "ops-1", Reason: "the vendor answers 503"},
		}}},
		"GET /v1/lines": api.LinePage{Lines: []api.Line{blockedLine()}}, "GET /v1/schedules:lost": lostNightly(),

		"GET /v1/admin/operations":                api.OperationPage{Operations: []api.Operation{operation(api.OperationStateDone, 3)}},
		"GET /v1/admin/operations/" + operationID: api.Operation{Results: &api.OperationResults{Counted: 1, Failed: 1}},
		"GET /v1/admin/failures": api.FailureList{Groups: []api.FailureGroup{
			{Service: "ocr", StepType: "OCR", ErrorCode: "bad_scan", Count: 214, FirstAt: at(2 * time.Hour), LastAt: at(time.Minute)},
		}},
	}
}

// What is wrong is shown with the command that helps, and by the exit code.
func TestAttention(t *testing.T) {
	t.Parallel()
	all, services := busy()
	l := newLine(t, answers(t, watched(all, services)))
	out, err := l.run(t, "attention")
	if cli.ExitCode(err) != cli.ExitAttention || err.Error() != "8 things need attention" {
		t.Errorf("it ends with %v", err)
	}
	golden(t, "attention.txt", out)
	out, err = l.run(t, "attention", "-o", "json")
	if cli.ExitCode(err) != cli.ExitAttention {
		t.Errorf("it ends with %v", err)
	}
	golden(t, "attention.json", out)
}

// Acknowledged findings come last, and do not change the exit code.
func TestAttention_IsMarked(t *testing.T) {
	t.Parallel()
	const tenant = "a"
	mark := api.Mark{FindingID: "pause:tenant:a", TenantID: tenant, State: api.MarkStateAcknowledged, Actor: "ops-1", At: at(time.Minute), Until: at(-time.Hour)}
	opened := mark
	opened.State = api.MarkStateOpen
	server := newScripted(t, map[string][]any{
		"GET /v1/whoami":           {api.Identity{Grants: []api.Grant{{Role: api.GrantRoleAdmin, Tenants: []string{tenant}}}}},
		"GET /readyz":              {api.Readiness{}},
		"GET /v1/admin/pauses":     {api.PauseList{Pauses: []api.Pause{{PauseID: "tenant:a", TenantID: tenant, State: api.PauseStatePaused, CreatedAt: at(time.Hour)}}}},
		"GET /v1/admin/limits":     {api.StartLimitList{}},
		"GET /v1/admin/marks":      {api.MarkList{}, api.MarkList{}, api.MarkList{Marks: []api.Mark{mark}}},
		"GET /v1/admin/operations": {api.OperationPage{}},
		"POST /v1/admin/marks":     {mark, opened},
	})
	l := newLine(t, server.url)
	golden(t, "mark.txt", l.must(t, "attention", "mark", "pause:tenant:a", "--for", "1h", "--note", "a dispute"))
	last := func(want string) {
		t.Helper()
		if asked := server.asked[len(server.asked)-1]; asked != want {
			t.Errorf("the API was asked %s, want %s", asked, want)
		}
	}
	last(`POST /v1/admin/marks {"finding_id":"pause:tenant:a","for_seconds":3600,"note":"a dispute","state":"acknowledged","tenant_id":"a"}`)
	golden(t, "mark-open.txt", l.must(t, "attention", "mark", "pause:tenant:a", "--as", "open"))
	golden(t, "attention-known.txt", l.must(t, "attention"))
	if _, err := l.run(t, "attention", "mark", "stuck"); cli.ExitCode(err) != cli.ExitNotFound {
		t.Errorf("a finding that is none: %v", err)
	}
	if _, err := l.run(t, "attention", "mark", "stuck", "--for", "soon"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("a time that is none: %v", err)
	}
}

// A worker has polled just now by the server's clock, but long ago by that of this host.
func TestAttention_GoesByTheClockOfTheServer(t *testing.T) {
	t.Parallel()
	all := watched(api.Overview{Bus: api.BusQueue}, api.ServiceList{Services: []api.Service{
		{Service: "ocr", Backlog: 1, WorkersTotal: 1, Workers: []api.ServiceWorker{{Owner: "w", LastPollAt: at(10 * time.Second)}}},
	}})
	all["GET /readyz"], all["GET /v1/admin/failures"] = api.Readiness{}, api.FailureList{}
	all["GET /v1/lines"], all["GET /v1/schedules:lost"] = api.LinePage{}, api.ScheduleLossPage{}
	l := newLine(t, answers(t, all))
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		l.Now = func() time.Time { return now.Add(ahead) }
		if out, err := l.run(t, "attention"); err != nil {
			t.Errorf("%s ahead: %v\n%s", ahead, err, out)
		}
	}
}

// A token for some tenants sees what is wrong for these.
func TestAttention_OfSomeTenants(t *testing.T) {
	t.Parallel()
	all := watched(api.Overview{}, api.ServiceList{})
	delete(all, "GET /v1/admin/overview")
	delete(all, "GET /v1/admin/services")
	all["GET /readyz"], all["GET /v1/admin/failures"] = apierror.StoreUnavailable, api.FailureList{}
	all["GET /v1/whoami"] = api.Identity{Grants: []api.Grant{{Role: api.GrantRoleRead, Tenants: []string{"a", "b"}}}}
	all["GET /v1/jobs"], all["GET /v1/lines"] = api.JobPage{Jobs: []api.Job{failedJob()}}, api.LinePage{}
	all["GET /v1/schedules:lost"] = api.ScheduleLossPage{}
	out, err := newLine(t, answers(t, all)).run(t, "attention")
	if cli.ExitCode(err) != cli.ExitAttention || !strings.HasPrefix(out, "● The server is not ready: ") ||
		!strings.Contains(out, "1 job is held back by a pause, of tenant b") {
		t.Errorf("%v\n%s", err, out)
	}
	all["GET /readyz"], all["GET /v1/jobs"] = api.Readiness{}, api.JobPage{}
	if out, err := newLine(t, answers(t, all)).run(t, "attention"); err != nil || out != "Nothing needs attention.\n" {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := newLine(t, "http://127.0.0.1:1").run(t, "attention"); cli.ExitCode(err) != cli.ExitUnavailable {
		t.Errorf("a server that was never there: %v", err)
	}
}

// A token that may administer but not read sees all but failures, webhooks and lines, and the overview.
func TestAttention_OfAnAdministrator(t *testing.T) {
	t.Parallel()
	all, services := busy()
	answered := watched(all, services)
	answered["GET /v1/admin/operations"] = api.OperationPage{Operations: []api.Operation{operation(api.OperationStateDone, 3)}}
	answered["GET /v1/admin/failures"], answered["GET /v1/admin/webhooks"] = apierror.Forbidden, apierror.Forbidden
	answered["GET /v1/lines"], answered["GET /v1/schedules:lost"] = apierror.Forbidden, apierror.Forbidden
	answered["GET /v1/whoami"] = api.Identity{Grants: []api.Grant{{Role: api.GrantRoleAdmin, Tenants: []string{"*"}}}}
	answered["GET /v1/admin/stuck"] = api.StuckList{Stuck: []api.StuckJob{{JobID: "job-1", Reason: "its row is lost"}}}
	l := newLine(t, answers(t, answered))
	out, err := l.run(t, "attention")
	if cli.ExitCode(err) != cli.ExitAttention || !strings.Contains(out, "its row is lost") || !strings.Contains(out, "Topic global-bus-p1") ||
		!strings.Contains(out, "● Service ocr is closed, and opens in 5m\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if out := l.must(t, "overview"); !strings.Contains(out, "its row is lost") || !strings.Contains(out, "12 DISPATCHING") {
		t.Errorf("the overview is\n%s", out)
	}
	answered["GET /v1/whoami"] = api.Identity{Grants: []api.Grant{{Role: api.GrantRoleAdmin, Tenants: []string{"a"}}}}
	answered["GET /v1/admin/pauses"] = api.PauseList{Pauses: []api.Pause{{PauseID: "tenant:a", TenantID: "a", State: api.PauseStatePaused, CreatedAt: at(time.Hour)}}}
	if out, err := l.run(t, "attention"); cli.ExitCode(err) != cli.ExitAttention || !strings.Contains(out, "● Tenant a is paused for 1h") {
		t.Errorf("of one tenant: %v\n%s", err, out)
	}
}

// A token that shows no job does not say that nothing is wrong.
func TestAttention_OfNoTenant(t *testing.T) {
	t.Parallel()
	answered := map[string]any{
		"GET /readyz": api.Readiness{}, "GET /v1/whoami": api.Identity{Grants: []api.Grant{{Role: api.GrantRolePlatform}}},
	}
	l := newLine(t, answers(t, answered))
	if out, err := l.run(t, "attention"); cli.ExitCode(err) != cli.ExitForbidden || out != "" || !strings.Contains(err.Error(), "the role read or admin") {
		t.Errorf("%v\n%s", err, out)
	}
	for want, ready := range map[string]any{
		"● The server is not ready: ": apierror.StoreUnavailable,
		"nearly full":                 api.Readiness{Warnings: []string{"the disk is nearly full"}},
	} {
		answered["GET /readyz"] = ready
		if out, err := l.run(t, "attention"); cli.ExitCode(err) != cli.ExitAttention || !strings.Contains(out, want) {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// An administrator sees the results of operations.
func TestAttention_SaysWhetherItHelped(t *testing.T) {
	t.Parallel()
	answered := watched(api.Overview{}, api.ServiceList{})
	answered["GET /v1/whoami"] = api.Identity{Grants: []api.Grant{
		{Role: api.GrantRoleRead, Tenants: []string{"*"}}, {Role: api.GrantRoleAdmin, Tenants: []string{"*"}},
	}}
	out, err := newLine(t, answers(t, answered)).run(t, "attention")
	if cli.ExitCode(err) != cli.ExitAttention || !strings.Contains(out, "retried 1 job 1m ago by ops-1: 1 failed again") {
		t.Errorf("%v\n%s", err, out)
	}
}

// While the store is down, it is shown that the server is not ready, though nothing else can be.
func TestAttention_WhileTheStoreIsDown(t *testing.T) {
	t.Parallel()
	all, services := busy()
	answered := watched(all, services)
	answered["GET /readyz"], answered["GET /v1/admin/overview"] = apierror.StoreUnavailable, apierror.StoreUnavailable
	out, err := newLine(t, answers(t, answered)).run(t, "attention")
	if cli.ExitCode(err) != cli.ExitAttention || !strings.HasPrefix(out, "● The server is not ready: ") {
		t.Errorf("%v\n%s", err, out)
	}
	answered["GET /readyz"] = api.Readiness{}
	if out, err := newLine(t, answers(t, answered)).run(t, "attention"); cli.ExitCode(err) != cli.ExitUnavailable {
		t.Errorf("a ready server that does not say how things are: %v\n%s", err, out)
	}
}

func TestOverview(t *testing.T) {
	t.Parallel()
	all, services := busy()
	l := newLine(t, answers(t, watched(all, services)))
	out := l.must(t, "overview")
	golden(t, "overview.txt", out)
	l.Terminal = true
	l.Environment = append(l.Environment, "NO_COLOR=1")
	if once, err := l.run(t, "overview", "--once"); err != nil || once != out {
		t.Errorf("once on a terminal: %v\n%s", err, once)
	}
	forPrograms(t, l, all, "overview")
	if _, err := l.run(t, "overview", "--interval", "1ms"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("an interval too short: %v", err)
	}
}

// live runs the overview on a terminal, against a server that answers each look with a status,
// until the server has been asked for that many looks. It returns what the terminal got.
func live(t *testing.T, all api.Overview, services api.ServiceList, looks int, status func(look int) int, set ...func(*line)) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	look := 0
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/admin/overview":
		case "/v1/admin/services":
			_, _ = w.Write([]byte(encode(t, services)))
			return
		default:
			_, _ = w.Write([]byte("{}"))
			return
		}
		if look++; look == looks {
			cancel()
		}
		w.WriteHeader(status(look))
		_, _ = w.Write([]byte(encode(t, all)))
	}))
	l.Terminal = true
	for _, f := range set {
		f(l)
	}
	musttest.NoError(t, cli.Run(ctx, cli.Root(&l.Env), []string{"overview", "--interval", "100ms"}))
	return l.out.String()
}

func always(int) int { return http.StatusOK }

// On a terminal the overview is redrawn in place until Ctrl-C.
func TestOverview_IsLive(t *testing.T) {
	t.Parallel()
	all, services := busy()
	out := live(t, all, services, 3, always)
	if strings.Count(out, "Lucius") < 2 || !strings.Contains(out, "\x1b[22F\x1b[1mLucius") {
		t.Errorf("%q", out)
	}
}

// While a server restarts, the overview shows the last state, and says so.
func TestOverview_SurvivesARestart(t *testing.T) {
	t.Parallel()
	all, services := busy()
	drawn := strings.Split(live(t, all, services, 9, func(look int) int {
		if look >= 2 && look <= 7 {
			return http.StatusBadGateway
		}
		return http.StatusOK
	}), "\x1b[J")
	if len(drawn) < 4 {
		t.Fatalf("%q", drawn)
	}
	drawn = drawn[:len(drawn)-1] // The last part is empty.
	for i, one := range drawn {
		if stale := i > 0 && i < len(drawn)-1; strings.Contains(one, "Not current, trying again: ") != stale || !strings.Contains(one, "embed") {
			t.Errorf("look %d: %q", i+1, one)
		}
	}

	if _, err := newLine(t, "http://127.0.0.1:1").run(t, "overview"); cli.ExitCode(err) != cli.ExitUnavailable {
		t.Errorf("a server that was never there: %v", err)
	}
}

// An East Asian character takes two columns of a terminal, and a combining accent none.
func TestOverview_CountsColumns(t *testing.T) {
	t.Parallel()
	all, services := busy()
	services.Services[0].Service, services.Services[1].Service = "文書処理", "cafe\u0301"
	l := newLine(t, answers(t, watched(all, services)))
	out := l.must(t, "overview")
	for _, want := range []string{"\nSERVICE   STEP TYPE", "\n文書処理  EMBED", "\ncafe\u0301      EXTRACT"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}

	cut := live(t, all, services, 2, always, func(l *line) {
		l.Size, l.Environment = func() (columns, rows int) { return 7, 50 }, append(l.Environment, "NO_COLOR=1")
	})
	if !strings.Contains(cut, "\n文書処\x1b[0m\x1b[K\n") {
		t.Errorf("cut at 7 columns: %q", cut)
	}
}
