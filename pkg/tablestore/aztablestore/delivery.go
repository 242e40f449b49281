package aztablestore

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// delivery records how far one request got on its way to the service.
type delivery struct {
	reached   atomic.Bool // The transport was asked to send it.
	asked     atomic.Bool // The transport asked for a connection …
	connected atomic.Bool // … and got one.
}

// surelyNot reports whether no byte of the request can have been sent. If the
// transport reports no trace, the request counts as possibly sent.
func (d *delivery) surelyNot() bool {
	return !d.reached.Load() || d.asked.Load() && !d.connected.Load()
}

// trace returns a context under which the transport reports to d.
func (d *delivery) trace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { d.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { d.connected.Store(true) },
	})
}

// deliveryKey is the key under which a context holds the delivery.
type deliveryKey struct{}

// transport is the end of the SDK's pipeline. It traces the requests that reach
// it, so a credential's own requests do not count.
type transport struct{ client *http.Client }

// Do implements policy.Transporter.
func (t transport) Do(req *http.Request) (*http.Response, error) {
	if d, ok := req.Context().Value(deliveryKey{}).(*delivery); ok {
		d.reached.Store(true)
		req = req.WithContext(d.trace(req.Context()))
	}
	return t.client.Do(req) //nolint:gosec // The address is the operator's, and redirects are not followed.
}
