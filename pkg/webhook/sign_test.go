package webhook_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/webhook"
)

func ofSize(n int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, n))
}

func TestParseSecret(t *testing.T) {
	t.Parallel()
	for _, text := range []string{testSecret, ofSize(24), ofSize(64)} {
		if got := secret(t, text).Reveal(); got != text {
			t.Errorf("Reveal = %q, want %q", got, text)
		}
	}
	tests := []struct{ name, text, want string }{
		{"empty", "", "must begin with whsec_"},
		{"without prefix", strings.TrimPrefix(testSecret, "whsec_"), "must begin with whsec_"},
		{"a private key", "whsk_" + strings.TrimPrefix(testSecret, "whsec_"), "must begin with whsec_"},
		{"not base64", testSecret + "!", "must be base64"},
		{"with a line break", testSecret[:20] + "\n" + testSecret[20:], "must be base64"},
		{"too short", ofSize(23), "must have 24 to 64 bytes, has 23"},
		{"too long", ofSize(65), "must have 24 to 64 bytes, has 65"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, err := webhook.ParseSecret(test.text)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("ParseSecret: %v, want %q", err, test.want)
			}
			if hidden := strings.TrimPrefix(test.text, "whsec_"); hidden != "" && strings.Contains(err.Error(), hidden) {
				t.Errorf("the error shows the secret: %v", err)
			}
		})
	}
}

func TestSecret_PrintsMasked(t *testing.T) {
	t.Parallel()
	key := secret(t, testSecret)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "a", key, "b", []webhook.Secret{key})
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "a", key, "b", []webhook.Secret{key})
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&log, verb+" "+verb+"\n", key, &key)
	}
	plain := strings.TrimPrefix(testSecret, "whsec_")
	raw, _ := base64.StdEncoding.DecodeString(plain)
	for _, shown := range []string{plain, string(raw), fmt.Sprintf("%x", raw), fmt.Sprintf("%d", raw[:8])[1:20]} {
		if strings.Contains(log.String(), shown) {
			t.Errorf("%q is in %s", shown, log.String())
		}
	}
}

func TestTenantSecrets(t *testing.T) {
	t.Parallel()
	first, second := secret(t, testSecret), otherSecret(t)
	secrets := webhook.TenantSecrets(first, second)
	a, b := secrets("tenant_a"), secrets("tenant_b")
	distinct := map[webhook.Secret]bool{first: true, second: true, a[0]: true, a[1]: true, b[0]: true, b[1]: true}
	if len(a) != 2 || len(b) != 2 || len(distinct) != 6 {
		t.Errorf("%d distinct secrets, want 6", len(distinct))
	}
	if again := webhook.TenantSecrets(first)("tenant_a"); again[0] != a[0] {
		t.Error("the tenant's secret changed")
	}
	// Receivers store this value, so it must never change.
	const want = "whsec_Jk0WCJV/U8P78BVEia8WqdvKSu19Y8Fw5ZKr/ADPGd8="
	if got := a[0].Reveal(); got != want {
		t.Errorf("derived %s, want %s", got, want)
	}
	if back := secret(t, a[0].Reveal()); back != a[0] {
		t.Error("a derived secret cannot be read back")
	}
}

// This is the test vector of the Standard Webhooks libraries.
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
