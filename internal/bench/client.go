package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// client makes requests over kept connections. The server and the ceiling are
// driven by this same code, so that its cost is in both figures. It is safe for
// concurrent use.
type client struct {
	http *http.Client
	base string
}

// newClient returns a client that keeps that many connections open.
func newClient(base string, connections int) *client {
	return &client{base: base, http: &http.Client{
		// No request takes longer: a claim waits for claimWait.
		Timeout: time.Minute,
		Transport: &http.Transport{
			MaxIdleConnsPerHost: connections,
			DisableCompression:  true,
			IdleConnTimeout:     time.Minute,
			WriteBufferSize:     16 << 10,
			ReadBufferSize:      16 << 10,
		},
	}}
}

// close drops the kept connections.
func (c *client) close() { c.http.CloseIdleConnections() }

// post sends a JSON body and decodes the answer into the value, unless it is nil.
func (c *client) post(ctx context.Context, path string, body, answer any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the body of %s: %w", path, err)
	}
	return c.send(ctx, http.MethodPost, path, encoded, answer)
}

// send makes one request and decodes the answer into the value, unless it is nil.
func (c *client) send(ctx context.Context, method, path string, body []byte, answer any) error {
	text, err := c.exchange(ctx, method, path, body)
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: decode the answer: %w", method, path, err)
	}
	return nil
}

// exchange makes one request and returns the answer's body. An answer that is not 2xx is a
// [*StatusError].
func (c *client) exchange(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request of %s: %w", path, err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err // It names the method and the URL.
	}
	defer response.Body.Close()
	// Read to the end, or the connection could not be kept.
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: read the answer: %w", method, path, err)
	}
	if response.StatusCode/100 != 2 {
		return nil, &StatusError{Method: method, Path: path, Status: response.StatusCode, Body: string(text)}
	}
	return text, nil
}

// StatusError is an unexpected answer of the server: a run in which requests fail
// measures nothing.
type StatusError struct {
	// Method and Path are those of the request.
	Method, Path string
	// Status is the HTTP status of the answer.
	Status int
	// Body is the answer's body, as it came.
	Body string
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: the server answered %d: %.300s", e.Method, e.Path, e.Status, e.Body)
}
