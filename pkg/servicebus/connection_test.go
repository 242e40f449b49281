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

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/lucius-project/lucius/pkg/servicebus"
)

func TestNamespace_Address(t *testing.T) {
	t.Parallel()
	const emulator = ";UseDevelopmentEmulator="
	for _, test := range []struct {
		name      string
		namespace servicebus.Namespace
		want      string
		plain     bool
	}{
		{"a host", servicebus.Namespace{Host: "example.servicebus.windows.net"}, "example.servicebus.windows.net:5671", false},
		{"a host with a port", servicebus.Namespace{Host: "example.test:443"}, "example.test:443", false},
		{"a connection string", namespace(), "example.servicebus.windows.net:5671", false},
		{"without the slash", servicebus.Namespace{Connection: "Endpoint=sb://example.test"}, "example.test:5671", false},
		{"in any case and order", servicebus.Namespace{Connection: "SharedAccessKey=a=b;ENDPOINT=sb://example.test/;"}, "example.test:5671", false},
		{"with a port", servicebus.Namespace{Connection: "Endpoint=sb://127.0.0.1:9000/"}, "127.0.0.1:9000", false},
		{"a host, over WebSockets", servicebus.Namespace{Host: "example.test", WebSockets: true}, "example.test:443", false},
		{"an emulator", servicebus.Namespace{Connection: "Endpoint=sb://localhost" + emulator + "true"}, "localhost:5672", true},
		{"an emulator with a port", servicebus.Namespace{Connection: "Endpoint=sb://localhost:9000" + emulator + "TRUE"}, "localhost:9000", true},
		{"no emulator", servicebus.Namespace{Connection: "Endpoint=sb://localhost" + emulator + "false"}, "localhost:5671", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got, plain, err := test.namespace.Address()
			if err != nil || got != test.want || plain != test.plain {
				t.Errorf("%s, plain %t, %v, want %s, plain %t", got, plain, err, test.want, test.plain)
			}
			if err := test.namespace.Validate(); err != nil {
				t.Errorf("Validate: %v", err)
			}
		})
	}
}

func TestNamespace_ValidateNamesTheFieldAndHidesTheKey(t *testing.T) {
	t.Parallel()
	secret := ";SharedAccessKeyName=lucius;SharedAccessKey=" + key
	for _, test := range []struct {
		name      string
		namespace servicebus.Namespace
		want      string
	}{
		{"neither", servicebus.Namespace{}, "needs Connection or Host"},
		{"both", servicebus.Namespace{Connection: namespace().Connection, Host: "example.test"}, "and not both"},
		{"an invalid time", servicebus.Namespace{Host: "example.test", DialTimeout: -time.Second}, "Namespace.DialTimeout must not be negative"},
		{"a URL for a host", servicebus.Namespace{Host: "sb://example.test/"}, "Namespace.Host must be a host name"},
		{"a URL with a port for a host", servicebus.Namespace{Host: "https://example.test:443"}, "Namespace.Host must be a host name"},
		{"a scheme for a host", servicebus.Namespace{Host: "https://example"}, "Namespace.Host must be a host name"},
		{"a port alone", servicebus.Namespace{Host: ":5671"}, "Namespace.Host must be a host name"},
		{"an invalid port", servicebus.Namespace{Host: "example.test:amqp"}, "Namespace.Host must be a host name"},
		{"a connection string for a host", servicebus.Namespace{Host: namespace().Connection}, "Namespace.Host must be a host name"},
		{"no endpoint", servicebus.Namespace{Connection: secret}, "Namespace.Connection needs an Endpoint"},
		{"an invalid endpoint", servicebus.Namespace{Connection: "Endpoint=example.test" + secret}, "Namespace.Connection needs an Endpoint"},
		{"an endpoint that cannot be read", servicebus.Namespace{Connection: "Endpoint=sb://a%zz" + key + secret}, "Namespace.Connection needs an Endpoint"},
		{"an endpoint without a host", servicebus.Namespace{Connection: "Endpoint=sb://:5671/" + secret}, "Namespace.Connection needs an Endpoint"},
		{"of one entity", servicebus.Namespace{Connection: namespace().Connection + ";EntityPath=orders"}, "without an EntityPath"},
		{"an invalid emulator flag", servicebus.Namespace{Connection: namespace().Connection + ";UseDevelopmentEmulator=maybe"}, "its UseDevelopmentEmulator must be true or false"},
		{"an emulator over WebSockets", servicebus.Namespace{Connection: "Endpoint=sb://localhost;UseDevelopmentEmulator=true", WebSockets: true}, "Namespace.WebSockets cannot be used"},
		{"not a connection string", servicebus.Namespace{Connection: key}, "Namespace.Connection needs an Endpoint"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			err := test.namespace.Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			if strings.Contains(err.Error(), key) {
				t.Errorf("the error shows the key: %v", err)
			}
			if _, _, err := test.namespace.Address(); err != nil && strings.Contains(err.Error(), key) {
				t.Errorf("the address's error shows the key: %v", err)
			}
		})
	}
}

// unusedCredential fails the test if it is asked for a token.
type unusedCredential struct{ t *testing.T }

func (n unusedCredential) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	n.t.Error("a token was asked for")
	return azcore.AccessToken{}, nil
}

// Opening a client connects to nothing and asks for no token.
func TestBus_IsMadeByEachRight(t *testing.T) {
	t.Parallel()
	const endpoint = "Endpoint=sb://example.test/"
	for _, test := range []struct {
		name      string
		namespace servicebus.Namespace
	}{
		{"a key", namespace()},
		{"a signature", servicebus.Namespace{Connection: endpoint + ";SharedAccessSignature=SharedAccessSignature sr=a&sig=b&se=1&skn=c"}},
		{"an emulator's key", servicebus.Namespace{Connection: namespace().Connection + ";UseDevelopmentEmulator=true"}},
		{"a credential", servicebus.Namespace{Host: "example.test", Credential: unusedCredential{t}}},
		{"the default credential", servicebus.Namespace{Host: "example.test"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := publisherConfig()
			cfg.Namespace = test.namespace
			p, err := servicebus.NewPublisher(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// The SDK's error about a connection string may hold the key.
func TestBus_AConnectionStringThatCannotBeUsedIsNotShown(t *testing.T) {
	t.Parallel()
	const endpoint = "Endpoint=sb://example.test/"
	for _, test := range []struct{ name, connection string }{
		{"no name of the key", endpoint + ";SharedAccessKey=" + key},
		{"no key", endpoint + ";SharedAccessKeyName=" + key},
		{"neither", endpoint},
		{"a part without a name", endpoint + ";" + key},
		{"an unknown part", endpoint + ";" + key + "=x"},
		{"an emulator that is neither there nor not", namespace().Connection + ";UseDevelopmentEmulator=" + key},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := publisherConfig()
			cfg.Namespace = servicebus.Namespace{Connection: test.connection}
			_, err := servicebus.NewPublisher(cfg)
			if err == nil || !strings.Contains(err.Error(), "Namespace.Connection cannot be used") {
				t.Fatalf("%v, want that it cannot be used", err)
			}
			if strings.Contains(err.Error(), strings.TrimRight(key, "=")) {
				t.Errorf("the error shows the key: %v", err)
			}
		})
	}
}

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
	addr, _ := peer(t, nil) // It accepts, and never begins the TLS handshake.
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
