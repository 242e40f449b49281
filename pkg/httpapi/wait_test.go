package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/problem"
)

// waiting is a use case that waits as the contract of [httpapi.Wait] says, for
// something that never happens. It announces that it waits on begun.
func waiting(begun chan<- struct{}) func(context.Context, call, wait) error {
	return func(ctx context.Context, _ call, wait wait) error {
		begun <- struct{}{}
		timer := time.NewTimer(wait.Limit)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-wait.Ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waits are the requests that wait.
var waits = map[string]string{
	"GET /v1/jobs/j1?wait=60s": "",
	"POST /v1/work:claim":      `{"owner":"o","request_id":"r","wait_seconds":60}`,
}

func TestAWaitEndsWithItsTime(t *testing.T) {
	t.Parallel()
	for target, body := range waits {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			h.useCases.hook = waiting(make(chan struct{}, 1))
			h.useCases.empty = true
			method, path := split(target)
			begun := time.Now()
			response := h.do(t, method, path, body)
			if response.Status != http.StatusOK {
				t.Errorf("%s: %d", target, response.Status)
			}
			if waited := time.Since(begun); waited != time.Minute {
				t.Errorf("%s: waited %s", target, waited)
			}
		})
	}
}

func TestAWaitEndsWhenTheServerDrains(t *testing.T) {
	t.Parallel()
	for target, body := range waits {
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t)
			begun := make(chan struct{})
			h.useCases.hook = waiting(begun)
			answered := make(chan answer)
			go func() {
				method, path := split(target)
				answered <- h.do(t, method, path, body)
			}()
			<-begun
			from := time.Now()
			h.Drain()
			if response := <-answered; response.Status != http.StatusOK {
				t.Errorf("%s: %d", target, response.Status)
			}
			if waited := time.Since(from); waited != 0 {
				t.Errorf("%s: waited %s after the drain", target, waited)
			}
		})
	}
}

// With a real connection: it is the server that notices that the client left.
func TestAWaitEndsWhenTheClientGoesAway(t *testing.T) {
	t.Parallel()
	for target, body := range waits {
		h := newHarness(t)
		begun := make(chan struct{})
		ended := make(chan error, 1)
		h.useCases.hook = func(ctx context.Context, c call, wait wait) error {
			err := waiting(begun)(ctx, c, wait)
			ended <- err
			return err
		}
		server := listen(t, h)
		ctx, leave := context.WithCancel(t.Context())
		method, path := split(target)
		request, err := http.NewRequestWithContext(ctx, method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		go func() {
			<-begun
			leave()
		}()
		if response, err := server.Client().Do(request); err == nil {
			_ = response.Body.Close()
			t.Errorf("%s: somebody was answered %s", target, response.Status)
		}
		if err := <-ended; err == nil {
			t.Errorf("%s: the use case waited on", target)
		}
		server.Close() // Waits until the exchange is over.
		if log := h.log.String(); strings.Contains(log, "level=ERROR") {
			t.Errorf("%s: it is logged as an error:\n%s", target, log)
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
		h.Drain() // Again is the same.
		method, path := split(target)
		response := h.do(t, method, path, posts[path])
		wantProblem(t, response, problem.ShuttingDown, "This process stops; send the request again.")
		if response.Header.Get("Connection") != "close" || response.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: headers %v", target, response.Header)
		}
		if calls := h.useCases.all(); len(calls) > 0 {
			t.Errorf("%s: the use case was called", target)
		}
	}
}

func TestADrainingServerGoesOnWithWhatItHas(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.useCases.hook = func(context.Context, call, wait) error {
		h.Drain()
		return nil
	}
	recorder := httptest.NewRecorder()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/commands", strings.NewReader(`{}`))
	request.Header.Set("Content-Type", "application/json")
	h.ServeHTTP(recorder, request)
	var got api.CommandAccepted
	if err := json.Unmarshal(recorder.Body.Bytes(), &got); err != nil || got.JobID != "j1" {
		t.Errorf("%d: %s", recorder.Code, recorder.Body)
	}
}
