package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/problem"
)

// refuse is a hook that refuses the submission of that body.
func refuse(body string, err error) func(context.Context, call, wait) error {
	return func(_ context.Context, c call, _ wait) error {
		if submission, ok := c.Request.(httpapi.Submission); ok && string(submission.Body) == body {
			return err
		}
		return nil
	}
}

// follow opens a stream, behind that event unless it is empty.
func follow(ctx context.Context, t *testing.T, server *httptest.Server, last string) (http.Header, io.Reader) {
	t.Helper()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/v1/jobs/j1/events", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json;q=0.1, text/event-stream")
	if last != "" {
		request.Header.Set("Last-Event-ID", last)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response.Header, response.Body
}

// ids are the ids in what a stream has sent.
func ids(stream string) []string {
	var found []string
	for line := range strings.Lines(stream) {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			found = append(found, strings.TrimSpace(id))
		}
	}
	return found
}

func TestAStreamShowsTheHistoryToItsEnd(t *testing.T) {
	t.Parallel()
	for last, want := range map[string][]string{"": {"1-0", "2-0", "3-0"}, "1-0": {"2-0", "3-0"}} {
		server := listen(t, newHarness(t))
		header, body := follow(t.Context(), t, server, last)
		if got := header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("content type %q", got)
		}
		stream, err := io.ReadAll(body)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, ids(string(stream))); diff != "" {
			t.Errorf("behind %q (-want +got):\n%s\n%s", last, diff, stream)
		}
		if !strings.Contains(string(stream), "event: step.in_progress\ndata: {") {
			t.Errorf("no event in\n%s", stream)
		}
	}
}

func TestAStreamThatCannotBeginIsAProblem(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.useCases.err = &problem.Error{Code: problem.JobNotFound, Detail: "There is no such job."}
	response := h.do(t, http.MethodGet, "/v1/jobs/j1/events", "", "Accept: text/event-stream")
	wantProblem(t, response, problem.JobNotFound, "There is no such job.")
}

// A store that is away for a moment does not end a stream.
func TestAStreamOutlivesAnError(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	n := 0
	h.useCases.hook = func(context.Context, call, wait) error {
		if n++; n == 2 {
			return errors.New("away")
		}
		return nil
	}
	server := listen(t, h)
	_, body := follow(t.Context(), t, server, "")
	stream, err := io.ReadAll(body)
	if err != nil || !slices.Equal(ids(string(stream)), []string{"1-0", "2-0", "3-0"}) {
		t.Errorf("%v\n%s", err, stream)
	}
}

func TestAStreamEndsWithTheServerAndWithItsClient(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*harness, context.CancelFunc){
		"drain":  func(h *harness, _ context.CancelFunc) { h.Drain() },
		"client": func(_ *harness, leave context.CancelFunc) { leave() },
	} {
		h := newHarness(t)
		h.useCases.empty = true
		server := listen(t, h)
		ctx, leave := context.WithCancel(t.Context())
		_, body := follow(ctx, t, server, "")
		if line, err := bufio.NewReader(body).ReadString('\n'); err != nil || line != ": waiting\n" {
			t.Errorf("%s: %q, %v", name, line, err)
		}
		end(h, leave)
		_, _ = io.ReadAll(body) // Returns, because the stream ends.
		leave()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if strings.Contains(h.do(t, http.MethodGet, "/metrics", "").Body, "lucius_http_requests_in_flight 1\n") {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the stream goes on", name)
			}
		}
	}
}

// Proxies cut streams that are silent for long. So one says that it is alive also
// while the store refuses, and while it does not answer at all.
func TestAStreamIsNotSilentWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(context.Context) error{
		"refuses":         func(context.Context) error { return errors.New("away") },
		"does not answer": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			n := 0
			h.useCases.hook = func(ctx context.Context, _ call, _ wait) error {
				if n++; n == 1 {
					return nil
				}
				return away(ctx)
			}
			go func() {
				time.Sleep(time.Minute)
				h.Drain()
			}()
			response := h.do(t, http.MethodGet, "/v1/jobs/j1/events", "", "Accept: text/event-stream")
			if got := strings.Count(response.Body, ": waiting\n\n"); got < 2 || got > 4 || len(ids(response.Body)) != 1 {
				t.Errorf("%s: there are %d comments in a minute:\n%s", name, got, response.Body)
			}
		})
	}
}
