package servicebus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

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
	if d.tls.ServerName == "" {
		d.tls.ServerName = target.host
	}
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
	if own && ctx.Err() == nil && timedOut(err) {
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

// timedOut reports whether the error is a timeout, of a context or of a socket.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
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

// cut closes all connections. Reads and writes that wait on them fail.
func (d *dialer) cut() {
	d.mu.Lock()
	open := make([]*connection, 0, len(d.open))
	for c := range d.open {
		open = append(open, c)
	}
	d.mu.Unlock()
	for _, c := range open {
		c.sever()
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
	c.forget()
	return c.Conn.Close()
}

// sever closes the connection without TLS's close_notify, which would wait some
// seconds for a peer that reads nothing.
func (c *connection) sever() {
	c.forget()
	raw := c.Conn
	if secured, ok := raw.(*tls.Conn); ok {
		raw = secured.NetConn()
	}
	_ = raw.Close() // It may be closed already.
}

// forget removes the connection from the open ones.
func (c *connection) forget() {
	c.dialer.mu.Lock()
	defer c.dialer.mu.Unlock()
	delete(c.dialer.open, c)
}
