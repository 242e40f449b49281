//go:build !race

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// standardServer is a server with the documented defaults, except for its store and its bus
// (the pull queue or topics): all parts and loops of the program, on virtual time and
// without a network.
type standardServer struct {
	*testServer
	*topics

	queue   bool
	claims  int
	handler http.Handler
	logged  *output
}

// topics is a bus that records its messages, and rejects each message of the first attempts.
type topics struct {
	rejects int
	sent    chan []byte
}

func (b *topics) Publish(ctx context.Context, messages []ledger.Message) []error {
	errs := make([]error, len(messages))
	for i := range messages {
		if messages[i].AttemptNo <= b.rejects && messages[i].StepIndex == 0 {
			errs[i] = &outbox.RejectedError{Reason: "malformed"}
			continue
		}
		select {
		case b.sent <- messages[i].Directive:
		case <-ctx.Done():
			errs[i] = ctx.Err()
		}
	}
	return errs
}

func (b *topics) PublishedByMark() bool { return false }

// serveStandard starts the server, with more flags if there are any. It ends with the
// test.
func serveStandard(t *testing.T, overBus bool, rejects int, more ...string) *standardServer {
	t.Helper()
	loaded, err := config.LoadArgs(append([]string{"--protocols-dir", "../../protocols"}, more...), nil)
	if err != nil {
		t.Fatal(err)
	}
	if overBus {
		loaded.Bus = config.BusServiceBus
	}
	logged := &output{}
	log := slog.New(slog.NewJSONHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	registry, err := commands.LoadProtocols(loaded.ProtocolsDir)
	if err != nil {
		t.Fatal(err)
	}
	access, err := openAccess(t.Context(), &loaded.Config, log)
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(&loaded.Config, log, newMetrics(), memstore.New(memstore.Options{}), access, commands.NewProtocolHolder(registry))
	settings, err := h.settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := &standardServer{topics: &topics{rejects: rejects, sent: make(chan []byte, 1)}, queue: !overBus, logged: logged}
	if overBus {
		settings.OpenBus = func(server.Apply) (*server.Bus, error) { return &server.Bus{Publisher: s.topics}, nil }
	}
	opened, err := server.Open(t.Context(), *settings)
	if err != nil {
		t.Fatal(err)
	}
	client, err := api.NewClientWithResponses("http://127.0.0.1", api.WithHTTPClient(directly{opened}))
	if err != nil {
		t.Fatal(err)
	}
	s.testServer, s.handler = &testServer{client: client}, opened
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- opened.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return s
}

// directly is a transport that calls the handler, without a connection.
type directly struct{ http.Handler }

func (d directly) Do(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	r.RequestURI, r.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:1"
	if r.Body == nil {
		r.Body = http.NoBody
	}
	d.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// next returns the next directive that a worker receives, nil once the job has ended.
func (s *standardServer) next(t *testing.T, jobID string) *statemachine.Directive {
	t.Helper()
	for {
		var body []byte
		if s.queue {
			s.claims++
			response, err := s.client.ClaimWorkWithResponse(t.Context(), api.ClaimRequest{
				Owner: "w", RequestID: fmt.Sprint("c", s.claims), Max: 1, WaitSeconds: 60,
			})
			if err != nil || response.JSON200 == nil {
				t.Fatalf("claim: %v, %s", err, bodyOf(response))
			}
			if items := response.JSON200.Items; len(items) > 0 {
				body = items[0].Directive
			}
		} else {
			select {
			case body = <-s.sent:
			case <-time.After(time.Minute):
			}
		}
		if body != nil {
			directive := new(statemachine.Directive)
			if err := json.Unmarshal(body, directive); err != nil {
				t.Fatal(err)
			}
			return directive
		}
		if job := s.job(t, jobID); !job.CompletedAt.IsZero() {
			return nil
		}
	}
}

func (s *standardServer) job(t *testing.T, jobID string) *api.Job {
	t.Helper()
	response, err := s.client.GetJobWithResponse(t.Context(), jobID, nil)
	if err != nil || response.JSON200 == nil {
		t.Fatalf("get: %v, %s", err, bodyOf(response))
	}
	return response.JSON200
}

// ack and fail are a worker's callbacks of the directive's attempt.
func (s *standardServer) ack(t *testing.T, d *statemachine.Directive) {
	t.Helper()
	response, err := s.client.CallbackAckWithResponse(t.Context(), api.AckCallback{
		JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: int32(d.AttemptNo), LeaseID: d.LeaseID,
		Timestamp: api.NewTime(time.Now()),
	})
	if err != nil || response.JSON200 == nil {
		t.Fatalf("ack: %v, %s", err, bodyOf(response))
	}
}

func (s *standardServer) result(t *testing.T, d *statemachine.Directive, status api.ResultStatus) {
	t.Helper()
	response, err := s.client.CallbackResultWithResponse(t.Context(), api.ResultCallback{
		JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: int32(d.AttemptNo), LeaseID: d.LeaseID,
		Timestamp: api.NewTime(time.Now()), Status: status,
	})
	if err != nil || response.JSON200 == nil {
		t.Fatalf("result: %v, %s", err, bodyOf(response))
	}
}

// occurred returns when the event of that type happened to each attempt of the first step.
func (s *standardServer) occurred(t *testing.T, jobID, eventType string) []time.Time {
	t.Helper()
	response, err := s.client.ListJobEventsWithResponse(t.Context(), jobID, nil)
	if err != nil || response.JSON200 == nil {
		t.Fatalf("events: %v, %s", err, bodyOf(response))
	}
	var at []time.Time
	for _, event := range response.JSON200.Events {
		if string(event.Type) == eventType {
			at = append(at, event.At.Time)
		}
	}
	return at
}

// A job follows each default schedule to its end, with the documented deadlines and delays:
// delays within the 10 % of jitter, and both late by at most one interval of the loops.
func TestDefaults_EachScheduleIsLivedThrough(t *testing.T) {
	t.Parallel()
	ackTimeout, lease := 30*time.Second, 15*time.Minute
	dispatch := []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute}
	ack := []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute}
	silent := func(*testing.T, *standardServer, *statemachine.Directive) {}
	hangs := func(t *testing.T, s *standardServer, d *statemachine.Directive) { t.Helper(); s.ack(t, d) }
	fails := func(t *testing.T, s *standardServer, d *statemachine.Directive) {
		t.Helper()
		s.ack(t, d)
		s.result(t, d, api.ResultStatusFailedRetry)
	}
	for _, test := range []struct {
		name    string
		overBus bool
		rejects int
		worker  func(*testing.T, *standardServer, *statemachine.Directive)
		// The types of the events from and to which an attempt lasts, and of the one that
		// makes the next attempt.
		from, to, next string
		lasts          time.Duration
		delays         []time.Duration
		code           string
	}{
		{"no ACK from the queue", false, 0, silent, "step.claimed", "step.failed_retry", "step.dispatching", ackTimeout, ack, "ack_timeout"},
		{"no ACK over a topic", true, 0, silent, "outbox.sent", "step.failed_retry", "step.dispatching", ackTimeout, ack, "ack_timeout"},
		{"no RESULT", false, 0, hangs, "step.in_progress", "step.failed_retry", "step.dispatching", lease, dispatch, "lease_expired"},
		{"RESULT FAILED_RETRY", true, 0, fails, "step.in_progress", "step.failed_retry", "step.dispatching", 0, dispatch, "failed_retry"},
		{"a rejected message", true, 4, silent, "outbox.rejected", "outbox.rejected", "step.refenced", 0, dispatch, "dispatch_exhausted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := serveStandard(t, test.overBus, test.rejects)
				id := s.submit(t)
				for d := s.next(t, id); d != nil; d = s.next(t, id) {
					test.worker(t, s, d)
				}
				if job := s.job(t, id); job.State != api.JobStateFailedFinal || job.ErrorCode != test.code || job.AttemptsTotal != 4 {
					t.Errorf("the job is %s, %s after %d attempts", job.State, job.ErrorCode, job.AttemptsTotal)
				}
				from, to, next := s.occurred(t, id, test.from), s.occurred(t, id, test.to), s.occurred(t, id, test.next)
				for i, want := range test.delays {
					between(t, fmt.Sprint("attempt ", i+1), to[i].Sub(from[i]), test.lasts, test.lasts)
					delay := next[len(next)-len(test.delays)+i].Sub(to[i])
					between(t, fmt.Sprint("delay ", i+1), delay, want*9/10, want*11/10)
				}
			})
		})
	}
}

// The delays of all causes together allow ten attempts, which is the default cap.
func TestDefaults_AStepMayHaveTenAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := serveStandard(t, true, 3)
		id := s.submit(t)
		for d := s.next(t, id); d != nil; d = s.next(t, id) {
			switch {
			case d.AttemptNo <= 6 && d.StepID == "extract":
			case d.AttemptNo <= 9 && d.StepID == "extract":
				s.result(t, d, api.ResultStatusFailedRetry)
			default:
				s.result(t, d, api.ResultStatusSucceeded)
			}
		}
		if job := s.job(t, id); job.State != api.JobStateSucceeded || job.Steps[0].AttemptNo != 10 {
			t.Errorf("the job is %s after %d attempts of its first step", job.State, job.Steps[0].AttemptNo)
		}
	})
}

// A server obeys other settings: the intervals of its loops, the delays and their jitter,
// the cap on attempts, how long it keeps an ended job and its key, and the archive, a file
// for each month with the job's payload and whole history.
func TestDefaults_GiveWayToSettings(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "archive")
	synctest.Test(t, func(t *testing.T) { // It is 2000-01-01 in a bubble.
		s := serveStandard(t, true, 1, "--archive-dir", dir, "--execution-backoff", "10s", "--backoff-jitter", "0", "--max-attempts", "3", "--outbox-retry-interval", "5m",
			"--sweep-interval", "30m", "--idempotency-ttl", "2h", "--retention", "4h")
		id := s.submitAs(t, "k")
		second := s.next(t, id) // The first was rejected.
		if waited := time.Since(s.occurred(t, id, "outbox.rejected")[0]); waited < time.Minute {
			t.Errorf("a pass of the relay came after %s", waited)
		}
		s.result(t, second, api.ResultStatusFailedRetry)
		failed := s.occurred(t, id, "step.failed_retry")[0]
		if due := s.job(t, id).Steps[0].NextAttemptAt.Sub(failed); due != 10*time.Second {
			t.Errorf("the next attempt is due in %s", due)
		}
		s.next(t, id)
		if waited := time.Since(failed); waited < 10*time.Minute {
			t.Errorf("a pass of the sweeper came after %s", waited)
		}
		if d := s.next(t, id); d != nil {
			t.Fatalf("attempt %d is more than the cap", d.AttemptNo)
		}
		ended := s.occurred(t, id, "job.failed_final")[0]
		time.Sleep(time.Until(ended.Add(119 * time.Minute)))
		if again := s.submitAs(t, "k"); again != id {
			t.Errorf("while the key is kept it stands for %s, not for %s", again, id)
		}
		time.Sleep(time.Until(ended.Add(239 * time.Minute)))
		s.job(t, id)
		if again := s.submitAs(t, "k"); again == id {
			t.Error("the key is kept for longer than it should be")
		}
		time.Sleep(45 * time.Minute)
		if response, err := s.client.GetJobWithResponse(t.Context(), id, nil); err != nil || response.StatusCode() != http.StatusNotFound {
			t.Errorf("after the retention the job is answered %d, %v", response.StatusCode(), err)
		}
		terminalOf(t, "", "").want(0, id+"  FAILED_FINAL  tenant_a", "archive", "read", dir)
		text, err := os.ReadFile(filepath.Join(dir, "jobs-2000-01.jsonl"))
		var line struct {
			JobID, State string
			Payload      json.RawMessage
			Events       []struct{ Type string }
		}
		if err := errors.Join(err, json.Unmarshal(text, &line)); err != nil {
			t.Fatalf("the archive: %v: %s", err, text)
		}
		if line.JobID != id || line.State != "FAILED_FINAL" || string(line.Payload) != `{"language":"en"}` ||
			len(line.Events) == 0 || line.Events[0].Type != "job.accepted" {
			t.Errorf("archived: %s", text)
		}
	})
}

// The metrics and the log show timeouts: how many there were, of which cause, and of which
// attempt of which job. The log holds no lease id, which is a capability.
func TestObserve_TimeoutsAreCountedAndLogged(t *testing.T) {
	t.Parallel()
	for cause, worker := range map[string]func(*testing.T, *standardServer, *statemachine.Directive){
		"ack_timeout":   func(*testing.T, *standardServer, *statemachine.Directive) {},
		"lease_expired": func(t *testing.T, s *standardServer, d *statemachine.Directive) { t.Helper(); s.ack(t, d) },
		// A step ends at LUCIUS_STEP_RESULT_TIMEOUT, even if its worker sends heartbeats.
		"step_timeout": func(t *testing.T, s *standardServer, d *statemachine.Directive) {
			t.Helper()
			begin := time.Now()
			for range 10 {
				if !s.beats(t, d) {
					break
				}
				time.Sleep(time.Minute)
			}
			if took := time.Since(begin); took != 6*time.Minute {
				t.Fatalf("the worker was heard for %s, want 6m", took)
			}
		},
	} {
		t.Run(cause, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var flags []string
				if cause == "step_timeout" { // The default is of hours, in which each loop runs many thousand times.
					flags = []string{"--step-result-timeout", "5m30s"}
				}
				s := serveStandard(t, false, 0, flags...)
				id := s.submit(t)
				attempts := 0
				for d := s.next(t, id); d != nil; d = s.next(t, id) {
					attempts++
					worker(t, s, d)
					if strings.Contains(s.logged.String(), d.LeaseID) {
						t.Error("the log holds a lease id")
					}
				}
				job := s.job(t, id)
				if job.ErrorCode != cause || attempts != 4 {
					t.Errorf("the job ended with %s after %d attempts", job.ErrorCode, attempts)
				}
				recorder := httptest.NewRecorder()
				request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1/metrics", nil)
				s.handler.ServeHTTP(recorder, request)
				for _, line := range []string{
					fmt.Sprintf(`lucius_step_failures_total{cause=%q,retried="yes",service="extract"} 3`, cause),
					fmt.Sprintf(`lucius_step_failures_total{cause=%q,retried="no",service="extract"} 1`, cause),
					`lucius_transitions_total{event="job.accepted"} 1`, `lucius_transitions_total{event="job.failed_final"} 1`,
					`lucius_transitions_total{event="step.failed_retry"} 3`, `lucius_transitions_total{event="step.failed_final"} 1`,
				} {
					if !strings.Contains(recorder.Body.String(), line+"\n") {
						t.Errorf("the metrics have no %s", line)
					}
				}
				for attempt := range 3 {
					line := fmt.Sprintf(`"msg":"transition","jobId":%q,"tenant_id":"tenant_a","stepId":"extract","attempt_no":%d,"lease_digest":"`, id, attempt+1)
					if !strings.Contains(s.logged.String(), line) || !strings.Contains(s.logged.String(), `"correlation_id":"`+job.CorrelationID) {
						t.Errorf("the log has no %s", line)
					}
				}
				failed := fmt.Sprintf(`"level":"INFO","msg":"job ended","jobId":%q,"tenant_id":"tenant_a","stepId":"extract","attempt_no":4,`, id)
				if strings.Count(s.logged.String(), failed) != 1 {
					t.Errorf("the log has not one line with %s", failed)
				}
			})
		})
	}
}

// beats sends a heartbeat, and reports whether the attempt is still the current one.
func (s *standardServer) beats(t *testing.T, d *statemachine.Directive) bool {
	t.Helper()
	response, err := s.client.CallbackHeartbeatWithResponse(t.Context(), api.HeartbeatCallback{
		JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: int32(d.AttemptNo), LeaseID: d.LeaseID,
		Timestamp: api.NewTime(time.Now()),
	})
	if err != nil {
		t.Fatal(err)
	}
	return response.JSON200 != nil
}

// between checks a duration whose end a loop may notice late.
func between(t *testing.T, name string, got, low, high time.Duration) {
	t.Helper()
	const late = 1200 * time.Millisecond
	if got < low || got > high+late {
		t.Errorf("%s lasted %s, want %s to %s", name, got, low, high)
	}
}

// A program that embeds the server gets the settings' defaults.
func TestDefaults_AreThoseOfThePackage(t *testing.T) {
	t.Parallel()
	loaded, err := config.LoadArgs(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{cfg: &loaded.Config, log: slog.New(slog.DiscardHandler), metrics: newMetrics(), access: new(access)}
	settings, err := h.settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(server.DefaultPolicy(), settings.Defaults); diff != "" {
		t.Errorf("(-package +settings):\n%s", diff)
	}
}
