package webhook_test

import (
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/webhook"
)

// testSecret is the one of the vector in the libraries of Standard Webhooks.
const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func secret(t testing.TB, text string) webhook.Secret {
	t.Helper()
	parsed, err := webhook.ParseSecret(text)
	if err != nil {
		t.Fatalf("ParseSecret: %v", err)
	}
	return parsed
}

func guard(t testing.TB, cfg webhook.GuardConfig) *webhook.Guard {
	t.Helper()
	made, err := webhook.NewGuard(cfg)
	if err != nil {
		t.Fatalf("NewGuard: %v", err)
	}
	return made
}

// onlyUs allows 127.0.0.1 and no other address of the loopback.
func onlyUs(t testing.TB) *webhook.Guard {
	t.Helper()
	return guard(t, webhook.GuardConfig{AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
}

// receiver is a TLS server that counts what reaches it.
type receiver struct {
	*httptest.Server
	hits atomic.Int64
}

// listen starts a receiver at an address, whose certificate is for example.com,
// 127.0.0.1 and ::1.
func listen(t testing.TB, address string, handler http.HandlerFunc) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.hits.Add(1)
		handler(w, req)
	}))
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("listen at %s: %v", address, err)
	}
	_ = r.Listener.Close()
	r.Listener = listener
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	r.StartTLS()
	t.Cleanup(r.Close)
	return r
}

// answering starts a receiver at 127.0.0.1.
func answering(t testing.TB, handler http.HandlerFunc) *receiver {
	t.Helper()
	return listen(t, "127.0.0.1:0", handler)
}

// at is the receiver's URL under another host.
func (r *receiver) at(host string) string {
	_, port, _ := strings.Cut(strings.TrimPrefix(r.URL, "https://"), ":")
	return "https://" + host + ":" + port
}

// sender returns a sender that trusts the receivers and may go to 127.0.0.1.
func sender(t testing.TB, trusted *receiver, change func(*webhook.Config)) *webhook.Sender {
	t.Helper()
	roots := x509.NewCertPool()
	if trusted != nil {
		roots.AddCert(trusted.Certificate())
	}
	key := secret(t, testSecret)
	cfg := webhook.Config{
		Guard:   onlyUs(t),
		Secrets: func(string) []webhook.Secret { return []webhook.Secret{key} },
		Timeout: time.Minute,
		RootCAs: roots,
	}
	if change != nil {
		change(&cfg)
	}
	made, err := webhook.NewSender(cfg)
	if err != nil {
		t.Fatalf("NewSender: %v", err)
	}
	t.Cleanup(made.Close)
	return made
}

// to is a message for a URL.
func to(url string) webhook.Message {
	return webhook.Message{ID: "job-1.0", TenantID: "tenant_a", URL: url, Body: []byte(`{"type":"job.succeeded"}`)}
}

func ok(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

func read(t testing.TB, body io.Reader) []byte {
	t.Helper()
	data, err := io.ReadAll(body)
	if err != nil {
		t.Errorf("read the body: %v", err)
	}
	return data
}

// listenPlain starts a server without TLS, and returns its URL as https.
func listenPlain(t testing.TB) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(ok))
	t.Cleanup(server.Close)
	return "https" + strings.TrimPrefix(server.URL, "http")
}
