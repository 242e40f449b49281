package contracttest

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"testing/iotest"
)

// Transport is a [http.RoundTripper] that checks each exchange against the contract.
// It is safe for concurrent use.
type Transport struct {
	// Base sends the requests. Required.
	Base http.RoundTripper
	// Contract is the contract of the exchanges. Required.
	Contract *Contract
	// Fault gets the differences of an exchange, in the goroutine of the request.
	// Required.
	Fault func(error)
}

// RoundTrip implements [http.RoundTripper]. It reads the body of a request to its end
// before it sends it, and that of a response before it returns it. It does not read
// event streams and checks only their status and header. A truncated response is
// returned as far as it came, unchecked.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent, err := read(r.Body)
	if err != nil {
		return nil, err
	}
	copied := r.Clone(r.Context())
	if len(sent) > 0 {
		copied.Body = io.NopCloser(bytes.NewReader(sent))
	}
	response, err := t.Base.RoundTrip(copied)
	if err != nil {
		return nil, err
	}
	exchange := &Exchange{Request: r, Sent: sent, Status: response.StatusCode, Header: response.Header}
	if mediaType, _, err := mime.ParseMediaType(response.Header.Get("Content-Type")); err != nil || mediaType != "text/event-stream" {
		exchange.Received, err = read(response.Body)
		var rest io.Reader = bytes.NewReader(exchange.Received)
		if err != nil {
			response.Body = io.NopCloser(io.MultiReader(rest, iotest.ErrReader(err)))
			return response, nil
		}
		response.Body = io.NopCloser(rest)
	}
	if err := t.Contract.Check(exchange); err != nil {
		t.Fault(err)
	}
	return response, nil
}

// read reads a body to its end and closes it.
func read(body io.ReadCloser) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	data, err := io.ReadAll(body)
	_ = body.Close() // The body was read already.
	return data, err
}
