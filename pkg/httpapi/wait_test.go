package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// waits are the requests that wait, keyed by what they wait for.
var waits = map[string]ask{
	"a job": {"GET /v1/jobs/$job?wait=60s", ""},
	"work":  {"POST /v1/work:claim", `{"owner":"o","request_id":"r","wait_seconds":60}`},
}

func TestAWaitEndsAtItsTimeout(t *testing.T) {
	t.Parallel()
	for what, asked := range waits {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			method, path := split(asked.target)
			begun := time.Now()
			if response := h.do(t, method, path, asked.body); response.Status != http.StatusOK {
				t.Errorf("%s: %d", what, response.Status)
			}
			if waited := time.Since(begun); waited != time.Minute {
				t.Errorf("%s: waited %s", what, waited)
			}
		})
	}
}

// A longer wait for a job is cut to MaxWait; a longer wait of a claim is refused, like its
// other fields beyond their limits.
func TestAWaitIsAtMostMaxWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		begun := time.Now()
		h.do(t, http.MethodGet, "/v1/jobs/$job?wait=1h", "")
		if waited := time.Since(begun); waited != httpapi.MaxWait {
			t.Errorf("waited %s", waited)
		}
		response := h.do(t, http.MethodPost, "/v1/work:claim", `{"owner":"o","request_id":"r","wait_seconds":60.1}`)
		wantProblem(t, response, apierror.InvalidEnvelope, "/wait_seconds must be at most 60.")
	})
}

func TestAWaitEndsWhenItsResultArrives(t *testing.T) {
	t.Parallel()
	for what, asked := range waits {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			target, body := h.fill(t, asked.target, asked.body)
			answered := make(chan answer)
			begun := time.Now()
			go func() {
				method, path := split(target)
				answered <- h.do(t, method, path, body)
			}()
			synctest.Wait()
			if what == "a job" {
				h.given(t, strings.Replace(strings.Replace(target, "GET", "POST", 1), "?wait=60s", ":cancel", 1), "")
			} else {
				h.submitted(t)
				_, err := h.relay.RunOnce(t.Context())
				musttest.NoError(t, err)
			}
			if got := (<-answered).Body; !strings.Contains(got, "CANCELLED") && !strings.Contains(got, "work_id") || time.Since(begun) > time.Second {
				t.Errorf("%s: after %s: %s", what, time.Since(begun), got)
			}
		})
	}
}

func TestAWaitEndsWhenTheServerDrains(t *testing.T) {
	t.Parallel()
	for what, asked := range waits {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			answered := make(chan answer)
			go func() {
				method, path := split(asked.target)
				answered <- h.do(t, method, path, asked.body)
			}()
			synctest.Wait()
			from := time.Now()
			h.Drain()
			if response := <-answered; response.Status != http.StatusOK {
				t.Errorf("%s: %d", what, response.Status)
			}
			if waited := time.Since(from); waited != 0 {
				t.Errorf("%s: waited %s after the drain", what, waited)
			}
		})
	}
}

// This needs a real connection: the server notices that the client disconnected.
func TestAWaitEndsWhenTheClientGoesAway(t *testing.T) {
	t.Parallel()
	for what, asked := range waits {
		h := newHarness(t)
		target, body := h.fill(t, asked.target, asked.body)
		begun := make(chan struct{})
		var once sync.Once
		h.store.on(func(context.Context) error {
			once.Do(func() { close(begun) })
			return nil
		})
		server := listen(t, h)
		ctx, leave := context.WithCancel(t.Context())
		method, path := split(target)
		request, err := http.NewRequestWithContext(ctx, method, server.URL+path, strings.NewReader(body))
		musttest.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		go func() {
			<-begun
			leave()
		}()
		if response, err := server.Client().Do(request); err == nil {
			_ = response.Body.Close()
			t.Errorf("%s: the client that went away got %s", what, response.Status)
		}
		server.Close() // Waits until the request is over.
		if polls := len(h.store.read()); polls > 30 {
			t.Errorf("%s: the use case waited on: it read %d times", what, polls)
		}
		if log := h.log.String(); strings.Contains(log, "level=ERROR") {
			t.Errorf("%s: it is logged as an error:\n%s", what, log)
		}
	}
}

func TestADrainingServerRefusesNewRequests(t *testing.T) {
	t.Parallel()
	for _, target := range everything {
		if !strings.Contains(target, "/v1/") {
			continue
		}
		h := newHarness(t)
		h.Drain()
		h.Drain() // A second call has no effect.
		method, path := split(target)
		response := h.do(t, method, path, posts[path])
		wantProblem(t, response, apierror.ShuttingDown, "This process stops; send the request again.")
		if response.Header.Get("Connection") != "close" || response.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: headers %v", target, response.Header)
		}
		h.store.untouched(t, target)
	}
}

func TestADrainingServerFinishesItsRequests(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.on(func(context.Context) error {
		h.Drain()
		return nil
	})
	recorder := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/commands", strings.NewReader(command))
	request.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(recorder, request)
	var got api.CommandAccepted
	if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil || got.JobID == "" {
		t.Errorf("%d: %s", recorder.Code, recorder.Body)
	}
}
