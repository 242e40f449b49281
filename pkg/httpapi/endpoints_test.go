package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// asJSON returns the value as the server writes it.
func asJSON(t *testing.T, value any) string {
	t.Helper()
	encoded, err := json.Marshal(value)
	musttest.NoError(t, err)
	return string(encoded)
}

func TestEmptyListsAreWrittenAsLists(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"GET /v1/jobs":                `{"jobs":[]}`,
		"GET /v1/jobs/$job/webhooks":  `{"webhooks":[]}`,
		"GET /v1/admin/outbox":        `{"outbox":[]}`,
		"GET /v1/admin/failures":      `{"groups":[],"truncated":false}`,
		"GET /v1/admin/pauses":        `{"pauses":[]}`,
		"GET /v1/admin/limits":        `{"limits":[]}`,
		"GET /v1/admin/webhooks":      `{"webhooks":[]}`,
		"GET /v1/admin/stuck":         `{"checked":0,"repaired":0,"stuck":[]}`,
		"POST /v1/work:claim":         `{"items":[]}`,
		"POST /v1/admin/outbox/retry": `{"matched":0,"retried":0,"skipped":[]}`,
	} {
		h := newHarness(t)
		method, path := split(target)
		body := map[string]string{
			"POST /v1/work:claim": `{"owner":"o","request_id":"r"}`, "POST /v1/admin/outbox/retry": `{}`,
		}[target]
		if got := h.do(t, method, path, body).Body; got != want+"\n" {
			t.Errorf("%s: got %s, want %s", target, got, want)
		}
	}
	h := newHarness(t, func(c *httpapi.Config) {
		c.Ready = func(context.Context) ([]string, error) { return nil, nil }
	})
	if got := h.do(t, http.MethodGet, "/readyz", "").Body; got != `{"status":"ready","warnings":[]}`+"\n" {
		t.Errorf("without a warning: %s", got)
	}
}

// The views that operators watch constantly cost no reads, however many jobs have ended.
func TestCounts_AreAnsweredWithoutAReadOfTheStore(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *httpapi.Config) {
		c.Circuits = func(context.Context) ([]breaker.Circuit, error) {
			return []breaker.Circuit{{Name: "topic-1", State: breaker.HalfOpen, Reason: "away"}}, nil
		}
	})
	for _, finished := range []int{manyFinished / 10, manyFinished} {
		for range finished {
			h.controlled(t, ":cancel")
		}
		h.submitted(t)
		for _, path := range []string{"/v1/admin/services", "/v1/admin/overview"} {
			h.store.reset()
			if got := h.do(t, http.MethodGet, path, ""); got.Status != http.StatusOK {
				t.Fatalf("%s: %d %s", path, got.Status, got.Body)
			}
			h.store.untouched(t, path)
		}
	}
	services := decoded[api.ServiceList](t, h.do(t, http.MethodGet, "/v1/admin/services", ""))
	if !services.Exact || len(services.Services) != 2 || services.Services[1].Backlog != 2 || services.Services[0].Service != "embed" {
		t.Errorf("%+v", services)
	}
	if services.Bus != api.BusServiceBus || services.Services[1].BacklogByMinute != nil || services.Services[1].Attempts.ByMinute != nil {
		t.Errorf("without minutes: %+v", services)
	}
	// Counting began a moment ago, perhaps in the minute before.
	begun := func(minutes int) bool { return minutes == 1 || minutes == 2 }
	services = decoded[api.ServiceList](t, h.do(t, http.MethodGet, "/v1/admin/services?minutes=60", ""))
	if backlog := services.Services[1].BacklogByMinute; !begun(len(backlog)) || backlog[len(backlog)-1] != 2 || services.Services[0].Attempts.ByMinute == nil {
		t.Errorf("with minutes: %+v", services)
	}
	minutes := decoded[api.Overview](t, h.do(t, http.MethodGet, "/v1/admin/overview?minutes=60", "")).Accepted.ByMinute
	total := 0
	for _, n := range minutes.Counts {
		total += n
	}
	const ended = manyFinished/10 + manyFinished
	if total != ended+2 || !begun(len(minutes.Counts)) || len(minutes.Failed) != len(minutes.Counts) {
		t.Errorf("%d were accepted: %+v", total, minutes)
	}
	text := h.do(t, http.MethodGet, "/v1/admin/overview", "")
	if strings.Contains(text.Body, "by_minute") || strings.Contains(text.Body, "stuck") || strings.Contains(text.Body, "oldest_pending") {
		t.Errorf("before a round of the reconciler: %s", text.Body)
	}
	for range 100 {
		pass, err := h.useCases.Reconciler.RunOnce(t.Context())
		musttest.NoError(t, err)
		if !pass.More {
			break
		}
	}
	overview := decoded[api.Overview](t, h.do(t, http.MethodGet, "/v1/admin/overview", ""))
	if overview.Stuck.Checked != 2 || overview.OldestPendingSeconds == nil {
		t.Errorf("after a round of the reconciler: %+v", overview)
	}
	if overview.Ended["CANCELLED"].Total != ended || overview.Jobs["DISPATCHING"] != 2 || overview.Backlog != 2 ||
		len(overview.Circuits) != 1 || overview.Circuits[0].Name != "topic-1" || overview.Circuits[0].State != "half-open" {
		t.Errorf("%+v", overview)
	}
}

// A command that is refused counts once, alone or in a batch; one that meets a fault of the
// server does not count, nor does a replay.
func TestRefusedCommands_AreCounted(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	refused := func() int {
		t.Helper()
		return decoded[api.Overview](t, h.do(t, http.MethodGet, "/v1/admin/overview", "")).Refused.Total
	}
	for i, step := range []struct {
		path, body string
		count      int
	}{
		{"/v1/commands", "{", 1},
		{"/v1/commands", strings.Repeat(" ", 2<<20), 2},
		{"/v1/orchestrate", `{"tenant_id":"tenant_a","request_type":"none"}`, 3},
		{"/v1/commands:batch", `{"commands":[{}, ` + command + `]}`, 4},
		{"/v1/commands", command, 4},
	} {
		h.do(t, http.MethodPost, step.path, step.body)
		if got := refused(); got != step.count {
			t.Errorf("after request %d: %d are counted, want %d", i, got, step.count)
		}
	}
	h.store.fail(tablestore.ErrUnavailable)
	h.do(t, http.MethodPost, "/v1/commands", command)
	if got := refused(); got != 4 {
		t.Errorf("after a fault of the store: %d are counted", got)
	}
}

func TestServices_OfAProtocol(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.submitted(t)
	of := func(protocol string) []api.Service {
		t.Helper()
		return decoded[api.ServiceList](t, h.do(t, http.MethodGet, "/v1/admin/services?protocol_id="+protocol, "")).Services
	}
	if got := of("doc_ingest_v1"); len(got) != 2 || got[1].Backlog != 1 {
		t.Errorf("of the job's protocol: %+v", got)
	}
	if got := of("another"); len(got) != 0 {
		t.Errorf("of a protocol without jobs and steps: %+v", got)
	}
}

// A claim holds the directive's message unchanged, except for its lease.
func TestADirectiveGoesOutByteForByte(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	item, _ := h.claimed(t, false)
	view, err := h.useCases.Queue.Get(t.Context(), item.WorkID)
	musttest.NoError(t, err)
	var answer struct{ Directive json.RawMessage }
	musttest.NoError(t, json.Unmarshal([]byte(h.do(t, http.MethodGet, "/v1/work/"+item.WorkID, "").Body), &answer))
	if diff := cmp.Diff(string(view.Directive), string(answer.Directive)); diff != "" {
		t.Errorf("(-stored +sent):\n%s", diff)
	}
}

// Each answer tells a worker if its job is being paused or cancelled.
func TestAHeartbeatIsToldOfControls(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	_, directive := h.claimed(t, true)
	beat := strings.ReplaceAll(callbackBody(directive.JobID, 1, ""), "$lease", directive.LeaseID)
	for _, control := range []struct {
		verb          string
		pause, cancel bool
	}{{":pause", true, false}, {":resume", false, false}, {":cancel", false, true}} {
		h.given(t, "POST /v1/jobs/"+directive.JobID+control.verb, "")
		got := decoded[api.CallbackOutcome](t, h.do(t, http.MethodPost, "/v1/callbacks/heartbeat", beat))
		if got.Outcome != "applied" || got.PauseRequested != control.pause || got.CancelRequested != control.cancel {
			t.Errorf("after %s: %+v", control.verb, got)
		}
	}
}

func TestOperatorsBadParametersAreNamed(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"GET /v1/jobs?state=DONE": "parameter state must be one of QUEUED, DISPATCHING, IN_PROGRESS, PAUSING, PAUSED, " +
			"CANCELLING, CANCELLED, SUCCEEDED, FAILED_FINAL",
		"GET /v1/jobs?waiting=queued,god":             "parameter waiting must be a reason that jobs wait for, such as queued or backoff",
		"GET /v1/jobs?waiting=queued&state=SUCCEEDED": "parameter waiting selects live jobs, but state=SUCCEEDED ended ones",
		"GET /v1/jobs?waiting=running,running":        "parameter waiting must name each reason once",
		"GET /v1/jobs?limit=0":                        "parameter limit must be a whole number from 1 to 1000",
		"GET /v1/jobs?created_after=yesterday":        "parameter created_after must be a time as in RFC 3339, such as 2026-01-27T12:00:00Z",
		"GET /v1/admin/outbox?state=GONE":             "parameter state must be PENDING, SENT or FAILED_FINAL",
		"GET /v1/admin/outbox?lane=x":                 "parameter lane must be a whole number from 0 on",
		"GET /v1/admin/outbox?lane=-1":                "parameter lane must be a whole number from 0 on",
		"GET /v1/admin/webhooks?page_token=AAAA":      "parameter page_token is invalid, or of another list: only limit may differ from the request that gave it",
		"GET /v1/admin/webhooks?page_token=" + httpapi.PageToken("/v1/admin/webhooks", "x.0"): "page_token is invalid",
		"GET /v1/jobs?tenant=t":                    `parameter "tenant" is unknown: this path takes tenant_id, state, waiting, protocol_id, request_type, doc_id, tag, correlation_id, service, step_type, error_code, created_after, created_before, ended_after, ended_before, limit, page_token`,
		"GET /v1/admin/pauses?tenant_id=t":         `parameter "tenant_id" is unknown: this path takes none`,
		"POST /v1/commands?dry_run=true":           `parameter "dry_run" is unknown: this path takes none`,
		"GET /v1/jobs?tenant_id=t&tenant_id=u":     "parameter tenant_id occurs more than once",
		"GET /v1/jobs?tenant_id=":                  "parameter tenant_id must not be empty: leave it out",
		"GET /v1/admin/failures?request_type":      "parameter request_type must not be empty: leave it out",
		"GET /v1/admin/failures?include=all":       "parameter include must be resolved or retrying",
		"GET /v1/admin/outbox?state=&page_token=":  "parameter state must not be empty: leave it out",
		"POST /v1/commands:batch Idempotency-Key:": "header Idempotency-Key is not for a batch: give each command an idempotency_key",
	} {
		h := newHarness(t)
		method, path := split(target)
		path, header, _ := strings.Cut(path, " ")
		found := problemOf(t, h.do(t, method, path, "", header+" k"))
		if found.Code != apierror.InvalidEnvelope || len(found.Errors) != 1 || found.Errors[0].Message != want {
			t.Errorf("%s: %+v, want %s", target, found, want)
		}
	}
}

// A pause that holds nothing back is usually a typing error.
func TestAPauseOfAnUnknownScopeIsRefused(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"protocol_id":"doc_ingest_v2","reason":"r"}`: "/protocol_id must be one of doc_ingest_v1: correct it, or set allow_unknown to pause it all the same.",
		`{"service":"orc","reason":"r"}`:               "/service must be one of embed, ocr: correct it, or set allow_unknown to pause it all the same.",
		`{"lane":16,"reason":"r"}`:                     "/lane must be less than 16, the number of lanes: correct it, or set allow_unknown to pause it all the same.",
	} {
		h := newHarness(t)
		response := h.do(t, http.MethodPost, "/v1/admin/pauses", body)
		wantProblem(t, response, apierror.InvalidEnvelope, want)
		h.store.untouched(t, body)
		h.given(t, "POST /v1/admin/pauses", strings.Replace(body, "{", `{"allow_unknown":true,`, 1))
	}
}

// A pause of a service holds back items that wait for its workers and steps that are
// accepted later, but no steps of other services.
func TestAPauseOfAServiceHoldsBackItsSteps(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	claim := func(service string) []api.WorkItem {
		body := fmt.Sprintf(`{"owner":"o","services":[%q],"request_id":"claim%d","start":true}`, service, h.commands)
		h.commands++
		return decoded[api.ClaimedWork](t, h.given(t, "POST /v1/work:claim", body)).Items
	}
	state := func(job string) string {
		path := "/v1/admin/outbox?state=PENDING&tenant_id=t"
		if strings.Contains(h.do(t, http.MethodGet, path, "").Body, job) {
			return "PENDING"
		}
		return "SENT"
	}
	first := h.submitted(t)
	ocr := claim("ocr")
	queued := h.submitted(t)
	h.given(t, "POST /v1/admin/pauses", `{"service":"ocr","reason":"OCR is down"}`)
	held := h.submitted(t)
	if got := claim("ocr"); len(got) != 0 || len(ocr) != 1 || state(queued) != "SENT" || state(held) != "PENDING" {
		t.Errorf("claimed %d before and %d in the pause; the rows are %s and %s", len(ocr), len(got), state(queued), state(held))
	}
	h.given(t, "POST /v1/work/"+ocr[0].WorkID+":complete", fmt.Sprintf(`{"owner":"o","expected_rev":%d,"request_id":"x"}`, ocr[0].Rev))
	if got := claim("embed"); len(got) != 1 || got[0].Directive == nil || !strings.HasPrefix(got[0].WorkID, first) {
		t.Errorf("the next step, of another service, is not claimed: %+v", got)
	}
	h.given(t, "POST /v1/admin/pauses/service:ocr:resume", `{"ramp_seconds":0}`)
	if got := claim("ocr"); len(got) != 1 || !strings.HasPrefix(got[0].WorkID, queued) {
		t.Errorf("after the pause the queued step is not claimed: %+v", got)
	}
}

// The lease that a claim asks for is that of its start and heartbeats, too.
func TestAClaimAsksForItsLease(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[string]time.Duration{
		"90": 90 * time.Second, "0.001": time.Second, "86400": 15 * time.Minute, "0": 15 * time.Minute,
	} {
		h := newHarness(t)
		h.submitted(t)
		claim := fmt.Sprintf(`{"owner":"o","request_id":"claim","lease_seconds":%s,"start":true}`, seconds)
		item := decoded[api.ClaimedWork](t, h.given(t, "POST /v1/work:claim", claim)).Items[0]
		leased := func(how string, expires, now time.Time) {
			t.Helper()
			if got := expires.Sub(now); got != want {
				t.Errorf("with lease_seconds %s, %s gives %s, want %s", seconds, how, got, want)
			}
		}
		leased("the claim", item.Lease.ExpiresAt.Time, item.UpdatedAt.Time)
		beat := fmt.Sprintf(`{"owner":"o","expected_rev":%d,"request_id":"beat"}`, item.Rev)
		item = decoded[api.WorkItem](t, h.given(t, "POST /v1/work/"+item.WorkID+":heartbeat", beat))
		leased("a heartbeat", item.Lease.ExpiresAt.Time, item.UpdatedAt.Time)
	}
}

// The lease that an ACK asks for is that of its heartbeats, too. A repeated ACK changes nothing.
func TestAnAckAsksForItsLease(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[string]time.Duration{
		"90": 90 * time.Second, "0.001": time.Second, "86400": 15 * time.Minute, "0": 15 * time.Minute,
	} {
		h := newHarness(t)
		item, directive := h.claimed(t, false)
		body := strings.ReplaceAll(callbackBody(directive.JobID, 1, `,"lease_seconds":`+seconds), "$lease", directive.LeaseID)
		repeated := strings.Replace(body, `"lease_seconds":`+seconds, `"lease_seconds":7`, 1)
		for _, report := range []struct{ verb, body, outcome string }{
			{"ack", body, "applied"}, {"ack", repeated, "duplicate"}, {"heartbeat", body, "applied"},
		} {
			got := decoded[api.CallbackOutcome](t, h.given(t, "POST /v1/callbacks/"+report.verb, report.body))
			item = decoded[api.WorkItem](t, h.given(t, "GET /v1/work/"+item.WorkID, ""))
			if lease := got.LeaseExpiresAt.Sub(item.UpdatedAt.Time); lease != want || string(got.Outcome) != report.outcome {
				t.Errorf("with lease_seconds %s, the %s is %s and gives %s, want %s", seconds, report.verb, got.Outcome, lease, want)
			}
		}
		if seconds == "86400" {
			refused := h.do(t, http.MethodPost, "/v1/callbacks/ack", strings.Replace(body, seconds, "86401", 1))
			if !strings.Contains(refused.Body, "/lease_seconds") || !strings.Contains(refused.Body, "must be at most 86400") {
				t.Errorf("a lease of more than a day is answered with %s", refused.Body)
			}
		}
	}
}

func TestAPauseExpiresByTheServersClock(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for fields, want := range map[string]string{
		`"until":"2020-01-01T00:00:00Z"`:                     "/until must be later than the server's time, ",
		`"until":"2120-01-01T00:00:00Z","for_seconds":1`:     "/until must be absent if for_seconds is given",
		`"for_seconds":-1`:                                   "/for_seconds must be at least 0",
		`"for_seconds":0`:                                    "/for_seconds must be at least 0.001",
		`"for_seconds":31536001`:                             "/for_seconds must be at most 31536000",
		`"until":"2120-01-01T00:00:00Z","ramp_seconds":3601`: "/ramp_seconds must be at most 3600",
	} {
		response := h.do(t, http.MethodPost, "/v1/admin/pauses", `{"tenant_id":"t","reason":"why",`+fields+`}`)
		if response.Status != http.StatusBadRequest || !strings.Contains(response.Body, want) {
			t.Errorf("%s: %d %s, want %q", fields, response.Status, response.Body, want)
		}
	}
	before := time.Now()
	made := decoded[api.Pause](t, h.given(t, "POST /v1/admin/pauses", `{"tenant_id":"t","reason":"why","for_seconds":7200}`))
	if made.Until.Before(before.Add(2*time.Hour).Truncate(time.Millisecond)) || made.Until.After(time.Now().Add(2*time.Hour)) {
		t.Errorf("two hours from %s is %s", before, made.Until)
	}
	made = decoded[api.Pause](t, h.given(t, "POST /v1/admin/pauses", `{"tenant_id":"t","reason":"longer","until":"2120-01-01T00:00:00Z"}`))
	if got := decoded[api.PauseList](t, h.given(t, "GET /v1/admin/pauses", "")).Pauses; len(got) != 1 || got[0].Until != made.Until ||
		made.Until.String() != "2120-01-01T00:00:00.000Z" || got[0].Reason != "longer" {
		t.Errorf("made %+v, listed %+v", made, got)
	}
}

func TestAPauseNamesTheCaller(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"admin:t"})
	created := decoded[api.Pause](t, g.as(t, "admin:t", "POST /v1/admin/pauses", `{"tenant_id":"t","reason":"why"}`))
	if created.Actor != "caller-a" {
		t.Errorf("the actor is %q", created.Actor)
	}
}

// An id holds the name with escapes, which is up to three times as long.
func TestAPauseOfALongNameCanBeResumed(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("é", 64)
	for _, body := range []string{`{"tenant_id":"` + name + `"`, `{"allow_unknown":true,"protocol_id":"` + name + `"`} {
		h := newHarness(t)
		made := decoded[api.Pause](t, h.given(t, "POST /v1/admin/pauses", body+`,"reason":"why"}`))
		if ended := decoded[api.Pause](t, h.given(t, "POST /v1/admin/pauses/"+made.PauseID+":resume", `{"ramp_seconds":0}`)); ended.State != "RESUMED" {
			t.Errorf("%s is %s", made.PauseID, ended.State)
		}
	}
	response := newHarness(t).do(t, http.MethodPost, "/v1/admin/pauses", `{"allow_unknown":true,"service":"`+name+`e","reason":"why"}`)
	wantProblem(t, response, apierror.TooLarge, "/service is 129 bytes long; at most 128 are allowed.")
}

// Clients say how many jobs an operation will change, which the use case bounds.
func TestAnOperationChangesAsManyJobsAsClientsAreTold(t *testing.T) {
	t.Parallel()
	if api.MaxBulkJobs != background.MaxBulkJobs {
		t.Errorf("clients are told %d jobs; an operation changes %d", api.MaxBulkJobs, background.MaxBulkJobs)
	}
}

// An empty filter, the mistake of a script without a value, would select everything.
func TestAnEmptyFilterIsRefused(t *testing.T) {
	t.Parallel()
	for target, fields := range map[string][]string{
		"/v1/admin/outbox/retry": {"tenant_id", "jobId"},
		"/v1/admin/retries":      {"tenant_id", "request_type", "service", "step_type", "error_code"},
		"/v1/admin/pausings":     {"tenant_id", "request_type", "service", "step_type", "error_code"},
	} {
		for _, field := range fields {
			h := newHarness(t)
			response := h.do(t, http.MethodPost, target, `{"`+field+`":""}`)
			wantProblem(t, response, apierror.InvalidEnvelope, "/"+field+" must not be empty: leave it out to select all.")
			h.store.untouched(t, target)
		}
	}
}

func TestAReadThatTheStoreDoesNotAnswerConfirmsNothing(t *testing.T) {
	t.Parallel()
	for cause, want := range map[error]string{
		tablestore.ErrUnavailable: "The store does not answer. Sending the request again is safe.",
		fmt.Errorf("%w: %w", tablestore.ErrUnavailable, tablestore.ErrDenied): "The store denies the server access until an " +
			"operator acts. Sending the request again is safe.",
		tablestore.ErrUnknown: "The store did not confirm the change. Sending the request again is safe.",
	} {
		h := newHarness(t)
		job := h.submitted(t)
		h.store.fail(cause)
		wantProblem(t, h.do(t, http.MethodGet, "/v1/jobs/"+job, ""), apierror.StoreUnavailable, want)
	}
}

func TestABatchAnswersEachCommandIndependently(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	body := `{"commands":[` + command + `, ` + strings.Replace(command, "doc.ingest", "doc.eat", 1) + `,` +
		strings.Replace(command, `"en"`, `"de"`, 1) + `]}`
	response := h.do(t, http.MethodPost, "/v1/commands:batch", body)
	result := decoded[api.BatchResult](t, response)
	var statuses []int32
	for _, item := range result.Results {
		statuses = append(statuses, item.Status)
	}
	if diff := cmp.Diff([]int32{202, 422, 202}, statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	// Each accepted command says whether it is a repeat.
	if n := strings.Count(response.Body, `"replayed":false`); n != 2 || result.Results[1].Replayed != nil {
		t.Errorf("%d of 2 say that they are no repeats: %s", n, response.Body)
	}
	if bad := result.Results[1]; bad.Error == nil || bad.Error.Code != apierror.UnknownRequestType || bad.JobID != "" {
		t.Errorf("the refused command: %+v", bad)
	}
	good := result.Results[2]
	if good.Error != nil || good.State != api.JobStateDispatching || good.JobID == result.Results[0].JobID {
		t.Errorf("the command after it: %+v", good)
	}
	if got := h.do(t, http.MethodGet, "/v1/jobs/"+good.JobID, ""); got.Status != http.StatusOK {
		t.Errorf("its job is answered %d", got.Status)
	}
}

// A heartbeat raises the rev. A worker that completes with the rev of its claim is told the
// current rev; another worker is not.
func TestARevConflictNamesTheCurrentRev(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	item, _ := h.claimed(t, true)
	verb := func(name, owner string, rev int64) answer {
		body := fmt.Sprintf(`{"owner":%q,"expected_rev":%d,"request_id":"%s%d"}`, owner, rev, name, rev)
		return h.do(t, http.MethodPost, "/v1/work/"+item.WorkID+":"+name, body)
	}
	beat := decoded[api.WorkItem](t, verb("heartbeat", "o", item.Rev))
	if found := problemOf(t, verb("complete", "another", item.Rev)); found.Code != apierror.NotOwner || found.CurrentRev != 0 {
		t.Errorf("another worker is told %+v", found)
	}
	found := problemOf(t, verb("complete", "o", item.Rev))
	if found.Code != apierror.RevConflict || found.CurrentRev != beat.Rev {
		t.Errorf("the owner is told %+v, want the rev %d", found, beat.Rev)
	}
	if done := decoded[api.WorkItem](t, verb("complete", "o", found.CurrentRev)); done.Status != api.WorkStatus("succeeded") {
		t.Errorf("completed at the rev of the answer, the item is %s", done.Status)
	}
}

// An operator's verb names the rev that the operator saw and its request, and keeps the
// reason in both histories. Only the same verb repeats a request.
func TestOperatorsVerbs_CarryRevRequestAndReason(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	item, directive := h.claimed(t, false)
	target := "/v1/admin/work/" + item.WorkID
	body := func(rev int64, id string) string {
		return fmt.Sprintf(`{"expected_rev":%d,"request_id":%q,"reason":"it hangs"}`, rev, id)
	}
	for _, test := range []struct {
		verb, body string
		status     int
		want       string
	}{
		{":stall", "", http.StatusUnsupportedMediaType, `"code":"unsupported_media_type"`},
		{":stall", "{}", http.StatusBadRequest, `"pointer":"/expected_rev"`},
		{":stall", `{"expected_rev":2}`, http.StatusBadRequest, `"pointer":"/request_id"`},
		{":stall", `{"request_id":"r"}`, http.StatusBadRequest, `"pointer":"/expected_rev"`},
		{":stall", body(item.Rev-1, "r"), http.StatusConflict, `"code":"rev_conflict"`},
		{":stall", body(item.Rev, "r"), http.StatusOK, `"status":"stalled"`},
		{":stall", body(item.Rev, "r"), http.StatusOK, `"status":"stalled"`},
		{":stall", body(item.Rev+1, "s"), http.StatusConflict, `"code":"illegal_transition"`},
		{":requeue", body(item.Rev+1, "r"), http.StatusBadRequest, `"pointer":"/request_id"`},
		{":requeue", body(item.Rev+1, "s"), http.StatusOK, `"status":"queued"`},
		{":stall", body(item.Rev, "r"), http.StatusOK, `"status":"queued"`},
	} {
		got := h.do(t, http.MethodPost, target+test.verb, test.body)
		if got.Status != test.status || !strings.Contains(got.Body, test.want) {
			t.Errorf("%s %s: got %d %s, want %d %s", test.verb, test.body, got.Status, got.Body, test.status, test.want)
		}
	}
	var reasons []string
	for _, event := range decoded[api.WorkEventPage](t, h.given(t, "GET /v1/work/"+item.WorkID+"/events", "")).Events {
		reasons = append(reasons, string(event.Type)+" "+event.RequestID+": "+event.Detail)
	}
	want := []string{"stalled r: it hangs", "requeued s: it hangs"}
	if diff := cmp.Diff(want, reasons[len(reasons)-2:]); diff != "" {
		t.Errorf("the item's history (-want +got):\n%s", diff)
	}
	history := h.given(t, "GET /v1/jobs/"+directive.JobID+"/events", "").Body
	for _, cause := range []string{`"cause":"stalled by an operator: it hangs"`, `"cause":"retry request: it hangs"`} {
		if !strings.Contains(history, cause) {
			t.Errorf("the job's history lacks %s: %s", cause, history)
		}
	}
}

// Each completion of a batch gets the same answer as it would alone. A foreign and a
// missing item look alike.
func TestABatchOfCompletions(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, []string{"platform:t"})
	done, _ := g.claimed(t, true)
	idle, _ := g.claimed(t, false)
	bad, _ := g.claimed(t, true)
	g.tenant = "o"
	foreign, _ := g.claimed(t, true)
	completion := func(workID string, rev int64, ref string) string {
		return fmt.Sprintf(`{"work_id":%q,"owner":"o","expected_rev":%d,"request_id":"r","result_ref":%s}`, workID, rev, ref)
	}
	const ref = `{"uri":"s3://out"}`
	entries := []string{
		completion(done.WorkID, done.Rev, ref), completion(idle.WorkID, idle.Rev, ref), completion(bad.WorkID, bad.Rev, `{"url":"s3://out"}`),
		completion(foreign.WorkID, foreign.Rev, ref), completion(noJob+".0.1", foreign.Rev, ref), completion("", 1, ref),
	}
	for range 2 { // A repeat is answered as the first was.
		response := g.as(t, "platform:t", "POST /v1/work:complete", `{"items":[`+strings.Join(entries, ",")+`]}`)
		results := decoded[api.WorkCompletionResults](t, response).Results
		var statuses []int32
		for i, result := range results {
			statuses = append(statuses, result.Status)
			if ok := result.Status == http.StatusOK; ok != (result.Error == nil) || ok != (result.Rev > 0) {
				t.Errorf("result %d: %+v", i, result)
			}
		}
		if diff := cmp.Diff([]int32{200, 409, 422, 404, 404, 400}, statuses); diff != "" {
			t.Fatalf("statuses (-want +got):\n%s\n%s", diff, response.Body)
		}
		if results[0].WorkID != done.WorkID || results[0].Rev != done.Rev+1 {
			t.Errorf("the completed item: %+v", results[0])
		}
		there, gone := *results[3].Error, *results[4].Error
		if there.Instance, gone.Instance = "", ""; !reflect.DeepEqual(there, gone) {
			t.Errorf("foreign: %+v, missing: %+v", there, gone)
		}
	}
	g.tenant = "t"
	for item, want := range map[*api.WorkItem]api.WorkStatus{&done: "succeeded", &idle: "claimed", &bad: "running"} {
		if got := decoded[api.WorkItem](t, g.as(t, "platform:t", "GET /v1/work/"+item.WorkID, "")); got.Status != want {
			t.Errorf("item %s is %s, want %s", item.WorkID, got.Status, want)
		}
	}
}

func TestABatchAsAWholeIsRefused(t *testing.T) {
	t.Parallel()
	many := make([]struct{}, api.MaxBatch+1)
	for body, want := range map[string]api.Problem{
		`{}`:              {Code: apierror.InvalidEnvelope, Detail: "/commands is required and must not be empty."},
		`{"commands":[]}`: {Code: apierror.InvalidEnvelope, Detail: "/commands is required and must not be empty."},
		asJSON(t, map[string]any{"commands": many}): {
			Code: apierror.TooLarge, Detail: "/commands must not hold more than 100 entries.",
		},
		`{"items":[]}`: {Code: apierror.InvalidEnvelope, Detail: "/items is required and must not be empty."},
		asJSON(t, map[string]any{"items": many}): {
			Code: apierror.TooLarge, Detail: "/items must not hold more than 100 entries.",
		},
	} {
		h := newHarness(t)
		path := "/v1/commands:batch"
		if strings.Contains(body, "items") {
			path = "/v1/work:complete"
		}
		found := problemOf(t, h.do(t, http.MethodPost, path, body))
		if found.Code != want.Code || len(found.Errors) != 1 || found.Detail != want.Detail {
			t.Errorf("%.40s: %+v", body, found)
		}
		h.store.untouched(t, body)
	}
}

// The key of a retry operation is read like a command's key: two spellings of a key name
// the same operation.
func TestTheKeyOfARetryOperation(t *testing.T) {
	t.Parallel()
	create := func(h *harness, key string) answer {
		return h.do(t, http.MethodPost, "/v1/admin/retries", `{"tenant_id":"t"}`, "Idempotency-Key: "+key)
	}
	long := strings.Repeat("k", 255)
	for _, keys := range [][2]string{{`k1`, `"k1"`}, {`a"b`, `"a\"b"`}, {long, long}} {
		h := newHarness(t)
		plain, quoted := decoded[api.Operation](t, create(h, keys[0])).OperationID, decoded[api.Operation](t, create(h, keys[1])).OperationID
		if plain == "" || plain != quoted {
			t.Errorf("%.20s: the operations are %q and %q", keys, plain, quoted)
		}
	}
	for key, want := range map[string]apierror.Error{
		`"`:                       {Code: apierror.InvalidEnvelope, Detail: "Idempotency-Key is malformed in the header: a quoted text must end with its quotation mark."},
		strings.Repeat("k", 5000): {Code: apierror.TooLarge, Detail: "Idempotency-Key is 5000 bytes long; at most 255 are allowed."},
	} {
		h := newHarness(t)
		wantProblem(t, create(h, key), want.Code, want.Detail)
		h.store.untouched(t, key)
	}
}

// Repeats of a refused callback are one entry with a count, and the request of the newest.
func TestRefusedCallbacks_AreCountedWhenRead(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	job := h.submitted(t)
	for i, attempt := range []int{8, 9, 8, 8} {
		time.Sleep(2 * time.Millisecond) // A record's time has milliseconds.
		h.do(t, http.MethodPost, "/v1/callbacks/ack", strings.Replace(callbackBody(job, attempt, ""), "$lease", "guessed", 1),
			fmt.Sprint("X-Request-Id: a", i))
	}
	got := decoded[api.RejectedCallbacks](t, h.given(t, "GET /v1/jobs/"+job+"/rejected", "")).Rejected
	if len(got) != 2 || got[0].AttemptNo != 8 || got[0].Count != 3 || got[0].RequestID != "a3" || !got[0].LastAt.After(got[0].FirstAt.Time) ||
		got[1].AttemptNo != 9 || got[1].Count != 1 || got[1].RequestID != "a1" {
		t.Errorf("listed: %+v", got)
	}
}

// Even if reads fail after a control was committed, the answer says that it was applied.
func TestAControlThatWasAppliedIsAnswered(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{":cancel", ":pause", ":resume"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			for calls, lost := 0, 0; ; calls++ {
				h := newHarness(t)
				job := h.submitted(t)
				if verb == ":resume" {
					h.given(t, "POST /v1/jobs/"+job+":pause", "")
				}
				before := decoded[api.Job](t, h.given(t, "GET /v1/jobs/"+job, "")).Rev
				var made atomic.Int32
				h.store.on(func(context.Context) error {
					if int(made.Add(1)) > calls {
						return tablestore.ErrUnavailable
					}
					return nil
				})
				got := h.do(t, http.MethodPost, "/v1/jobs/"+job+verb, "")
				all := int(made.Load()) <= calls
				h.store.fail(nil)
				applied := decoded[api.Job](t, h.given(t, "GET /v1/jobs/"+job, "")).Rev > before
				if applied != (got.Status == http.StatusAccepted) {
					t.Errorf("applied: %t; after %d calls of the store it is answered %d %s", applied, calls, got.Status, got.Body)
				}
				if applied && !all {
					lost++
				}
				if all {
					if lost == 0 {
						t.Error("nothing was read after the commit")
					}
					return
				}
			}
		})
	}
}
