package lucius_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// scripted answers requests in turn, without a network.
type scripted struct {
	t       *testing.T
	answers []answer

	mu   sync.Mutex
	seen []seen
	keys []string // the idempotency keys of the requests
}

// answer is one answer. Without a status there is none.
type answer struct {
	status int
	header http.Header
	body   string
}

// seen is one request.
type seen struct{ Request, Body string }

func (s *scripted) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body) // It is in memory.
		_ = r.Body.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
	s.seen = append(s.seen, seen{r.Method + " " + r.URL.RequestURI(), strings.TrimSpace(string(body))})
	if len(s.seen) > len(s.answers) {
		s.t.Errorf("a request more than there are answers: %+v", s.seen)
		return nil, errNoAnswer
	}
	a := s.answers[len(s.seen)-1]
	if a.status == 0 {
		return nil, errNoAnswer
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if a.status >= 400 {
		header.Set("Content-Type", "application/problem+json")
	}
	maps.Copy(header, a.header)
	return &http.Response{StatusCode: a.status, Header: header, Body: io.NopCloser(strings.NewReader(a.body))}, nil
}

const accepted = `{"jobId":"j1","state":"DISPATCHING","replayed":false,"correlation_id":"c1"}`

var command = lucius.Command{
	TenantID: "tenant_a", RequestType: "doc.ingest", SchemaVersion: "1",
	InputRef: lucius.URI("s3://b/in.pdf"), OutputRef: lucius.URI("s3://b/out.json"),
}

// The same bytes again: so the server sees the same command.
func TestASubmitIsRepeatedUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{t: t, answers: []answer{
			{}, {status: 500}, {status: 200, body: "<html>"}, {status: 429, header: http.Header{"Retry-After": {"7"}}}, {status: 202, body: accepted},
		}}
		begun := time.Now()
		receipt, err := client(t, s).Submit(t.Context(), command)
		if err != nil || receipt.JobID != "j1" || receipt.State != lucius.JobStateDispatching {
			t.Fatalf("%+v, %v", receipt, err)
		}
		want := seen{"POST /v1/commands", `{"input_ref":{"uri":"s3://b/in.pdf"},"output_ref":{"uri":"s3://b/out.json"},"payload":{},` +
			`"request_type":"doc.ingest","schema_version":"1","tenant_id":"tenant_a"}`}
		if diff := cmp.Diff([]seen{want, want, want, want, want}, s.seen); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
		if took := time.Since(begun); took < 7*time.Second || took > 8*time.Second {
			t.Errorf("it took %s, and the server asked for 7s", took)
		}
	})
}

func TestARefusalSaysWhatIsWrongAndWhere(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{{status: 422, body: `{"type":"urn:lucius:problem:payload_invalid","title":"t","status":422,` +
		`"code":"payload_invalid","detail":"One field is not valid.","errors":[{"pointer":"/payload/language","message":"must be one of en, de"}]}`}}}
	_, err := client(t, s).Submit(t.Context(), command)
	refused, ok := errors.AsType[*lucius.Error](err)
	if !ok || refused.Code != lucius.ProblemCodePayloadInvalid || refused.Errors[0].Pointer != "/payload/language" {
		t.Fatalf("error %v", err)
	}
	const want = "submit: the server answered 422 payload_invalid: One field is not valid.; /payload/language: must be one of en, de"
	if err.Error() != want {
		t.Errorf("error %q", err)
	}
}

func TestACallEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		retryFor, deadline time.Duration
		least, most        time.Duration
		want               error
	}{
		"after the client's time":  {0, time.Hour, 57 * time.Second, time.Minute, errNoAnswer},
		"at once if it asks so":    {-1, time.Hour, 0, 0, errNoAnswer},
		"with its context":         {0, 10 * time.Second, 10 * time.Second, 10 * time.Second, context.DeadlineExceeded},
		"with what went wrong too": {0, 10 * time.Second, 10 * time.Second, 10 * time.Second, errNoAnswer},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{t: t, answers: make([]answer, 100)}
				c, err := lucius.NewClient(lucius.ClientConfig{
					URL: "http://server.test", HTTPClient: &http.Client{Transport: s}, RetryFor: test.retryFor,
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
				defer cancel()
				begun := time.Now()
				_, err = c.Get(ctx, "j1")
				if took := time.Since(begun); !errors.Is(err, test.want) || took < test.least || took > test.most {
					t.Errorf("after %s: %v", took, err)
				}
			})
		})
	}
}

// Each command is answered by itself; those that the server could not decide on are
// submitted again, and no others.
func TestABatchRepeatsTheCommandsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{t: t, answers: []answer{
			{status: 200, body: `{"results":[{"status":202,"jobId":"j1"},{"status":503,"error":{"status":503,"code":"store_unavailable"}},` +
				`{"status":422,"error":{"status":422,"code":"ref_invalid"}}]}`},
			{status: 200, body: `{"results":[{"status":202,"jobId":"j2"}]}`},
		}}
		results, err := client(t, s).SubmitBatch(t.Context(), []lucius.Command{{TenantID: "a"}, {TenantID: "b"}, {TenantID: "c"}})
		if err != nil || len(results) != 3 || results[0].JobID != "j1" || results[1].JobID != "j2" || results[2].Status != 422 {
			t.Errorf("%+v, %v", results, err)
		}
		if again := s.seen[1].Body; strings.Count(again, "tenant_id") != 1 || !strings.Contains(again, `"tenant_id":"b"`) {
			t.Errorf("submitted again: %s", again)
		}
	})
}

func TestALargeBatchIsSplit(t *testing.T) {
	t.Parallel()
	results := `{"results":[` + strings.TrimSuffix(strings.Repeat(`{"status":202},`, 100), ",") + `]}`
	s := &scripted{t: t, answers: []answer{{status: 200, body: results}, {status: 200, body: `{"results":[{"status":202}]}`}}}
	got, err := client(t, s).SubmitBatch(t.Context(), make([]lucius.Command, 101))
	if err != nil || len(got) != 101 || got[100].Status != 202 || len(s.seen) != 2 {
		t.Errorf("%d results of %d requests, %v", len(got), len(s.seen), err)
	}
}

func TestWaitAsksUntilTheJobHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{t: t, answers: []answer{
			{status: 200, body: `{"jobId":"j1","state":"IN_PROGRESS"}`}, {},
			{status: 200, body: `{"jobId":"j1","state":"FAILED_FINAL","error_code":"NO_LANGUAGE","error_message":"None is named."}`},
		}}
		job, err := client(t, s).Wait(t.Context(), "j1")
		if err != nil {
			t.Fatal(err)
		}
		failed, ok := errors.AsType[*lucius.JobError](job.Err())
		if !ok || failed.Code != "NO_LANGUAGE" || failed.Error() != "job j1 is FAILED_FINAL: NO_LANGUAGE: None is named." {
			t.Errorf("job error %v", job.Err())
		}
		if s.seen[0].Request != "GET /v1/jobs/j1?wait=30s" {
			t.Errorf("%s", s.seen[0].Request)
		}
	})
}

func TestListReadsPageAfterPage(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 200, body: `{"jobs":[{"jobId":"j3"},{"jobId":"j2"}],"next_page_token":"t2"}`},
		{status: 200, body: `{"jobs":[{"jobId":"j1"}]}`},
		{status: 200, body: `{"jobs":[{"jobId":"j3"},{"jobId":"j2"}],"next_page_token":"t2"}`},
	}}
	c := client(t, s)
	var ids []string
	for job, err := range c.List(t.Context(), lucius.JobFilter{TenantID: "a", State: lucius.JobStatePaused, CreatedAfter: time.Unix(0, 0), PageSize: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, job.JobID)
	}
	const query = "GET /v1/jobs?created_after=1970-01-01T00%3A00%3A00.000Z"
	if fmt.Sprint(ids) != "[j3 j2 j1]" || s.seen[0].Request != query+"&limit=2&state=PAUSED&tenant_id=a" ||
		s.seen[1].Request != query+"&limit=2&page_token=t2&state=PAUSED&tenant_id=a" {
		t.Errorf("%s by %+v", ids, s.seen)
	}
	for _, err := range c.List(t.Context(), lucius.JobFilter{}) {
		if err != nil {
			t.Error(err)
		}
		break // Nothing more is read.
	}
}

func TestJobsAreFoundByTheirDocumentAndTags(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 202, body: accepted}, {status: 200, body: `{"jobs":[{"jobId":"j1","doc_id":"d 1","tags":{"env":"prod","customer":"4=2"}}]}`},
	}}
	c, tagged := client(t, s), command
	tagged.DocID, tagged.Tags = "d 1", lucius.Tags{"env": "prod", "customer": "4=2"}
	if _, err := c.Submit(t.Context(), tagged); err != nil {
		t.Fatal(err)
	}
	for job, err := range c.List(t.Context(), lucius.JobFilter{TenantID: "a", DocID: tagged.DocID, Tags: tagged.Tags}) {
		if err != nil || job.DocID != tagged.DocID || !maps.Equal(job.Tags, tagged.Tags) {
			t.Errorf("%+v, %v", job, err)
		}
	}
	if body := s.seen[0].Body; !strings.Contains(body, `"doc_id":"d 1"`) || !strings.Contains(body, `"tags":{"customer":"4=2","env":"prod"}`) {
		t.Errorf("submitted: %s", body)
	}
	if got := s.seen[1].Request; got != "GET /v1/jobs?doc_id=d+1&tag=customer%3D4%3D2&tag=env%3Dprod&tenant_id=a" {
		t.Errorf("request %s", got)
	}
}

func TestHistoryReadsPageAfterPage(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 200, body: `{"events":[{"event_id":"e1"},{"event_id":"e2"}],"next_page_token":"t2"}`},
		{status: 200, body: `{"events":[{"event_id":"e3"}]}`},
		{status: 200, body: `{"events":[{"event_id":"e1"}],"next_page_token":"t2"}`},
		{status: 404, body: `{"status":404,"code":"job_not_found"}`},
	}}
	c := client(t, s)
	var ids []string
	for event, err := range c.History(t.Context(), "j/1") {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, event.EventID)
	}
	if fmt.Sprint(ids) != "[e1 e2 e3]" || s.seen[0].Request != "GET /v1/jobs/j%2F1/events?limit=1000" ||
		s.seen[1].Request != "GET /v1/jobs/j%2F1/events?limit=1000&page_token=t2" {
		t.Errorf("%s by %+v", ids, s.seen)
	}
	for _, err := range c.History(t.Context(), "j1") {
		if err != nil {
			t.Error(err)
		}
		break // Nothing more is read.
	}
	for _, err := range c.History(t.Context(), "gone") {
		if !lucius.HasCode(err, lucius.ProblemCodeJobNotFound) {
			t.Errorf("error %v", err)
		}
	}
}

func TestAListThatFailsEndsWithTheError(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{{status: 403, body: `{"status":403,"code":"forbidden"}`}}}
	n := 0
	for _, err := range client(t, s).List(t.Context(), lucius.JobFilter{}) {
		if n++; !lucius.HasCode(err, lucius.ProblemCodeForbidden) {
			t.Errorf("error %v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d values", n)
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{
		{status: 202, body: `{"state":"CANCELLING"}`}, {status: 202, body: `{"state":"PAUSED"}`}, {status: 200, body: `{"state":"IN_PROGRESS"}`},
		{status: 202, body: accepted}, {status: 409, body: `{"status":409,"code":"illegal_transition"}`},
	}}
	c, ctx := client(t, s), t.Context()
	var states []lucius.JobState
	for _, verb := range []func(context.Context, string, string) (*lucius.Job, error){c.Cancel, c.Pause, c.Resume} {
		job, err := verb(ctx, "j/1", "why")
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, job.State)
	}
	receipt, err := c.Rerun(ctx, "j1", lucius.RerunRequest{From: lucius.RerunFromStart})
	if err != nil || receipt.JobID != "j1" || fmt.Sprint(states) != "[CANCELLING PAUSED IN_PROGRESS]" {
		t.Errorf("%+v, %v, %v", receipt, err, states)
	}
	want := []seen{
		{"POST /v1/jobs/j%2F1:cancel", `{"reason":"why"}`}, {"POST /v1/jobs/j%2F1:pause", `{"reason":"why"}`},
		{"POST /v1/jobs/j%2F1:resume", `{"reason":"why"}`}, {"POST /v1/jobs/j1:rerun", `{"from":"start"}`},
	}
	if diff := cmp.Diff(want, s.seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if _, err := c.Cancel(ctx, "j1", ""); !lucius.HasCode(err, lucius.ProblemCodeIllegalTransition) ||
		err.Error() != "cancel job j1: the server answered 409 illegal_transition" {
		t.Errorf("error %v", err)
	}
}

// entry is an entry of a stream.
func entry(id, object, to string) string {
	text, _ := json.Marshal(map[string]string{"event_id": id, "object": object, "to": to}) // Strings always encode.
	return fmt.Sprintf("id: %s\nevent: x\ndata: %s\n\n", id, text)
}

// watched returns the entries of a job that the streams show.
func watched(t *testing.T, streams ...answer) (ids []string, lastIDs []string, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scripted{t: t, answers: streams}
		c := client(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			lastIDs = append(lastIDs, r.Header.Get("Last-Event-ID"))
			return s.RoundTrip(r)
		}))
		for event, failed := range c.Watch(t.Context(), "j1") {
			if err = failed; err == nil {
				ids = append(ids, event.EventID)
			}
		}
	})
	return ids, lastIDs, err
}

// roundTripper is a function as a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWatchGoesOnAfterTheLastEntry(t *testing.T) {
	t.Parallel()
	ids, lastIDs, err := watched(t,
		answer{status: 200, body: entry("1", "job", "QUEUED") + ": still here\n\n" + entry("2", "step", "SUCCEEDED") + "id: 3\ndata: {\"ev"},
		answer{}, answer{status: 503}, answer{status: 200},
		answer{status: 200, body: entry("3", "job", "SUCCEEDED") + entry("4", "outbox", "SENT")},
	)
	if err != nil || fmt.Sprint(ids) != "[1 2 3 4]" || fmt.Sprintf("%q", lastIDs) != `["" "2" "2" "2" "2"]` {
		t.Errorf("entries %v after %q, %v", ids, lastIDs, err)
	}
}

// A stream may last for hours without an entry. When it breaks then, the watch goes on.
func TestWatchOutlivesAStreamOfAQuietJob(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(ctx context.Context) error{
		"cut": func(context.Context) error { return io.ErrUnexpectedEOF },
		"silent": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				streams := 0
				c := client(t, roundTripper(func(r *http.Request) (*http.Response, error) {
					streams++
					body, server := io.Pipe()
					go func() {
						if streams > 1 {
							_, _ = io.WriteString(server, entry("1", "job", "SUCCEEDED"))
							_ = server.Close()
							return
						}
						for range 20 {
							_, _ = io.WriteString(server, ": waiting\n\n")
							time.Sleep(15 * time.Second)
						}
						_ = server.CloseWithError(end(r.Context()))
					}()
					return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
				}))
				var ids []string
				for event, err := range c.Watch(t.Context(), "j1") {
					if err != nil {
						t.Fatalf("after %d streams: %v", streams, err)
					}
					ids = append(ids, event.EventID)
				}
				if fmt.Sprint(ids) != "[1]" || streams != 2 {
					t.Errorf("entries %v of %d streams", ids, streams)
				}
			})
		})
	}
}

func TestWatchEndsWithARefusal(t *testing.T) {
	t.Parallel()
	ids, _, err := watched(t, answer{status: 200, body: entry("1", "job", "QUEUED")},
		answer{status: 404, body: `{"status":404,"code":"job_not_found"}`})
	if fmt.Sprint(ids) != "[1]" || !lucius.HasCode(err, lucius.ProblemCodeJobNotFound) {
		t.Errorf("entries %v, %v", ids, err)
	}
}

func TestALoopOverEntriesMayEndEarly(t *testing.T) {
	t.Parallel()
	s := &scripted{t: t, answers: []answer{{status: 200, body: entry("1", "job", "QUEUED") + entry("2", "job", "SUCCEEDED")}}}
	n := 0
	for _, err := range client(t, s).Watch(t.Context(), "j1") {
		if n++; err != nil {
			t.Error(err)
		}
		break
	}
	if n != 1 || len(s.seen) != 1 {
		t.Errorf("%d entries of %d streams", n, len(s.seen))
	}
}

// A handler that calls the server does so as part of the trace of its step.
func TestACallSendsTheTokenAndTheTraceContext(t *testing.T) {
	t.Parallel()
	var got http.Header
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header
		_, _ = io.WriteString(w, `{}`)
	}))
	defer server.Close()
	c, err := lucius.NewClient(lucius.ClientConfig{URL: server.URL + "/", Token: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	if _, err := c.Get(lucius.WithTraceparent(t.Context(), parent), "j1"); err != nil {
		t.Fatal(err)
	}
	if got.Get("Authorization") != "Bearer secret" || got.Get("Traceparent") != parent {
		t.Errorf("headers %v", got)
	}
}

// A file with a token often ends with a line break, which no header can hold.
func TestATokenIsTrimmed(t *testing.T) {
	t.Parallel()
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = io.WriteString(w, `{}`)
	}))
	defer server.Close()
	c, err := lucius.NewClient(lucius.ClientConfig{URL: server.URL, Token: " secret\n", RetryFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Get(t.Context(), "j1"); err != nil || got != "Bearer secret" {
		t.Errorf("%q, %v", got, err)
	}
}

// A token is read for each request, so that it can be replaced while a worker runs.
func TestATokenIsReadForEachRequest(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, `{}`)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	t.Setenv("LUCIUS_TOKEN", "")
	t.Setenv("LUCIUS_TOKEN_FILE", file)
	calls := 0
	source := func(context.Context) (string, error) {
		if calls++; calls == 2 {
			return "", errors.New("the issuer is away")
		}
		return fmt.Sprint("of source ", calls), nil
	}
	for _, cfg := range []lucius.ClientConfig{{}, {TokenSource: source}, {Token: "fixed"}} {
		cfg.URL, cfg.RetryFor = server.URL, -1
		c, err := lucius.NewClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, token := range []string{"first\n", "\n", "second"} {
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Get(t.Context(), "j1"); (err == nil) != (token != "\n" || cfg.Token != "") {
				t.Errorf("%v with %q", err, token)
			}
		}
	}
	want := []string{"Bearer first", "Bearer second", "Bearer of source 1", "Bearer of source 3", "Bearer fixed", "Bearer fixed", "Bearer fixed"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if _, err := lucius.NewClient(lucius.ClientConfig{Token: "fixed", TokenSource: source}); err == nil {
		t.Error("a client has two tokens")
	}
}

// A POST would become a GET.
func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.RedirectHandler("/elsewhere", http.StatusMovedPermanently))
	defer server.Close()
	c, err := lucius.NewClient(lucius.ClientConfig{URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Submit(t.Context(), command)
	if refused, ok := errors.AsType[*lucius.Error](err); !ok || refused.Status != http.StatusMovedPermanently {
		t.Errorf("%v", err)
	}
}

// A proxy may ask for more than anyone would wait.
func TestTheLongestRetryAfterIsAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		busy := answer{status: 503, header: http.Header{"Retry-After": {"86400"}}}
		c, err := lucius.NewClient(lucius.ClientConfig{
			URL: "http://server.test", RetryFor: time.Hour,
			HTTPClient: &http.Client{Transport: &scripted{t: t, answers: []answer{busy, {status: 202, body: accepted}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		if _, err := c.Submit(t.Context(), command); err != nil || time.Since(begun) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

// pipes is a network in memory.
type pipes struct {
	dialled chan net.Conn
	close   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	conn, open := <-p.dialled
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) Close() error {
	p.close.Do(func() { close(p.dialled) })
	return nil
}

// vanishing is a connection whose other end may vanish without a word.
type vanishing struct {
	net.Conn

	gone atomic.Bool
}

func (v *vanishing) Write(text []byte) (int, error) {
	if v.gone.Load() {
		return len(text), nil
	}
	return v.Conn.Write(text)
}

// HTTP/2 has all calls on one connection: they must not fail for as long as TCP waits.
func TestAConnectionWhoseOtherEndVanishedIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"jobId":"`+r.Proto+`"}`)
		}))
		_ = server.Listener.Close() // It is replaced.
		network := &pipes{dialled: make(chan net.Conn)}
		server.Listener, server.EnableHTTP2 = network, true
		server.StartTLS()
		defer server.Close()
		c, err := lucius.NewClient(lucius.ClientConfig{URL: "https://example.com"})
		if err != nil {
			t.Fatal(err)
		}
		var dialled []*vanishing
		transport := c.Transport()
		transport.TLSClientConfig.RootCAs = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			network.dialled <- far
			dialled = append(dialled, &vanishing{Conn: near})
			return dialled[len(dialled)-1], nil
		}
		defer c.Close()
		if job, err := c.Get(t.Context(), "j1"); err != nil || job.JobID != "HTTP/2.0" {
			t.Fatalf("%+v, %v", job, err)
		}
		dialled[0].gone.Store(true)
		if _, err := c.Get(t.Context(), "j1"); err != nil {
			t.Errorf("after its connection vanished: %v", err)
		}
	})
}

// Another program answered: repeating the call would not help.
func TestAnAnswerThatIsNotTheServersIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer answer
		want   string
	}{
		"another page": {answer{status: 404, header: http.Header{"Content-Type": {"text/html"}}, body: `{"code":"x"}`}, "job j1: the server answered 404"},
		"plain text":   {answer{status: 404, header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, body: "no such host\n"}, "job j1: the server answered 404: no such host"},
	} {
		_, err := client(t, &scripted{t: t, answers: []answer{test.answer}}).Get(t.Context(), "j1")
		if err == nil || err.Error() != test.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARequestThatCannotBeEncodedIsNotSent(t *testing.T) {
	t.Parallel()
	wrong := command
	wrong.Payload = math.NaN()
	const want = "submit: the request cannot be encoded: json: unsupported value: NaN"
	if _, err := client(t, &scripted{t: t}).Submit(t.Context(), wrong); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}

func TestNewClientSaysWhatIsWrongWithTheToken(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"two\nlines", "tökén"} {
		_, err := lucius.NewClient(lucius.ClientConfig{Token: token})
		if err == nil || err.Error() != "lucius: the token has characters that a header cannot hold" {
			t.Errorf("%q: %v", token, err)
		}
	}
}

func TestNewClientSaysWhatIsWrongWithTheURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"server:8080":              `the URL of the server is "server:8080", it must begin with http:// or https:// and a host`,
		"ftp://u:hunter2@server":   `the URL of the server is "ftp://u:xxxxx@server", it must begin`,
		"http://u:hunter2@[server": "the URL of the server cannot be read",
	} {
		if _, err := lucius.NewClient(lucius.ClientConfig{URL: address}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestReferences(t *testing.T) {
	t.Parallel()
	ref := lucius.Reference(`{"uri":"s3://b/x","pages":3}`)
	var whole struct{ Pages int }
	if err := ref.Decode(&whole); err != nil || whole.Pages != 3 || ref.URI() != "s3://b/x" {
		t.Errorf("%+v, %q, %v", whole, ref.URI(), err)
	}
	var none lucius.Reference
	if err := none.Decode(&whole); err == nil || none.URI() != "" {
		t.Errorf("no reference: %q, %v", none.URI(), err)
	}
	var task lucius.Task
	task.Progress(0.5, "A task of a test shows no progress.")
}
