package servicebus

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/coder/websocket"
)

// Namespace names a namespace of Service Bus and the credential for it.
type Namespace struct {
	// Connection is a connection string of the namespace, not of one entity.
	// Required, unless Host is set.
	Connection string
	// Host is the namespace's host name, such as example.servicebus.windows.net, to
	// be used with Credential. Required, unless Connection is set.
	Host string
	// Credential is used with Host. Optional. Defaults to azidentity's
	// DefaultAzureCredential.
	Credential azcore.TokenCredential
	// WebSockets says to speak AMQP over WebSockets, on port 443 and through the
	// environment's proxy. It needs TLS. Optional.
	WebSockets bool
	// TLS is used for connections that are not plain. Optional. Defaults to TLS 1.2
	// or later with the system's roots.
	TLS *tls.Config
	// DialTimeout bounds the opening of a connection. Optional. Defaults to 5 s.
	DialTimeout time.Duration
}

// Validate returns an error that names the invalid field and shows no secret.
func (n Namespace) Validate() error {
	_, err := n.address()
	return err
}

// address is the network address of a namespace.
type address struct {
	hostPort string
	host     string
	plain    bool // without TLS, as emulators do
}

// address validates the namespace and reads the address from its connection string
// or host. Its errors quote neither, as both may hold a key.
func (n Namespace) address() (address, error) {
	if (n.Connection == "") == (n.Host == "") {
		return address{}, errors.New("Namespace needs Connection or Host, and not both")
	}
	if n.DialTimeout < 0 {
		return address{}, fmt.Errorf("Namespace.DialTimeout must not be negative, is %s", n.DialTimeout)
	}
	if n.Host != "" {
		target, ok := n.addressOf(n.Host, false)
		if !ok {
			return address{}, errors.New("Namespace.Host must be a host name such as example.servicebus.windows.net")
		}
		return target, nil
	}
	fields := map[string]string{}
	for part := range strings.SplitSeq(n.Connection, ";") {
		if name, value, ok := strings.Cut(part, "="); ok {
			fields[strings.ToLower(name)] = value
		}
	}
	if fields["entitypath"] != "" {
		return address{}, errors.New("Namespace.Connection must be that of the namespace, without an EntityPath")
	}
	plain, err := strconv.ParseBool(cmp.Or(fields["usedevelopmentemulator"], "false"))
	if err != nil {
		return address{}, errors.New("Namespace.Connection cannot be used: its UseDevelopmentEmulator must be true or false")
	}
	if plain && n.WebSockets {
		return address{}, errors.New("Namespace.WebSockets cannot be used with UseDevelopmentEmulator: an emulator has none")
	}
	if endpoint, err := url.Parse(fields["endpoint"]); err == nil {
		if target, ok := n.addressOf(endpoint.Host, plain); ok {
			return target, nil
		}
	}
	return address{}, errors.New("Namespace.Connection needs an Endpoint such as sb://example.servicebus.windows.net/")
}

// addressOf parses a host name with or without a port.
func (n Namespace) addressOf(host string, plain bool) (address, bool) {
	name, port, err := net.SplitHostPort(host)
	switch {
	case err == nil:
	case plain:
		name, port = host, "5672"
	case n.WebSockets:
		name, port = host, "443"
	default:
		name, port = host, "5671"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil || name == "" || strings.ContainsAny(name, "/: ") {
		return address{}, false
	}
	return address{hostPort: net.JoinHostPort(name, port), host: name, plain: plain}, true
}

// The SDK's own retries, within one call. It needs at least one: a sender recovers
// only between two tries. They are quick, so that a cut connection costs a moment
// and not a whole timeout; the caller retries through an outage.
const (
	sdkRetries       = 3
	sdkRetryDelay    = 50 * time.Millisecond
	sdkMaxRetryDelay = 500 * time.Millisecond
)

// bus is one client of a namespace with its connections.
type bus struct {
	client *azservicebus.Client
	dialer *dialer
}

// openBus returns a client. It does not connect yet.
func openBus(n Namespace) (*bus, error) {
	d, err := newDialer(n)
	if err != nil {
		return nil, err
	}
	options := &azservicebus.ClientOptions{
		// The SDK speaks plain AMQP on the connection that this returns.
		NewWebSocketConn: d.dial,
		RetryOptions: azservicebus.RetryOptions{
			MaxRetries: sdkRetries, RetryDelay: sdkRetryDelay, MaxRetryDelay: sdkMaxRetryDelay,
		},
	}
	if n.Connection != "" {
		client, err := azservicebus.NewClientFromConnectionString(n.Connection, options)
		if err != nil {
			// The SDK's text may hold the key.
			return nil, errors.New("Namespace.Connection cannot be used: it needs a key or a signature")
		}
		return &bus{client: client, dialer: d}, nil
	}
	credential := n.Credential
	if credential == nil {
		found, err := azidentity.NewDefaultAzureCredential(nil)
		if err != nil {
			return nil, fmt.Errorf("find a credential for Namespace.Host: %w", err)
		}
		credential = found
	}
	client, err := azservicebus.NewClient(n.Host, credential, options)
	if err != nil {
		return nil, fmt.Errorf("Namespace.Host cannot be used: %w", err)
	}
	return &bus{client: client, dialer: d}, nil
}

// close closes the client. When the context ends first, it cuts the connections.
func (b *bus) close(ctx context.Context) error {
	closed := make(chan error, 1)
	go func() { closed <- b.client.Close(ctx) }()
	select {
	case err := <-closed:
		b.dialer.cut()
		return err
	case <-ctx.Done():
	}
	b.dialer.cut()
	return <-closed // It returns soon, since its connections are gone.
}

// dialer opens the connections of one client and can cut them. It is safe for
// concurrent use.
type dialer struct {
	target     address
	tls        *tls.Config // nil for plain connections
	timeout    time.Duration
	webSockets bool

	mu   sync.Mutex // Guards open: what cuts connections cuts all that are open.
	open map[*connection]struct{}
}

// newDialer returns a dialer for the namespace.
func newDialer(n Namespace) (*dialer, error) {
	target, err := n.address()
	d := &dialer{
		target: target, timeout: cmp.Or(n.DialTimeout, 5*time.Second), webSockets: n.WebSockets, open: map[*connection]struct{}{},
	}
	if err != nil || target.plain {
		return d, err
	}
	d.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if n.TLS != nil {
		d.tls = n.TLS.Clone()
	}
	d.tls.ServerName = cmp.Or(d.tls.ServerName, target.host)
	return d, nil
}

// dial opens a connection. Its timeout is short: while the SDK waits for it, the
// whole client is blocked.
func (d *dialer) dial(ctx context.Context, _ azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
	// Decide before dialling whose deadline comes first. Afterwards it is too late:
	// a socket's deadline may fire a moment before its context's.
	callers, bounded := ctx.Deadline()
	own := !bounded || time.Until(callers) > d.timeout
	raw, err := d.connect(ctx)
	timedOut := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	if own && ctx.Err() == nil && timedOut {
		// Hide that this is a timeout: the SDK would take it for its caller's, and give up.
		return nil, fmt.Errorf("connect to the namespace: no answer in %s", d.timeout)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the namespace: %w", err)
	}
	c := &connection{Conn: raw, in: newOutcomeReader(raw), dialer: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[c] = struct{}{}
	return c, nil
}

// connect opens a connection within the dialer's own timeout.
func (d *dialer) connect(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	switch {
	case d.tls == nil:
		return (&net.Dialer{}).DialContext(ctx, "tcp", d.target.hostPort)
	case d.webSockets:
		return d.upgrade(ctx)
	}
	return (&tls.Dialer{Config: d.tls}).DialContext(ctx, "tcp", d.target.hostPort)
}

// upgrade opens a WebSocket, as the service's documentation says.
func (d *dialer) upgrade(ctx context.Context) (net.Conn, error) {
	var raw net.Conn
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: d.tls, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			raw, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return raw, err
		},
	}
	//nolint:bodyclose // Dial closes it, or hands it to the socket.
	socket, _, err := websocket.Dial(ctx, "wss://"+d.target.hostPort+"/$servicebus/websocket", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{"amqp"},
	})
	if err != nil {
		return nil, err
	}
	return webSocket{websocket.NetConn(context.WithoutCancel(ctx), socket, websocket.MessageBinary), socket, raw}, nil
}

// webSocket is a connection over a WebSocket.
type webSocket struct {
	net.Conn

	socket *websocket.Conn
	raw    net.Conn
}

// Close closes the connection at once, without the closing words of the WebSocket and of
// TLS, for which a silent peer would be waited for.
func (s webSocket) Close() error {
	err := s.raw.Close()
	_ = s.socket.CloseNow() // It only tells that the connection is closed.
	return err
}

// connected reports whether a connection is open.
func (d *dialer) connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.open) > 0
}

// cut closes all connections, without TLS's close_notify, which would wait some
// seconds for a peer that reads nothing. Reads and writes that wait on them fail.
func (d *dialer) cut() {
	d.mu.Lock()
	cut := slices.Collect(maps.Keys(d.open))
	clear(d.open)
	d.mu.Unlock()
	for _, c := range cut {
		raw := c.Conn
		if secured, ok := raw.(*tls.Conn); ok {
			raw = secured.NetConn()
		}
		_ = raw.Close() // It may be closed already.
	}
}

// connection is an open connection that rewrites the outcomes it reads; see
// outcomeReader.
type connection struct {
	net.Conn
	in     *outcomeReader
	dialer *dialer
}

// Read reads from the outcomeReader.
func (c *connection) Read(p []byte) (int, error) { return c.in.Read(p) }

// Close closes the connection.
func (c *connection) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.open, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}
