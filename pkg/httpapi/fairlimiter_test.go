package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
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

// A reader may take all streams that other callers do not want, and no more.
func TestOneReaderDoesNotKeepOthersFromStreams(t *testing.T) {
	t.Parallel()
	const greedy, other = "read:t", "read:* admin:*"
	gather(t, []string{greedy, other}, func(t *testing.T, c *crowd) {
		streams := make([]*lasting, maxStreams)
		for i := range streams {
			streams[i] = c.follows(t, greedy)
		}
		one := c.follows(t, greedy)
		if !one.over() || one.recorder.Code != http.StatusTooManyRequests {
			t.Errorf("a reader has more streams than there are: %d", one.recorder.Code)
		}
		newcomer := c.follows(t, other)
		if newcomer.over() || newcomer.recorder.Code != http.StatusOK {
			t.Errorf("another reader gets no stream: %d %s", newcomer.recorder.Code, newcomer.recorder.Body)
		}
		if !streams[0].over() || streams[0].recorder.Code != http.StatusOK || streams[1].over() {
			t.Error("another stream than the oldest is preempted, or of more than that")
		}
		if again := c.follows(t, greedy); again.recorder.Code != http.StatusTooManyRequests {
			t.Errorf("the reader takes the slot back: %d", again.recorder.Code)
		}
		newcomer.leave()
		synctest.Wait()
		if again := c.follows(t, greedy); again.over() || again.recorder.Code != http.StatusOK {
			t.Errorf("a free slot is not given: %d", again.recorder.Code)
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

func TestCallersShareTheWaitsFairly(t *testing.T) {
	t.Parallel()
	const a, b, c = "platform:t", "platform:*", "read:*"
	gather(t, []string{a, b, c}, func(t *testing.T, crowd *crowd) {
		var of []*lasting
		for range 4 {
			of = append(of, crowd.claims(t, a))
		}
		limited(t, crowd.claims(t, a))
		for range 2 {
			if l := crowd.claims(t, b); l.over() {
				t.Errorf("it does not wait: %d %s", l.recorder.Code, l.recorder.Body)
			}
		}
		limited(t, crowd.claims(t, b)) // Both hold the same share.
		for i, want := range []bool{true, true, false, false} {
			if of[i].over() != want || want && of[i].recorder.Body.String() != `{"items":[]}`+"\n" {
				t.Errorf("wait %d is over: %t, %d %s", i, of[i].over(), of[i].recorder.Code, of[i].recorder.Body)
			}
		}
		if l := crowd.begin(t, c, "GET /v1/jobs/"+crowd.job+"?wait=60s", ""); l.over() {
			t.Errorf("a reader does not wait: %d %s", l.recorder.Code, l.recorder.Body)
		}
		limited(t, crowd.begin(t, c, "GET /v1/jobs/"+crowd.job+"?wait=60s", ""))
		if l := crowd.begin(t, c, "GET /v1/jobs/"+crowd.job, ""); l.recorder.Code != http.StatusOK {
			t.Errorf("one that does not want to wait is answered %d", l.recorder.Code)
		}
	}, atMostWaits(4))
}

// There are never more holders than slots, even if the preempted request ends slowly.
func TestASlotIsTakenOnceItIsReleased(t *testing.T) {
	t.Parallel()
	const a, b = "read:t", "read:*"
	gather(t, []string{a, b}, func(t *testing.T, c *crowd) {
		waits := "GET /v1/jobs/" + c.job + "?wait=60s"
		c.begin(t, a, waits, "")
		c.begin(t, a, waits, "")
		var newcomers atomic.Int64
		c.store.on(func(ctx context.Context) error {
			if auth.CallerOf(ctx).Name() == "caller-b" {
				newcomers.Add(1)
				return nil
			}
			time.Sleep(time.Second)
			return nil
		})
		newcomer := c.begin(t, b, waits, "")
		if newcomers.Load() != 0 || newcomer.over() {
			t.Error("the newcomer does not wait for the slot")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if newcomers.Load() == 0 || newcomer.over() {
			t.Errorf("the newcomer does not get the slot: %d", newcomer.recorder.Code)
		}
	}, atMostWaits(2))
}
