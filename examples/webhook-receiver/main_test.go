package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// newSender returns the sender of a server whose receivers are on this machine.
func newSender(t *testing.T, master webhook.Secret) *webhook.Sender {
	t.Helper()
	guard, err := webhook.NewGuard(webhook.GuardConfig{
		AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, AllowHTTP: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	sender := webhook.NewSender(webhook.Config{Guard: guard, Secrets: webhook.TenantSecrets(master)})
	t.Cleanup(sender.Close)
	return sender
}

// delivery sends the end of a job to a receiver, as a server does, which signs for the
// tenant. It returns the outcome, and the request as it was received.
func delivery(t *testing.T, r *receiver, master webhook.Secret) (outcome webhook.Outcome, got *http.Request, body []byte) {
	t.Helper()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		got = request.Clone(context.WithoutCancel(request.Context()))
		body, _ = io.ReadAll(request.Body)
		request.Body = io.NopCloser(bytes.NewReader(body))
		r.ServeHTTP(w, request)
	}))
	defer front.Close()
	text, err := webhook.Body(&statemachine.Job{ID: "job-1", TenantID: "tenant_a", State: statemachine.JobSucceeded})
	if err != nil {
		t.Fatal(err)
	}
	result := newSender(t, master).Send(t.Context(), webhook.Message{ID: "job-1.0", TenantID: "tenant_a", URL: front.URL, Body: text})
	return result.Outcome, got, body
}

func TestReceiver_ActsOnEachWebhookOnce(t *testing.T) {
	t.Parallel()
	master, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	failing := errors.New("the database is away")
	r, err := newReceiver(master.ForTenant("tenant_a").Reveal(), func(e event) error {
		if failing != nil {
			return failing
		}
		seen = append(seen, e.Type+" "+e.Data.JobID)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if outcome, _, _ := delivery(t, r, master); outcome != webhook.Failed {
		t.Errorf("what could not be handled is %s", outcome)
	}
	failing = nil
	for range 2 { // The second one repeats the first after its answer was lost.
		if outcome, _, _ := delivery(t, r, master); outcome != webhook.Delivered {
			t.Errorf("the webhook is %s", outcome)
		}
	}
	if want := []string{"job.succeeded job-1"}; !slices.Equal(seen, want) {
		t.Errorf("handled are %q, want %q", seen, want)
	}
}

func TestReceiver_RefusesWhatLuciusDidNotSign(t *testing.T) {
	t.Parallel()
	master, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	handled := 0
	r, err := newReceiver(master.ForTenant("tenant_b").Reveal(), func(event) error { handled++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if outcome, _, _ := delivery(t, r, master); outcome != webhook.Failed || handled > 0 {
		t.Errorf("the webhook of another tenant is %s, %d were handled", outcome, handled)
	}
	own, err := newReceiver(master.ForTenant("tenant_a").Reveal(), func(event) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	_, request, body := delivery(t, own, master)
	for name, change := range map[string]func(*http.Request) []byte{
		"altered":      func(*http.Request) []byte { return append(slices.Clone(body), ' ') },
		"of a new id":  func(r *http.Request) []byte { r.Header.Set("webhook-id", "job-1.1"); return body },
		"sent too old": func(r *http.Request) []byte { r.Header.Set("webhook-timestamp", "1"); return body },
		"unsigned":     func(r *http.Request) []byte { r.Header.Del("webhook-signature"); return body },
	} {
		changed := request.Clone(t.Context())
		changed.Body = io.NopCloser(bytes.NewReader(change(changed)))
		recorder := httptest.NewRecorder()
		own.ServeHTTP(recorder, changed)
		if recorder.Code != http.StatusUnauthorized {
			t.Errorf("%s: %d", name, recorder.Code)
		}
	}
}

func TestNewReceiver_RefusesWhatIsNoSecret(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"", "whsec_", "whsec_!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"} {
		if _, err := newReceiver(secret, nil); err == nil {
			t.Errorf("%q is taken", secret)
		}
	}
}
