package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

func TestLimiter_LeavesOthersHalf(t *testing.T) {
	t.Parallel()
	type part struct {
		caller  string
		weight  int64
		refused bool
	}
	for name, parts := range map[string][]part{
		"one caller takes half, and no more":      {{"a", 30, false}, {"a", 20, false}, {"a", 1, true}, {"b", 50, false}},
		"two callers take all":                    {{"a", 50, false}, {"b", 50, false}, {"c", 1, true}},
		"a large part is the whole share":         {{"a", 500, false}, {"a", 1, true}, {"b", 500, false}},
		"what was refused takes nothing":          {{"a", 40, false}, {"a", 20, true}, {"a", 10, false}},
		"nothing is taken from a share in vain":   {{"a", 50, false}, {"b", 40, false}, {"c", 20, true}, {"c", 10, false}},
		"parts without weight are always granted": {{"a", 50, false}, {"b", 50, false}, {"a", 0, false}, {"c", 0, false}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, limiter := httpapi.NewLimiter(100)
			var releases []func()
			for i, p := range parts {
				release, err := limiter.Acquire(t.Context(), p.caller, p.weight)
				if (err != nil) != p.refused {
					t.Fatalf("part %d: %v", i, err)
				}
				if err == nil {
					releases = append(releases, release)
				}
			}
			for _, release := range releases {
				release()
			}
			if n := limiter.Callers(); n != 0 {
				t.Errorf("%d callers hold something after all was released", n)
			}
			if _, err := limiter.Acquire(t.Context(), "c", 50); err != nil {
				t.Errorf("there is no room after all was released: %v", err)
			}
		})
	}
}

// Requests wait in the order in which they came, each caller's for themselves.
func TestLimiter_Waits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, _ := httpapi.NewLimiter(100)
		var mu sync.Mutex
		var granted []string
		releases := map[string]func(){}
		ask := func(ctx context.Context, caller string, weight int64) {
			name := fmt.Sprint(caller, weight)
			go func() {
				release, err := limiter.Acquire(ctx, caller, weight)
				mu.Lock()
				defer mu.Unlock()
				if releases[name] = release; err == nil {
					granted = append(granted, name)
				}
			}()
			synctest.Wait()
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if slices.Sort(granted); !slices.Equal(granted, want) {
				t.Errorf("granted %v, want %v", granted, want)
			}
			granted = nil
		}
		ask(t.Context(), "a", 40)
		ask(t.Context(), "a", 30)
		ask(t.Context(), "a", 5) // It would fit, but came later.
		ask(t.Context(), "b", 45)
		expect("a40", "b45")
		gone, leave := context.WithCancel(t.Context())
		ask(gone, "c", 20)
		ask(t.Context(), "d", 10)
		leave()
		expect("d10")
		releases["a40"]()
		expect("a30", "a5")
		for _, name := range []string{"a30", "a5", "b45", "d10"} {
			releases[name]()
		}
		if n := limiter.Callers(); n != 0 {
			t.Errorf("%d callers hold something after all was released", n)
		}
	})
}

// conn is the connection of a slow client: it blocks each read of the body, and if it is
// deaf each write of an answer, until the deadline has passed.
type conn struct {
	*httptest.ResponseRecorder

	deaf     bool
	deadline atomic.Pointer[time.Time]
	begun    atomic.Bool // The answer is being written.
	cut      chan struct{}
	once     sync.Once
	large    map[*byte]int // Writes of payloads by the address of their bytes.
}

func newConn(deaf bool) *conn {
	w := &conn{ResponseRecorder: httptest.NewRecorder(), deaf: deaf, cut: make(chan struct{}), large: map[*byte]int{}}
	w.Code = 0
	return w
}

func (c *conn) SetReadDeadline(at time.Time) error { return c.SetWriteDeadline(at) }
func (c *conn) SetWriteDeadline(at time.Time) error {
	if c.deadline.Store(&at); !at.IsZero() && at.Before(time.Now()) {
		c.once.Do(func() { close(c.cut) })
	}
	return nil
}

func (c *conn) Read([]byte) (int, error) {
	<-c.cut
	return 0, os.ErrDeadlineExceeded
}

func (c *conn) Write(data []byte) (int, error) {
	c.begun.Store(true)
	if c.deaf {
		time.Sleep(time.Until(*c.deadline.Load()))
		return 0, os.ErrDeadlineExceeded
	}
	if len(data) > 50_000 {
		c.large[&data[0]]++
	}
	return c.ResponseRecorder.Write(data)
}

// serveTo serves a request of that caller over the connection; its body is the
// connection's if it is empty.
func (c *crowd) serveTo(w *conn, grants, target, body string) {
	method, path := split(target)
	request := httptest.NewRequest(method, path, strings.NewReader(body))
	if body == "" && method == http.MethodPost {
		request.Body, request.ContentLength = io.NopCloser(w), -1
	}
	request.Header.Set("Authorization", "Bearer "+c.tokens[grants])
	request.Header.Set("Content-Type", "application/json")
	c.requests.Go(func() { c.ServeHTTP(w, request) })
	synctest.Wait()
}

// A caller may take half of the room for bodies.
func TestCallersShareTheRoomForBodies(t *testing.T) {
	t.Parallel()
	const greedy, other = "submit:t", "submit:*"
	const share = 32 // Bodies of unknown length count as the largest, 1 MiB.
	gather(t, []string{greedy, other}, func(t *testing.T, c *crowd) {
		slow := make([]*conn, share)
		for i := range slow {
			slow[i] = newConn(false)
			c.serveTo(slow[i], greedy, "POST /v1/commands", "")
		}
		one := newConn(false)
		c.serveTo(one, greedy, "POST /v1/commands", command)
		wantProblem(t, answer{Status: one.Code, Header: one.Header(), Body: one.Body.String()}, apierror.RateLimited,
			"The caller already has its share of the 64 MiB that bodies in hand may take.")
		if one.Header().Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		good := newConn(false)
		c.serveTo(good, other, "POST /v1/commands", command)
		if good.Code != http.StatusAccepted {
			t.Errorf("another caller is answered %d", good.Code)
		}
		for _, w := range slow {
			_ = w.SetReadDeadline(time.Unix(1, 0))
		}
		synctest.Wait()
		again := newConn(false)
		c.serveTo(again, greedy, "POST /v1/commands", command)
		if again.Code != http.StatusAccepted {
			t.Errorf("after its bodies have ended the caller is answered %d", again.Code)
		}
	})
}

// tinyValues is a command whose payload has n bytes of values of one digit.
func tinyValues(key, n int) string {
	values := strings.Repeat("1,", n/2) + "1"
	return strings.Replace(command, `{"language":"en"}`, fmt.Sprintf(`{"language":"en","k":%d,"x":[%s]}`, key, values), 1)
}

// taken takes that much as two other callers, and returns how to release it.
func taken(t *testing.T, l httpapi.Limiter, weight int64) (release func()) {
	t.Helper()
	one, err := l.Acquire(t.Context(), "another", weight/2)
	musttest.NoError(t, err)
	two, err := l.Acquire(t.Context(), "a third", weight-weight/2)
	musttest.NoError(t, err)
	return func() {
		one()
		two()
	}
}

// A body is decoded once there is room for its tree, for which it waits a minute at most; the room
// is free again while the command is committed.
func TestRequestsWaitForTheRoomToDecode(t *testing.T) {
	t.Parallel()
	const submits = "submit:t"
	gather(t, []string{submits}, func(t *testing.T, c *crowd) {
		release := taken(t, c.Trees(), 57<<20)
		late := newConn(false)
		c.serveTo(late, submits, "POST /v1/commands", tinyValues(0, 120_000))
		time.Sleep(httpapi.MaxWait)
		synctest.Wait()
		wantProblem(t, answer{Status: late.Code, Header: late.Header(), Body: late.Body.String()}, apierror.RateLimited,
			"The caller's bodies did not get their turn to be decoded.")
		one := newConn(false)
		c.serveTo(one, submits, "POST /v1/commands", tinyValues(0, 120_000)) // 60,000 values of 128 bytes, and twice the text.
		if one.Body.Len() > 0 {
			t.Errorf("a large tree has no room, and is answered %s", one.Body)
		}
		release()
		synctest.Wait()
		if one.Code != http.StatusAccepted {
			t.Errorf("answered %d %s", one.Code, one.Body)
		}
		free := make(chan struct{})
		c.store.on(func(context.Context) error {
			<-free
			return nil
		})
		conns := make([]*conn, 20)
		for i := range conns {
			conns[i] = newConn(false)
			c.serveTo(conns[i], submits, "POST /v1/commands", tinyValues(i+1, 120_000))
		}
		taken(t, c.Trees(), 64<<20)() // Any other request would wait.
		close(free)
		synctest.Wait()
		for i, w := range conns {
			if w.Code != http.StatusAccepted {
				t.Errorf("command %d is answered %d %s", i, w.Code, w.Body)
			}
		}
	})
}

// Rows that may be large are read from the store once there is room for them.
func TestRequestsWaitForTheRoomToAnswer(t *testing.T) {
	t.Parallel()
	const all = "submit:* read:* platform:* admin:*"
	gather(t, []string{all}, func(t *testing.T, c *crowd) {
		item, _ := c.claimed(t, false)
		c.submitted(t)
		for _, test := range []struct{ target, body string }{
			{"GET /v1/jobs", ""},
			{"GET /v1/jobs/" + c.job, ""},
			{"GET /v1/jobs/" + c.job + "?wait=1ms", ""},
			{"GET /v1/jobs/" + c.job + "/steps", ""},
			{"GET /v1/jobs/" + c.job + "/events", ""},
			{"GET /v1/admin/outbox", ""},
			{"POST /v1/jobs/" + c.job + ":pause", `{}`},
			{"GET /v1/work/" + item.WorkID, ""},
			{"POST /v1/work:claim", `{"owner":"o","request_id":"r","max":5}`},
			{"POST /v1/work:claim", `{"owner":"o","request_id":"r","max":5}`},
		} {
			release := taken(t, c.Reads(), 64<<20)
			w := newConn(false)
			c.serveTo(w, all, test.target, test.body)
			time.Sleep(time.Second)
			synctest.Wait()
			if w.Body.Len() > 0 {
				t.Errorf("%s is answered without room: %s", test.target, w.Body)
			}
			release()
			synctest.Wait()
			if w.Body.Len() == 0 || w.Code >= 300 {
				t.Errorf("%s is answered %d %s", test.target, w.Code, w.Body)
			}
		}
		taken(t, c.Reads(), 64<<20)() // All shares were given back.
	})
}

// The steps of a job share the bytes of its payload.
func TestJobsAnswerHoldsThePayloadOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	body := strings.Replace(command, `"en"`, `"`+strings.Repeat("x", 100_000)+`"`, 1)
	id := decoded[api.CommandAccepted](t, h.given(t, "POST /v1/commands", body)).JobID
	for _, path := range []string{"", "/steps"} {
		w := newConn(false)
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/jobs/"+id+path, http.NoBody))
		var job api.Job
		if err := json.Unmarshal(w.Body.Bytes(), &job); err != nil || len(job.Steps) != 2 {
			t.Fatalf("%v: %s", err, w.Body)
		}
		for _, step := range job.Steps {
			if len(step.Payload) < 100_000 {
				t.Errorf("a step has the payload %.100s", step.Payload)
			}
		}
		if len(w.large) != 1 {
			t.Errorf("the answer is made of %d large parts, want one that is sent twice", len(w.large))
		}
	}
}

// Answers that clients do not read hold at most 32 MiB of a caller, for some seconds.
func TestUnreadAnswersOfOneCallerKeepNoOtherWaiting(t *testing.T) {
	t.Parallel()
	const greedy, other = "read:t", "read:*"
	gather(t, []string{greedy, other}, func(t *testing.T, c *crowd) {
		body := strings.Replace(command, `"en"`, `"`+strings.Repeat("x", 120_000)+`"`, 1)
		body = strings.Replace(body, `{"tenant_id"`, `{"idempotency_key":"large","tenant_id"`, 1)
		target := "GET /v1/jobs/" + decoded[api.CommandAccepted](t, c.given(t, "POST /v1/commands", body)).JobID
		var deaf []*conn
		written := func() (n int) {
			for _, w := range deaf {
				if until := w.deadline.Load(); until != nil && until.After(time.Now()) {
					n++
				}
			}
			return n
		}
		for range 400 {
			w := newConn(true)
			c.serveTo(w, greedy, target, "")
			deaf = append(deaf, w)
		}
		if n := written(); n < 250 || n > 280 { // 32 MiB ÷ 120,000 bytes, and 3 KB for the rest.
			t.Errorf("%d answers are held at a time", n)
		}
		good := newConn(false)
		c.serveTo(good, other, target, "")
		if good.Code != http.StatusOK || good.Body.Len() < 120_000 {
			t.Errorf("another caller is answered %d with %d bytes", good.Code, good.Body.Len())
		}
		if !good.deadline.Load().IsZero() {
			t.Error("the next answer on the connection inherits the deadline")
		}
		late := newConn(false)
		c.serveTo(late, greedy, target, "")
		if late.begun.Load() {
			t.Error("the caller gets more than its share")
		}
		time.Sleep(30 * time.Second) // Two times the unread answers run out of time.
		synctest.Wait()
		if late.Code != http.StatusOK || late.Body.Len() < 120_000 {
			t.Errorf("the caller is answered %d with %d bytes, after its connections were cut", late.Code, late.Body.Len())
		}
	})
}

// A request takes no room once its context has ended, even if there is some: its outcome
// must not depend on chance.
func TestLimiter_GivesNothingToAnEndedRequest(t *testing.T) {
	t.Parallel()
	l, _ := httpapi.NewLimiter(10)
	over, end := context.WithCancel(t.Context())
	end()
	for range 100 {
		if _, err := l.Acquire(over, "anna", 1); !errors.Is(err, context.Canceled) {
			t.Fatalf("a request that is over got %v", err)
		}
	}
	if _, err := l.Acquire(t.Context(), "bert", 5); err != nil {
		t.Errorf("there is no room for another: %v", err)
	}
}

// The console reads forms before it knows who sends them, so their room is shared by host: a host that
// sends forms without an end has half of it.
func TestFormsOfAHostHaveHalfOfTheRoom(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *httpapi.Config) {
		c.Console = func(http.Handler, <-chan struct{}) (http.Handler, error) {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n, err := io.Copy(io.Discard, r.Body)
				_, _ = fmt.Fprintf(w, "%d %v", n, err)
			}), nil
		}
	})
	send := func(method, host string, length int64, body io.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, "/ui/sign-in", body)
		r.RemoteAddr, r.ContentLength = host+":1234", length
		got := httptest.NewRecorder()
		h.ServeHTTP(got, r)
		return got
	}
	forms := h.Forms()
	var sent sync.WaitGroup
	pipes := make([]*io.PipeWriter, 32) // Of 256 KiB each, as far as the server knows.
	for i := range pipes {
		body, pipe := io.Pipe()
		pipes[i] = pipe
		sent.Go(func() {
			if got := send(http.MethodPost, "1.1.1.1", []int64{-1, 1 << 40}[i%2], body); got.Body.String() != "1 <nil>" {
				t.Errorf("a slow form is answered %d %s", got.Code, got.Body)
			}
		})
		_, _ = pipe.Write([]byte("x")) // It returns once the console reads.
	}
	for _, test := range []struct {
		method, host string
		want         string
	}{
		{http.MethodPost, "1.1.1.1", "rate_limited"},
		{http.MethodGet, "1.1.1.1", "0 <nil>"}, // Its body is not read.
		{http.MethodPost, "2.2.2.2", "3 <nil>"},
	} {
		if got := send(test.method, test.host, 3, strings.NewReader("a=b")); !strings.Contains(got.Body.String(), test.want) {
			t.Errorf("%s of %s: %d %s, want %s", test.method, test.host, got.Code, got.Body, test.want)
		}
	}
	for _, pipe := range pipes {
		_ = pipe.Close()
	}
	sent.Wait()
	large := send(http.MethodPost, "1.1.1.1", -1, strings.NewReader(strings.Repeat("x", 1<<20)))
	if got := large.Body.String(); got != "262144 http: request body too large" {
		t.Errorf("a large form: %s", got)
	}
	if n := forms.Callers(); n != 0 {
		t.Errorf("%d hosts hold something after all was answered", n)
	}
}
