package servicebus

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
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
		target, ok := addressOf(n.Host, false)
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
	if endpoint, err := url.Parse(fields["endpoint"]); err == nil {
		if target, ok := addressOf(endpoint.Host, plain); ok {
			return target, nil
		}
	}
	return address{}, errors.New("Namespace.Connection needs an Endpoint such as sb://example.servicebus.windows.net/")
}

// addressOf parses a host name with or without a port.
func addressOf(host string, plain bool) (address, bool) {
	name, port, err := net.SplitHostPort(host)
	switch {
	case err == nil:
	case plain:
		name, port = host, "5672"
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
	target, err := n.address()
	if err != nil {
		return nil, err
	}
	d := newDialer(target, n.TLS, cmp.Or(n.DialTimeout, 5*time.Second))
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
	target  address
	tls     *tls.Config // nil for plain connections
	timeout time.Duration

	mu   sync.Mutex
	open map[*connection]struct{}
}

// newDialer returns a dialer for the target.
func newDialer(target address, config *tls.Config, timeout time.Duration) *dialer {
	d := &dialer{target: target, timeout: timeout, open: map[*connection]struct{}{}}
	if target.plain {
		return d
	}
	d.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if config != nil {
		d.tls = config.Clone()
	}
	d.tls.ServerName = cmp.Or(d.tls.ServerName, target.host)
	return d
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
	if d.tls == nil {
		return (&net.Dialer{}).DialContext(ctx, "tcp", d.target.hostPort)
	}
	return (&tls.Dialer{Config: d.tls}).DialContext(ctx, "tcp", d.target.hostPort)
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
