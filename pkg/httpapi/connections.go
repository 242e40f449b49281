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

// minSilence is for how long a connection is without a request before it may be
// closed for another one: one that is on its way is let arrive.
const minSilence = 250 * time.Millisecond

// LimitConnections returns a listener for the server that keeps at most limit
// connections open. Beyond that a new one takes the place of the one that has
// been without a request the longest: silent clients, and those that never get
// to the end of their headers, cannot keep others out. Where all have a request
// under way, new ones wait unread, in the operating system's queue, until one
// has none. A [Server] counts only requests that it lets in: nobody keeps a place
// without a credential, by a body that does not come or an answer that is not read.
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
		return context.WithValue(ctx, seatKey{}, &seat{c, plain(conn)})
	}
	return c
}

// connection is an open one.
type connection struct {
	conn  net.Conn
	place *list.Element // In quiet, nil while a request is under way.
	since time.Time     // When it got that place.
	kept  int           // How many of its requests keep it.
}

// connections are the open ones of a server. It is safe for concurrent use, and
// locks nothing while it closes one.
type connections struct {
	net.Listener
	limit int

	changed chan struct{} // Holds a token when there may be room again.
	closed  chan struct{}
	close   sync.Once

	mu    sync.Mutex
	open  map[net.Conn]*connection
	quiet list.List // Those that may be closed, the longest first.
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

// makeRoom closes a connection where it must, so that one more may be open. Where
// it can not it returns for how long to wait, unless something changes before.
func (c *connections) makeRoom(now time.Time) time.Duration {
	conn, wait := c.giveUp(now)
	if conn != nil {
		_ = conn.Close() // Whoever serves it sees that it ended.
	}
	return wait
}

// giveUp is the connection to close so that one more may be open, nil where there
// is room, and for how long to wait where none may be closed yet.
func (c *connections) giveUp(now time.Time) (net.Conn, time.Duration) {
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

// note keeps account of a connection. The server tells it of each before it
// accepts the next.
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

// yield lets a connection be closed, unless a request keeps it. The lock is held.
func (c *connections) yield(known *connection) {
	if known != nil && known.place == nil && known.kept == 0 {
		known.since = time.Now()
		known.place = c.quiet.PushBack(known)
		c.tell()
	}
}

// occupy lets a connection not be closed. The lock is held.
func (c *connections) occupy(known *connection) {
	if known != nil && known.place != nil {
		c.quiet.Remove(known.place)
		known.place = nil
	}
}

// tell wakes who waits for room. The lock is held.
func (c *connections) tell() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// forget counts a connection no longer, if it did. The lock is held.
func (c *connections) forget(conn net.Conn) {
	c.occupy(c.open[conn])
	delete(c.open, conn)
}

// plain is the connection without its TLS: it closes without a farewell, which
// could take its time.
func plain(conn net.Conn) net.Conn {
	if secured, ok := conn.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return conn
}
