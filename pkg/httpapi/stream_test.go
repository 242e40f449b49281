package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// follow opens a stream after that event, or from the start if it is empty.
func follow(ctx context.Context, t *testing.T, server *httptest.Server, job, last string) (http.Header, io.Reader) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v1/jobs/"+job+"/events", http.NoBody)
	musttest.NoError(t, err)
	request.Header.Set("Accept", "application/json;q=0.1, text/event-stream")
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	response, err := server.Client().Do(request)
	musttest.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response.Header, response.Body
}

// ids returns the event ids that a stream has sent.
func ids(stream string) []string {
	var found []string
	for line := range strings.Lines(stream) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			found = append(found, strings.TrimSpace(id))
		}
	}
	return found
}

// told returns the event ids of a job's history.
func (h *harness) told(t *testing.T, job string) []string {
	t.Helper()
	var found []string
	for _, event := range decoded[api.EventPage](t, h.given(t, "GET /v1/jobs/"+job+"/events", "")).Events {
		found = append(found, event.EventID)
	}
	return found
}

func TestAStreamShowsTheHistoryToItsEnd(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	job := h.controlled(t, ":cancel")
	all := h.told(t, job)
	server := listen(t, h)
	for last, want := range map[string][]string{"": all, all[0]: all[1:], all[len(all)-2]: all[len(all)-1:]} {
		header, body := follow(t.Context(), t, server, job, last)
		if got := header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("content type %q", got)
		}
		stream, err := io.ReadAll(body)
		musttest.NoError(t, err)
		if diff := cmp.Diff(want, ids(string(stream))); diff != "" {
			t.Errorf("after %q (-want +got):\n%s\n%s", last, diff, stream)
		}
		if !strings.Contains(string(stream), "event: job.cancelled\ndata: {") {
			t.Errorf("no event in\n%s", stream)
		}
	}
}

func TestAStreamThatCannotBeginIsAProblem(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	response := h.do(t, http.MethodGet, "/v1/jobs/"+noJob+"/events", "", "Accept: text/event-stream")
	wantProblem(t, response, apierror.JobNotFound, "There is no such job.")
	for _, last := range []string{"1-99", "99-0"} {
		response = h.do(t, http.MethodGet, "/v1/jobs/$job/events", "", "Accept: text/event-stream", "Last-Event-ID: "+last)
		wantProblem(t, response, apierror.InvalidEnvelope,
			"header Last-Event-ID does not name an event of this job: omit it to start with the first event.")
	}
	for _, last := range []string{"x", "0-1", "1--1", "1-0x", "1-0 1"} {
		response = h.do(t, http.MethodGet, "/v1/jobs/$job/events", "", "Accept: text/event-stream", "Last-Event-ID: "+last)
		wantProblem(t, response, apierror.InvalidEnvelope, "header Last-Event-ID is not the id of an event.")
	}
}

// A brief outage of the store does not end a stream.
func TestAStreamOutlivesAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		job := h.submitted(t)
		var others sync.WaitGroup
		others.Go(func() {
			time.Sleep(time.Second)
			h.store.fail(errors.New("away"))
			time.Sleep(time.Second)
			h.store.fail(nil)
			h.given(t, "POST /v1/jobs/"+job+":cancel", "")
		})
		stream := h.do(t, http.MethodGet, "/v1/jobs/"+job+"/events", "", "Accept: text/event-stream")
		others.Wait()
		if diff := cmp.Diff(h.told(t, job), ids(stream.Body)); diff != "" {
			t.Errorf("(-want +got):\n%s\n%s", diff, stream.Body)
		}
	})
}

func TestAStreamEndsWithTheServerAndWithItsClient(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*harness, context.CancelFunc){
		"drain":  func(h *harness, _ context.CancelFunc) { h.Drain() },
		"client": func(_ *harness, leave context.CancelFunc) { leave() },
	} {
		h := newHarness(t)
		server := listen(t, h)
		ctx, leave := context.WithCancel(t.Context())
		_, body := follow(ctx, t, server, h.submitted(t), "")
		if line, err := bufio.NewReader(body).ReadString('\n'); err != nil || !strings.HasPrefix(line, "id: ") {
			t.Errorf("%s: %q, %v", name, line, err)
		}
		end(h, leave)
		_, _ = io.ReadAll(body) // Returns, because the stream ends.
		leave()
		waittest.Until(t, name+" ends the stream", func() bool {
			return strings.Contains(h.do(t, http.MethodGet, "/metrics", "").Body, "lucius_http_requests_in_flight 1\n")
		})
		h.measures(t, `lucius_http_wait_duration_seconds_count{method="GET",route="/v1/jobs/{jobId}/events"} 1`)
	}
}

// Proxies cut silent streams, so a stream sends comments even while the store refuses calls
// or does not answer.
func TestAStreamIsNotSilentWhileTheStoreIsUnavailable(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(context.Context) error{
		"refuses":         func(context.Context) error { return errors.New("away") },
		"does not answer": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			job := h.submitted(t)
			go func() {
				time.Sleep(time.Millisecond)
				h.store.on(away)
				time.Sleep(time.Minute)
				h.Drain()
			}()
			response := h.do(t, http.MethodGet, "/v1/jobs/"+job+"/events", "", "Accept: text/event-stream")
			if got := strings.Count(response.Body, ": waiting\n\n"); got < 2 || got > 4 || len(ids(response.Body)) == 0 {
				t.Errorf("%s: there are %d comments in a minute:\n%s", name, got, response.Body)
			}
		})
	}
}

// patient is a writer that notes its deadlines.
type patient struct {
	*httptest.ResponseRecorder

	deadlines chan time.Time
}

func (p patient) SetWriteDeadline(at time.Time) error {
	select {
	case p.deadlines <- at:
	default: // The test has seen enough.
	}
	return nil
}

// A write deadline would reset an HTTP/2 stream while it has nothing to send.
func TestASilentStreamHasNoDeadline(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	w := patient{httptest.NewRecorder(), make(chan time.Time, 2)}
	ctx, end := context.WithCancel(t.Context())
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/jobs/"+h.controlled(t, ":pause")+"/events", http.NoBody)
	request.Header.Set("Accept", "text/event-stream")
	var group sync.WaitGroup
	group.Go(func() { h.ServeHTTP(w, request) })
	if first, second := <-w.deadlines, <-w.deadlines; first.IsZero() || !second.IsZero() {
		t.Errorf("the deadline of a write is %v, and of the silence after it %v", first, second)
	}
	end()
	group.Wait()
}
