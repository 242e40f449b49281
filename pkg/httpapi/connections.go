package httpapi

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

// minSilence is how long a connection must have been without a request before a new
// connection may replace it, so that a request on its way still arrives.
const minSilence = 250 * time.Millisecond

// LimitConnections returns a listener for the server that keeps at most limit
// connections open. Beyond that a new one replaces the connection that has been
// idle longest, so clients that are silent, or never finish their headers, cannot
// keep others out. While all connections have a request under way, new ones wait
// unread in the operating system's queue. A [Server] counts only requests that it
// admits: without a credential, a slow body or an unread answer keeps no connection.
//
// It sets the server's ConnState and ConnContext. Serve the returned listener
// once.
func LimitConnections(server *http.Server, listener net.Listener, limit int) net.Listener {
	c := &connections{
		Listener: listener, limit: limit,
		open: map[net.Conn]*connection{}, changed: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	server.ConnState = c.note
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, trackedConnKey{}, &trackedConn{c, plain(conn)})
	}
	return c
}

// connection is an open connection.
type connection struct {
	conn  net.Conn
	idle  *list.Element // invariant: idle is its element of quiet, or nil while a request is under way.
	since time.Time     // When it became idle.
	kept  int           // How many admitted requests keep it open.
}

// connections tracks the open connections of a server. It is safe for concurrent
// use, and holds no lock while it closes a connection.
type connections struct {
	net.Listener
	limit int

	changed chan struct{} // Holds a token if there may be room again.
	closed  chan struct{}
	close   sync.Once

	mu    sync.Mutex
	open  map[net.Conn]*connection
	quiet list.List // Connections that may be closed, the one idle longest first.
}

// Accept implements [net.Listener]. It waits until there is room.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		wait := c.makeRoom(time.Now())
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

// makeRoom closes a connection if there is no room for one more. If none may be
// closed yet it returns how long to wait, unless a connection changes before.
func (c *connections) makeRoom(now time.Time) time.Duration {
	conn, wait := c.evict(now)
	if conn != nil {
		_ = conn.Close() // The goroutine that serves it gets an error.
	}
	return wait
}

// evict takes the connection that must be closed to make room out of the books, and
// returns it; nil if there is room, or with how long to wait if none may be closed yet.
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
	longest, _ := front.Value.(*connection)
	if silent := now.Sub(longest.since); silent < minSilence {
		return nil, minSilence - silent
	}
	c.forget(longest.conn)
	return longest.conn, 0
}

// note records a connection's state. The server calls it for each new connection
// before it accepts the next.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	conn = plain(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.open[conn]
	switch state {
	case http.StateNew:
		c.open[conn] = &connection{conn: conn}
		c.yield(c.open[conn])
	case http.StateIdle:
		c.yield(known)
	case http.StateActive:
		c.occupy(known)
	case http.StateClosed, http.StateHijacked:
		c.forget(conn)
		c.tell()
	}
}

// yield allows a connection to be closed, unless a request keeps it. The lock is held.
func (c *connections) yield(known *connection) {
	if known != nil && known.idle == nil && known.kept == 0 {
		known.since = time.Now()
		known.idle = c.quiet.PushBack(known)
		c.tell()
	}
}

// occupy keeps a connection from being closed. The lock is held.
func (c *connections) occupy(known *connection) {
	if known != nil && known.idle != nil {
		c.quiet.Remove(known.idle)
		known.idle = nil
	}
}

// tell wakes an Accept that waits for room. The lock is held.
func (c *connections) tell() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// forget stops counting a connection. The lock is held.
func (c *connections) forget(conn net.Conn) {
	c.occupy(c.open[conn])
	delete(c.open, conn)
}

// plain returns the connection under TLS: it closes without an alert to the peer,
// which could block.
func plain(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return conn
}
