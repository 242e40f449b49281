package httpapi_test

import (
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// guarded is a harness that asks for tokens, and the tokens of its callers, by
// their grants.
type guarded struct {
	*harness

	path   string
	file   *auth.File
	tokens map[string]string
}

// newGuarded returns a harness for callers who each have the grants that one text
// lists, with spaces between them.
func newGuarded(t *testing.T, callers []string, configure ...func(*httpapi.Config)) *guarded {
	t.Helper()
	path, file, tokens := newTokens(t, callers)
	return (&guarded{path: path, file: file, tokens: tokens}).renewed(t, configure...)
}

// renewed returns another harness for the same callers.
func (g *guarded) renewed(t *testing.T, configure ...func(*httpapi.Config)) *guarded {
	t.Helper()
	ask := func(c *httpapi.Config) { c.Auth = auth.New(auth.Config{File: g.file}) }
	return &guarded{newHarness(t, append([]func(*httpapi.Config){ask}, configure...)...), g.path, g.file, g.tokens}
}

// newTokens returns a token file of those callers, and their tokens by their grants.
func newTokens(t *testing.T, callers []string) (path string, file *auth.File, tokens map[string]string) {
	t.Helper()
	path, tokens = filepath.Join(t.TempDir(), "tokens.yaml"), map[string]string{}
	for i, texts := range callers {
		token := auth.NewToken()
		entry := auth.Entry{Name: "caller-" + string(rune('a'+i)), TokenHash: auth.HashToken(token)}
		for text := range strings.FieldsSeq(texts) {
			entry.Grants = append(entry.Grants, musttest.Make(t, auth.ParseGrant, text))
		}
		musttest.NoError(t, auth.AppendFile(path, entry))
		tokens[texts] = token
	}
	return path, musttest.Make(t, auth.OpenFile, path), tokens
}

// as sends a request of the caller with those grants, or without a credential.
func (g *guarded) as(t *testing.T, grants, target, body string, headers ...string) answer {
	t.Helper()
	if grants != "" {
		headers = append(headers, "Authorization: Bearer "+g.tokens[grants])
	}
	method, path := split(target)
	return g.do(t, method, path, body, headers...)
}

// ask is a request about the tenant t, or about no tenant.
type ask struct{ target, body string }

const succeeded = `,"status":"SUCCEEDED","result_ref":{"uri":"s3://out"}`

// asks holds an accepted request for each operation of the OpenAPI document.
var asks = map[string]ask{
	"submitCommand":         {"POST /v1/commands", command},
	"orchestrate":           {"POST /v1/orchestrate", command},
	"submitBatch":           {"POST /v1/commands:batch", `{"commands":[` + command + `]}`},
	"callbackAck":           {"POST /v1/callbacks/ack", callbackBody("$of", 1, "")},
	"callbackResult":        {"POST /v1/callbacks/result", callbackBody("$of", 1, succeeded)},
	"callbackHeartbeat":     {"POST /v1/callbacks/heartbeat", callbackBody("$of", 1, "")},
	"claimWork":             {"POST /v1/work:claim", `{"owner":"o","request_id":"r"}`},
	"startWork":             {"POST /v1/work/$claimed:start", atRev("")},
	"heartbeatWork":         {"POST /v1/work/$running:heartbeat", atRev("")},
	"completeWork":          {"POST /v1/work/$running:complete", atRev(`,"result_ref":{"uri":"s3://out"}`)},
	"completeWorkBatch":     {"POST /v1/work:complete", `{"items":[{"work_id":"$running","owner":"o","expected_rev":$rev,"request_id":"r2"}]}`},
	"failWork":              {"POST /v1/work/$running:fail", atRev(`,"error":{"code":"c"}`)},
	"listWorkEvents":        {"GET /v1/work/$claimed/events", ""},
	"getWork":               {"GET /v1/work/$claimed", ""},
	"listJobs":              {"GET /v1/jobs?tenant_id=t", ""},
	"cancelJob":             {"POST /v1/jobs/$job:cancel", ""},
	"pauseJob":              {"POST /v1/jobs/$job:pause", ""},
	"prioritizeJob":         {"POST /v1/jobs/$parked:prioritize", `{"priority":"bulk"}`},
	"rescheduleJob":         {"POST /v1/jobs/$parked:reschedule", `{"delay_seconds":60}`},
	"resumeJob":             {"POST /v1/jobs/$paused:resume", ""},
	"rerunJob":              {"POST /v1/jobs/$failed:rerun", ""},
	"listJobSteps":          {"GET /v1/jobs/$job/steps", ""},
	"listJobEvents":         {"GET /v1/jobs/$job/events", ""},
	"getLineage":            {"GET /v1/jobs/$job/lineage", ""},
	"listRejectedCallbacks": {"GET /v1/jobs/$job/rejected", ""},
	"listJobWebhooks":       {"GET /v1/jobs/$cancelled/webhooks", ""},
	"getJob":                {"GET /v1/jobs/$job", ""},
	"listLines":             {"GET /v1/lines?tenant_id=t", ""},
	"listLineJobs":          {"GET /v1/lines/$line/jobs", ""},
	"getLine":               {"GET /v1/lines/$line", ""},
	"cancelLine":            {"POST /v1/lines/$line:cancel", `{"reason":"why"}`},
	"releaseLine":           {"POST /v1/lines/$line:release", `{"jobId":"$blocker","reason":"known"}`},
	"previewSchedule":       {"POST /v1/schedules:preview", `{"cron":"@daily"}`},
	"listLosses":            {"GET /v1/schedules:lost?tenant_id=t", ""},
	"listSchedules":         {"GET /v1/schedules?tenant_id=t", ""},
	"getSchedule":           {"GET /v1/schedules/$tenant/nightly", ""},
	"putSchedule":           {"PUT /v1/schedules/$tenant/nightly", nightly("")},
	"deleteSchedule":        {"DELETE /v1/schedules/$tenant/nightly", ""},
	"pauseSchedule":         {"POST /v1/schedules/$tenant/nightly:pause", ""},
	"resumeSchedule":        {"POST /v1/schedules/$tenant/nightly:resume", ""},
	"runSchedule":           {"POST /v1/schedules/$tenant/nightly:run", ""},
	"backfillSchedule":      {"POST /v1/schedules/$tenant/nightly:backfill", `{"from":"2026-01-20T00:00:00Z","to":"2026-01-22T00:00:00Z"}`},
	"cancelBackfill":        {"POST /v1/schedules/$tenant/nightly/backfills/$backfill:cancel", ""},
	"listBackfills":         {"GET /v1/schedules/$tenant/nightly/backfills", ""},
	"listFires":             {"GET /v1/schedules/$tenant/nightly/fires", ""},
	"retryOutbox":           {"POST /v1/admin/outbox/retry", `{"tenant_id":"t","jobId":"$job"}`},
	"listOutbox":            {"GET /v1/admin/outbox?tenant_id=t", ""},
	"listFailures":          {"GET /v1/admin/failures?tenant_id=t", ""},
	"createRetry":           {"POST /v1/admin/retries", `{"tenant_id":"t"}`},
	"listRetries":           {"GET /v1/admin/retries?tenant_id=t", ""},
	"createCancellation":    {"POST /v1/admin/cancellations", `{"tenant_id":"t","reason":"why"}`},
	"createPausing":         {"POST /v1/admin/pausings", `{"tenant_id":"t"}`},
	"createResumption":      {"POST /v1/admin/resumptions", `{"tenant_id":"t"}`},
	"listOperations":        {"GET /v1/admin/operations?tenant_id=t", ""},
	"cancelOperation":       {"POST /v1/admin/operations/$operation:cancel", ""},
	"getOperation":          {"GET /v1/admin/operations/$operation", ""},
	"listPauses":            {"GET /v1/admin/pauses", ""},
	"createPause":           {"POST /v1/admin/pauses", `{"tenant_id":"t","reason":"why"}`},
	"resumePause":           {"POST /v1/admin/pauses/$pause:resume", ""},
	"listLimits":            {"GET /v1/admin/limits", ""},
	"getLimit":              {"GET /v1/admin/limits/$limit", ""},
	"setLimit":              {"PUT /v1/admin/limits/$limit", `{"starts":{"count":600,"window":"1m"},"reason":"why"}`},
	"deleteLimit":           {"DELETE /v1/admin/limits/$limit", ""},
	"closeLimit":            {"POST /v1/admin/limits/$limit:close", `{"for_seconds":60,"reason":"why"}`},
	"openLimit":             {"POST /v1/admin/limits/$limit:open", ""},
	"listMarks":             {"GET /v1/admin/marks", ""},
	"setMark":               {"POST /v1/admin/marks", `{"finding_id":"stuck","tenant_id":"t","state":"acknowledged"}`},
	"listWebhooks":          {"GET /v1/admin/webhooks?tenant_id=t", ""},
	"replayWebhook":         {"POST /v1/admin/webhooks/$exhausted:replay", ""},
	"listServices":          {"GET /v1/admin/services", ""},
	"listWorkers":           {"GET /v1/admin/workers", ""},
	"getOverview":           {"GET /v1/admin/overview", ""},
	"createBackup":          {"POST /v1/admin/backup", ""},
	"listStuck":             {"GET /v1/admin/stuck", ""},
	"listAuditTrail":        {"GET /v1/admin/audit-trail", ""},
	"listInbox":             {"GET /v1/admin/inbox", ""},
	"retryInbox":            {"POST /v1/admin/inbox:retry", `{"all":true}`},
	"discardInbox":          {"POST /v1/admin/inbox:discard", `{"command_ids":["c-1"],"reason":"why"}`},
	"stallWork":             {"POST /v1/admin/work/$claimed:stall", operatorsBody("$rev", "x2")},
	"requeueWork":           {"POST /v1/admin/work/$stalled:requeue", operatorsBody("3", "x2")},
	"listProtocols":         {"GET /v1/protocols", ""},
	"getIdentity":           {"GET /v1/whoami", ""},
	"getHealth":             {"GET /healthz", ""},
	"getReadiness":          {"GET /readyz", ""},
	"getMetrics":            {"GET /metrics", ""},
	"getRoot":               {"GET /", ""},
	"getOpenAPI":            {"GET /openapi.yaml", ""},
	"getDocs":               {"GET /docs", ""},
}

// A request that is refused changes nothing, so the next is sent to the same server. One that is
// accepted is the last of its server.
func TestEveryEndpointEveryRoleEveryTenant(t *testing.T) {
	t.Parallel()
	table := policy(t)
	var grants []string
	for _, role := range auth.Roles() {
		for _, tenants := range []string{"t", "o", "*"} {
			grants = append(grants, string(role)+":"+tenants)
		}
	}
	callers := newGuarded(t, grants)
	for _, operation := range documented(t) {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			asked, known := asks[operation]
			row, listed := table[operation]
			if !known || !listed {
				t.Fatalf("%s is not in the table of docs/run/access.md, or this test does not call it", operation)
			}
			var g *guarded
			var target, body string
			for _, grant := range grants {
				if g == nil {
					g = callers.renewed(t)
					target, body = g.fill(t, asked.target, asked.body)
				}
				response := g.as(t, grant, target, body)
				role, tenants, _ := strings.Cut(grant, ":")
				want, got := row.status(auth.Role(role), tenants), response.Status
				if strings.HasSuffix(operation, "Batch") && got == http.StatusOK {
					got = statusOfFirst(t, response)
				}
				if ok := got < 300; got != want && (!ok || want != http.StatusOK) {
					t.Errorf("%s is answered %d, want %d: %s", grant, got, want, response.Body)
				}
				if got >= 300 {
					g.store.unchanged(t, grant+" is refused, and yet")
				} else {
					g = nil
				}
			}
			g = callers.renewed(t)
			for caller, header := range map[string]string{
				"anonymous": "", "an unknown token": "Authorization: Bearer " + auth.NewToken(),
			} {
				method, path := split(asked.target)
				response := g.do(t, method, path, asked.body, header)
				if public := row.scope == "public"; public != (response.Status == http.StatusOK) ||
					!public && (response.Status != http.StatusUnauthorized || response.Header.Get("WWW-Authenticate") == "") {
					t.Errorf("%s is answered %d: %s", caller, response.Status, response.Body)
				}
			}
		})
	}
	if len(asks) != len(table) {
		t.Errorf("%d operations are in the table, and %d are asked about", len(table), len(asks))
	}
}

// object finds the name of an object in a path.
var object = regexp.MustCompile(`\$\w+`)

// The answers for a foreign and for a missing object differ only in the request id,
// whatever else the request contains.
func TestForeignAndMissingObjectsLookAlike(t *testing.T) {
	t.Parallel()
	for operation, row := range policy(t) {
		if row.scope != "owner" || !object.MatchString(asks[operation].target) {
			continue // The body of a batch names its objects: TestABatchOfCompletions.
		}
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			for _, role := range row.roles {
				grant := string(role) + ":t"
				g := newGuarded(t, []string{grant})
				g.tenant = "o"
				foreign, body := g.fill(t, asks[operation].target, asks[operation].body)
				missing := object.ReplaceAllString(asks[operation].target, noJob)
				g.store.reset()
				for _, body := range []string{body, "{", ""} {
					method, _ := split(foreign)
					if method == http.MethodGet && body != "" {
						continue
					}
					const id = "X-Request-Id: r1"
					got, want := g.as(t, grant, foreign, body, id), g.as(t, grant, missing, body, id)
					if got.Status != http.StatusNotFound || got.Status != want.Status || got.Body != want.Body {
						t.Errorf("with the body %q: %d %s, and one that is not there %d %s",
							body, got.Status, got.Body, want.Status, want.Body)
					}
					g.store.unchanged(t, foreign)
				}
			}
		})
	}
}

// An object without a tenant needs a role for all tenants.
func TestObjectsWithoutATenantAreHiddenFromCallersOfOne(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"admin:t", "admin:*"})
	retry := decoded[api.Operation](t, g.given(t, "POST /v1/admin/retries", `{"job_ids":["`+g.failed(t)+`"]}`)).OperationID
	pause := decoded[api.Pause](t, g.given(t, "POST /v1/admin/pauses", `{"all":true,"reason":"why"}`)).PauseID
	g.given(t, "PUT /v1/admin/limits/service:ocr", `{"starts":{"count":1,"window":"1s"},"reason":"why"}`)
	g.given(t, "POST /v1/admin/limits/service:ocr:close", `{"for_seconds":60,"reason":"why"}`)
	for _, target := range []string{
		"GET /v1/admin/limits/service:ocr", "POST /v1/admin/limits/service:ocr:open", "DELETE /v1/admin/limits/service:ocr",
		"GET /v1/admin/operations/" + retry, "POST /v1/admin/operations/" + retry + ":cancel", "POST /v1/admin/pauses/" + pause + ":resume",
	} {
		if got := g.as(t, "admin:t", target, ""); got.Status != http.StatusNotFound {
			t.Errorf("%s: %d %s", target, got.Status, got.Body)
		}
		if got := g.as(t, "admin:*", target, ""); got.Status != http.StatusOK {
			t.Errorf("%s by a caller for all: %d %s", target, got.Status, got.Body)
		}
	}
}

// A caller of one tenant learns that a pause of several tenants holds its job, but not who
// made the pause or why, nor how fast attempts of all tenants end.
func TestWaiting_TellsACallerOfOneTenantNothingOfTheOthers(t *testing.T) {
	t.Parallel()
	const own, all = "read:t submit:t", "read:* submit:*"
	g := newGuarded(t, []string{own, all})
	details := func(grants, job string, want string) {
		t.Helper()
		for _, target := range []string{"GET /v1/jobs/" + job, "GET /v1/jobs/" + job + "/steps", "GET /v1/jobs?tenant_id=t"} {
			got := g.as(t, grants, target, "")
			if _, list := split(target); strings.Contains(list, "?") && strings.HasPrefix(want, ", ") {
				continue // A list does not count the queue.
			}
			if !strings.Contains(got.Body, want+`"`) {
				t.Errorf("%s is told by %s %s, want %s", grants, target, got.Body, want)
			}
		}
	}
	job := g.submitted(t)
	_, err := g.relay.RunOnce(t.Context())
	musttest.NoError(t, err)
	details(own, job, ", the first of its tenant")
	details(all, job, ", the first of its tenant; no such attempt has ended lately")

	g.given(t, "POST /v1/admin/pauses", `{"tenant_id":"t","reason":"their own"}`)
	details(own, job, "paused by local: their own")
	g.given(t, "POST /v1/admin/pauses/tenant:t:resume", `{"ramp_seconds":0}`)
	pause := decoded[api.Pause](t, g.given(t, "POST /v1/admin/pauses", `{"service":"ocr","reason":"o is noisy"}`)).PauseID
	details(own, job, "paused")
	details(all, job, "paused by local: o is noisy")
	if got := decoded[api.Job](t, g.as(t, own, "GET /v1/jobs/"+job, "")); got.Waiting.BlockedBy.ID != pause {
		t.Errorf("it is blocked by %+v", got.Waiting.BlockedBy)
	}
	for _, verb := range []string{":pause", ":resume"} {
		if got := g.as(t, own, "POST /v1/jobs/"+job+verb, ""); got.Status != http.StatusAccepted || strings.Contains(got.Body, "noisy") {
			t.Errorf("%s: %d %s", verb, got.Status, got.Body)
		}
	}
	g.given(t, "POST /v1/admin/pauses/"+pause+":resume", `{"ramp_seconds":3600}`)
	if got := g.as(t, own, "GET /v1/jobs/"+job, ""); !strings.Contains(got.Body, "the pause ramps up until") {
		t.Error(got.Body)
	}
}
