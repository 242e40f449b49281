package httpapi

import (
	"container/list"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// The limits of the connections of [NewHTTPServer].
const (
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeaderBytes = 32 << 10
	// maxRequests bounds the concurrent requests of one HTTP/2 connection.
	maxRequests = 100
	// writeMargin is how long a client may take to send its request and to read the
	// answer, in addition to the longest wait.
	writeMargin = 60 * time.Second
)

// NewHTTPServer returns an [http.Server] that serves the handler with limits on
// time and size, and logs connection errors at debug. It has no ReadTimeout, which
// would also end requests that wait; see [Config].BodyTimeout. [LimitConnections]
// bounds the number of connections.
//
// To stop: [Server.Drain], then Shutdown.
func NewHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      MaxWait + writeMargin,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxRequests},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		// The handler refuses OPTIONS *, as any other unknown path.
		DisableGeneralOptionsHandler: true,
	}
}

// minSilence is how long a connection must have been without a request before a new
// connection may replace it, so that a request in transit still arrives.
const minSilence = 250 * time.Millisecond

// LimitConnections returns a listener for the server that keeps at most limit
// connections open. Beyond that a new one replaces the connection that has been
// idle longest, so clients that are silent, or never finish their headers, cannot
// keep others out. While all connections have a request under way, new ones wait
// unread in the operating system's queue. A [Server] counts only requests that it
// admits: without a credential, a slow body or an unread answer keeps no connection. Those of
// one caller keep half of the connections at most, so that it cannot keep others out either.
//
// It sets the server's ConnState and ConnContext. Serve the returned listener
// once.
func LimitConnections(server *http.Server, listener net.Listener, limit int) net.Listener {
	c := &connections{
		Listener: listener, limit: limit,
		open: map[net.Conn]*trackedConn{}, kept: map[string]int{}, changed: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	server.ConnContext = c.track
	server.ConnState = c.setState
	return c
}

// trackedConn is an open connection. A nil one is not counted.
type trackedConn struct {
	connections *connections
	conn        net.Conn

	idle  *list.Element // invariant: idle is its element of quiet, or nil while a request is in progress.
	since time.Time     // when it became idle
	kept  int           // How many admitted requests keep it open.
}

// trackedConnKey is the context key of a request's connection.
type trackedConnKey struct{}

// connections tracks the open connections of a server. It is safe for concurrent
// use, and holds no lock while it closes a connection.
type connections struct {
	net.Listener
	limit int

	changed chan struct{} // Holds a token if there may be room again.
	closed  chan struct{}
	close   sync.Once

	mu    sync.Mutex // Guards all below. Not held while a connection is closed.
	open  map[net.Conn]*trackedConn
	kept  map[string]int // How many requests of each caller keep a connection.
	quiet list.List      // Connections that may be closed, the one idle longest first.
}

// Accept implements [net.Listener]. It waits until there is room.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		idle, wait := c.evict(time.Now())
		if idle != nil {
			_ = idle.Close() // The goroutine that serves it gets an error.
		}
		if wait == 0 {
			return conn, nil
		}
		select {
		case <-c.changed:
		case <-time.After(wait):
		case <-c.closed:
			_ = conn.Close() // Nothing was read from it.
			return nil, net.ErrClosed
		}
	}
}

// Close implements [net.Listener].
func (c *connections) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.Listener.Close()
}

// evict makes room for one more connection: it stops counting the connection that has been
// idle longest, and returns it for the caller to close. It returns nil if there is room
// already. If none may be closed yet, it returns how long to wait, unless a connection
// changes earlier.
func (c *connections) evict(now time.Time) (net.Conn, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) < c.limit {
		return nil, 0
	}
	front := c.quiet.Front()
	if front == nil {
		return nil, minSilence
	}
	longest, _ := front.Value.(*trackedConn)
	if silent := now.Sub(longest.since); silent < minSilence {
		return nil, minSilence - silent
	}
	c.remove(longest.conn)
	return longest.conn, 0
}

// track counts a connection. The server calls it before it accepts the next one.
func (c *connections) track(ctx context.Context, conn net.Conn) context.Context {
	known := &trackedConn{connections: c, conn: underTLS(conn)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[known.conn] = known
	return context.WithValue(ctx, trackedConnKey{}, known)
}

// setState records a connection's state.
func (c *connections) setState(conn net.Conn, state http.ConnState) {
	conn = underTLS(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[conn]
	switch state {
	case http.StateNew, http.StateIdle:
		c.markIdle(known)
	case http.StateActive:
		c.markBusy(known)
	case http.StateClosed, http.StateHijacked:
		c.remove(conn)
		c.wakeAccept()
	}
}

// markIdle allows a connection to be closed, unless a request keeps it. The lock is held.
func (c *connections) markIdle(known *trackedConn) {
	if known != nil && known.idle == nil && known.kept == 0 {
		known.since = time.Now()
		known.idle = c.quiet.PushBack(known)
		c.wakeAccept()
	}
}

// markBusy keeps a connection from being closed. The lock is held.
func (c *connections) markBusy(known *trackedConn) {
	if known != nil && known.idle != nil {
		c.quiet.Remove(known.idle)
		known.idle = nil
	}
}

// wakeAccept wakes an Accept that waits for room. The lock is held.
func (c *connections) wakeAccept() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// remove stops counting a connection. The lock is held.
func (c *connections) remove(conn net.Conn) {
	c.markBusy(c.open[conn])
	delete(c.open, conn)
}

// underTLS returns the connection under TLS: it closes without an alert to the peer,
// which could block.
func underTLS(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return conn
}

// keep adds more to the number of the caller's requests that keep the connection: 1 when one
// is admitted, -1 when one that keeps it has ended, 0 when one has begun. While none keeps it, a
// new connection may replace it. It reports whether the request is counted: beyond half of the
// connections a caller's are not.
func (t *trackedConn) keep(caller string, more int) bool {
	if t == nil {
		return false
	}
	c := t.connections
	c.mu.Lock()
	defer c.mu.Unlock()
	if more > 0 && 2*c.kept[caller] >= c.limit {
		return false
	}
	if c.kept[caller] += more; c.kept[caller] == 0 {
		delete(c.kept, caller)
	}
	t.kept += more
	switch {
	case c.open[t.conn] != t: // It was closed in the meantime.
	case t.kept > 0:
		c.markBusy(t)
	default:
		c.markIdle(t)
	}
	return true
}
