package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/webhook"
)

const testSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"

// hook is a webhook that a receiver got.
type hook struct {
	header http.Header
	body   []byte
}

// receive starts a webhook receiver.
func receive(t *testing.T) (string, <-chan hook) {
	t.Helper()
	got := make(chan hook, 8)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- hook{header: r.Header, body: body}
	}))
	t.Cleanup(receiver.Close)
	return receiver.URL, got
}

func (s *testServer) submitWithHook(t *testing.T, url string) *api.SubmitCommandResponse {
	t.Helper()
	response, err := s.client.SubmitCommandWithResponse(t.Context(), nil, api.Command{
		TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1", Payload: json.RawMessage(`{"language":"en"}`),
		InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`),
		CallbackURLs: []string{url},
	})
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// TestWebhooks_TheEndOfAJobIsAnnounced checks that a webhook is sent at once, before the next
// pass over the schedule, and that the Standard Webhooks library verifies it.
func TestWebhooks_TheEndOfAJobIsAnnounced(t *testing.T) {
	t.Parallel()
	url, got := receive(t)
	s := serveOn(t, t.TempDir(), "--webhook-secrets", testSecret, "--webhook-networks", "127.0.0.0/8", "--webhook-allow-http", "true",
		"--sweep-interval", "24h")
	accepted := s.submitWithHook(t, url)
	if accepted.JSON202 == nil {
		t.Fatalf("submit: %s", accepted.Body)
	}
	jobID := accepted.JSON202.JobID
	if _, err := s.client.CancelJobWithResponse(t.Context(), jobID, api.ControlRequest{}); err != nil {
		t.Fatal(err)
	}
	h := waittest.Receive(t, "the announcement", got)
	secret, err := webhook.ParseSecret(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := standardwebhooks.NewWebhook(secret.ForTenant("tenant_a").Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.Verify(h.body, h.header); err != nil {
		t.Errorf("%v: %v", err, h.header)
	}
	if h.header.Get("webhook-id") != jobID+".0" || !strings.Contains(string(h.body), `"type":"job.cancelled"`) {
		t.Errorf("%v\n%s", h.header, h.body)
	}
}

func TestWebhooks_AnAddressThatIsNotAllowedIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	s := serveOn(t, t.TempDir())
	for _, url := range []string{"https://127.0.0.1/hook", "http://example.com/hook", "https://169.254.169.254/latest"} {
		response := s.submitWithHook(t, url)
		if response.StatusCode() != http.StatusBadRequest || !strings.Contains(string(response.Body), "/callback_urls/0") {
			t.Errorf("%s: %d %s", url, response.StatusCode(), response.Body)
		}
	}
}

func TestWebhookSecret_IsTheTenantsOwn(t *testing.T) {
	t.Parallel()
	var out output
	p := &program{Env: cli.Env{Stdout: &out, Stderr: &output{}, Environment: []string{"LUCIUS_WEBHOOK_SECRETS=" + testSecret}}}
	if err := p.run(t.Context(), []string{"webhook-secret", "tenant_a"}); err != nil {
		t.Fatal(err)
	}
	shown := strings.TrimSpace(out.String())
	if _, err := webhook.ParseSecret(shown); err != nil || shown == testSecret {
		t.Errorf("shown %q, %v", shown, err)
	}
	p.Environment = nil
	for _, args := range [][]string{{"webhook-secret"}, {"webhook-secret", "tenant_a"}} {
		if err := p.run(t.Context(), args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
