package httpapi

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// clientGrace is how long a client may still take to send its body, or to read its answer,
// once the server drains. It is shorter than the grace of a server that stops, so that a
// client that sends or reads a byte now and then does not hold up the stop.
const clientGrace = 5 * time.Second

// direction is what is on its way between a client and the server.
type direction uint8

const (
	receiving direction = 1 << iota // a body
	sending                         // an answer
)

// transfers knows the requests that wait for their clients. It is safe for concurrent use.
type transfers struct {
	mu       sync.Mutex // Guards all below: what begins while drain runs gets its deadline from one of both.
	draining bool
	open     map[*requestState]direction
}

// begin records that the request waits for its client.
func (t *transfers) begin(state *requestState, d direction) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[state] |= d
	if t.draining {
		state.hasten(d)
	}
}

// end records that the request no longer waits. After it the connection gets no deadline for
// that direction.
func (t *transfers) end(state *requestState, d direction) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[state] &^= d; t.open[state] == 0 {
		delete(t.open, state)
	}
}

// drain leaves the clients of all requests the grace, now and in the future.
func (t *transfers) drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
	for state, d := range t.open {
		state.hasten(d)
	}
}

// hasten gives the client its last deadline. A writer without a connection has none.
func (state *requestState) hasten(d direction) {
	control, until := http.NewResponseController(state.ResponseWriter), time.Now().Add(clientGrace)
	if d&receiving != 0 {
		_ = control.SetReadDeadline(until)
	}
	if d&sending != 0 {
		_ = control.SetWriteDeadline(until)
	}
}

// receivedBody is the body of a request, which its client must send in time.
type receivedBody struct {
	io.ReadCloser

	state *requestState
	until time.Time
	whole bool
}

// receive gives the client until then to send its body.
func (t *transfers) receive(state *requestState, body io.ReadCloser, until time.Time) *receivedBody {
	_ = http.NewResponseController(state.ResponseWriter).SetReadDeadline(until)
	t.begin(state, receiving)
	return &receivedBody{ReadCloser: body, state: state, until: until}
}

// Read lifts the deadline at the body's end: it must not end a request that waits.
func (b *receivedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) && !b.whole {
		b.whole = true
		b.state.transfers.end(b.state, receiving)
		_ = http.NewResponseController(b.state.ResponseWriter).SetReadDeadline(time.Time{})
	}
	return n, err //nolint:wrapcheck // It is the reader's.
}

// finish bounds how long net/http reads what the handler has left of the body, which it does
// before it answers.
func (b *receivedBody) finish() {
	if b.whole {
		return
	}
	b.state.transfers.end(b.state, receiving)
	if until := time.Now().Add(drainTime); until.Before(b.until) {
		_ = http.NewResponseController(b.state.ResponseWriter).SetReadDeadline(until)
	}
}
