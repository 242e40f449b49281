package webhook_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// A receiver verifies each request before it believes it.
func ExampleVerify() {
	secret, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		fmt.Println(err)
		return
	}
	header := http.Header{}
	header.Set("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek")
	header.Set("webhook-timestamp", "1614265330")
	header.Set("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
	now := time.Unix(1614265332, 0)

	body := []byte(`{"test": 2432232314}`)
	fmt.Println(webhook.Verify(header, body, now, webhook.DefaultTolerance, secret))
	fmt.Println(webhook.Verify(header, []byte(`{"test": 1}`), now, webhook.DefaultTolerance, secret))
	fmt.Println(webhook.Verify(header, body, now.Add(time.Hour), webhook.DefaultTolerance, secret))
	// Output:
	// <nil>
	// webhook: no signature matches
	// webhook: timestamp is not acceptable: it is too old
}

// The end of a job is announced to a receiver in the own network, which the
// operator has allowed.
func ExampleSender_Send() {
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Println(r.Header.Get("webhook-id"), string(body), err)
		w.WriteHeader(http.StatusOK)
	}))
	defer receiver.Close()

	guard, err := webhook.NewGuard(webhook.GuardConfig{
		AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")},
		AllowHTTP:       true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	master, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		fmt.Println(err)
		return
	}
	sender, err := webhook.NewSender(webhook.Config{Guard: guard, Secrets: webhook.TenantSecrets(master)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sender.Close()

	end := webhook.End{
		JobID: "job-1", TenantID: "tenant_a", RequestType: "doc.ingest", State: statemachine.JobSucceeded,
		CreatedAt:   webhook.Time(time.Date(2026, 1, 27, 10, 2, 3, 0, time.UTC)),
		CompletedAt: webhook.Time(time.Date(2026, 1, 27, 10, 2, 30, 0, time.UTC)),
	}
	body, err := end.Body()
	if err != nil {
		fmt.Println(err)
		return
	}
	message := webhook.Message{ID: "job-1.0", TenantID: "tenant_a", URL: receiver.URL, Body: body}
	fmt.Println(sender.Send(context.Background(), message).Outcome)

	message.URL = "http://169.254.169.254/latest/meta-data/"
	result := sender.Send(context.Background(), message)
	fmt.Println(result.Outcome, "for:", result.Reason)
	// Output:
	// job-1.0 {"type":"job.succeeded","timestamp":"2026-01-27T10:02:30.000Z","data":{"jobId":"job-1","tenant_id":"tenant_a","request_type":"doc.ingest","state":"SUCCEEDED","created_at":"2026-01-27T10:02:03.000Z","completed_at":"2026-01-27T10:02:30.000Z"}} <nil>
	// delivered
	// refused for: callback URL leads to an address that is not allowed
}

// A receiver that is busy says when to come again.
func ExamplePolicy_Next() {
	policy := webhook.StandardPolicy()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for attempt, result := range []webhook.Result{
		{Outcome: webhook.Failed, Status: 500},
		{Outcome: webhook.RetryAfter, Status: 503, After: time.Hour},
		{Outcome: webhook.Delivered, Status: 200},
	} {
		next, state := policy.Next(attempt+1, result, now, 0)
		fmt.Println(now.Format(time.TimeOnly), result.Status, state)
		now = next
	}
	// Output:
	// 12:00:00 500 PENDING
	// 12:00:05 503 PENDING
	// 13:00:05 200 DELIVERED
}
