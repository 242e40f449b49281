package console

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
	"github.com/lucius-project/lucius/internal/musttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is the time of these tests.
var now = time.Date(2026, 1, 27, 10, 2, 30, 0, time.UTC)

// scripted is an API that answers each request, such as "GET /v1/jobs", with a value, a
// refusal or a handler. It knows the callers "ops-1", by the token "good" or without one, who may do
// all, and "reader" and "bound", who may read, and operate only for tenant_a, and "many".
type scripted struct {
	mu      sync.Mutex
	answers map[string]any
	asked   []string // method, path and query of each request, with its body
	keys    []string // the idempotency keys of requests
	token   bool     // A request without a token is refused.
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body json.RawMessage
	_ = json.NewDecoder(r.Body).Decode(&body) // It may be empty.
	s.asked = append(s.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)))
	if key := r.Header.Get("Idempotency-Key"); key != "" {
		s.keys = append(s.keys, key)
	}
	who := map[string]*api.Identity{
		"":              {Name: "ops-1", Origin: "local", Grants: grants("*", "submit", "read", "platform", "admin")},
		"Bearer good":   {Name: "ops-1", Origin: "token", Grants: grants("*", "submit", "read", "platform", "admin")},
		"Bearer reader": {Name: "reader", Origin: "token", Grants: grants("*", "read")},
		"Bearer many":   {Name: "many", Origin: "token", Grants: []api.Grant{{Role: api.GrantRoleRead, Tenants: manyTenants}}},
		"Bearer bound":  {Name: "bound", Origin: "token", Grants: grants("tenant_a", "submit", "read", "admin")},
	}[r.Header.Get("Authorization")]
	if who == nil || s.token && who.Origin == "local" {
		answerJSON(w, refuse(http.StatusUnauthorized, "The credential is not valid."))
		return
	}
	if r.URL.Path == "/v1/whoami" {
		answerJSON(w, who)
		return
	}
	value, known := s.answers[r.Method+" "+r.URL.Path]
	if handler, ok := value.(http.HandlerFunc); ok {
		s.mu.Unlock()
		defer s.mu.Lock()
		handler(w, r)
		return
	}
	if !known {
		value = refuse(http.StatusNotFound, "There is nothing at this path.")
	}
	answerJSON(w, value)
}

// manyTenants are those that the caller "many" may read.
var manyTenants = strings.Fields("t00 t01 t02 t03 t04 t05 t06 t07 t08 t09 t10 t11")

func grants(tenant string, roles ...api.GrantRole) (all []api.Grant) {
	for _, role := range roles {
		all = append(all, api.Grant{Role: role, Tenants: []string{tenant}})
	}
	return all
}

func refuse(status int, detail string) *refusal {
	return &refusal{Status: status, Problem: api.Problem{Title: http.StatusText(status), Detail: detail}}
}

func answerJSON(w http.ResponseWriter, value any) {
	if refused, ok := value.(*refusal); ok {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(refused.Status)
		value = refused.Problem
	} else {
		w.Header().Set("Content-Type", "application/json")
	}
	_ = json.NewEncoder(w).Encode(value)
}

// set changes what a request is answered with.
func (s *scripted) set(request string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[request] = value
}

// ofEveryPage are the requests for what every page shows: its user, and how much needs
// attention.
var ofEveryPage = map[string]bool{
	"GET /v1/whoami": true, "GET /readyz": true,
	"GET /v1/admin/overview?minutes=60": true, "GET /v1/admin/services?minutes=60": true,
	"GET /v1/admin/limits": true, "GET /v1/admin/pauses": true, "GET /v1/admin/marks": true, "GET /v1/admin/failures": true, "GET /v1/admin/webhooks?limit=100": true,
	"GET /v1/admin/failures?tenant_id=tenant_a": true, "GET /v1/admin/webhooks?tenant_id=tenant_a&limit=100": true,
	"GET /v1/schedules:lost?limit=100": true, "GET /v1/schedules:lost?tenant_id=tenant_a&limit=100": true,
	"GET /v1/lines?state=blocked&limit=100": true, "GET /v1/lines?tenant_id=tenant_a&state=blocked&limit=100": true,
}

// requests returns the requests that were sent so far, but those of every page, and those for the
// names that fields offer.
func (s *scripted) requests() (asked []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.asked {
		if !ofEveryPage[one] && one != "GET /v1/protocols" {
			asked = append(asked, one)
		}
	}
	return asked
}

// browser is a console on a scripted API, and who looks at it.
type browser struct {
	*scripted

	console *Console
	token   string
	ended   chan struct{}
}

// newBrowser returns a console on an API that answers like this.
func newBrowser(t *testing.T, answers map[string]any) *browser {
	t.Helper()
	b := &browser{scripted: &scripted{answers: answers}, ended: make(chan struct{})}
	if answers == nil {
		b.answers = map[string]any{}
	}
	if b.answers["GET /v1/admin/limits"] == nil {
		b.answers["GET /v1/admin/limits"] = api.StartLimitList{}
	}
	b.console = musttest.Make(t, New, Config{
		API: b.scripted, Ended: b.ended, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Now: func() time.Time { return now },
	})
	return b
}

// send sends a request with the token, a form if it is not nil, and these headers.
func (b *browser) send(method, target string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(form.Encode()))
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if b.token != "" {
		r.AddCookie(&http.Cookie{Name: cookieName, Value: b.token})
	}
	w := httptest.NewRecorder()
	b.console.ServeHTTP(w, r)
	return w
}

// sendsForm sends the form of a dialog, as htmx does.
func (b *browser) sendsForm(name string, form url.Values) *httptest.ResponseRecorder {
	return b.send(http.MethodPost, "/ui/do/"+name, form, "HX-Request", "true", "HX-Target", "dialog")
}

// get returns a page, which must be there.
func (b *browser) get(t *testing.T, target string) string {
	t.Helper()
	w := b.send(http.MethodGet, target, nil)
	if w.Code != http.StatusOK {
		t.Fatalf("%s answers %d: %s", target, w.Code, w.Body)
	}
	return w.Body.String()
}

// has fails unless the page has all these texts.
func has(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("the page has no %q:\n%s", text, page)
		}
	}
}

// hasNot fails if the page has one of these texts.
func hasNot(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(page, text) {
			t.Errorf("the page has %q:\n%s", text, page)
		}
	}
}

// quiet is what the API answers if there is nothing.
func quiet() map[string]any {
	return map[string]any{
		"GET /v1/admin/overview": api.Overview{Bus: api.BusQueue, Exact: true, AsOf: api.NewTime(now)},
		"GET /v1/admin/services": api.ServiceList{Exact: true, AsOf: api.NewTime(now), Services: []api.Service{}},
		"GET /v1/admin/failures": api.FailureList{},
		"GET /v1/admin/webhooks": api.WebhookPage{},
		"GET /v1/jobs":           api.JobPage{},
		"GET /v1/lines":          api.LinePage{},
		"GET /v1/schedules:lost": api.ScheduleLossPage{},
		"GET /v1/admin/pauses":   api.PauseList{},
		"GET /v1/admin/workers":  api.WorkerList{Bus: api.BusQueue},
		"GET /v1/admin/marks":    api.MarkList{},

		"GET /v1/admin/operations": api.OperationPage{},
		"GET /v1/protocols":        api.ProtocolList{},
		"GET /readyz":              api.Readiness{Status: "ready"},
	}
}

func TestConsole_FramesEachPage(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	w := b.send(http.MethodGet, "/ui/", nil)
	has(t, w.Body.String(), "<title>Attention · Lucius</title>", "All is well: ", "ops-1", `aria-current="page"`)
	if policy := w.Header().Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q", policy)
	}
	if got := w.Header().Get("Cache-Control"); got != "no-store" {
		t.Errorf("browsers may keep the page: %q", got)
	}
	if w := b.send(http.MethodGet, "/ui/nowhere", nil); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "no such page") {
		t.Errorf("a path without a page answers %d: %s", w.Code, w.Body)
	}
}

func TestConsole_SaysWhyThereIsNoPage(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"GET /v1/admin/overview": refuse(http.StatusForbidden, "This takes <b>more</b>.")})
	w := b.send(http.MethodGet, "/ui/", nil)
	if w.Code != http.StatusForbidden {
		t.Errorf("the status is %d", w.Code)
	}
	has(t, w.Body.String(), "This takes &lt;b&gt;more&lt;/b&gt;.", "You are ops-1")
}

func TestConsole_SignsInAndOut(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	b.scripted.token = true
	w := b.send(http.MethodGet, "/ui/?x=1", nil)
	if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "/ui/sign-in?next=%2Fui%2F%3Fx%3D1" {
		t.Fatalf("a stranger is answered %d, sent to %q", w.Code, to)
	}
	for given, says := range map[string]string{"": "Enter a token.", "bad": "No caller has this token.", strings.Repeat("x", 5000): "at most 3,800"} {
		w := b.send(http.MethodPost, "/ui/sign-in", url.Values{"token": {given}})
		if w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), says) || w.Header().Get("Set-Cookie") != "" {
			t.Errorf("the token %.10q is answered %d: %s", given, w.Code, w.Body)
		}
	}
	w = b.send(http.MethodPost, "/ui/sign-in", url.Values{"token": {" good "}, "next": {"/ui/?x=1"}})
	if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "/ui/?x=1" {
		t.Fatalf("the sign-in is answered %d, sent to %q", w.Code, to)
	}
	cookie := w.Result().Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode || cookie.Path != "/ui/" || cookie.Value != "good" {
		t.Errorf("the cookie is %+v", cookie)
	}
	b.token = cookie.Value
	has(t, b.get(t, "/ui/"), "Sign out")
	hasNot(t, b.get(t, "/ui/"), "good")
	if w := b.send(http.MethodPost, "/ui/sign-out", nil); w.Result().Cookies()[0].MaxAge >= 0 {
		t.Errorf("the cookie stays: %+v", w.Result().Cookies()[0])
	}
	b.token = "revoked"
	if w := b.send(http.MethodGet, "/ui/", nil); w.Code != http.StatusSeeOther || w.Result().Cookies()[0].MaxAge >= 0 {
		t.Errorf("a revoked token is answered %d", w.Code)
	}
}

func TestConsole_SendsOnlyToItself(t *testing.T) {
	t.Parallel()
	for next, want := range map[string]string{
		"": "/ui/", "/ui/jobs?q=1": "/ui/jobs?q=1", "//evil.example/ui/": "/ui/", "https://evil.example/ui/": "/ui/",
		`/ui/\evil`: "/ui/", "/v1/jobs": "/ui/", "javascript:alert(1)": "/ui/",
		"/ui/../v1/jobs": "/ui/", "/ui/jobs/..": "/ui/", "/ui/%2e%2e/v1/jobs": "/ui/", "/ui/jobs/.%2E/../v1": "/ui/", "/ui/%2e%2e%2fv1": "/ui/",
		"/ui//evil.example/": "/ui/", "/ui/..//evil.example/": "/ui/", "/ui/%2f%2fevil.example": "/ui/", "/ui/%5cevil": "/ui/",
		"/ui/./jobs": "/ui/", "/uix": "/ui/", "///evil.example/ui/": "/ui/", "/%2fevil.example/ui/": "/ui/", "\t//evil.example": "/ui/",
		"/ui/": "/ui/", "/ui/services/ocr%20v2": "/ui/services/ocr%20v2", "/ui/do/dispatch-pause?pause=a//b": "/ui/do/dispatch-pause?pause=a//b",
	} {
		if got := local(next); got != want {
			t.Errorf("%q leads to %q", next, got)
		}
	}
}

func TestConsole_RefusesFormsOfOtherSites(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/jobs/j1:cancel": api.Job{JobID: "j1"}})
	r := httptest.NewRequest(http.MethodPost, "/ui/do/job-cancel?job=j1", nil)
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	b.console.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden || len(b.requests()) > 0 {
		t.Errorf("it is answered %d after %q", w.Code, b.requests())
	}
}

func TestAction_AsksAndThenDoes(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, map[string]any{"POST /v1/jobs/j1:cancel": api.Job{JobID: "j1"}})
	has(t, b.get(t, "/ui/do/job-cancel?job=j1"), "Cancel job j1?", "lucius jobs cancel j1", `name="job" value="j1"`)
	w := b.send(http.MethodPost, "/ui/do/job-cancel", url.Values{"job": {"j1"}, "reason": {" too late "}})
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/ui/jobs/j1" {
		t.Errorf("it is answered %d, sent to %q", w.Code, w.Header().Get("Location"))
	}
	if asked := b.requests(); len(asked) != 1 || asked[0] != `POST /v1/jobs/j1:cancel {"reason":"too late"}` {
		t.Errorf("the API was asked %q", asked)
	}
	b.set("POST /v1/jobs/j1:cancel", refuse(http.StatusConflict, "The job has ended."))
	w = b.send(http.MethodPost, "/ui/do/job-cancel", url.Values{"job": {"j1"}, "reason": {"<i>"}})
	has(t, w.Body.String(), "The job has ended.", `value="&lt;i&gt;"`)
}

func TestLive_SendsWhatChangesOnceToAll(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	server := httptest.NewServer(b.console)
	defer server.Close()
	var streams []*bufio.Scanner
	for range 2 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/ui/", nil)
		musttest.NoError(t, err)
		r.Header.Set("Accept", eventStream)
		response, err := server.Client().Do(r)
		musttest.NoError(t, err)
		defer response.Body.Close()
		streams = append(streams, bufio.NewScanner(response.Body))
	}
	for _, stream := range streams {
		reads(t, stream, "All is well: ")
	}
	b.set("GET /v1/admin/services", api.ServiceList{Services: []api.Service{{
		Service: "ocr", StepType: "OCR", Backlog: 3000, OldestWaitingAt: api.NewTime(now.Add(-2 * time.Minute)), OldestWaitingSeconds: 120,
	}}})
	for _, stream := range streams {
		reads(t, stream, "3,000 directives wait, and no worker has polled")
	}
	if open := len(b.console.feeds.open); open != 1 {
		t.Errorf("%d feeds are open for one page", open)
	}
	close(b.ended)
	for _, stream := range streams {
		for stream.Scan() { // Until the server ends it.
		}
	}
}

// reads reads the stream up to a line with the text.
func reads(t *testing.T, stream *bufio.Scanner, text string) {
	t.Helper()
	for stream.Scan() {
		if strings.Contains(stream.Text(), text) {
			return
		}
	}
	t.Fatalf("the stream ends without %q", text)
}

func TestInProcess_EndsWithItsReader(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		for r.Context().Err() == nil {
			if _, err := fmt.Fprintln(w, "more"); err != nil {
				return
			}
		}
	})
	from := httptest.NewRequest(http.MethodGet, "/ui/", nil)
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	response, err := inProcess{handler, from}.RoundTrip(r)
	musttest.NoError(t, err)
	response.Body.Close()
	<-ended
}

func TestInProcess_AnswersAPanic(t *testing.T) {
	t.Parallel()
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	from := httptest.NewRequest(http.MethodGet, "/ui/", nil)
	response, err := inProcess{handler, from}.RoundTrip(httptest.NewRequest(http.MethodGet, "http://example.com/", nil))
	if err != nil || response.StatusCode != http.StatusInternalServerError {
		t.Fatalf("it answers %+v, %v", response, err)
	}
	response.Body.Close()
}

func TestDuration_InWords(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0 ms", 12 * time.Millisecond: "12 ms", 1500 * time.Millisecond: "1.5 s", 42 * time.Second: "42 s",
		4*time.Minute + 11*time.Second: "4 min 11 s", 2*time.Hour + 10*time.Minute: "2 h 10 min", 50 * time.Hour: "2 d 2 h", time.Hour: "1 h",
	} {
		if got := diagnosis.Duration(d); got != want {
			t.Errorf("%v is %q, not %q", d, got, want)
		}
	}
	for n, want := range map[any]string{7: "7", 1234567: "1,234,567", -1000: "-1,000", 0.5: "0.5", 41.6: "42"} {
		if got := diagnosis.Number(n); got != want {
			t.Errorf("%v is %q, not %q", n, got, want)
		}
	}
}

// A time of day names its day unless that is today's, and is in UTC.
func TestClock(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 27, 0, 30, 0, 0, time.UTC)
	east := time.FixedZone("east", 3600)
	for at, want := range map[time.Time]string{
		time.Date(2026, 1, 27, 1, 29, 5, 7e6, east): ">00:29:05.007</time>",
		time.Date(2026, 1, 27, 0, 59, 0, 0, east):   ">2026-01-26 23:59:00</time>",
	} {
		if got := string(clock(now, at)); !strings.HasSuffix(got, want) {
			t.Errorf("%v is %s, not %s", at, got, want)
		}
	}
}
