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
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

func TestFairLimiter_SharesWeight(t *testing.T) {
	t.Parallel()
	type holding struct {
		caller   string
		weight   int64
		refused  bool
		preempts []int // The earlier holdings that it ends.
	}
	const full, evicting = httpapi.Refuses, httpapi.Evicts
	for name, test := range map[string]struct {
		full     httpapi.WhenFull
		holdings []holding
	}{
		"one caller takes all, and no more": {full, []holding{
			{"a", 60, false, nil}, {"a", 40, false, nil}, {"a", 1, true, nil},
		}},
		"the oldest of the largest holder makes room": {full, []holding{
			{"b", 40, false, nil}, {"a", 30, false, nil}, {"a", 30, false, nil}, {"c", 10, false, []int{1}},
		}},
		"several make room for a large one": {full, []holding{
			{"a", 20, false, nil}, {"a", 20, false, nil}, {"a", 60, false, nil}, {"b", 40, false, []int{0, 1}},
		}},
		"an equal share is kept": {full, []holding{
			{"a", 50, false, nil}, {"b", 50, false, nil}, {"b", 1, true, nil}, {"a", 1, true, nil}, {"c", 50, true, nil},
		}},
		"a refused request preempts nothing": {full, []holding{
			{"a", 30, false, nil}, {"a", 70, false, nil}, {"b", 75, true, nil}, {"b", 30, false, []int{0}},
		}},
		"a single slot may exceed the limit": {full, []holding{
			{"a", 500, false, nil}, {"a", 1, true, nil}, {"b", 1, false, []int{0}},
		}},
		"a caller evicts its own oldest": {evicting, []holding{
			{"a", 60, false, nil}, {"a", 40, false, nil}, {"a", 30, false, []int{0}},
		}},
		"a caller evicts its own before those of a smaller holder": {evicting, []holding{
			{"b", 20, false, nil}, {"a", 60, false, nil}, {"a", 20, false, nil}, {"a", 30, false, []int{1}},
		}},
		"any is evicted before a request is refused": {evicting, []holding{
			{"a", 50, false, nil}, {"b", 50, false, nil}, {"c", 500, false, []int{0, 1}}, {"d", 1, false, []int{2}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limiter := httpapi.NewFairLimiter(100, test.full)
			releases := make([]func(), len(test.holdings))
			var preempted []int
			for i, h := range test.holdings {
				preempted = nil
				release, err := limiter.Acquire(t.Context(), h.caller, h.weight, func() {
					preempted = append(preempted, i)
					releases[i]()
				})
				releases[i] = release
				slices.Sort(preempted)
				if (err != nil) != h.refused || !slices.Equal(preempted, h.preempts) {
					t.Fatalf("holding %d: %v, preempts %v; want %t, %v", i, err, preempted, h.refused, h.preempts)
				}
			}
		})
	}
}

// The next waiting request is the one with which its caller would hold the least.
func TestFairLimiter_QueuesByShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := httpapi.NewFairLimiter(100, httpapi.Queues)
		var mu sync.Mutex
		var held []string
		releases := map[string]func(){}
		ask := func(ctx context.Context, caller string, weight int64) {
			name := fmt.Sprint(caller, weight)
			go func() {
				release, err := limiter.Acquire(ctx, caller, weight, nil)
				mu.Lock()
				defer mu.Unlock()
				if releases[name] = release; err == nil {
					held = append(held, name)
				}
			}()
			synctest.Wait()
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if slices.Sort(held); !slices.Equal(held, want) {
				t.Errorf("granted %v, want %v", held, want)
			}
			held = nil
		}
		ask(t.Context(), "a", 70)
		ask(t.Context(), "a", 60)
		ask(t.Context(), "a", 50)
		ask(t.Context(), "b", 40)
		expect("a70")
		ask(t.Context(), "c", 20)
		expect("c20") // It fits, and with any other its caller would hold more.
		gone, leave := context.WithCancel(t.Context())
		ask(gone, "d", 15)
		leave()
		releases["a70"]()
		expect("b40") // Then a50 does not fit, and a60 comes after that.
		releases["c20"]()
		expect("a50")
		releases["b40"]()
		releases["a50"]()
		expect("a60")
		releases["a60"]()
		ask(t.Context(), "a", 500)
		expect("a500")
		releases["a500"]()
	})
}

// A request that gives up while another one still holds its slot is forgotten, but the slot
// is not free before it is released.
func TestFairLimiter_WaitsNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter := httpapi.NewFairLimiter(100, httpapi.Refuses)
		release, err := limiter.Acquire(t.Context(), "a", 100, nil)
		must(t, err)
		gone, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := limiter.Acquire(gone, "b", 40, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("acquired: %v", err)
		}
		if _, err := limiter.Acquire(t.Context(), "c", 80, nil); apierror.From(err).Code != apierror.RateLimited {
			t.Errorf("the slot is given twice: %v", err)
		}
		release()
		synctest.Wait()
		if _, err := limiter.Acquire(t.Context(), "c", 80, nil); err != nil {
			t.Errorf("the slot is not given back: %v", err)
		}
	})
}

// conn is the connection of a slow client: it blocks each read of the body, and if it is
// deaf each write of an answer, until the deadline has passed.
type conn struct {
	*httptest.ResponseRecorder

	deaf  bool
	cut   chan struct{}
	once  sync.Once
	large map[*byte]int // Writes of payloads by the address of their bytes.
}

func newConn(deaf bool) *conn {
	return &conn{ResponseRecorder: httptest.NewRecorder(), deaf: deaf, cut: make(chan struct{}), large: map[*byte]int{}}
}

func (c *conn) SetReadDeadline(at time.Time) error { return c.SetWriteDeadline(at) }
func (c *conn) SetWriteDeadline(at time.Time) error {
	if !at.IsZero() && at.Before(time.Now()) {
		c.once.Do(func() { close(c.cut) })
	}
	return nil
}

func (c *conn) Read([]byte) (int, error) {
	if c.wasCut() { // The client still sends although its request was cut.
		time.Sleep(10 * time.Second)
	}
	<-c.cut
	return 0, os.ErrDeadlineExceeded
}

func (c *conn) Write(data []byte) (int, error) {
	if c.deaf {
		<-c.cut
		return 0, os.ErrDeadlineExceeded
	}
	if len(data) > 50_000 {
		c.large[&data[0]]++
	}
	return c.ResponseRecorder.Write(data)
}

// wasCut reports whether the request was preempted.
func (c *conn) wasCut() bool {
	select {
	case <-c.cut:
		return true
	default:
		return false
	}
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

// A caller may take all the room for bodies that other callers do not want, and no more.
func TestCallersShareTheRoomForBodies(t *testing.T) {
	t.Parallel()
	const greedy, other = "submit:t", "submit:*"
	const room = 64 // Bodies of unknown length count as the largest, 1 MiB.
	gather(t, []string{greedy, other}, func(t *testing.T, c *crowd) {
		slow := make([]*conn, room)
		for i := range slow {
			slow[i] = newConn(false)
			c.serveTo(slow[i], greedy, "POST /v1/commands", "")
		}
		one := newConn(false)
		c.serveTo(one, greedy, "POST /v1/commands", command)
		wantProblem(t, answer{Status: one.Code, Header: one.Header(), Body: one.Body.String()}, apierror.RateLimited,
			"The caller already has its share of the 64 MiB that bodies in hand may take.")
		if one.Header().Get("Retry-After") == "" || slow[0].wasCut() {
			t.Error("no Retry-After, or a body is cut for its own caller")
		}
		good := newConn(false)
		c.serveTo(good, other, "POST /v1/commands", command)
		if good.Code != http.StatusAccepted || !slow[0].wasCut() || slow[1].wasCut() {
			t.Errorf("another caller is answered %d; the oldest body is cut: %t, the next: %t", good.Code, slow[0].wasCut(), slow[1].wasCut())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		wantProblem(t, answer{Status: slow[0].Code, Header: slow[0].Header(), Body: slow[0].Body.String()}, apierror.RateLimited,
			"The body arrived too slowly: another caller needed the room.")
		for _, w := range slow {
			_ = w.SetReadDeadline(time.Unix(1, 0))
		}
	})
}

// tinyValues is a command whose payload has n bytes of values of one digit.
func tinyValues(key, n int) string {
	values := strings.Repeat("1,", n/2) + "1"
	return strings.Replace(command, `{"language":"en"}`, fmt.Sprintf(`{"language":"en","k":%d,"x":[%s]}`, key, values), 1)
}

// A body is decoded once there is room for its tree; the room is free again while the
// command is committed.
func TestRequestsWaitForTheRoomToDecode(t *testing.T) {
	t.Parallel()
	const submits = "submit:t"
	gather(t, []string{submits}, func(t *testing.T, c *crowd) {
		release, err := c.Trees().Acquire(t.Context(), "another", 57<<20, nil)
		must(t, err)
		one := newConn(false)
		c.serveTo(one, submits, "POST /v1/commands", tinyValues(0, 120_000)) // 60,000 values of 128 bytes, and twice the text.
		good := newConn(false)
		c.serveTo(good, submits, "POST /v1/commands", command)
		if one.Body.Len() > 0 || good.Code != http.StatusAccepted {
			t.Errorf("a large tree has no room, and is answered %s; a small one is answered %d", one.Body, good.Code)
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
		all, err := c.Trees().Acquire(t.Context(), "another", 64<<20, nil) // Any other request would wait.
		must(t, err)
		all()
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
			release, err := c.Reads().Acquire(t.Context(), "another", 96<<20, nil)
			must(t, err)
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
		release, err := c.Reads().Acquire(t.Context(), "another", 96<<20, nil)
		must(t, err) // All shares were given back.
		release()
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

// Answers that clients do not read hold at most 64 MiB.
func TestAnUnreadAnswerIsCutForOthers(t *testing.T) {
	t.Parallel()
	const greedy, other = "read:t", "read:*"
	gather(t, []string{greedy, other}, func(t *testing.T, c *crowd) {
		body := strings.Replace(command, `"en"`, `"`+strings.Repeat("x", 120_000)+`"`, 1)
		body = strings.Replace(body, `{"tenant_id"`, `{"idempotency_key":"large","tenant_id"`, 1)
		target := "GET /v1/jobs/" + decoded[api.CommandAccepted](t, c.given(t, "POST /v1/commands", body)).JobID
		first := newConn(true)
		c.serveTo(first, greedy, target, "")
		deaf := []*conn{first}
		for !first.wasCut() && len(deaf) < 1000 {
			w := newConn(true)
			c.serveTo(w, greedy, target, "")
			deaf = append(deaf, w)
		}
		if n := len(deaf) - 1; n < 500 || n > 559 || deaf[1].wasCut() { // 64 MiB ÷ 120,000 bytes, and 3 KB for the rest.
			t.Errorf("%d answers are held at a time; the second oldest is cut: %t", n, deaf[1].wasCut())
		}
		good := newConn(false)
		c.serveTo(good, other, target, "")
		if good.Code != http.StatusOK || good.wasCut() || !deaf[1].wasCut() {
			t.Errorf("another caller is answered %d; the oldest is cut: %t", good.Code, deaf[1].wasCut())
		}
		for _, w := range deaf {
			_ = w.SetWriteDeadline(time.Unix(1, 0))
		}
	})
}

// cutLater is a connection that notes, while an answer is written, how to cut it.
type cutLater struct {
	*conn

	answers httpapi.FairLimiter
	cuts    []func()
}

func (c *cutLater) Write(data []byte) (int, error) {
	c.cuts = append(c.cuts, c.answers.Cuts()...)
	return c.conn.Write(data)
}

// An answer may be chosen to be cut just when it is fully sent. Its connection then belongs
// to the next answer.
func TestASentAnswerIsNotCut(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	w := &cutLater{conn: newConn(false), answers: h.Answers()}
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/jobs", http.NoBody))
	if w.Code != http.StatusOK || len(w.cuts) != 1 {
		t.Fatalf("answered %d with %d answers on their way", w.Code, len(w.cuts))
	}
	w.cuts[0]()
	if w.wasCut() {
		t.Error("the connection is cut after the answer was sent")
	}
}

// A client may go away while its request waits for the room of another. The request is then
// still counted, and may be chosen to be cut after it has ended: its connection may serve
// another, and its writer no longer exists.
func TestARequestThatGaveUpIsNotCut(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		room   func(*httpapi.Server) httpapi.FairLimiter
		method string
		path   string
		body   string
	}{
		"before its body is read":   {(*httpapi.Server).Bodies, http.MethodPost, "/v1/commands", command},
		"before its answer is sent": {(*httpapi.Server).Answers, http.MethodGet, "/v1/jobs", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				room := test.room(h.Server)
				release, err := room.Acquire(t.Context(), "greedy", 64<<20, nil)
				must(t, err)
				ctx, leave := context.WithCancel(t.Context())
				request := httptest.NewRequestWithContext(ctx, test.method, test.path, strings.NewReader(test.body))
				request.Header.Set("Content-Type", "application/json")
				w := newConn(false)
				go h.ServeHTTP(w, request)
				synctest.Wait()
				cuts := room.Cuts()
				leave()
				synctest.Wait()
				if len(cuts) != 1 || w.wasCut() {
					t.Fatalf("%d requests wait for room; cut: %t", len(cuts), w.wasCut())
				}
				cuts[0]()
				if w.wasCut() {
					t.Error("the connection is cut after the request has ended")
				}
				release()
			})
		})
	}
}

// A request takes no room once its context has ended, even if there is some: its outcome
// must not depend on chance.
func TestFairLimiter_GivesNothingToAnEndedRequest(t *testing.T) {
	t.Parallel()
	l := httpapi.NewFairLimiter(10, httpapi.Queues)
	over, end := context.WithCancel(t.Context())
	end()
	for range 100 {
		if _, err := l.Acquire(over, "anna", 1, nil); !errors.Is(err, context.Canceled) {
			t.Fatalf("a request that is over got %v", err)
		}
	}
	if _, err := l.Acquire(t.Context(), "bert", 10, nil); err != nil {
		t.Errorf("there is no room for another: %v", err)
	}
}
