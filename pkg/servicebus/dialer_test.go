package servicebus_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/servicebus"
)

// peer accepts connections on loopback until the end of the test, and sends each to
// the channel.
func peer(t *testing.T, config *tls.Config) (addr string, accepted <-chan net.Conn) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr = listener.Addr().String()
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	conns := make(chan net.Conn, 8)
	go func() {
		defer close(conns)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if secured, ok := conn.(*tls.Conn); ok {
				_ = secured.HandshakeContext(t.Context()) // The client reports what went wrong.
			}
			conns <- conn
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		for conn := range conns {
			_ = conn.Close()
		}
	})
	return addr, conns
}

// certificate returns the TLS settings of a peer on loopback and of a client that
// trusts it.
func certificate(t *testing.T) (shown *tls.Config, roots *x509.CertPool) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return &tls.Config{Certificates: server.TLS.Certificates, MinVersion: tls.VersionTLS12}, roots
}

// at is a namespace at that address.
func at(addr string, plain bool) servicebus.Namespace {
	n := servicebus.Namespace{Connection: "Endpoint=sb://" + addr, DialTimeout: time.Minute}
	if plain {
		n.Connection += ";UseDevelopmentEmulator=true"
	}
	return n
}

// dialer returns a dialer for the namespace.
func dialer(t *testing.T, n servicebus.Namespace) servicebus.Dialer {
	t.Helper()
	d, err := servicebus.NewDialer(n)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Outcomes are rewritten on every connection, with TLS and without.
func TestDialer_ConnectsAndReadsOutcomes(t *testing.T) {
	t.Parallel()
	shown, roots := certificate(t)
	for _, test := range []struct {
		name  string
		plain bool
	}{{"plain", true}, {"with TLS", false}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := shown
			if test.plain {
				config = nil
			}
			addr, accepted := peer(t, config)
			n := at(addr, test.plain)
			n.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
			d := dialer(t, n)
			if d.Connected() {
				t.Error("it is connected before it dials")
			}
			conn, err := d.Dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !d.Connected() {
				t.Error("it is not connected after it has dialled")
			}
			other := <-accepted
			if _, err := other.Write(outcome(released)); err != nil {
				t.Fatal(err)
			}
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if want := changed(rejection(cancelled, "released")); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%v, read\n%x, want\n%x", err, got, want)
			}
			if err := conn.Close(); err != nil || d.Connected() {
				t.Errorf("after Close: %v, connected %t", err, d.Connected())
			}
		})
	}
}

// A cut closes all connections, makes their reads fail, and leaves dialling possible.
func TestDialer_Cut(t *testing.T) {
	t.Parallel()
	shown, roots := certificate(t)
	addr, accepted := peer(t, shown)
	n := at(addr, false)
	n.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	d := dialer(t, n)
	ended := make(chan error)
	for range 2 {
		conn, err := d.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		go func() {
			_, err := conn.Read(make([]byte, 1))
			ended <- err
		}()
		other := <-accepted
		t.Cleanup(func() { _ = other.Close() })
	}
	d.Cut()
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a read went on")
		}
	}
	if d.Connected() {
		t.Error("it is still connected")
	}
	d.Cut() // No connection is left to cut.
	again, err := d.Dial(t.Context())
	if err != nil || !d.Connected() {
		t.Fatalf("dialling again: %v", err)
	}
	_ = again.Close()
}

func TestDialer_RefusesAnUnknownCertificate(t *testing.T) {
	t.Parallel()
	shown, roots := certificate(t)
	addr, _ := peer(t, shown)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	named := at(addr, false)
	named.TLS = &tls.Config{RootCAs: roots, ServerName: "another.test", MinVersion: tls.VersionTLS12}
	for _, test := range []struct {
		name      string
		namespace servicebus.Namespace
	}{
		{"an unknown authority", at("127.0.0.1:"+port, false)},
		{"another name", named},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := dialer(t, test.namespace)
			_, err := d.Dial(t.Context())
			if _, unverified := errors.AsType[*tls.CertificateVerificationError](err); !unverified || d.Connected() {
				t.Errorf("%v, connected %t, want the certificate refused", err, d.Connected())
			}
		})
	}
}

// The SDK takes a context's error for the end of its caller's context and does not
// retry, so the dialer's own timeout must be another error.
func TestDialer_ItsOwnTimeIsNotItsCallers(t *testing.T) {
	t.Parallel()
	addr, _ := peer(t, nil) // It accepts, and says nothing about TLS.
	n := at(addr, false)
	n.DialTimeout = time.Millisecond
	_, err := dialer(t, n).Dial(t.Context())
	if err == nil || !strings.Contains(err.Error(), "no answer in 1ms") || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that there was no answer", err)
	}
}

func TestDialer_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	addr, _ := peer(t, nil)
	d := dialer(t, at(addr, false))
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := d.Dial(late); err == nil || strings.Contains(err.Error(), "no answer") || d.Connected() {
		t.Errorf("%v, connected %t, want the caller's deadline", err, d.Connected())
	}
	over, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	if _, err := d.Dial(over); !errors.Is(err, context.DeadlineExceeded) || d.Connected() {
		t.Errorf("%v, connected %t, want the caller's deadline", err, d.Connected())
	}
}

func TestDialer_ConnectionRefused(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	d := dialer(t, at(addr, true))
	_, err = d.Dial(t.Context())
	if _, refused := errors.AsType[*net.OpError](err); !refused || !strings.HasPrefix(err.Error(), "connect to the namespace: ") || d.Connected() {
		t.Errorf("%v, connected %t, want it refused", err, d.Connected())
	}
}
