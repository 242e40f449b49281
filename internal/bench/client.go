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

// client sends requests over connections that it keeps open. The same code drives the server
// and the ceilings, so that both figures include its cost. It is safe for concurrent use.
type client struct {
	http *http.Client
	base string
}

// newClient returns a client that keeps that many connections open.
func newClient(base string, connections int) *client {
	return &client{base: base, http: &http.Client{
		// The longest request is a claim, which waits for claimWait.
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

// close closes the idle connections.
func (c *client) close() { c.http.CloseIdleConnections() }

// post sends a JSON body, and decodes the response into answer unless that is nil.
func (c *client) post(ctx context.Context, path string, body, answer any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode the body of %s: %w", path, err)
	}
	return c.send(ctx, http.MethodPost, path, encoded, answer)
}

// send sends one request, and decodes the response into answer unless that is nil.
func (c *client) send(ctx context.Context, method, path string, body []byte, answer any) error {
	text, err := c.exchange(ctx, method, path, body)
	if err != nil || answer == nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s %s: decode the response: %w", method, path, err)
	}
	return nil
}

// exchange sends one request and returns the body of the response. The error is a
// [*StatusError] if the status is not 2xx.
func (c *client) exchange(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request to %s: %w", path, err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err // It names the method and the URL.
	}
	defer response.Body.Close()
	// Read to the end, so that the connection can be reused.
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: read the response: %w", method, path, err)
	}
	if response.StatusCode/100 != 2 {
		return nil, &StatusError{Method: method, Path: path, Status: response.StatusCode, Body: string(text)}
	}
	return text, nil
}

// StatusError is returned for an unexpected response. It ends the run, because a run in which
// requests fail measures nothing.
type StatusError struct {
	// Method and Path are those of the request.
	Method, Path string
	// Status is the HTTP status of the response.
	Status int
	// Body is the body of the response.
	Body string
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: the server answered %d: %.300s", e.Method, e.Path, e.Status, e.Body)
}
