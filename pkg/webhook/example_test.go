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

// A sender reports the end of a job to a receiver in a private network that the operator has
// allowed.
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
	sender := webhook.NewSender(webhook.Config{Guard: guard, Secrets: webhook.TenantSecrets(master)})
	defer sender.Close()

	body, err := webhook.Body(&statemachine.Job{
		ID: "job-1", TenantID: "tenant_a", RequestType: "doc.ingest", State: statemachine.JobSucceeded,
		CreatedAt:   time.Date(2026, 1, 27, 10, 2, 3, 0, time.UTC),
		CompletedAt: time.Date(2026, 1, 27, 10, 2, 30, 0, time.UTC),
	})
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
