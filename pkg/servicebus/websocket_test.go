package servicebus_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// webSocketGate is a namespace that is reached over WebSockets alone.
type webSocketGate struct {
	namespace servicebus.Namespace
	open      atomic.Int64
}

// overWebSockets puts a gate before the broker, which speaks as the service does: TLS,
// one path, the subprotocol amqp, binary messages.
func overWebSockets(t *testing.T, broker *fakeservicebus.Server) *webSocketGate {
	t.Helper()
	_, rest, _ := strings.Cut(broker.ConnectionString(), "Endpoint=sb://")
	target, _, _ := strings.Cut(rest, ";")
	gate := &webSocketGate{}
	var handlers sync.WaitGroup // The server does not wait for handlers that have taken their connection.
	t.Cleanup(handlers.Wait)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		if r.URL.Path != "/$servicebus/websocket" {
			http.NotFound(w, r)
			return
		}
		socket, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"amqp"}})
		if err != nil || socket.Subprotocol() != "amqp" {
			t.Errorf("accept: %v, subprotocol %q", err, socket.Subprotocol())
			return
		}
		defer func() { _ = socket.CloseNow() }()
		gate.open.Add(1)
		defer gate.open.Add(-1)
		near := websocket.NetConn(context.WithoutCancel(r.Context()), socket, websocket.MessageBinary)
		far, err := (&net.Dialer{}).DialContext(context.WithoutCancel(r.Context()), "tcp", strings.TrimSuffix(target, "/"))
		if err != nil {
			return // The broker is stopped.
		}
		defer func() { _ = far.Close() }()
		ended := make(chan struct{}, 2)
		for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
			go func() {
				_, _ = io.Copy(way[0], way[1]) // However it ends, both ends are closed.
				ended <- struct{}{}
			}()
		}
		<-ended
		_, _ = far.Close(), socket.CloseNow()
		<-ended
	}))
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	gate.namespace = servicebus.Namespace{
		Connection: "Endpoint=sb://" + server.Listener.Addr().String() + "/;SharedAccessKeyName=n;SharedAccessKey=a2V5",
		WebSockets: true, TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	return gate
}

// TestWebSockets_CarryMessages sends messages larger than a frame, cuts the connections,
// and sends again.
func TestWebSockets_CarryMessages(t *testing.T) {
	t.Parallel()
	broker := namespaceOnWire(t, nil)
	gate := overWebSockets(t, broker)
	publisher := publisherOnWire(t, broker, func(cfg *servicebus.PublisherConfig) { cfg.Namespace = gate.namespace })
	messages := onTopic(wireTopic, 4)
	for i := range messages {
		messages[i].Directive = []byte(`{"type":"DIRECTIVE","payload":"` + strings.Repeat("x", 100_000) + `"}`)
	}
	expectNone(t, publish(t, publisher, messages[:2]))
	broker.Stop()
	if err := broker.Restart(); err != nil {
		t.Fatal(err)
	}
	expectNone(t, publish(t, publisher, messages[2:]))
	if got := broker.Messages(wireWorker); len(got) != 4 || len(got[3].Body) < 100_000 {
		t.Errorf("%d messages arrived", len(got))
	}
	if err := publisher.Close(t.Context()); err != nil {
		t.Error(err)
	}
	waittest.Until(t, "no connection is left open", func() bool { return gate.open.Load() == 0 })
}

// expectNone fails the test for each error.
func expectNone(t *testing.T, errs []error) {
	t.Helper()
	for i, err := range errs {
		if err != nil {
			t.Errorf("message %d: %v", i, err)
		}
	}
}

// TestWebSockets_AreCut: a cut does not wait for a peer that says nothing.
func TestWebSockets_AreCut(t *testing.T) {
	t.Parallel()
	gate := overWebSockets(t, namespaceOnWire(t, nil))
	d := dialer(t, gate.namespace)
	conn, err := d.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		ended <- err
	}()
	d.Cut()
	if err := <-ended; err == nil || d.Connected() {
		t.Errorf("the read ended with %v, connected %t", err, d.Connected())
	}
}

// TestWebSockets_NamesAPeerThatHasNone reports what such a peer answers.
func TestWebSockets_NamesAPeerThatHasNone(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	n := at(server.Listener.Addr().String(), false)
	n.WebSockets, n.TLS = true, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if _, err := dialer(t, n).Dial(t.Context()); err == nil || !strings.Contains(err.Error(), "but got 404") {
		t.Errorf("dial: %v", err)
	}
}
