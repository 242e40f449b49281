package webhook_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/webhook"
)

// The vector of the libraries of Standard Webhooks.
const (
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var vectorTime = time.Unix(1614265330, 0)

func otherSecret(t testing.TB) webhook.Secret {
	t.Helper()
	return secret(t, "whsec_"+base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))))
}

func TestSign(t *testing.T) {
	t.Parallel()
	known, other := secret(t, testSecret), otherSecret(t)
	if got := webhook.Sign(vectorID, vectorTime, []byte(vectorBody), known); got != vectorSignature {
		t.Errorf("Sign = %q, want %q", got, vectorSignature)
	}
	if got := webhook.Sign(vectorID, vectorTime.Add(999*time.Millisecond), []byte(vectorBody), known); got != vectorSignature {
		t.Errorf("Sign within the second = %q, want %q", got, vectorSignature)
	}
	want := webhook.Sign(vectorID, vectorTime, []byte(vectorBody), other) + " " + vectorSignature
	if got := webhook.Sign(vectorID, vectorTime, []byte(vectorBody), other, known); got != want {
		t.Errorf("Sign with two secrets = %q, want %q", got, want)
	}
	if got := webhook.Sign(vectorID, vectorTime, []byte(vectorBody)); got != "" {
		t.Errorf("Sign without a secret = %q", got)
	}
}

// TestVerify changes one thing at a time about a request that is good.
func TestVerify(t *testing.T) {
	t.Parallel()
	known, other := secret(t, testSecret), otherSecret(t)
	type request struct {
		header    http.Header
		body      string
		now       time.Time
		tolerance time.Duration
		secrets   []webhook.Secret
	}
	set := func(name, value string) func(*request) {
		return func(r *request) { r.header.Set(name, value) }
	}
	tests := []struct {
		name   string
		change func(*request)
		want   error
	}{
		{"the vector", func(*request) {}, nil},
		{"the last of our secrets", func(r *request) { r.secrets = []webhook.Secret{other, known} }, nil},
		{"the first of our secrets", func(r *request) { r.secrets = []webhook.Secret{known, other} }, nil},
		{"the first of their signatures", set("webhook-signature", vectorSignature+" v1,"+strings.Repeat("A", 43)+"="), nil},
		{"the last of their signatures", set("webhook-signature", "v1,"+strings.Repeat("A", 43)+"= "+vectorSignature), nil},
		{"beside another version", set("webhook-signature", "v1a,AAAA v2 "+vectorSignature+" x"), nil},
		{"at the end of the tolerance", func(r *request) { r.now = vectorTime.Add(r.tolerance) }, nil},
		{"with the receiver's clock behind", func(r *request) { r.now = vectorTime.Add(-r.tolerance) }, nil},

		{"another body", func(r *request) { r.body += " " }, webhook.ErrSignature},
		{"another id", set("webhook-id", vectorID+"x"), webhook.ErrSignature},
		{"another timestamp", set("webhook-timestamp", "1614265331"), webhook.ErrSignature},
		{"another secret", func(r *request) { r.secrets = []webhook.Secret{other} }, webhook.ErrSignature},
		{"no secret", func(r *request) { r.secrets = nil }, webhook.ErrSignature},
		{"another signature", set("webhook-signature", "v1,"+strings.Repeat("A", 43)+"="), webhook.ErrSignature},
		{"an empty signature", set("webhook-signature", "v1,"), webhook.ErrSignature},
		{"another version only", set("webhook-signature", "v1a"+strings.TrimPrefix(vectorSignature, "v1")), webhook.ErrSignature},
		{"no version", set("webhook-signature", strings.TrimPrefix(vectorSignature, "v1,")), webhook.ErrSignature},
		{"cut off", set("webhook-signature", vectorSignature[:20]), webhook.ErrSignature},

		{"too old", func(r *request) { r.now = vectorTime.Add(r.tolerance + 1) }, webhook.ErrTimestamp},
		{"in the future", func(r *request) { r.now = vectorTime.Add(-r.tolerance - 1) }, webhook.ErrTimestamp},
		{"timestamp is no number", set("webhook-timestamp", "2021-02-25T15:02:10Z"), webhook.ErrTimestamp},
		{"timestamp is too large", set("webhook-timestamp", strings.Repeat("9", 30)), webhook.ErrTimestamp},

		{"no id", func(r *request) { r.header.Del("webhook-id") }, webhook.ErrMissingHeader},
		{"no timestamp", func(r *request) { r.header.Del("webhook-timestamp") }, webhook.ErrMissingHeader},
		{"no signature", func(r *request) { r.header.Del("webhook-signature") }, webhook.ErrMissingHeader},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := request{
				header: http.Header{}, body: vectorBody, now: vectorTime, tolerance: webhook.DefaultTolerance,
				secrets: []webhook.Secret{known},
			}
			r.header.Set(webhook.HeaderID, vectorID)
			r.header.Set(webhook.HeaderTimestamp, "1614265330")
			r.header.Set(webhook.HeaderSignature, vectorSignature)
			test.change(&r)
			if err := webhook.Verify(r.header, []byte(r.body), r.now, r.tolerance, r.secrets...); !errors.Is(err, test.want) {
				t.Errorf("Verify = %v, want %v", err, test.want)
			}
		})
	}
}
