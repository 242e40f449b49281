package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// maxStreams is how many streams a process keeps open.
const maxStreams = 1024

// lasting is a long-lived request, such as a stream.
type lasting struct {
	leave    context.CancelFunc
	recorder *httptest.ResponseRecorder
	answered chan struct{}
}

// over reports whether the request is answered in full.
func (l *lasting) over() bool {
	select {
	case <-l.answered:
		return true
	default:
		return false
	}
}

// crowd is a guarded harness with long-lived requests, in a synctest bubble. They end
// with the test.
type crowd struct {
	*guarded

	job      string // It never ends.
	requests sync.WaitGroup
}

// begin sends a request of that caller, and returns once it waits or is answered.
func (c *crowd) begin(t *testing.T, grants, target, body string, headers ...string) *lasting {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	l := &lasting{leave: leave, recorder: httptest.NewRecorder(), answered: make(chan struct{})}
	method, path := split(target)
	request := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	request.Header.Set("Authorization", "Bearer "+c.tokens[grants])
	request.Header.Set("Content-Type", "application/json")
	for _, line := range headers {
		name, value, _ := strings.Cut(line, ": ")
		request.Header.Set(name, value)
	}
	c.requests.Go(func() {
		defer close(l.answered)
		c.ServeHTTP(l.recorder, request)
	})
	synctest.Wait()
	return l
}

// gather runs the test with callers that follow jobs that never end, and wait for work that
// never comes.
func gather(t *testing.T, callers []string, test func(*testing.T, *crowd), configure ...func(*httpapi.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &crowd{guarded: newGuarded(t, callers, configure...)}
		c.job = c.submitted(t)
		test(t, c)
		c.Drain()
		c.requests.Wait()
	})
}

// follows sends a request for a stream.
func (c *crowd) follows(t *testing.T, grants string) *lasting {
	t.Helper()
	return c.begin(t, grants, "GET /v1/jobs/"+c.job+"/events", "", "Accept: text/event-stream")
}

// A reader may take half of the streams.
func TestOneReaderDoesNotKeepOthersFromStreams(t *testing.T) {
	t.Parallel()
	const greedy, other = "read:t", "read:* admin:*"
	gather(t, []string{greedy, other}, func(t *testing.T, c *crowd) {
		streams := make([]*lasting, maxStreams/2)
		for i := range streams {
			streams[i] = c.follows(t, greedy)
		}
		one := c.follows(t, greedy)
		if !one.over() || one.recorder.Code != http.StatusTooManyRequests {
			t.Errorf("a reader has more than half of the streams: %d", one.recorder.Code)
		}
		if l := c.follows(t, other); l.over() || l.recorder.Code != http.StatusOK {
			t.Errorf("another reader gets no stream: %d %s", l.recorder.Code, l.recorder.Body)
		}
		streams[0].leave()
		synctest.Wait()
		if again := c.follows(t, greedy); again.over() || again.recorder.Code != http.StatusOK {
			t.Errorf("a stream that has room is refused: %d", again.recorder.Code)
		}
	})
}

// claims sends a claim that waits for a minute, since there is no such work.
func (c *crowd) claims(t *testing.T, grants string) *lasting {
	t.Helper()
	return c.begin(t, grants, waits["work"].target, `{"owner":"o","services":["embed"],"request_id":"r","wait_seconds":60}`)
}

// atMostWaits is a configuration with few waits.
func atMostWaits(n int) func(*httpapi.Config) {
	return func(c *httpapi.Config) { c.MaxWaits = n }
}

// limited fails the test unless the request was refused because of its caller's share.
func limited(t *testing.T, l *lasting) {
	t.Helper()
	wantProblem(t, answer{Status: l.recorder.Code, Header: l.recorder.Header(), Body: l.recorder.Body.String()},
		apierror.RateLimited, "The caller already has its share of waiting requests.")
}

// A caller may have half of the waits.
func TestOneCallerDoesNotKeepOthersFromWaiting(t *testing.T) {
	t.Parallel()
	const a, b, c = "platform:t", "platform:*", "read:*"
	gather(t, []string{a, b, c}, func(t *testing.T, crowd *crowd) {
		for _, caller := range []string{a, b} {
			for range 2 {
				if l := crowd.claims(t, caller); l.over() {
					t.Errorf("it does not wait: %d %s", l.recorder.Code, l.recorder.Body)
				}
			}
			limited(t, crowd.claims(t, caller))
		}
		limited(t, crowd.begin(t, c, "GET /v1/jobs/"+crowd.job+"?wait=60s", ""))
		if l := crowd.begin(t, c, "GET /v1/jobs/"+crowd.job, ""); l.recorder.Code != http.StatusOK {
			t.Errorf("one that does not want to wait is answered %d", l.recorder.Code)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if l := crowd.begin(t, c, "GET /v1/jobs/"+crowd.job+"?wait=60s", ""); l.over() {
			t.Errorf("a stream that has room is refused: %d %s", l.recorder.Code, l.recorder.Body)
		}
	}, atMostWaits(4))
}
