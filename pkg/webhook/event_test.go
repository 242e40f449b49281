package webhook_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// aJob returns a job that ended in the state, with every field of the body.
func aJob(state statemachine.JobState) *statemachine.Job {
	began := time.Date(2026, time.January, 27, 11, 2, 3, 4_999_999, time.FixedZone("CET", 3600))
	return &statemachine.Job{
		ID: "0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77", TenantID: "tenant_a", RequestType: "doc.ingest", ProtocolID: "doc_ingest_v1",
		DocID: "doc_1", State: state, IdempotencyKey: "order-4711", CorrelationID: "corr-123", RerunOf: "0197f0c2-0000",
		FinalOutput: json.RawMessage(`{"uri":"s3://out/a?b&c=<d>", "pages":3}`), ErrorCode: "bad_page", ErrorMessage: "page 3 & 4",
		CreatedAt: began, CompletedAt: began.Add(time.Minute),
		// The body does not include these fields.
		InputRef: json.RawMessage(`{"uri":"s3://in"}`), CallbackURLs: []string{"https://example.com"}, IdempotencyHash: "abc",
	}
}

func TestBody(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		job  *statemachine.Job
		want string
	}{
		{
			"every field", aJob(statemachine.JobFailedFinal),
			`{"type":"job.failed","timestamp":"2026-01-27T10:03:03.004Z","data":{` +
				`"jobId":"0197f0c2-6f3a-7c41-9d0e-2b1f6a5c8e77","tenant_id":"tenant_a","request_type":"doc.ingest",` +
				`"protocol_id":"doc_ingest_v1","doc_id":"doc_1","state":"FAILED_FINAL","idempotency_key":"order-4711",` +
				`"correlation_id":"corr-123","rerun_of":"0197f0c2-0000","final_output":{"uri":"s3://out/a?b&c=<d>","pages":3},` +
				`"error_code":"bad_page","error_message":"page 3 & 4",` +
				`"created_at":"2026-01-27T10:02:03.004Z","completed_at":"2026-01-27T10:03:03.004Z"}}`,
		},
		{
			"the required fields", &statemachine.Job{ID: "j", TenantID: "t", RequestType: "r", State: statemachine.JobCancelled},
			`{"type":"job.cancelled","timestamp":"0001-01-01T00:00:00.000Z","data":{"jobId":"j","tenant_id":"t","request_type":"r",` +
				`"state":"CANCELLED","created_at":"0001-01-01T00:00:00.000Z","completed_at":"0001-01-01T00:00:00.000Z"}}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for range 3 {
				got, err := webhook.Body(test.job)
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

func TestBody_RefusesAnOutputThatIsNotJSON(t *testing.T) {
	t.Parallel()
	job := aJob(statemachine.JobSucceeded)
	job.FinalOutput = json.RawMessage(`{`)
	if body, err := webhook.Body(job); err == nil {
		t.Errorf("Body = %s, want an error", body)
	}
}

func TestBody_OfEachState(t *testing.T) {
	t.Parallel()
	types := map[statemachine.JobState]string{
		statemachine.JobSucceeded: "job.succeeded", statemachine.JobFailedFinal: "job.failed", statemachine.JobCancelled: "job.cancelled",
	}
	for _, state := range append(statemachine.JobStates, "") {
		var got struct{ Type string }
		body, err := webhook.Body(aJob(state))
		if err == nil {
			err = json.Unmarshal(body, &got)
		}
		if got.Type != types[state] || (err == nil) != state.Terminal() {
			t.Errorf("Body of a job that is %s: %s, %v", state, body, err)
		}
	}
}

var t0 = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func failed() webhook.Result {
	return webhook.Result{Outcome: webhook.Failed, Status: 500, Reason: "the receiver answered 500"}
}

func retryAfter(after time.Duration) webhook.Result {
	return webhook.Result{
		Outcome: webhook.RetryAfter, Status: 503, After: after, Reason: "the receiver answered 503", HostFault: true,
	}
}
