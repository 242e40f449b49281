package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

const (
	stepJSON = `{"attempt_no":1,"created_at":"2026-01-27T10:02:00.005Z","decision_reason":"The request says so.",` +
		`"decision_source":"request","input_ref":{"uri":"s3://b/<in>&.pdf","etag":7},"lane":15,` +
		`"lease_expires_at":"2026-01-27T10:02:00.005Z","payload":{"n":1e2},"resolved_mode":"DEFAULT","routing_key_used":"t",` +
		`"service":"ocr","state":"IN_PROGRESS","stepId":"ocr","step_index":0,"step_type":"OCR","updated_at":"2026-01-27T10:02:00.005Z"}`
	jobJSON = `{"attempts_total":1,"correlation_id":"c1","created_at":"2026-01-27T10:02:00.005Z","current_step_id":"ocr",` +
		`"current_step_index":0,"idempotency_hash":"87f4","input_ref":{"uri":"s3://b/in"},"jobId":"j1","mode":"DEFAULT",` +
		`"output_ref":{"uri":"s3://b/out"},"protocol_id":"p","request_type":"doc.ingest","rev":2,"schema_version":"1",` +
		`"state":"IN_PROGRESS","steps":[` + stepJSON + `],"tenant_bucket":"t:202601","tenant_id":"t",` +
		`"updated_at":"2026-01-27T10:02:00.005Z"}`
	outcomeJSON = `{"cancel_requested":false,"job_state":"IN_PROGRESS","lease_expires_at":"2026-01-27T10:02:00.005Z",` +
		`"outcome":"applied","step_state":"IN_PROGRESS"}`
	eventJSON = `{"actor":"platform","at":"2026-01-27T10:02:00.005Z","attempt_no":1,"cause":"ACK","event_id":"0000000002.01",` +
		`"from":"AWAITING_ACK","object":"step","object_id":"ocr","rev":2,"to":"IN_PROGRESS","type":"step.in_progress"}`
	workEventJSON = `{"actor":"o","at":"2026-01-27T10:02:00.005Z","attempt":1,"event_id":"2","from":"queued",` +
		`"request_id":"r1","rev":2,"to":"claimed","type":"claimed"}`
)

// itemJSON is the item with what stands between its attempt and the rest.
func itemJSON(cancel string) string {
	return `{"attempt":1,` + cancel + `"created_at":"2026-01-27T10:02:00.005Z","directive":` + string(directive) +
		`,"lease":{"expires_at":"2026-01-27T10:02:00.005Z"},"owner":"o","rev":2,"status":"claimed",` +
		`"updated_at":"2026-01-27T10:02:00.005Z","work_id":"w1"}`
}

const identityJSON = `"jobId":"j1","stepId":"ocr","tenant_id":"t","attempt_no":1,"lease_id":"l1","timestamp":"2026-01-27T11:02:00+01:00"`

var (
	sentAt = api.NewTime(time.Date(2026, 1, 27, 10, 2, 0, 0, time.UTC))
	lane0  = int32(0)
	verb   = api.WorkVerb{Owner: "o", ExpectedRev: 2, RequestID: "r"}
)

func TestEndpointsDecodeCallAndEncode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		target  string
		body    string
		headers []string
		applied bool
		call    call
		status  int
		answer  string
	}{
		{
			name: "a command goes on as it came", target: "POST /v1/commands", body: ` {"tenant_id":"t", "n":1e2} `,
			headers: []string{"Idempotency-Key: a, b", "traceparent: 00-ab"},
			call: call{Operation: "Submit", Request: httpapi.Submission{
				Body: []byte(` {"tenant_id":"t", "n":1e2} `), IdempotencyKey: "a, b", Traceparent: "00-ab",
			}},
			status: 202, answer: `{"correlation_id":"c1","jobId":"j1","replayed":false,"state":"DISPATCHING"}`,
		},
		{
			name: "orchestrate is the same", target: "POST /v1/orchestrate", body: `{}`, headers: []string{"Idempotency-Key: k"},
			call:   call{Operation: "Submit", Request: httpapi.Submission{Body: []byte(`{}`), IdempotencyKey: "k"}},
			status: 202, answer: `{"correlation_id":"c1","jobId":"j1","replayed":false,"state":"DISPATCHING"}`,
		},
		{
			name: "job", target: "GET /v1/jobs/j1",
			call: call{Operation: "Job", ID: "j1"}, status: 200, answer: jobJSON,
		},
		{
			name: "job, waiting", target: "GET /v1/jobs/j1?wait=1m0.5s",
			call: call{Operation: "Job", ID: "j1", Wait: time.Minute}, status: 200, answer: jobJSON,
		},
		{
			name: "steps", target: "GET /v1/jobs/j1/steps",
			call: call{Operation: "Steps", ID: "j1"}, status: 200, answer: `{"steps":[` + stepJSON + `]}`,
		},
		{
			name: "events", target: "GET /v1/jobs/j1/events",
			call:   call{Operation: "JobEvents", ID: "j1", Page: httpapi.Page{Limit: 100}},
			status: 200, answer: `{"events":[` + eventJSON + `],"next_page_token":"next"}`,
		},
		{
			name: "events, another page", target: "GET /v1/jobs/j1/events?limit=7&page_token=AA%3D",
			call:   call{Operation: "JobEvents", ID: "j1", Page: httpapi.Page{Limit: 7, Token: "AA="}},
			status: 200, answer: `{"events":[` + eventJSON + `],"next_page_token":"next"}`,
		},
		{
			name: "cancel, applied", target: "POST /v1/jobs/j1:cancel", body: `{"reason":"wrong"}`, applied: true,
			call:   call{Operation: "Cancel", ID: "j1", Request: api.ControlRequest{Reason: "wrong"}},
			status: 202, answer: jobJSON,
		},
		{
			name: "cancel, so already, without a body", target: "POST /v1/jobs/j1:cancel",
			call: call{Operation: "Cancel", ID: "j1", Request: api.ControlRequest{}}, status: 200, answer: jobJSON,
		},
		{
			name: "pause", target: "POST /v1/jobs/j1:pause", body: `{}`, applied: true,
			call: call{Operation: "Pause", ID: "j1", Request: api.ControlRequest{}}, status: 202, answer: jobJSON,
		},
		{
			name: "resume", target: "POST /v1/jobs/j1:resume", applied: true,
			call: call{Operation: "Resume", ID: "j1", Request: api.ControlRequest{}}, status: 202, answer: jobJSON,
		},
		{
			name: "ack", target: "POST /v1/callbacks/ack", body: `{` + identityJSON + `}`,
			call: call{Operation: "Ack", Request: api.AckCallback{
				JobID: "j1", StepID: "ocr", TenantID: "t", AttemptNo: 1, LeaseID: "l1", Timestamp: sentAt,
			}},
			status: 200, answer: outcomeJSON,
		},
		{
			name: "heartbeat", target: "POST /v1/callbacks/heartbeat", body: `{"type":"HEARTBEAT","correlation_id":"c",` + identityJSON + `}`,
			call: call{Operation: "Heartbeat", Request: api.HeartbeatCallback{
				JobID: "j1", StepID: "ocr", TenantID: "t", AttemptNo: 1, LeaseID: "l1", Timestamp: sentAt, Type: "HEARTBEAT",
				CorrelationID: "c",
			}},
			status: 200, answer: outcomeJSON,
		},
		{
			name: "result", target: "POST /v1/callbacks/result",
			body: `{` + identityJSON + `,"status":"FAILED_RETRY","error":{"code":"c","message":"m"},"output_ref":{"uri":"u", "n":1e2},` +
				`"result_ref":null,"retry_after_seconds":1.5}`,
			call: call{Operation: "Result", Request: api.ResultCallback{
				JobID: "j1", StepID: "ocr", TenantID: "t", AttemptNo: 1, LeaseID: "l1", Timestamp: sentAt,
				Status: api.ResultStatusFailedRetry, Error: api.ReportedError{Code: "c", Message: "m"},
				OutputRef: json.RawMessage(`{"uri":"u", "n":1e2}`), RetryAfterSeconds: 1.5,
			}},
			status: 200, answer: outcomeJSON,
		},
		{
			name: "claim", target: "POST /v1/work:claim",
			body: `{"owner":"o","services":["ocr"],"step_types":[],"max":10,"wait_seconds":0.25,"lease_seconds":900,"request_id":"r","start":true}`,
			call: call{Operation: "Claim", Wait: 250 * time.Millisecond, Request: api.ClaimRequest{
				Owner: "o", Services: []string{"ocr"}, StepTypes: []string{}, Max: 10, WaitSeconds: 0.25, LeaseSeconds: 900,
				RequestID: "r", Start: true,
			}},
			status: 200, answer: `{"items":[` + itemJSON("") + `]}`,
		},
		{
			name: "claim, one item, as long as may be", target: "POST /v1/work:claim", body: `{"owner":"o","wait_seconds":1e9,"request_id":"r"}`,
			call: call{Operation: "Claim", Wait: time.Minute, Request: api.ClaimRequest{
				Owner: "o", Max: 1, WaitSeconds: 1e9, RequestID: "r",
			}},
			status: 200, answer: `{"items":[` + itemJSON("") + `]}`,
		},
		{
			name: "start", target: "POST /v1/work/w1:start", body: `{"owner":"o","expected_rev":2,"request_id":"r"}`,
			call: call{Operation: "Start", ID: "w1", Request: verb}, status: 200, answer: itemJSON(""),
		},
		{
			name: "work heartbeat", target: "POST /v1/work/w1:heartbeat", body: `{"owner":"o","expected_rev":2,"request_id":"r"}`,
			call:   call{Operation: "HeartbeatWork", ID: "w1", Request: verb},
			status: 200, answer: itemJSON(`"cancel_requested":false,`),
		},
		{
			name: "complete", target: "POST /v1/work/w1:complete",
			body: `{"owner":"o","expected_rev":2,"request_id":"r","output_ref":null,"result_ref":{"uri":"u"}}`,
			call: call{Operation: "Complete", ID: "w1", Request: api.WorkCompletion{
				Owner: "o", ExpectedRev: 2, RequestID: "r", ResultRef: json.RawMessage(`{"uri":"u"}`),
			}},
			status: 200, answer: itemJSON(""),
		},
		{
			name: "fail", target: "POST /v1/work/w1:fail",
			body: `{"owner":"o","expected_rev":2,"request_id":"r","retryable":true,"error":{"code":"c"},"retry_after_seconds":30}`,
			call: call{Operation: "Fail", ID: "w1", Request: api.WorkFailure{
				Owner: "o", ExpectedRev: 2, RequestID: "r", Retryable: true, Error: api.ReportedError{Code: "c"}, RetryAfterSeconds: 30,
			}},
			status: 200, answer: itemJSON(""),
		},
		{
			name: "item", target: "GET /v1/work/w1",
			call: call{Operation: "Item", ID: "w1"}, status: 200, answer: itemJSON(""),
		},
		{
			name: "item's events", target: "GET /v1/work/w1/events?limit=1000",
			call:   call{Operation: "WorkEvents", ID: "w1", Page: httpapi.Page{Limit: 1000}},
			status: 200, answer: `{"events":[` + workEventJSON + `]}`,
		},
		{
			name: "outbox retry, filtered", target: "POST /v1/admin/outbox/retry", body: `{"tenant_id":"t","lane":0,"older_than_seconds":60}`,
			call: call{Operation: "RetryOutbox", Request: api.OutboxRetryRequest{
				TenantID: "t", Lane: &lane0, OlderThanSeconds: 60,
			}},
			status: 200, answer: `{"matched":1,"retried":0,"skipped":[{"outbox_id":"o1","reason":"The row is SENT."}]}`,
		},
		{
			name: "stall", target: "POST /v1/admin/work/w1:stall",
			call: call{Operation: "Stall", ID: "w1", Request: api.AdminWorkRequest{}}, status: 200, answer: itemJSON(""),
		},
		{
			name: "requeue", target: "POST /v1/admin/work/w1:requeue", body: `{"expected_rev":3,"request_id":"r","reason":"hangs"}`,
			call: call{Operation: "Requeue", ID: "w1", Request: api.AdminWorkRequest{
				ExpectedRev: 3, RequestID: "r", Reason: "hangs",
			}},
			status: 200, answer: itemJSON(""),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			h.useCases.applied = test.applied
			method, path := split(test.target)
			response := h.do(t, method, path, test.body, test.headers...)
			if response.Status != test.status {
				t.Errorf("%d, want %d: %s", response.Status, test.status, response.Body)
			}
			if diff := cmp.Diff(test.answer+"\n", response.Body); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]call{test.call}, h.useCases.all()); diff != "" {
				t.Errorf("call (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAnAcceptedCommandSaysWhereItsJobIs(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	response := h.do(t, http.MethodPost, "/v1/commands", `{}`)
	if got := response.Header.Get("Location"); got != "/v1/jobs/j1" {
		t.Errorf("Location is %q", got)
	}
}

func TestEmptyListsAreWrittenAsLists(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"GET /v1/jobs/j1/steps":       `{"steps":[]}`,
		"GET /v1/jobs/j1/events":      `{"events":[],"next_page_token":"next"}`,
		"GET /v1/work/w1/events":      `{"events":[]}`,
		"POST /v1/work:claim":         `{"items":[]}`,
		"POST /v1/admin/outbox/retry": `{"matched":1,"retried":0,"skipped":[]}`,
		"GET /readyz":                 `{"status":"ready","warnings":[]}`,
	} {
		h := newHarness(t)
		h.useCases.empty = true
		method, path := split(target)
		body := map[string]string{
			"POST /v1/work:claim": `{"owner":"o","request_id":"r"}`, "POST /v1/admin/outbox/retry": `{}`,
		}[target]
		got := h.do(t, method, path, body).Body
		if got != want+"\n" {
			t.Errorf("%s: got %s, want %s", target, got, want)
		}
	}
}

func TestADirectiveGoesOutByteForByte(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	var answer struct{ Directive json.RawMessage }
	if err := json.Unmarshal([]byte(h.do(t, http.MethodGet, "/v1/work/w1", "").Body), &answer); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(directive), string(answer.Directive)); diff != "" {
		t.Errorf("(-stored +sent):\n%s", diff)
	}
}
