package servicebus_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// pair is the fence that the replies of these tests carry.
var pair = statemachine.Pair{AttemptNo: 1, LeaseID: "lease"}

// sent is what these replies say about how they were sent.
var sent = statemachine.Report{Timestamp: "2026-01-27T10:02:00.000Z"}

// reported is a RESULT of these tests without its status.
func reported(r statemachine.Result) statemachine.Result {
	r.StepID, r.Pair, r.Report = "step", pair, sent
	return r
}

// result is the body of a RESULT, with some fields replaced.
func result(status string, replaced map[string]any) string {
	fields := map[string]any{"type": "RESULT", "status": status}
	maps.Copy(fields, replaced)
	return ack(fields)
}

// nested returns arrays nested n deep.
func nested(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

// The bodies are those of the HTTP callbacks, with a type.
func TestReply_IsAppliedByTheUseCase(t *testing.T) {
	t.Parallel()
	const example = `"jobId":"job","stepId":"step","tenant_id":"tenant_a","attempt_no":1,"lease_id":"lease"`
	for _, test := range []struct {
		name    string
		body    string
		verb    string
		event   statemachine.Event
		unknown bool
	}{
		{"ACK", ack(nil), "ACK", statemachine.Ack{StepID: "step", Pair: pair, Report: sent}, false},
		{"ACK, as the specification has it", `{"type": "ACK", ` + example + `, "correlation_id": "corr-123", "timestamp": "2026-01-27T10:02:00Z"}`, "ACK", statemachine.Ack{StepID: "step", Pair: pair, Report: statemachine.Report{Timestamp: sent.Timestamp, CorrelationID: "corr-123"}}, false},
		{"ACK, with a time of another zone", ack(map[string]any{"timestamp": "2026-01-27T11:02:00.5+01:00"}), "ACK", statemachine.Ack{StepID: "step", Pair: pair, Report: statemachine.Report{Timestamp: "2026-01-27T10:02:00.500Z"}}, false},
		{"ACK, with white space around", "\r\n\t " + ack(nil) + " \n", "ACK", statemachine.Ack{StepID: "step", Pair: pair, Report: sent}, false},
		{"ACK, with a lease", ack(map[string]any{"lease_seconds": 90}), "ACK", statemachine.Ack{StepID: "step", Pair: pair, Report: sent, Lease: 90 * time.Second}, false},
		{"ACK, with a lease that ends before it arrives", ack(map[string]any{"lease_seconds": 0.001}), "ACK", statemachine.Ack{StepID: "step", Pair: pair, Report: sent, Lease: time.Second}, false},
		{"ACK, with an unknown field", ack(map[string]any{"worker": "w7"}), "ACK", statemachine.Ack{StepID: "step", Pair: pair, Report: sent}, true},
		{"ACK, with a field of a RESULT", ack(map[string]any{"status": 7}), "ACK", statemachine.Ack{StepID: "step", Pair: pair, Report: sent}, true},
		{"HEARTBEAT", ack(map[string]any{"type": "HEARTBEAT"}), "HEARTBEAT", statemachine.Heartbeat{StepID: "step", Pair: pair, Report: sent}, false},
		{"HEARTBEAT, with an unknown field", ack(map[string]any{"type": "HEARTBEAT", "mood": 0.5}), "HEARTBEAT", statemachine.Heartbeat{StepID: "step", Pair: pair, Report: sent}, true},
		{
			"HEARTBEAT, with progress",
			ack(map[string]any{"type": "HEARTBEAT", "progress": map[string]any{"fraction": 0.5, "message": "Page 4."}}), "HEARTBEAT",
			statemachine.Heartbeat{StepID: "step", Pair: pair, Report: sent, Progress: &statemachine.Progress{Fraction: .5, Message: "Page 4."}},
			false,
		},
		{"RESULT", result("SUCCEEDED", nil), "RESULT", reported(statemachine.Result{Status: statemachine.ResultSucceeded}), false},
		{
			"RESULT, with references",
			result("SUCCEEDED", map[string]any{"output_ref": json.RawMessage(`{"uri":"s3://b/o","etag":7}`), "result_ref": json.RawMessage(`{"uri":"s3://b/r"}`)}), "RESULT",
			reported(statemachine.Result{
				Status: statemachine.ResultSucceeded,
				Product: statemachine.Product{
					OutputRef: json.RawMessage(`{"uri":"s3://b/o","etag":7}`), ResultRef: json.RawMessage(`{"uri":"s3://b/r"}`),
				},
			}), false,
		},
		{
			"RESULT, with a reference as deep as it may be",
			result("SUCCEEDED", map[string]any{"output_ref": json.RawMessage(`{"uri":"]\"","a":` + nested(126) + `}`)}), "RESULT",
			reported(statemachine.Result{
				Status:  statemachine.ResultSucceeded,
				Product: statemachine.Product{OutputRef: json.RawMessage(`{"uri":"]\"","a":` + nested(126) + `}`)},
			}), false,
		},
		{
			"RESULT, with references that are null",
			result("SUCCEEDED", map[string]any{"output_ref": json.RawMessage(`null`), "result_ref": json.RawMessage(`null`)}), "RESULT",
			reported(statemachine.Result{Status: statemachine.ResultSucceeded}), false,
		},
		{
			"RESULT, to be tried again",
			result("FAILED_RETRY", map[string]any{"error": map[string]any{"code": "busy", "message": "come back"}, "retry_after_seconds": 1.5}), "RESULT",
			reported(statemachine.Result{Status: statemachine.ResultFailedRetry, ErrorCode: "busy", ErrorMessage: "come back", RetryAfter: 1500 * time.Millisecond}), false,
		},
		{
			"RESULT, throttled",
			result("FAILED_RETRY", map[string]any{"scope": "tenant", "retry_after_seconds": 30}), "RESULT",
			reported(statemachine.Result{
				Status: statemachine.ResultFailedRetry, RetryAfter: 30 * time.Second, Throttled: statemachine.ThrottleTenant,
			}), false,
		},
		{
			"RESULT, failed for good, with an unknown field of the error",
			result("FAILED_FINAL", map[string]any{"error": map[string]any{"code": "broken", "trace": "…"}}), "RESULT",
			reported(statemachine.Result{Status: statemachine.ResultFailedFinal, ErrorCode: "broken"}), true,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			to := &useCase{}
			delivered, from := deliver(t, test.body, to)
			done := servicebus.Delivery{Type: servicebus.ReplyType(test.verb), Outcome: servicebus.ReplyApplied, UnknownFields: test.unknown}
			if delivered != done || from.done() != "complete m0" {
				t.Errorf("%+v, %q, want %+v, completed", delivered, from.done(), done)
			}
			for i := range to.calls {
				if !to.calls[i].EveryTenant("ocr") {
					t.Error("a sender to the topics of replies answers for some tenants only")
				}
				to.calls[i].EveryTenant = nil
			}
			want := []callbacks.Callback{{JobID: "job", StepID: "step", TenantID: "tenant_a", Event: test.event, RequestID: "m0", Caller: "replies-0"}}
			if diff := cmp.Diff(want, to.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

// An unreadable reply is dead-lettered, and the reason says what is wrong and where.
func TestReply_AnUnreadableReplyIsDeadLettered(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		body        string
		kind        servicebus.ReplyType
		reason      string
		description string // the beginning of it
	}{
		{"nothing", "", "unknown", "invalid_json", "The body is not valid JSON at line 1, column 1: it ends too early"},
		{"no JSON", "ACK", "unknown", "invalid_json", "The body is not valid JSON at line 1, column 1: a character"},
		{"half an object", ack(nil)[:40], "unknown", "invalid_json", "The body is not valid JSON"},
		{"two objects", ack(nil) + ack(nil), "unknown", "invalid_json", "The body is not valid JSON"},
		{"not UTF-8", ack(map[string]any{"lease_id": "l"})[:3] + "\xff", "unknown", "invalid_json", "The body is not valid JSON at line 1, column 4: not UTF-8."},
		{"not UTF-8 in what is opaque", strings.Replace(result("SUCCEEDED", map[string]any{"output_ref": map[string]any{"uri": "X"}}), "X", "\xff", 1), "unknown", "invalid_json", "The body is not valid JSON at line 1, column 71: not UTF-8."},
		{"too deep in what is opaque", strings.Replace(result("SUCCEEDED", map[string]any{"output_ref": map[string]any{"uri": "s3://b/o", "a": "X"}}), `"X"`, nested(127), 1), "unknown", "too_large", "The body is beyond a limit at line 1, column 194: it is nested deeper than 128 levels."},
		{"an array", "[" + ack(nil) + "]", "unknown", "invalid_envelope", "must be an object."},
		{"a string", `"ACK"`, "unknown", "invalid_envelope", "must be an object."},
		{"null", `null`, "unknown", "unknown_type", "/type must be ACK, RESULT or HEARTBEAT."},
		{"no type", ack(map[string]any{"type": nil}), "unknown", "unknown_type", "/type must be ACK, RESULT or HEARTBEAT."},
		{"an unknown type", ack(map[string]any{"type": "DIRECTIVE"}), "unknown", "unknown_type", "/type must be ACK, RESULT or HEARTBEAT."},
		{"a type in another case", ack(map[string]any{"type": "ack"}), "unknown", "unknown_type", "/type must be ACK, RESULT or HEARTBEAT."},
		{"the type of what has none", ack(map[string]any{"type": "unknown"}), "unknown", "unknown_type", "/type must be ACK, RESULT or HEARTBEAT."},
		{"a type that is a number", ack(map[string]any{"type": 1}), "unknown", "invalid_envelope", "/type must be a string."},
		{"no job", ack(map[string]any{"jobId": nil}), "ACK", "invalid_envelope", "/jobId is required and must not be empty."},
		{"no step", ack(map[string]any{"stepId": ""}), "ACK", "invalid_envelope", "/stepId is required and must not be empty."},
		{"no tenant", ack(map[string]any{"tenant_id": nil}), "ACK", "invalid_envelope", "/tenant_id is required and must not be empty."},
		{"no lease", ack(map[string]any{"lease_id": nil}), "ACK", "invalid_envelope", "/lease_id is required and must not be empty."},
		{"no attempt", ack(map[string]any{"attempt_no": nil}), "ACK", "invalid_envelope", "/attempt_no must be at least 1."},
		{"half an attempt", ack(map[string]any{"attempt_no": 1.5}), "ACK", "invalid_envelope", "/attempt_no must be a whole number of at most 32 bits."},
		{"an attempt that is a string", ack(map[string]any{"attempt_no": "1"}), "ACK", "invalid_envelope", "/attempt_no must be a whole number of at most 32 bits."},
		{"too many attempts", ack(map[string]any{"attempt_no": 1 << 31}), "ACK", "invalid_envelope", "/attempt_no must be a whole number of at most 32 bits."},
		{"a lease below zero", ack(map[string]any{"lease_seconds": -1}), "ACK", "invalid_envelope", "/lease_seconds must be at least 0."},
		{"a lease of days", ack(map[string]any{"lease_seconds": 86401}), "ACK", "invalid_envelope", "/lease_seconds must be at most 86400."},
		{"a lease that is a string", ack(map[string]any{"lease_seconds": "90"}), "ACK", "invalid_envelope", "/lease_seconds must be a number."},
		{"no time", ack(map[string]any{"timestamp": nil}), "ACK", "invalid_envelope", "/timestamp is required."},
		{"an invalid time", ack(map[string]any{"timestamp": "now"}), "ACK", "invalid_envelope", "/timestamp must be a time as in RFC 3339."},
		{"a long id", ack(map[string]any{"jobId": strings.Repeat("j", 129)}), "ACK", "too_large", "/jobId must not be longer than 128 characters."},
		{"several faults", ack(map[string]any{"jobId": nil, "stepId": nil}), "ACK", "invalid_envelope", "/jobId is required and must not be empty. There are 2 violations in all."},
		{"a HEARTBEAT without a job", ack(map[string]any{"type": "HEARTBEAT", "jobId": nil}), "HEARTBEAT", "invalid_envelope", "/jobId is required and must not be empty."},
		{"a RESULT without a status", ack(map[string]any{"type": "RESULT"}), "RESULT", "invalid_envelope", "/status must be SUCCEEDED, FAILED_RETRY or FAILED_FINAL."},
		{"a status in another case", result("succeeded", nil), "RESULT", "invalid_envelope", "/status must be SUCCEEDED, FAILED_RETRY or FAILED_FINAL."},
		{"a delay below zero", result("FAILED_RETRY", map[string]any{"retry_after_seconds": -1}), "RESULT", "invalid_envelope", "/retry_after_seconds must be at least 0."},
		{"a delay of years", result("FAILED_RETRY", map[string]any{"retry_after_seconds": 604801}), "RESULT", "invalid_envelope", "/retry_after_seconds must be at most 604800."},
		{"a reference that is a string", result("SUCCEEDED", map[string]any{"output_ref": "s3://b/o"}), "RESULT", "invalid_envelope", "/output_ref must be an object."},
		{"an error that is a string", result("FAILED_FINAL", map[string]any{"error": "broken"}), "RESULT", "invalid_envelope", "/error must be an object."},
		{"a code of an error that is a number", result("FAILED_FINAL", map[string]any{"error": map[string]any{"code": 7}}), "RESULT", "invalid_envelope", "/error/code must be a string."},
		{"too large", ack(map[string]any{"note": strings.Repeat("x", 2000)}), "unknown", "too_large", "The body is larger than 2000 bytes."},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			to := &useCase{}
			delivered, from := deliver(t, test.body, to, func(cfg *servicebus.RepliesConfig) { cfg.MaxBytes = 2000 })
			want := servicebus.Delivery{Type: test.kind, Outcome: servicebus.ReplyDeadLettered}
			if delivered.UnknownFields = false; delivered != want || from.done() != "dead-letter m0" {
				t.Fatalf("%+v, %q, want %+v, dead-lettered", delivered, from.done(), want)
			}
			if *from.reason.Reason != test.reason || !strings.HasPrefix(*from.reason.ErrorDescription, test.description) {
				t.Errorf("%s: %s, want %s: %s", *from.reason.Reason, *from.reason.ErrorDescription, test.reason, test.description)
			}
			if len(to.calls) != 0 {
				t.Errorf("the use case was called: %+v", to.calls)
			}
		})
	}
}

// A body of exactly the limit is accepted.
func TestReply_TheLargestBody(t *testing.T) {
	t.Parallel()
	body := ack(nil)
	for _, test := range []struct {
		limit int
		want  servicebus.DeliveryOutcome
	}{{len(body), servicebus.ReplyApplied}, {len(body) - 1, servicebus.ReplyDeadLettered}} {
		delivered, _ := deliver(t, body, &useCase{}, func(cfg *servicebus.RepliesConfig) { cfg.MaxBytes = test.limit })
		if delivered.Outcome != test.want {
			t.Errorf("of %d bytes with a limit of %d: %s, want %s", len(body), test.limit, delivered.Outcome, test.want)
		}
	}
}
