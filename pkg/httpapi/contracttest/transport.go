package contracttest

import (
	"bytes"
	"io"
	"mime"
	"net/http"
)

// Transport is a [http.RoundTripper] that holds each exchange against the
// contract. It is safe for concurrent use.
type Transport struct {
	// Base carries the requests. Required.
	Base http.RoundTripper
	// Contract is what exchanges are held against. Required.
	Contract *Contract
	// Fault is told what of an exchange is not as documented, by the goroutine of
	// the request. Required.
	Fault func(error)
}

// RoundTrip implements [http.RoundTripper]. The body of a request is read to its
// end before it is sent, that of a response before it is returned. Of a stream of
// events nothing is read: its status and header alone are checked. A response
// that breaks off is returned as far as it came, and is not checked.
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
	whole := true
	if !isStream(response) {
		exchange.Received, whole = receive(response)
	}
	if !whole {
		return response, nil
	}
	if err := t.Contract.Check(exchange); err != nil {
		t.Fault(err)
	}
	return response, nil
}

// receive reads the body of a response, which may be read again, with what it
// broke off with if it is not whole.
func receive(response *http.Response) (data []byte, whole bool) {
	data, err := read(response.Body)
	var rest io.Reader = bytes.NewReader(data)
	if err != nil {
		rest = io.MultiReader(rest, broken{err})
	}
	response.Body = io.NopCloser(rest)
	return data, err == nil
}

// read reads a body to its end and closes it.
func read(body io.ReadCloser) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	data, err := io.ReadAll(body)
	_ = body.Close() // It was read as far as it goes.
	return data, err
}

// isStream reports whether the response goes on until one side ends it.
func isStream(response *http.Response) bool {
	mediaType, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && mediaType == "text/event-stream"
}

// broken is the rest of a body that broke off.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }
