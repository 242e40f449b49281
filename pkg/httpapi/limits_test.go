package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// atMost returns a limiter for that many requests, with almost no refill.
func atMost(t *testing.T, burst int) *auth.Limiter {
	t.Helper()
	return auth.NewLimiter(auth.LimitConfig{Rate: 0.01, Burst: burst})
}

func TestRequestsAreLimitedByCaller(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"read:t", "read:*"}, func(c *httpapi.Config) { c.CallerLimit = atMost(t, 2) })
	for range 2 {
		if got := g.as(t, "read:t", "GET /v1/jobs/$job", "").Status; got != http.StatusOK {
			t.Errorf("answered %d", got)
		}
	}
	response := g.as(t, "read:t", "GET /v1/jobs/$job", "")
	wantProblem(t, response, apierror.RateLimited, "The caller sends too many requests.")
	g.store.untouched(t, "a request beyond the limit")
	// A hundred seconds after the previous request.
	if got, err := strconv.Atoi(response.Header.Get("Retry-After")); err != nil || got < 1 || got > 100 {
		t.Errorf("Retry-After is %q", response.Header.Get("Retry-After"))
	}
	if got := g.as(t, "read:*", "GET /v1/jobs/$job", "").Status; got != http.StatusOK {
		t.Errorf("another caller is answered %d", got)
	}
	for range 5 {
		if got := g.as(t, "", "GET /healthz", "").Status; got != http.StatusOK {
			t.Errorf("a probe is answered %d", got)
		}
	}
}

func TestRequestsAreLimitedByTenantAcrossCallers(t *testing.T) {
	t.Parallel()
	callers := []string{"submit:t read:t platform:t", "submit:*"}
	g := newGuarded(t, callers, func(c *httpapi.Config) { c.TenantLimit = atMost(t, 4) })
	for _, request := range []struct {
		caller       int
		target, body string
	}{
		{1, "POST /v1/commands", command},
		{0, "GET /v1/jobs?tenant_id=t", ""},
		{0, "GET /v1/jobs/$job", ""},
		{0, "POST /v1/callbacks/ack", callbackBody("$of", 1, "")},
	} {
		if got := g.as(t, callers[request.caller], request.target, request.body); got.Status >= 300 {
			t.Errorf("%s: %d %s", request.target, got.Status, got.Body)
		}
	}
	wantProblem(t, g.as(t, callers[1], "POST /v1/commands", command), apierror.RateLimited,
		"The tenant sends too many requests.")
	batch := g.as(t, callers[1], "POST /v1/commands:batch", `{"commands":[`+command+`,`+strings.Replace(command, `"t"`, `"o"`, 1)+`]}`)
	if !strings.Contains(batch.Body, `"status":429},{"correlation_id"`) {
		t.Errorf("a batch is answered %s", batch.Body)
	}
}

// audited returns a harness with an audit log, and the log's content.
func audited(t *testing.T, callers []string) (*guarded, func() []map[string]string) {
	t.Helper()
	var out bytes.Buffer
	g := newGuarded(t, callers, func(c *httpapi.Config) {
		c.Audit = auth.NewAudit(slog.New(slog.NewJSONHandler(&out, nil)))
	})
	return g, func() []map[string]string {
		var records []map[string]string
		for line := range strings.Lines(out.String()) {
			var record map[string]string
			musttest.NoError(t, json.Unmarshal([]byte(line), &record))
			for _, name := range []string{"time", "level", "msg", "at", "from", "origin"} {
				if record[name] == "" && record["caller"] != "" {
					t.Errorf("the record has no %s: %s", name, line)
				}
				delete(record, name)
			}
			records = append(records, record)
		}
		return records
	}
}

func TestActionsAreAudited(t *testing.T) {
	t.Parallel()
	callers := []string{"submit:t admin:t", "submit:* admin:*"}
	g, records := audited(t, callers)
	record := func(caller, action, object, tenant, outcome string) map[string]string {
		return map[string]string{"caller": caller, "action": action, "object": object, "tenant": tenant, "outcome": outcome, "reason": ""}
	}
	job := g.submitted(t)
	g.tenant = "o"
	foreign := g.submitted(t)
	var want []map[string]string
	for _, test := range []struct {
		caller       string
		target, body string
		record       map[string]string
	}{
		{callers[0], "POST /v1/jobs/" + job + ":cancel", "", record("caller-a", "cancelJob", job, "t", "done")},
		{callers[1], "POST /v1/jobs/" + job + ":cancel", "", record("caller-b", "cancelJob", job, "t", "done")},
		{callers[0], "POST /v1/jobs/" + foreign + ":cancel", "", record("caller-a", "cancelJob", foreign, "", "denied")},
		{callers[0], "POST /v1/jobs/" + noJob + ":cancel", "", record("caller-a", "cancelJob", noJob, "", "failed")},
		{callers[0], "POST /v1/jobs/" + job + ":cancel", "{", record("caller-a", "cancelJob", job, "t", "failed")},
		{callers[0], "POST /v1/admin/pauses", `{"tenant_id":"t","reason":"r"}`, record("caller-a", "createPause", "tenant:t", "t", "done")},
		{callers[0], "POST /v1/admin/marks", `{"finding_id":"stuck","tenant_id":"t","state":"open"}`, record("caller-a", "setMark", "stuck", "t", "done")},
		{callers[0], "POST /v1/admin/pauses", `{"tenant_id":"o","reason":"r"}`, record("caller-a", "createPause", "", "o", "denied")},
		{callers[0], "POST /v1/admin/retries", `{"tenant_id":"t"}`, record("caller-a", "createRetry", "", "t", "done")},
		{callers[1], "POST /v1/admin/outbox/retry", `{}`, record("caller-b", "retryOutbox", "", "", "done")},
		{callers[1], "POST /v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"` + job + `"}`, record("caller-b", "retryOutbox", job, "t", "done")},
		{callers[0], "POST /v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"` + foreign + `"}`, record("caller-a", "retryOutbox", foreign, "t", "denied")},
		{callers[1], "POST /v1/admin/outbox/retry", `{"outbox_ids":["j1.0.1","j2.0.1"]}`, record("caller-b", "retryOutbox", "j1.0.1,j2.0.1", "", "done")},
		{callers[1], "POST /v1/admin/outbox/retry", `{"outbox_ids":["1","2","3","4","5","6","7","8","9"]}`, record("caller-b", "retryOutbox", "9 rows, such as 1,2,3,4,5,6,7,8", "", "done")},
		{"", "POST /v1/admin/outbox/retry", `{}`, record("", "retryOutbox", "", "", "denied")},
		{"", "POST /v1/jobs/" + job + ":cancel", "", record("", "cancelJob", job, "", "denied")},
		{"", "POST /v1/admin/work/w1:stall", "", record("", "stallWork", "w1", "", "denied")},
		{callers[0], "POST /v1/admin/retries", `{"tenant_id":"t","dry_run":true}`, nil}, // Nothing is done.
		{callers[0], "POST /v1/admin/retries", `{"tenant_id":"o","dry_run":true}`, record("caller-a", "createRetry", "", "o", "denied")},
		{callers[0], "GET /v1/admin/outbox?tenant_id=t", "", nil},
		{callers[0], "POST /v1/commands", command, nil},
	} {
		response := g.as(t, test.caller, test.target, test.body)
		if test.body == `{"tenant_id":"t"}` {
			test.record["object"] = decoded[api.Operation](t, response).OperationID
		}
		if strings.Contains(test.body, `"reason":"r"`) {
			test.record["reason"] = "r"
		}
		if test.record != nil {
			want = append(want, test.record)
		}
	}
	if diff := cmp.Diff(want, records()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	trail := decoded[api.AuditTrail](t, g.as(t, callers[1], "GET /v1/admin/audit-trail", ""))
	if len(trail.Records) != len(want) || trail.Records[0].Action != "createRetry" || trail.Records[0].Outcome != api.AuditOutcomeDenied {
		t.Errorf("the trail is %+v", trail)
	}
	about := "GET /v1/admin/audit-trail?limit=1&caller=caller-a&action=cancelJob&outcome=done&object=" + job
	first := decoded[api.AuditTrail](t, g.as(t, callers[1], about, ""))
	if len(first.Records) != 1 || first.Records[0].TenantID != "t" || first.Records[0].Origin != "token" || first.NextPageToken != "" {
		t.Errorf("of one caller and job it is %+v", first)
	}
	if got := g.as(t, callers[1], "GET /v1/admin/audit-trail?outcome=lost", ""); got.Status != http.StatusBadRequest {
		t.Errorf("an outcome that is none is answered %d", got.Status)
	}
}

// The object of a schedule's action names the schedule, not its tenant alone.
func TestActionsOnSchedulesAreAudited(t *testing.T) {
	t.Parallel()
	const grants = "submit:t"
	g, records := audited(t, []string{grants})
	backfill := g.backfilled(t)
	foreign := strings.NewReplacer("/t/", "/o/")
	var want []string
	for _, test := range []struct{ action, target, body, more string }{
		{"putSchedule", "PUT /v1/schedules/t/nightly", nightly(""), ""},
		{"pauseSchedule", "POST /v1/schedules/t/nightly:pause", "", ""},
		{"resumeSchedule", "POST /v1/schedules/t/nightly:resume", "", ""},
		{"runSchedule", "POST /v1/schedules/t/nightly:run", "", ""},
		{"backfillSchedule", "POST /v1/schedules/t/nightly:backfill", `{"from":"2026-01-20T00:00:00Z","to":"2026-01-22T00:00:00Z"}`, ""},
		{"cancelBackfill", "POST /v1/schedules/t/nightly/backfills/" + backfill + ":cancel", "", "/" + backfill},
		{"deleteSchedule", "DELETE /v1/schedules/t/nightly", "", ""},
	} {
		g.as(t, grants, foreign.Replace(test.target), test.body)
		g.as(t, grants, test.target, test.body, "Idempotency-Key: k")
		want = append(want, test.action+" o/nightly"+test.more+" denied", test.action+" t/nightly"+test.more+" done")
	}
	var got []string
	for _, r := range records() {
		got = append(got, strings.Join([]string{r["action"], r["object"], r["outcome"]}, " "))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func TestAnActionThatPanicsIsAudited(t *testing.T) {
	t.Parallel()
	g, records := audited(t, []string{"submit:t"})
	g.store.on(func(context.Context) error { panic(errors.New("out of cheese")) })
	g.as(t, "submit:t", "POST /v1/jobs/$job:cancel", "")
	if got := records(); len(got) != 1 || got[0]["outcome"] != "failed" {
		t.Errorf("records %v", got)
	}
}

// A panic in one entry of a batch is an error of that entry: the process goes on.
func TestABatchContainsAPanic(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	item, _ := h.claimed(t, false)
	h.store.on(func(context.Context) error { panic("out of cheese") })
	for path, body := range map[string]string{
		"/v1/commands:batch": `{"commands":[` + command + `]}`,
		"/v1/work:complete":  `{"items":[{"work_id":"` + item.WorkID + `","owner":"w","request_id":"r","expected_rev":1,"result_ref":{"uri":"s3://r"}}]}`,
	} {
		response := h.do(t, http.MethodPost, path, body)
		if response.Status != http.StatusOK || !strings.Contains(response.Body, `"status":500`) || strings.Contains(response.Body, "cheese") {
			t.Errorf("%s: %d %s", path, response.Status, response.Body)
		}
	}
}

// The record tells what was done, even if the client left before the answer.
func TestAnActionWhoseClientLeftIsAudited(t *testing.T) {
	t.Parallel()
	const grants = "submit:t"
	g, records := audited(t, []string{grants})
	request := newRequest(t, http.MethodPost, "/v1/jobs/"+g.submitted(t)+":cancel", "", "Authorization: Bearer "+g.tokens[grants])
	ctx, leave := context.WithCancel(request.Context())
	defer leave()
	g.store.reset()
	g.store.on(func(context.Context) error {
		if g.store.committed() {
			leave()
		}
		return nil
	})
	g.ServeHTTP(httptest.NewRecorder(), request.WithContext(ctx))
	if ctx.Err() == nil {
		t.Error("the client has not left")
	}
	if got := records(); len(got) != 1 || got[0]["action"] != "cancelJob" || got[0]["outcome"] != "done" {
		t.Errorf("records %v", got)
	}
}

// Neither log holds a credential.
func TestLogsHoldNoTokens(t *testing.T) {
	t.Parallel()
	g, _ := audited(t, []string{"submit:t"})
	wrong := auth.NewToken()
	g.as(t, "submit:t", "POST /v1/jobs/$job:cancel", "")
	g.do(t, http.MethodPost, "/v1/jobs/j1:cancel", "", "Authorization: Bearer "+wrong)
	g.do(t, http.MethodPost, "/v1/jobs/j1:cancel", "", "Authorization: Basic "+wrong)
	g.do(t, http.MethodGet, "/v1/jobs/"+wrong, "")
	g.as(t, "submit:t", "GET /v1/"+wrong, "")
	log := g.log.String()
	if strings.Contains(log, wrong) || strings.Contains(log, g.tokens["submit:t"]) {
		t.Errorf("a token is in the log:\n%s", log)
	}
	for _, want := range []string{"caller=caller-a", "no caller has the token"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %s:\n%s", want, log)
		}
	}
}
