package httpapi

import (
	"context"
	"net"
)

// seatKey finds the seat in a request's context.
type seatKey struct{}

// seat is the place of a connection among those that are counted. A nil seat is
// that of a connection that nobody counts.
type seat struct {
	connections *connections
	conn        net.Conn
}

// seatOf returns the seat of the connection that a request came on, or nil.
func seatOf(ctx context.Context) *seat {
	s, _ := ctx.Value(seatKey{}).(*seat)
	return s
}

// offer lets the connection be closed for another one although a request is under
// way, unless a request keeps it.
func (s *seat) offer() { s.keep(0) }

// keep counts requests that keep the connection: by 1 for one more, and by -1 when
// that one has ended.
func (s *seat) keep(more int) {
	if s == nil {
		return
	}
	s.connections.mu.Lock()
	defer s.connections.mu.Unlock()
	known := s.connections.open[s.conn]
	if known == nil {
		return // It was closed meanwhile.
	}
	if known.kept += more; known.kept > 0 {
		s.connections.occupy(known)
		return
	}
	s.connections.yield(known)
}
