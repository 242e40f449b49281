package webhook_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// aJob is a job that ended in a state, with every field that is announced.
func aJob(state statemachine.JobState) *statemachine.Job {
	began := time.Date(2026, time.January, 27, 11, 2, 3, 4_999_999, time.FixedZone("CET", 3600))
	return &statemachine.Job{
		ID: "0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77", TenantID: "tenant_a", RequestType: "doc.ingest", ProtocolID: "doc_ingest_v1",
		DocID: "doc_1", State: state, IdempotencyKey: "order-4711", CorrelationID: "corr-123", RerunOf: "0197f0c2-0000",
		FinalOutput: json.RawMessage(`{"uri":"s3://out/a?b&c=<d>", "pages":3}`), ErrorCode: "bad_page", ErrorMessage: "page 3 & 4",
		CreatedAt: began, CompletedAt: began.Add(time.Minute),
		// What is not announced.
		InputRef: json.RawMessage(`{"uri":"s3://in"}`), CallbackURLs: []string{"https://example.com"}, IdempotencyHash: "abc",
	}
}

func TestBody(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		end  webhook.End
		want string
	}{
		{
			"all there is", webhook.EndOf(aJob(statemachine.JobFailedFinal)),
			`{"type":"job.failed","timestamp":"2026-01-27T10:03:03.004Z","data":{` +
				`"jobId":"0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77","tenant_id":"tenant_a","request_type":"doc.ingest",` +
				`"protocol_id":"doc_ingest_v1","doc_id":"doc_1","state":"FAILED_FINAL","idempotency_key":"order-4711",` +
				`"correlation_id":"corr-123","rerun_of":"0197f0c2-0000","final_output":{"uri":"s3://out/a?b&c=<d>","pages":3},` +
				`"error_code":"bad_page","error_message":"page 3 & 4",` +
				`"created_at":"2026-01-27T10:02:03.004Z","completed_at":"2026-01-27T10:03:03.004Z"}}`,
		},
		{
			"what must be there", webhook.End{JobID: "j", TenantID: "t", RequestType: "r", State: statemachine.JobCancelled},
			`{"type":"job.cancelled","timestamp":"0001-01-01T00:00:00.000Z","data":{"jobId":"j","tenant_id":"t","request_type":"r",` +
				`"state":"CANCELLED","created_at":"0001-01-01T00:00:00.000Z","completed_at":"0001-01-01T00:00:00.000Z"}}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for range 3 {
				got, err := test.end.Body()
				if err != nil {
					t.Fatalf("Body: %v", err)
				}
				if diff := cmp.Diff(test.want, string(got)); diff != "" {
					t.Errorf("Body (-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestBody_OfWhatIsNoJSON(t *testing.T) {
	t.Parallel()
	end := webhook.EndOf(aJob(statemachine.JobSucceeded))
	end.FinalOutput = json.RawMessage(`{`)
	if body, err := end.Body(); err == nil {
		t.Errorf("Body = %s, want an error", body)
	}
}

// TestEventType: the three ends are announced, and nothing else is.
func TestEventType(t *testing.T) {
	t.Parallel()
	want := map[statemachine.JobState]string{
		statemachine.JobSucceeded: "job.succeeded", statemachine.JobFailedFinal: "job.failed", statemachine.JobCancelled: "job.cancelled",
	}
	for _, state := range append(statemachine.JobStates, "") {
		got, err := webhook.EventType(state)
		if got != want[state] || (err == nil) != state.Terminal() || err != nil && !errors.Is(err, webhook.ErrNotEnded) {
			t.Errorf("EventType(%s) = %q, %v", state, got, err)
		}
		end := webhook.EndOf(aJob(state))
		if _, err := end.Body(); (err == nil) != state.Terminal() || err != nil && !errors.Is(err, webhook.ErrNotEnded) {
			t.Errorf("Body of %s: %v", state, err)
		}
	}
}
