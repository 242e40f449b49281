package webhook_test

import (
	"encoding/json"
	"math"
	"strings"
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

// small is a policy with round delays.
var small = webhook.Policy{Delays: []time.Duration{10 * time.Second, time.Minute}, Jitter: 0.5}

func TestApply_SchedulesTheNextAttempt(t *testing.T) {
	t.Parallel()
	result := func(outcome webhook.Outcome) webhook.Result { return webhook.Result{Outcome: outcome} }
	tests := []struct {
		name     string
		attempts int // made before
		result   webhook.Result
		random   float64
		state    webhook.State
		in       time.Duration
	}{
		{"delivered", 0, result(webhook.Delivered), 0, webhook.StateDelivered, 0},
		{"gone", 0, result(webhook.Gone), 0, webhook.StateGone, 0},
		{"refused", 0, result(webhook.Refused), 0, webhook.StateRefused, 0},
		{"first failed", 0, failed(), 0, webhook.StatePending, 10 * time.Second},
		{"second failed", 1, failed(), 0, webhook.StatePending, time.Minute},
		{"last failed", 2, failed(), 0, webhook.StateExhausted, 0},
		{"far too many", 98, failed(), 0, webhook.StateExhausted, 0},
		{"half the jitter", 0, failed(), 0.5, webhook.StatePending, 12500 * time.Millisecond},
		{"nearly all of it", 1, failed(), math.Nextafter(1, 0), webhook.StatePending, 90 * time.Second},
		{"receiver comes before the schedule", 1, retryAfter(time.Second), 0, webhook.StatePending, time.Minute},
		{"receiver comes after the schedule", 0, retryAfter(time.Hour), 0, webhook.StatePending, time.Hour},
		{"never before the receiver says so", 0, retryAfter(time.Hour), 0.2, webhook.StatePending, 66 * time.Minute},
		{"the last one, with any Retry-After", 2, retryAfter(time.Second), 0, webhook.StateExhausted, 0},
		{"interrupted", 0, result(webhook.Interrupted), 0.9, webhook.StatePending, 0},
		{"interrupted at the last attempt", 2, result(webhook.Interrupted), 0.9, webhook.StatePending, 0},
		{"deferred", 3, webhook.Result{Outcome: webhook.Deferred, After: time.Minute}, 0.9, webhook.StatePending, time.Minute},
		{ // It is old, so a tenth of its age would be too long.
			"deferred, as the host is silent", 3, webhook.Result{Outcome: webhook.Deferred, After: time.Minute, HostFault: true},
			0.9, webhook.StatePending, 61 * time.Minute,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := small.Apply(webhook.Delivery{State: webhook.StatePending, Attempts: test.attempts, NextAttemptAt: t0}, test.result, t0, test.random)
			if got.State != test.state {
				t.Fatalf("state %s, want %s", got.State, test.state)
			}
			want := t0.Add(test.in)
			if got.State != webhook.StatePending {
				want = time.Time{}
			}
			if !got.NextAttemptAt.Equal(want) {
				t.Errorf("at %s, want %s", got.NextAttemptAt, want)
			}
		})
	}
}

// Stores keep milliseconds, and rounding must not make an attempt early.
func TestApply_RoundsUpToMilliseconds(t *testing.T) {
	t.Parallel()
	for _, nanoseconds := range []time.Duration{0, 1, 999_999, 1_000_000} {
		now := t0.Add(nanoseconds)
		at := small.Apply(webhook.Delivery{}, failed(), now, 0).NextAttemptAt
		due := now.Add(10 * time.Second)
		if at.Before(due) || at.Sub(due) >= time.Millisecond || at.Nanosecond()%1_000_000 != 0 {
			t.Errorf("due %s is at %s", due, at)
		}
	}
}

// TestStandardPolicy follows a webhook whose attempts all fail.
func TestStandardPolicy(t *testing.T) {
	t.Parallel()
	policy := webhook.StandardPolicy()
	policy.Jitter = 0
	delivery := webhook.Delivery{State: webhook.StatePending, NextAttemptAt: t0}
	var sent []string
	for delivery.State == webhook.StatePending {
		now := delivery.NextAttemptAt
		sent = append(sent, now.Sub(t0).String())
		delivery = policy.Apply(delivery, failed(), now, 0)
	}
	want := []string{"0s", "5s", "5m5s", "35m5s", "2h35m5s", "7h35m5s", "17h35m5s", "31h35m5s", "51h35m5s", "75h35m5s"}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(webhook.Delivery{
		State: webhook.StateExhausted, Attempts: 10, LastStatus: 500, LastError: "the receiver answered 500",
	}, delivery); diff != "" {
		t.Errorf("Delivery (-want +got):\n%s", diff)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	before := webhook.Delivery{
		State: webhook.StatePending, Attempts: 1, NextAttemptAt: t0, LastStatus: 404, LastError: "the receiver answered 404",
	}
	now := t0.Add(time.Second)
	tests := []struct {
		name   string
		result webhook.Result
		want   func(*webhook.Delivery)
	}{
		{"delivered", webhook.Result{Outcome: webhook.Delivered, Status: 204}, func(d *webhook.Delivery) {
			d.State, d.Attempts, d.NextAttemptAt, d.LastStatus, d.LastError = webhook.StateDelivered, 2, time.Time{}, 204, ""
		}},
		{"gone", webhook.Result{Outcome: webhook.Gone, Status: 410, Reason: "x"}, func(d *webhook.Delivery) {
			d.State, d.Attempts, d.NextAttemptAt, d.LastStatus, d.LastError = webhook.StateGone, 2, time.Time{}, 410, "x"
		}},
		{"failed", failed(), func(d *webhook.Delivery) {
			d.Attempts, d.NextAttemptAt = 2, now.Add(time.Minute)
			d.LastStatus, d.LastError = 500, "the receiver answered 500"
		}},
		{"told to wait", retryAfter(time.Hour), func(d *webhook.Delivery) {
			d.Attempts, d.NextAttemptAt = 2, now.Add(time.Hour)
			d.LastStatus, d.LastError = 503, "the receiver answered 503"
		}},
		{"refused, so not sent", webhook.Result{Outcome: webhook.Refused, Reason: "x"}, func(d *webhook.Delivery) {
			d.State, d.NextAttemptAt, d.LastStatus, d.LastError = webhook.StateRefused, time.Time{}, 0, "x"
		}},
		{"interrupted, so not counted", webhook.Result{Outcome: webhook.Interrupted, Reason: "x"}, func(d *webhook.Delivery) {
			d.NextAttemptAt = now
		}},
		{"deferred, so not counted", webhook.Result{Outcome: webhook.Deferred, After: time.Minute, Reason: "circuit open"}, func(d *webhook.Delivery) {
			d.NextAttemptAt, d.LastError = now.Add(time.Minute), "circuit open"
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			want := before
			test.want(&want)
			if diff := cmp.Diff(want, small.Apply(before, test.result, now, 0)); diff != "" {
				t.Errorf("Delivery (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPolicy_NamesTheInvalidField(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		policy webhook.Policy
		want   string
	}{
		{"negative delay", webhook.Policy{Delays: []time.Duration{0, -1}}, "Delays[1]"},
		{"negative jitter", webhook.Policy{Jitter: -0.1}, "Jitter"},
		{"too much jitter", webhook.Policy{Jitter: 1.1}, "Jitter"},
		{"no number", webhook.Policy{Jitter: math.NaN()}, "Jitter"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if err := test.policy.Validate(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Validate: %v, want an error about %s", err, test.want)
			}
		})
	}
	for _, policy := range []webhook.Policy{{}, small, webhook.StandardPolicy()} {
		if err := policy.Validate(); err != nil {
			t.Errorf("Validate(%+v): %v", policy, err)
		}
	}
}
