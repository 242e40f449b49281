package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/problem"
)

// asJSON is the value as the server writes it.
func asJSON(t *testing.T, value any) string {
	t.Helper()
	encoded, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

func TestOperatorsEndpointsDecodeCallAndEncode(t *testing.T) {
	t.Parallel()
	tenant, kind, lane, ramp := "t", "doc.ingest", int32(3), 2.5
	withItems := bulkRetry
	withItems.Items = []api.RetryItem{bulkItem}
	failed, sent := api.JobStateFailedFinal, api.OutboxStateSent
	noItems := bulkRetry
	noItems.Items = []api.RetryItem{}
	first := httpapi.Page{Limit: api.DefaultPage}
	for _, test := range []struct {
		target string
		body   string
		header string
		call   call
		status int
		answer any
	}{
		{
			target: "GET /v1/jobs?tenant_id=t&state=FAILED_FINAL&request_type=doc.ingest&limit=3&page_token=AA",
			call: call{Operation: "List", Page: httpapi.Page{Limit: 3, Token: "AA"}, Request: api.ListJobsParams{
				TenantID: &tenant, State: &failed, RequestType: &kind,
			}},
			status: 200, answer: api.JobPage{Jobs: []api.Job{job}, NextPageToken: "next"},
		},
		{
			target: "POST /v1/jobs/j1:rerun", body: `{"from":"start","reason":"why"}`,
			call:   call{Operation: "Rerun", ID: "j1", Request: api.RerunRequest{From: api.RerunFromStart, Reason: "why"}},
			status: 202, answer: accepted,
		},
		{
			target: "POST /v1/jobs/j1:rerun", call: call{Operation: "Rerun", ID: "j1", Request: api.RerunRequest{}},
			status: 202, answer: accepted,
		},
		{
			target: "GET /v1/jobs/j1/webhooks", call: call{Operation: "JobWebhooks", ID: "j1"},
			status: 200, answer: api.WebhookPage{Webhooks: []api.Webhook{webhook}},
		},
		{
			target: "GET /v1/admin/outbox?state=SENT&lane=3", call: call{Operation: "Outbox", Page: first, Request: api.ListOutboxParams{
				State: &sent, Lane: &lane,
			}},
			status: 200, answer: api.OutboxPage{Outbox: []api.OutboxRow{outboxRow}},
		},
		{
			target: "GET /v1/admin/stuck", call: call{Operation: "Stuck"},
			status: 200, answer: api.StuckList{Stuck: []api.StuckJob{stuck}, Checked: 7},
		},
		{
			target: "GET /v1/admin/failures?tenant_id=t",
			call:   call{Operation: "Groups", Request: api.ListFailuresParams{TenantID: &tenant}},
			status: 200, answer: api.FailureList{Groups: []api.FailureGroup{failure}},
		},
		{
			target: "POST /v1/admin/retries", body: `{"job_ids":["j1"],"from":"failed"}`, header: "Idempotency-Key: k",
			call: call{Operation: "CreateRetry", ID: "k", Request: api.RetryRequest{
				JobIDs: []string{"j1"}, From: api.RerunFromFailed,
			}},
			status: 202, answer: noItems,
		},
		{
			target: "GET /v1/admin/retries/b1", call: call{Operation: "Retry", ID: "b1", Page: first},
			status: 200, answer: withItems,
		},
		{
			target: "POST /v1/admin/retries/b1:cancel", body: `{"reason":"stop"}`,
			call:   call{Operation: "CancelRetry", ID: "b1", Request: api.ControlRequest{Reason: "stop"}},
			status: 200, answer: noItems,
		},
		{
			target: "GET /v1/admin/pauses", call: call{Operation: "Pauses"},
			status: 200, answer: api.PauseList{Pauses: []api.Pause{paused}},
		},
		{
			target: "POST /v1/admin/pauses", body: `{"lane":3,"reason":"why"}`,
			call:   call{Operation: "CreatePause", Request: api.PauseRequest{Lane: &lane, Reason: "why"}},
			status: 200, answer: paused,
		},
		{
			target: "POST /v1/admin/pauses/tenant:t:resume", body: `{"ramp_seconds":2.5}`,
			call:   call{Operation: "ResumePause", ID: "tenant:t", Request: api.ResumeRequest{RampSeconds: &ramp}},
			status: 200, answer: paused,
		},
		{
			target: "GET /v1/admin/webhooks", call: call{Operation: "Undelivered", Page: first, Request: api.ListWebhooksParams{}},
			status: 200, answer: api.WebhookPage{Webhooks: []api.Webhook{webhook}},
		},
		{
			target: "POST /v1/admin/webhooks/j1.0:replay",
			call:   call{Operation: "Replay", ID: "j1.0", Request: api.ControlRequest{}},
			status: 200, answer: webhook,
		},
		{
			target: "GET /v1/protocols", call: call{Operation: "Protocols"},
			status: 200, answer: api.ProtocolList{Protocols: []api.Protocol{proto}, LoadedAt: at},
		},
	} {
		t.Run(test.target, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			method, path := split(test.target)
			var headers []string
			if test.header != "" {
				headers = append(headers, test.header)
			}
			response := h.do(t, method, path, test.body, headers...)
			if response.Status != test.status {
				t.Errorf("%d, want %d: %s", response.Status, test.status, response.Body)
			}
			var got, want any
			if err := json.Unmarshal([]byte(response.Body), &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(asJSON(t, test.answer)), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]call{test.call}, h.useCases.all()); diff != "" {
				t.Errorf("call (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOperatorsEmptyListsAreWrittenAsLists(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"GET /v1/jobs":             `{"jobs":[],"next_page_token":"next"}`,
		"GET /v1/admin/outbox":     `{"outbox":[]}`,
		"GET /v1/admin/failures":   `{"groups":[],"truncated":false}`,
		"GET /v1/admin/pauses":     `{"pauses":[]}`,
		"GET /v1/admin/webhooks":   `{"webhooks":[]}`,
		"GET /v1/jobs/j1/webhooks": `{"webhooks":[]}`,
	} {
		h := newHarness(t)
		h.useCases.empty = true
		method, path := split(target)
		if got := h.do(t, method, path, "").Body; got != want+"\n" {
			t.Errorf("%s: got %s, want %s", target, got, want)
		}
	}
}

func TestOperatorsBadParametersAreNamed(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"GET /v1/jobs?state=DONE":              "parameter state is none of a job's",
		"GET /v1/jobs?limit=0":                 "parameter limit must be 1 to 1000",
		"GET /v1/jobs?created_after=yesterday": "parameter created_after has the wrong format",
		"GET /v1/admin/outbox?state=GONE":      "parameter state must be PENDING, SENT or FAILED_FINAL",
		"GET /v1/admin/outbox?lane=x":          "parameter lane has the wrong format",
	} {
		h := newHarness(t)
		method, path := split(target)
		found := problemOf(t, h.do(t, method, path, ""))
		if found.Code != problem.InvalidEnvelope || len(found.Errors) != 1 || found.Errors[0].Message != want {
			t.Errorf("%s: %+v, want %s", target, found, want)
		}
	}
}

func TestABatchAnswersEachCommandByItself(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.useCases.hook = refuse(`{"n":2}`, &problem.Error{Code: problem.UnknownRequestType, Detail: "No."})
	response := h.do(t, http.MethodPost, "/v1/commands:batch", `{"commands":[{"n":1}, {"n":2},{"n":3}]}`)
	var result api.BatchResult
	if err := json.Unmarshal([]byte(response.Body), &result); err != nil || response.Status != http.StatusOK {
		t.Fatalf("%d, %v: %s", response.Status, err, response.Body)
	}
	var statuses []int32
	for _, item := range result.Results {
		statuses = append(statuses, item.Status)
	}
	if diff := cmp.Diff([]int32{202, 422, 202}, statuses); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}
	// Whether it is a repeat is said of each that was accepted, also where it is not.
	if n := strings.Count(response.Body, `"replayed":false`); n != 2 || result.Results[1].Replayed != nil {
		t.Errorf("%d of 2 say that they are no repeats: %s", n, response.Body)
	}
	if bad := result.Results[1]; bad.Error == nil || bad.Error.Code != problem.UnknownRequestType || bad.JobID != "" {
		t.Errorf("the one that was refused: %+v", bad)
	}
	if good := result.Results[2]; good.Error != nil || good.JobID != "j1" || good.State != api.JobStateDispatching {
		t.Errorf("the one behind it: %+v", good)
	}
}

func TestABatchAsAWholeIsRefused(t *testing.T) {
	t.Parallel()
	many := make([]struct{}, api.MaxBatch+1)
	for body, want := range map[string]api.Problem{
		`{}`:              {Code: problem.InvalidEnvelope, Detail: "/commands is required and must not be empty."},
		`{"commands":[]}`: {Code: problem.InvalidEnvelope, Detail: "/commands is required and must not be empty."},
		asJSON(t, map[string]any{"commands": many}): {
			Code: problem.TooLarge, Detail: "/commands must not hold more than 100 entries.",
		},
	} {
		h := newHarness(t)
		found := problemOf(t, h.do(t, http.MethodPost, "/v1/commands:batch", body))
		if found.Code != want.Code || len(found.Errors) != 1 || found.Detail != want.Detail {
			t.Errorf("%.40s: %+v", body, found)
		}
		if asked := h.useCases.all(); len(asked) != 0 {
			t.Errorf("%.40s: %d commands were accepted", body, len(asked))
		}
	}
}

// The key of a retry operation is read as that of a command is.
func TestTheKeyOfARetryOperation(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		`k1`: "k1", `"k1"`: "k1", `"a\"b"`: `a"b`, strings.Repeat("k", 255): strings.Repeat("k", 255),
	} {
		h := newHarness(t)
		response := h.do(t, http.MethodPost, "/v1/admin/retries", `{"tenant_id":"t"}`, "Idempotency-Key: "+header)
		if calls := h.useCases.all(); response.Status != http.StatusAccepted || len(calls) != 1 || calls[0].ID != want {
			t.Errorf("%.20s: %d, %+v, want the key %.20s", header, response.Status, calls, want)
		}
	}
	for header, want := range map[string]problem.Error{
		`"`:                       {Code: problem.InvalidEnvelope, Detail: "Idempotency-Key is malformed in the header: a quoted text must end with its quotation mark."},
		strings.Repeat("k", 5000): {Code: problem.TooLarge, Detail: "Idempotency-Key is 5000 bytes long; at most 255 are allowed."},
	} {
		h := newHarness(t)
		response := h.do(t, http.MethodPost, "/v1/admin/retries", `{"tenant_id":"t"}`, "Idempotency-Key: "+header)
		wantProblem(t, response, want.Code, want.Detail)
		if calls := h.useCases.all(); len(calls) > 0 {
			t.Errorf("%.20s: there was %+v", header, calls)
		}
	}
}
