package httpapi_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/httpapi"
)

// slowClient is a client that sends a body, or reads an answer, a byte now and then: until its
// deadline. It is the writer of its request.
type slowClient struct {
	*httptest.ResponseRecorder

	reads bool // a byte of the answer now and then

	mu          sync.Mutex
	read, write time.Time // deadlines
}

func (c *slowClient) SetReadDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = at
	return nil
}

func (c *slowClient) SetWriteDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write = at
	return nil
}

// late reports whether a deadline has passed.
func (c *slowClient) late(deadline *time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !deadline.IsZero() && !time.Now().Before(*deadline)
}

// Read sends a byte of the body each second.
func (c *slowClient) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	if c.late(&c.read) {
		return 0, os.ErrDeadlineExceeded
	}
	p[0] = ' '
	return 1, nil
}

func (c *slowClient) Write(p []byte) (int, error) {
	for seconds := 0; c.reads && seconds < 3600; seconds++ {
		time.Sleep(time.Second)
		if c.late(&c.write) {
			return 0, os.ErrDeadlineExceeded
		}
	}
	return c.ResponseRecorder.Write(p)
}

func TestAServerThatDrainsWaitsSecondsForSlowClients(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		target string
		reads  bool
		before bool // the drain
	}{
		"a body":                         {target: "POST /v1/commands"},
		"a body of the console":          {target: "POST /ui/sign-in"},
		"an answer":                      {target: "GET /docs", reads: true},
		"an answer that begins later on": {target: "GET /docs", reads: true, before: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, func(c *httpapi.Config) {
					c.BodyTimeout = time.Hour
					c.Console = func(http.Handler, <-chan struct{}) (http.Handler, error) {
						return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.ReadAll(r.Body) }), nil
					}
				})
				client := &slowClient{ResponseRecorder: httptest.NewRecorder(), reads: test.reads}
				r := requestTo(t, test.target)
				if !test.reads {
					r.Body, r.ContentLength = io.NopCloser(client), 1000
					r.Header.Set("Content-Type", "application/json")
				}
				if test.before {
					h.Drain()
				}
				ended := make(chan time.Time, 1)
				go func() {
					h.ServeHTTP(client, r)
					ended <- time.Now()
				}()
				time.Sleep(time.Minute / 10)
				drained := time.Now()
				if test.before {
					drained = drained.Add(-time.Minute / 10)
				}
				h.Drain()
				if took := (<-ended).Sub(drained); took > 7*time.Second {
					t.Errorf("the request ended %s after the drain", took)
				}
			})
		})
	}
}

// A body that has arrived has no deadline, even if the server drains: its request may wait.
func TestABodyThatHasArrivedHasNoDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := &slowClient{ResponseRecorder: httptest.NewRecorder()}
		var h *harness
		h = newHarness(t, func(c *httpapi.Config) {
			c.Console = func(http.Handler, <-chan struct{}) (http.Handler, error) {
				return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body)
					h.Drain()
				}), nil
			}
		})
		r := requestTo(t, "POST /ui/sign-in")
		r.Body, r.ContentLength = io.NopCloser(io.LimitReader(client, 3)), 3
		h.ServeHTTP(client, r)
		if !client.read.IsZero() {
			t.Errorf("reads end at %s", client.read)
		}
	})
}

// What a handler leaves of a body is read for a moment only, since the answer waits for that.
func TestTheRestOfABodyIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		client := &slowClient{ResponseRecorder: httptest.NewRecorder()}
		r := requestTo(t, "GET /healthz")
		r.Body, r.ContentLength = io.NopCloser(client), 1000
		h.ServeHTTP(client, r)
		if left := time.Until(client.read); left != 2*time.Second {
			t.Errorf("the rest may take %s", left)
		}
	})
}

// requestTo returns a request without a body.
func requestTo(t *testing.T, target string) *http.Request {
	t.Helper()
	method, path, _ := strings.Cut(target, " ")
	return httptest.NewRequestWithContext(t.Context(), method, path, nil)
}
