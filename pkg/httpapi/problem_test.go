package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/apierror"
)

// raised names the operations that document each code of a use case. The other codes
// come from this package or from access control.
var raised = map[apierror.Code][]string{
	apierror.InvalidJSON:              {"POST /v1/commands"},
	apierror.InvalidEnvelope:          {"POST /v1/commands", "POST /v1/callbacks/ack", "GET /v1/jobs/$job/events"},
	apierror.PayloadInvalid:           {"POST /v1/commands", "POST /v1/orchestrate"},
	apierror.UnknownRequestType:       {"POST /v1/commands"},
	apierror.RefInvalid:               {"POST /v1/commands", "POST /v1/callbacks/result", "POST /v1/work/$running:complete"},
	apierror.SchemaVersionUnsupported: {"POST /v1/commands"},
	apierror.IdempotencyMismatch:      {"POST /v1/commands"},
	apierror.NotAfterPassed:           {"POST /v1/commands"},
	apierror.LimitUnsupported:         {"PUT /v1/admin/limits/service:ocr"},
	apierror.TooLarge:                 {"POST /v1/commands", "POST /v1/callbacks/result", "POST /v1/work/$running:fail"},
	apierror.JobNotFound: {
		"GET /v1/jobs/$job", "GET /v1/jobs/$job/steps", "GET /v1/jobs/$job/events", "POST /v1/jobs/$job:cancel",
		"POST /v1/jobs/$job:pause", "POST /v1/jobs/$job:resume", "POST /v1/callbacks/ack", "POST /v1/callbacks/heartbeat",
		"POST /v1/callbacks/result",
	},
	apierror.StepNotFound: {"POST /v1/callbacks/ack", "POST /v1/callbacks/heartbeat", "POST /v1/callbacks/result"},
	apierror.WorkNotFound: {
		"GET /v1/work/$claimed", "GET /v1/work/$claimed/events", "POST /v1/work/$claimed:start", "POST /v1/work/$running:heartbeat",
		"POST /v1/work/$running:complete", "POST /v1/work/$running:fail", "POST /v1/admin/work/$claimed:stall", "POST /v1/admin/work/$stalled:requeue",
	},
	apierror.Conflict: {"POST /v1/jobs/$job:cancel", "POST /v1/callbacks/ack", "POST /v1/work/$claimed:start"},
	apierror.IllegalTransition: {
		"POST /v1/jobs/$job:cancel", "POST /v1/jobs/$job:pause", "POST /v1/jobs/$job:resume", "POST /v1/callbacks/ack",
		"POST /v1/work/$claimed:start", "POST /v1/admin/work/$claimed:stall", "POST /v1/admin/work/$stalled:requeue",
	},
	apierror.NothingToRun:        {"POST /v1/jobs/$failed:rerun"},
	apierror.StaleAttempt:        {"POST /v1/callbacks/ack", "POST /v1/callbacks/heartbeat", "POST /v1/work/$claimed:start"},
	apierror.ContradictoryResult: {"POST /v1/callbacks/result"},
	apierror.RevConflict:         {"POST /v1/work/$claimed:start", "POST /v1/work/$running:heartbeat", "POST /v1/admin/work/$claimed:stall"},
	apierror.NotOwner:            {"POST /v1/work/$claimed:start", "POST /v1/work/$running:complete", "POST /v1/work/$running:fail"},
	apierror.TenantLimit:         {"POST /v1/commands", "POST /v1/orchestrate"},
	apierror.LineNotFound:        {"POST /v1/lines/$line:release"},
	apierror.NotBlocking:         {"POST /v1/lines/$line:release"},
	apierror.LineBusy:            {"POST /v1/commands", "POST /v1/orchestrate"},
	apierror.LineFull:            {"POST /v1/commands", "POST /v1/orchestrate"},
	apierror.RateLimited:         {"POST /v1/commands"},
	apierror.Internal:            everything,
	apierror.StoreUnavailable:    everything,
	apierror.ShuttingDown:        everything,
}

// everything lists the requests that may fail for server-side reasons.
var everything = []string{
	"POST /v1/commands", "POST /v1/orchestrate", "GET /v1/jobs/$job", "GET /v1/jobs/$job/steps", "GET /v1/jobs/$job/events",
	"POST /v1/jobs/$job:cancel", "POST /v1/jobs/$job:pause", "POST /v1/jobs/$job:resume", "POST /v1/callbacks/ack",
	"POST /v1/callbacks/heartbeat", "POST /v1/callbacks/result", "POST /v1/work:claim", "POST /v1/work/$claimed:start",
	"POST /v1/work/$running:heartbeat", "POST /v1/work/$running:complete", "POST /v1/work/$running:fail", "GET /v1/work/$claimed",
	"GET /v1/work/$claimed/events", "POST /v1/admin/outbox/retry", "POST /v1/admin/work/$claimed:stall", "POST /v1/admin/work/$stalled:requeue",
	"GET /readyz",
}

func TestProblemsOfUseCasesAreAnsweredAsDocumented(t *testing.T) {
	t.Parallel()
	for code, targets := range raised {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			for _, target := range targets {
				h := newHarness(t)
				violations := []apierror.Violation{{Pointer: "/payload/language", Message: "must be one of en, de"}}
				h.store.fail(fmt.Errorf("use case: %w", &apierror.Error{Code: code, Detail: "It is so.", Errors: violations}))
				method, path := split(target)
				body := posts[path]
				if method == http.MethodPut {
					body = `{"starts":{"count":1,"window":"1s"},"reason":"why"}`
				}
				response := h.do(t, method, path, body)
				found := problemOf(t, response)
				want, wantErrors := "It is so.", violations
				if code == apierror.Internal {
					want, wantErrors = "", nil
				}
				if found.Code != code || found.Detail != want {
					t.Errorf("%s: got %s %q", target, found.Code, found.Detail)
				}
				if diff := cmp.Diff(wantErrors, found.Errors); diff != "" {
					t.Errorf("%s: errors (-want +got):\n%s", target, diff)
				}
			}
		})
	}
}

func TestEveryCodeIsRaisedSomewhere(t *testing.T) {
	t.Parallel()
	frame := []apierror.Code{
		apierror.NotFound, apierror.MethodNotAllowed, apierror.UnsupportedMediaType,
		apierror.ScheduleInvalid, apierror.ScheduleNotFound, apierror.ScheduleLimit,
	}
	access := []apierror.Code{apierror.Unauthenticated, apierror.Forbidden, apierror.IssuerUnavailable}
	// Batches have a test of their own.
	lines := []apierror.Code{apierror.PredecessorRefused}
	known := map[apierror.Code]bool{}
	for _, code := range slices.Concat(frame, access, lines) {
		known[code] = true
	}
	for _, code := range apierror.Codes() {
		if !known[code] && len(raised[code]) == 0 {
			t.Errorf("no test raises %s", code)
		}
	}
}

func TestInternalErrorsAreLoggedOnceAndKeptFromTheClient(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.fail(errors.New("dial 10.0.0.7: secret"))
	response := h.do(t, http.MethodGet, "/v1/jobs/$job", "", "X-Request-Id: req-42")
	wantProblem(t, response, apierror.Internal, "")
	if body := response.Body; strings.Contains(body, "secret") {
		t.Errorf("the client is told %s", body)
	}
	log := h.log.String()
	if n := strings.Count(log, "secret"); n != 1 {
		t.Errorf("the cause is logged %d times:\n%s", n, log)
	}
	for _, want := range []string{"level=ERROR", "request_id=req-42", "route=/v1/jobs/{jobId}", "code=internal"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log does not say %s:\n%s", want, log)
		}
	}
}

func TestCausesOfOtherProblemsAreLoggedAndKeptFromTheClient(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code  apierror.Code
		level string
	}{
		{apierror.StoreUnavailable, "level=WARN"},
		{apierror.Conflict, "level=DEBUG"},
	} {
		h := newHarness(t)
		h.store.fail(&apierror.Error{Code: test.code, Detail: "Try again.", Err: errors.New("secret")})
		response := h.do(t, http.MethodPost, "/v1/jobs/$job:cancel", "")
		if body := response.Body; strings.Contains(body, "secret") {
			t.Errorf("%s: the client is told %s", test.code, body)
		}
		if log := h.log.String(); !strings.Contains(log, "secret") || !strings.Contains(log, test.level) {
			t.Errorf("%s: the log does not hold the cause at %s:\n%s", test.code, test.level, log)
		}
	}
}

func TestRetryAfterIsInWholeSeconds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code  apierror.Code
		after time.Duration
		want  string
	}{
		{apierror.TenantLimit, 0, "1"},
		{apierror.TenantLimit, 1500 * time.Millisecond, "2"},
		{apierror.StoreUnavailable, 0, "1"},
		{apierror.StoreUnavailable, time.Minute, "60"},
		{apierror.ShuttingDown, 0, "1"},
		{apierror.Conflict, time.Minute, ""},
	} {
		h := newHarness(t)
		h.store.fail(&apierror.Error{Code: test.code, RetryAfter: test.after})
		response := h.do(t, http.MethodPost, map[bool]string{true: "/v1/jobs/$job:cancel", false: "/v1/commands"}[test.want == ""],
			map[bool]string{true: `{}`, false: command}[test.want == ""])
		if got := response.Header.Get("Retry-After"); got != test.want {
			t.Errorf("%s after %s: Retry-After is %q, want %q", test.code, test.after, got, test.want)
		}
	}
}

func TestAClientThatWentAwayGetsNoAnswer(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	ctx, leave := context.WithCancel(t.Context())
	path := "/v1/jobs/" + h.submitted(t)
	h.store.on(func(ctx context.Context) error {
		leave()
		return fmt.Errorf("load job: %w", context.Cause(ctx))
	})
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
	if body := recorder.Body.String(); body != "" {
		t.Errorf("the client that went away got %s", body)
	}
	if log := h.log.String(); strings.Contains(log, "level=ERROR") {
		t.Errorf("it is logged as an error:\n%s", log)
	}
	h.measures(t, `lucius_http_requests_total{code="499",method="GET",route="/v1/jobs/{jobId}"} 1`)
}

func TestACancelledContextOfTheServerIsAnInternalError(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.store.fail(context.Canceled)
	wantProblem(t, h.do(t, http.MethodGet, "/v1/jobs/$job", ""), apierror.Internal, "")
}

func TestAResponseThatCannotBeEncodedIsAnInternalError(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	recorder := httptest.NewRecorder()
	h.Answer(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/work/$running", http.NoBody), json.RawMessage(`{"type":`))
	if recorder.Code != http.StatusInternalServerError || strings.Contains(recorder.Body.String(), "type\":\n") {
		t.Errorf("answered %d %s", recorder.Code, recorder.Body)
	}
	if log := h.log.String(); !strings.Contains(log, "encode response") {
		t.Errorf("the log does not say what failed:\n%s", log)
	}
}
