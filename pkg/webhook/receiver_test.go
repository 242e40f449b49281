package webhook_test

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// testSecret is the secret of the test vector in the libraries of Standard Webhooks.
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

// localhostOnly returns a guard that allows 127.0.0.1 and no other loopback address.
func localhostOnly(t testing.TB) *webhook.Guard {
	t.Helper()
	return guard(t, webhook.GuardConfig{AllowedPrefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}})
}

// receiver is a TLS server that counts its requests.
type receiver struct {
	*httptest.Server
	hits atomic.Int64
}

// listen starts a receiver at an address. Its certificate is for example.com, 127.0.0.1 and
// ::1.
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

// at returns the receiver's URL under another host name.
func (r *receiver) at(host string) string {
	_, port, _ := strings.Cut(strings.TrimPrefix(r.URL, "https://"), ":")
	return "https://" + host + ":" + port
}

// sender returns a sender that trusts the receiver and may send to 127.0.0.1.
func sender(t testing.TB, trusted *receiver, change func(*webhook.Config)) *webhook.Sender {
	t.Helper()
	roots := x509.NewCertPool()
	if trusted != nil {
		roots.AddCert(trusted.Certificate())
	}
	key := secret(t, testSecret)
	cfg := webhook.Config{
		Guard:   localhostOnly(t),
		Secrets: func(string) []webhook.Secret { return []webhook.Secret{key} },
		Timeout: waittest.Scale(time.Minute),
		RootCAs: roots,
	}
	if change != nil {
		change(&cfg)
	}
	made := webhook.NewSender(cfg)
	t.Cleanup(made.Close)
	return made
}

// to returns a message for a URL.
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

// names is a name server that gives one answer after the other and repeats the last one. An
// answer without addresses says that the name does not exist. A server without answers
// fails.
type names struct {
	mu      sync.Mutex
	answers [][]string
}

// resolver returns a resolver that asks the name server over pipes, without a network.
func (n *names) resolver(t testing.TB) *net.Resolver {
	t.Helper()
	var open sync.WaitGroup
	t.Cleanup(open.Wait)
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		open.Go(func() { n.serve(ours) })
		return theirs, nil
	}}
}

// serve answers the questions of one connection. A lookup asks for A and AAAA concurrently;
// only A moves on to the next answer.
func (n *names) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, question); err != nil {
			return
		}
		answer, err := n.answer(question)
		if err != nil {
			return
		}
		framed := append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)
		if _, err := conn.Write(framed); err != nil {
			return
		}
	}
}

func (n *names) answer(raw []byte) ([]byte, error) {
	var message dnsmessage.Message
	if err := message.Unpack(raw); err != nil {
		return nil, err
	}
	question := message.Questions[0]
	reply := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: message.ID, Response: true, RecursionAvailable: true, Authoritative: true},
		Questions: message.Questions,
	}
	addresses, known := n.next(question.Type == dnsmessage.TypeA)
	switch {
	case !known:
		reply.RCode = dnsmessage.RCodeServerFailure
	case len(addresses) == 0:
		reply.RCode = dnsmessage.RCodeNameError
	}
	for _, text := range addresses {
		if body := resource(netip.MustParseAddr(text), question.Type); body != nil {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET},
				Body:   body,
			})
		}
	}
	return reply.Pack()
}

func resource(addr netip.Addr, kind dnsmessage.Type) dnsmessage.ResourceBody {
	switch {
	case addr.Is4() && kind == dnsmessage.TypeA:
		return &dnsmessage.AResource{A: addr.As4()}
	case addr.Is6() && kind == dnsmessage.TypeAAAA:
		return &dnsmessage.AAAAResource{AAAA: addr.As16()}
	default:
		return nil
	}
}

// next returns the answer to a question, and whether there is one.
func (n *names) next(moves bool) ([]string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.answers) == 0 {
		return nil, false
	}
	answer := n.answers[0]
	if moves && len(n.answers) > 1 {
		n.answers = n.answers[1:]
	}
	return answer, true
}

// TestMain sets a proxy that does not exist in the environment, so that webhooks arrive only
// if the sender ignores it.
func TestMain(m *testing.M) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		if err := os.Setenv(name, "http://192.0.2.1:1"); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}
