package httpapi

import (
	"context"
	"net"
)

// trackedConnKey is the context key of a request's connection.
type trackedConnKey struct{}

// trackedConn is a connection that [LimitConnections] counts. A nil one is not
// counted.
type trackedConn struct {
	connections *connections
	conn        net.Conn
}

// trackedConnOf returns the connection that a request came on, or nil if it is not
// counted.
func trackedConnOf(ctx context.Context) *trackedConn {
	t, _ := ctx.Value(trackedConnKey{}).(*trackedConn)
	return t
}

// offer allows a new connection to replace this one although a request is under way,
// unless a request keeps it.
func (t *trackedConn) offer() { t.keep(0) }

// keep adds more to the number of requests that keep the connection: 1 when one is
// admitted, -1 when it has ended.
func (t *trackedConn) keep(more int) {
	if t == nil {
		return
	}
	t.connections.mu.Lock()
	defer t.connections.mu.Unlock()
	known := t.connections.open[t.conn]
	if known == nil {
		return // It was closed in the meantime.
	}
	if known.kept += more; known.kept > 0 {
		t.connections.occupy(known)
		return
	}
	t.connections.yield(known)
}
