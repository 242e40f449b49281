package console

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
)

// opens opens a stream of a page for a user who is signed in.
func opens(t *testing.T, server *httptest.Server, path string) *bufio.Scanner {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	musttest.NoError(t, err)
	r.Header.Set("Accept", eventStream)
	r.AddCookie(&http.Cookie{Name: cookieName, Value: "good"})
	response, err := server.Client().Do(r)
	musttest.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	return bufio.NewScanner(response.Body)
}

func TestLive_EndsForAUserWhoMaySeeNoMore(t *testing.T) {
	t.Parallel()
	for status, says := range map[int]string{
		http.StatusUnauthorized: "Your sign-in has ended.", http.StatusForbidden: "This takes a role.", http.StatusNotFound: "It is gone.",
	} {
		b := newBrowser(t, quiet())
		server := httptest.NewServer(b.console)
		t.Cleanup(server.Close)
		stream := opens(t, server, "/ui/")
		reads(t, stream, "All is well: ")
		b.set("GET /v1/admin/overview", refuse(status, says))
		reads(t, stream, says)
		reads(t, stream, "event: end")
		for stream.Scan() { // Until the server ends it.
		}
		close(b.ended)
	}
}

func TestLive_AReturnInATextEndsNoField(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/admin/overview": refuse(http.StatusNotFound, "10%\revent: end\r\n20%")})
	server := httptest.NewServer(b.console)
	t.Cleanup(server.Close)
	defer close(b.ended)
	stream := opens(t, server, "/ui/services")
	reads(t, stream, "10%")
	for _, want := range []string{"data: event: end", "data: 20%"} {
		if stream.Scan(); !strings.HasPrefix(stream.Text(), want) {
			t.Errorf("the next line is %q, want %q", stream.Text(), want)
		}
	}
}

func TestLive_SurvivesAPageThatPanics(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	r := httptest.NewRequest(http.MethodGet, "/ui/", nil)
	if out, still, ok := b.console.renderLive(r, &page{show: func(*request) (view, error) { panic("broken") }}, true); ok || still || out != nil {
		t.Errorf("a page that panics returns %q, %t, %t", out, still, ok)
	}
}

// patient is a writer that notes its deadline.
type patient struct {
	*httptest.ResponseRecorder

	deadline chan time.Time
}

func (p *patient) SetWriteDeadline(at time.Time) error {
	select {
	case p.deadline <- at:
	default: // The test has seen enough.
	}
	return nil
}

func TestLive_ASilentStreamHasNoDeadline(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	w := &patient{ResponseRecorder: httptest.NewRecorder(), deadline: make(chan time.Time, 2)}
	r := httptest.NewRequest(http.MethodGet, "/ui/", nil)
	r.Header.Set("Accept", eventStream)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.console.ServeHTTP(w, r)
	}()
	if first, second := <-w.deadline, <-w.deadline; first.IsZero() || !second.IsZero() {
		t.Errorf("the deadline of a write is %v, and of the silence after it %v", first, second)
	}
	close(b.ended)
	<-done
}

func TestLive_IsLimited(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	live := &page{show: func(*request) (view, error) { return view{}, errNoPage }}
	r := &request{Request: httptest.NewRequest(http.MethodGet, "/ui/", nil)}
	opened := map[feedKey]*feed{}
	join := func(caller string, n int) *feed {
		key := feedKey{caller: caller, url: fmt.Sprint("/ui/?", n)}
		f := b.console.join(key, r, live)
		if f != nil && opened[key] == nil {
			opened[key] = f
		} else if f != nil {
			b.console.leave(key, f)
		}
		return f
	}
	for n := range maxCallerFeeds {
		if join("greedy", n) == nil {
			t.Fatalf("page %d of a caller is refused", n)
		}
	}
	if join("greedy", maxCallerFeeds) != nil {
		t.Error("a caller has more pages than its share")
	}
	if join("greedy", 0) == nil || join("modest", 0) == nil {
		t.Error("a page that is live already, or another caller's, is refused")
	}
	for caller := 0; len(opened) < maxFeeds; caller++ {
		join(strings.Repeat("x", 1+caller/maxCallerFeeds), caller)
	}
	if join("late", 0) != nil {
		t.Error("the process renders more pages than its limit")
	}
	for key, f := range opened {
		b.console.leave(key, f)
	}
	if open := len(b.console.feeds.open); open != 0 {
		t.Errorf("%d feeds stay open", open)
	}
}

// While the API does not answer, the page stays as it is, and its viewers are told since
// when.
func TestLive_SaysThatItIsNotCurrent(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	server := httptest.NewServer(b.console)
	t.Cleanup(server.Close)
	defer close(b.ended)
	stream := opens(t, server, "/ui/")
	reads(t, stream, "All is well: ")
	b.set("GET /v1/admin/overview", refuse(http.StatusServiceUnavailable, "The store does not answer."))
	reads(t, stream, "event: stale")
	reads(t, stream, "data: 2026-01-27T10:02:30Z")
	late := opens(t, server, "/ui/") // A new viewer gets the last rendering as well.
	reads(t, late, "All is well: ")
	reads(t, late, "data: 2026-01-27T10:02:30Z")
	b.set("GET /v1/admin/overview", quiet()["GET /v1/admin/overview"])
	for _, viewer := range []*bufio.Scanner{stream, late} {
		reads(t, viewer, "event: stale")
		if !viewer.Scan() || viewer.Text() != "data: " {
			t.Errorf("a page that is current again sends %q", viewer.Text())
		}
	}
}
