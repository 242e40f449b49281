package console

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/internal/waittest"
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
	reads(t, opens(t, server, "/ui/services"), `10%\revent: end\r","20%`)
}

// applied does what console.js does with the data of an event.
func applied(t *testing.T, lines []string, data []byte) []string {
	t.Helper()
	var parts []json.RawMessage
	musttest.NoError(t, json.Unmarshal(data, &parts))
	var made []string
	for _, part := range parts {
		var line string
		if json.Unmarshal(part, &line) == nil {
			made = append(made, line)
			continue
		}
		var kept [2]int
		musttest.NoError(t, json.Unmarshal(part, &kept))
		made = append(made, lines[kept[0]:kept[1]]...)
	}
	return made
}

func TestRendering_SendsWhatChanged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after, want string }{
		"first":           {"", "a\n<b>", `["a","<b>"]`},
		"nothing":         {"a\nb\nc", "a\nb\nc", `[[0,3]]`},
		"one line":        {"a\nb\nc", "a\nB\nc", `[[0,1],"B",[2,3]]`},
		"lines are moved": {"a\nb\nc\nd", "c\nd\na\nb", `[[2,4],[0,2]]`},
		"equal lines":     {"x\na\nx\nb\nx\nc", "x\na\nx\nB\nx\nc", `[[4,5],[1,3],"B",[4,6]]`},
		"only a time":     {"<time x>1 s</time>\nb", "<time x>2 s</time>\nB", `[[0,1],"B"]`},
		"to the end":      {"a\nb", "b\nb\na\nnew", `[[1,2],[1,2],[0,1],"new"]`},
	} {
		var before *rendering
		var lines []string
		if test.before != "" {
			before = newRendering([]byte(test.before))
			lines = before.lines
		}
		after := newRendering([]byte(test.after))
		got := after.since(before)
		if strings.TrimSpace(string(got)) != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
		if made := newRendering([]byte(strings.Join(applied(t, lines, got), "\n"))); !slices.Equal(made.bare, after.bare) {
			t.Errorf("%s: the browser makes %q of it, want %q", name, made.lines, after.lines)
		}
	}
}

// wrapped is a writer as the API's handler passes it on: only Unwrap gives access to Flush and the
// other optional methods.
type wrapped struct{ inner http.ResponseWriter }

func (w wrapped) Header() http.Header            { return w.inner.Header() }
func (w wrapped) Write(part []byte) (int, error) { return w.inner.Write(part) }
func (w wrapped) WriteHeader(status int)         { w.inner.WriteHeader(status) }
func (w wrapped) Unwrap() http.ResponseWriter    { return w.inner }

// A quiet page changes each second only in the time of its figures. The test counts compressed bytes.
func TestLive_AQuietPageSendsLittle(t *testing.T) {
	t.Parallel()
	const most, watched = 2 << 10, 3 // bytes a second, and seconds
	answers := everything()
	overview := answers["GET /v1/admin/overview"].(api.Overview)
	answers["GET /v1/admin/overview"] = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		current := overview
		current.AsOf = api.NewTime(time.Now())
		answerJSON(w, current)
	})
	b := newBrowser(t, answers)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.console.ServeHTTP(wrapped{w}, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(b.ended) })
	counts := map[string]*atomic.Int64{}
	for _, p := range pages() {
		if !p.live {
			continue
		}
		target := strings.NewReplacer("{$}", "", "{service}", "ocr", "jobs/{id}", "jobs/j2", "{id}", "o").Replace(p.pattern)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+Path+target, nil)
		musttest.NoError(t, err)
		r.Header.Set("Accept", eventStream)
		r.Header.Set("Accept-Encoding", "gzip")
		response, err := server.Client().Do(r)
		musttest.NoError(t, err)
		t.Cleanup(func() { response.Body.Close() })
		if response.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s is not compressed", target)
		}
		count := &atomic.Int64{}
		counts[target] = count
		go func() {
			for part := make([]byte, 32<<10); ; {
				n, err := response.Body.Read(part)
				count.Add(int64(n))
				if err != nil {
					return
				}
			}
		}()
	}
	for target, count := range counts { // The compressor must flush each event.
		waittest.Until(t, "the first event of "+target, func() bool { return count.Load() > 0 })
	}
	time.Sleep(liveInterval / 2) // The rest of it may be under way.
	first := map[string]int64{}
	for target, count := range counts {
		first[target] = count.Load()
	}
	time.Sleep(watched * time.Second)
	for target, count := range counts {
		perSecond := (count.Load() - first[target]) / watched
		t.Logf("%-15q %6d bytes at first, then %4d a second", target, first[target], perSecond)
		if perSecond > most {
			t.Errorf("%q sends %d bytes a second while nothing happens", target, perSecond)
		}
	}
}

func TestLive_SurvivesAPageThatPanics(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	r := httptest.NewRequest(http.MethodGet, "/ui/", nil)
	if out, still, ok := b.console.renderLive(r, &page{show: func(*request) (view, error) { panic("broken") }}, newMemo(), true); ok || still || out != nil {
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

// A user can ask for any number of objects, whose answers may be large.
func TestMemo_AnswersAboutOneObjectGoWithTheirFeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := answersOf(runningJob(), ran(0, "extract", 1)...)
		maps.Copy(answers, blocked())
		answers["GET /v1/admin/operations/op1"] = api.Operation{OperationID: "op1"}
		b := newBrowser(t, answers)
		for _, target := range []string{"lines/l1", "lines/l1?page_token=1", "lines/l1?page_token=01", "operations/op1"} {
			b.get(t, Path+target)
		}
		r := httptest.NewRequest(http.MethodGet, Path+"jobs/j1", nil)
		r.Header.Set("Accept", eventStream)
		done := make(chan struct{})
		go func() {
			b.console.ServeHTTP(httptest.NewRecorder(), r)
			close(done)
		}()
		synctest.Wait()
		asked := len(b.requests())
		time.Sleep(liveRarely - liveInterval/2)
		synctest.Wait()
		if again := b.requests()[asked:]; len(again) > 0 {
			t.Errorf("a feed does not keep its answers: it asks %q again", again)
		}
		close(b.ended)
		<-done
		for key := range b.console.memo.kept {
			for _, object := range []string{"line", "results", "job"} {
				if strings.HasPrefix(key.question, object) {
					t.Errorf("%q is kept", key.question)
				}
			}
		}
	})
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
