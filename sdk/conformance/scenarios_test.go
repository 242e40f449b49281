//go:build sdk

package conformance_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/internal/waittest"
)

// scenario is one of one job.
type scenario struct {
	name string
	// requestType is that of the job, unless it is empty: then that of the service conformance.
	requestType string
	payload     what
	// faults happen to the worker's calls for the job.
	faults []fault
	// during runs beside the handler.
	during func(t *testing.T, b *bench, job string)
	// The job must end in this state, with this error code, after so many attempts.
	state   string
	code    string
	attempt int
	judge   func(t *testing.T, b *bench, j job)
}

// throttling is a request type whose jobs close their service. It is one that nothing else uses,
// because a closure would hold back the other scenarios, whose leases end.
const throttling = "sdk.throttled"

// scenarios all run at once.
var scenarios = []scenario{
	{name: "success", payload: what{"do": "succeed"}, state: "SUCCEEDED", attempt: 1, judge: traced},
	{
		name: "Final", payload: what{"do": "final"}, state: "FAILED_FINAL", code: "CONFORMANCE_FINAL", attempt: 1,
		judge: failed(func(c *call) bool { return !c.body.Retryable && c.body.Error.Message == "told to fail" }),
	},
	{
		name: "an error that quotes the token", payload: what{"do": "quote_token"},
		state: "FAILED_FINAL", code: "CONFORMANCE_FINAL", attempt: 1,
		judge: failed(func(c *call) bool { return c.body.Error.Message == "refused: Bearer [secret]" }),
	},
	{
		name: "Retry", payload: what{"do": "retry_once"}, state: "SUCCEEDED", attempt: 2,
		judge: failed(func(c *call) bool { return c.body.Retryable && c.body.Error.Code == "CONFORMANCE_RETRY" }),
	},
	{
		name: "RetryAfter", payload: what{"do": "retry_after", "seconds": 2}, state: "SUCCEEDED", attempt: 2,
		judge: failed(func(c *call) bool {
			return c.body.Retryable && c.body.RetryAfter == 2 && c.body.Error.Code == "CONFORMANCE_RETRY_AFTER"
		}),
	},
	{
		name: "Throttled", requestType: throttling, payload: what{"do": "throttled", "seconds": 1.5},
		state: "SUCCEEDED", attempt: 2, judge: throttled("service"),
	},
	{
		name: "Throttled, of a tenant", requestType: throttling, payload: what{"do": "throttled_tenant", "seconds": 1},
		state: "SUCCEEDED", attempt: 2, judge: throttled("tenant"),
	},
	{
		name: "an ordinary error", payload: what{"do": "throw"}, state: "SUCCEEDED", attempt: 2,
		judge: failed(func(c *call) bool {
			message := c.body.Error.Message
			return c.body.Retryable && c.body.Error.Code == "work_failed" &&
				strings.Contains(message, "thrown in attempt 1") && !strings.Contains(message, "\n")
		}),
	},
	{
		name: "a result that is too large", payload: what{"do": "too_large"},
		state: "FAILED_FINAL", code: "result_too_large", attempt: 1,
	},
	{
		name: "a result that the server refuses", payload: what{"do": "refused"},
		state: "FAILED_FINAL", code: "result_refused", attempt: 1,
		judge: failed(func(c *call) bool {
			return !c.body.Retryable && strings.Contains(c.body.Error.Message, "must not be longer")
		}),
	},
	{
		name: "a cancelled job", payload: what{"do": "sleep", "seconds": 600}, during: cancel,
		state: "CANCELLED", code: "cancelled", attempt: 1,
		judge: failed(func(c *call) bool { return !c.body.Retryable && c.body.Error.Code == "cancelled" }),
	},
	{name: "a paused job", payload: what{"do": "sleep", "seconds": 2 * lease.Seconds()}, during: pause, state: "SUCCEEDED", attempt: 1},
	{name: "progress", payload: what{"do": "progress", "seconds": 2 * lease.Seconds()}, during: progress, state: "SUCCEEDED", attempt: 1},
	{name: "a long task", payload: what{"do": "sleep", "seconds": 2 * lease.Seconds()}, state: "SUCCEEDED", attempt: 1},
	{
		name: "a lost lease", payload: what{"do": "sleep", "seconds": 3 * lease.Seconds()}, faults: heldHeartbeats,
		during: loseLease, state: "SUCCEEDED", attempt: 2, judge: silent,
	},
	{
		name: "a lost lease that the handler ignores", payload: what{"do": "sleep", "seconds": 3 * lease.Seconds(), "deaf": true},
		faults: heldHeartbeats, state: "SUCCEEDED", attempt: 2, judge: silent,
	},
	{
		name: "another rev at the report", payload: what{"do": "succeed"},
		faults: []fault{{verb: "complete", times: 1, raiseRev: true}}, state: "SUCCEEDED", attempt: 1,
		judge: conflicted("complete"),
	},
	{
		name: "another rev at a heartbeat", payload: what{"do": "sleep", "seconds": 2 * lease.Seconds()},
		faults: []fault{{verb: "heartbeat", times: 1, raiseRev: true}}, state: "SUCCEEDED", attempt: 1,
		judge: conflicted("heartbeat"),
	},
	{
		name: "a completion whose answer is lost", payload: what{"do": "succeed"},
		faults: []fault{{verb: "complete", times: 2, dropAnswer: true}}, state: "SUCCEEDED", attempt: 1,
		judge: repeated("complete", 3),
	},
	{
		name: "a failure whose answer is lost", payload: what{"do": "retry_once"},
		faults: []fault{{verb: "fail", times: 1, dropAnswer: true}}, state: "SUCCEEDED", attempt: 2,
		judge: repeated("fail", 2),
	},
	{
		name: "a heartbeat whose answer is lost", payload: what{"do": "sleep", "seconds": 2 * lease.Seconds()},
		faults: []fault{{verb: "heartbeat", times: 1, dropAnswer: true}}, state: "SUCCEEDED", attempt: 1,
		judge: repeated("heartbeat", 2),
	},
	{
		name: "a server that is busy", payload: what{"do": "succeed"},
		faults: []fault{{verb: "complete", times: 1, refuse: true}}, state: "SUCCEEDED", attempt: 1,
		judge: repeated("complete", 2),
	},
	{
		// The heartbeat is repeated once: a second repetition might come after the end of the lease.
		name: "a token that expires", payload: what{"do": "sleep", "seconds": 2 * lease.Seconds()},
		faults: []fault{{verb: "heartbeat", times: 1, expire: true}, {verb: "complete", times: 2, expire: true}},
		state:  "SUCCEEDED", attempt: 1,
		judge: func(t *testing.T, b *bench, j job) {
			t.Helper()
			repeated("heartbeat", 2)(t, b, j)
			repeated("complete", 3)(t, b, j)
		},
	},
	{
		name: "a token that expires before a failure", payload: what{"do": "retry_once"},
		faults: []fault{{verb: "fail", times: 2, expire: true}}, state: "SUCCEEDED", attempt: 2,
		judge: repeated("fail", 3),
	},
}

// heldHeartbeats holds all heartbeats of the first attempt until its lease has ended. By then
// the same worker has claimed the next attempt, and the server refuses the earlier one.
var heldHeartbeats = []fault{{verb: "heartbeat", attempt: 1, times: 1000, hold: true}}

// cancel cancels the job while its handler runs, which must see it.
func cancel(t *testing.T, b *bench, job string) {
	t.Helper()
	b.worker.started(t, job)
	b.call("POST", "/v1/jobs/"+job+":cancel", what{}, nil)
	b.worker.await(t, line{Event: "cancelled", JobID: job, Attempt: 1, Cause: "cancelled"})
}

// pause pauses the job while its handler runs, which must see it.
func pause(t *testing.T, b *bench, job string) {
	t.Helper()
	b.worker.started(t, job)
	b.call("POST", "/v1/jobs/"+job+":pause", what{}, nil)
	b.worker.await(t, line{Event: "pause_requested", JobID: job, Attempt: 1})
}

// progress expects the progress on the step while the handler runs.
func progress(t *testing.T, b *bench, id string) {
	t.Helper()
	waittest.Until(t, "the step shows its progress", func() bool {
		j := b.job(id)
		shown := j.Steps[0].Progress
		return j.ended() || shown.Fraction == 0.5 && shown.Message == "half"
	})
	if j := b.job(id); j.ended() {
		t.Error("the job ended before its progress was shown")
	}
}

// loseLease expects the handler to see that its lease is lost.
func loseLease(t *testing.T, b *bench, job string) {
	t.Helper()
	b.worker.await(t, line{Event: "cancelled", JobID: job, Attempt: 1, Cause: "lease_lost"})
}

// calls returns the worker's calls for the job.
func (b *bench) calls(id string, verb string) []call {
	return b.proxy.seen(func(c *call) bool { return c.jobID == id && c.verb == verb })
}

// sent waits until that many calls of the verb are through, which the job's end may
// precede, and returns them.
func (b *bench) sent(t *testing.T, id, verb string, times int) (sent []call) {
	t.Helper()
	waittest.Until(t, fmt.Sprintf("%s is sent %d times", verb, times), func() bool {
		sent = b.calls(id, verb)
		return len(sent) >= times && sent[times-1].status != 0
	})
	return sent[:times]
}

// silent expects that nothing was reported for the first attempt.
func silent(t *testing.T, b *bench, j job) {
	t.Helper()
	for _, c := range append(b.calls(j.JobID, "complete"), b.calls(j.JobID, "fail")...) {
		if c.attempt == 1 {
			t.Errorf("a lost lease was reported: %+v", c)
		}
	}
}

// traced expects the directive's trace context in the result, and with every call for this
// task alone.
func traced(t *testing.T, b *bench, j job) {
	t.Helper()
	if j.FinalOutput.Traceparent != traceparent {
		t.Errorf("the handler saw the traceparent %q", j.FinalOutput.Traceparent)
	}
	for _, c := range b.calls(j.JobID, "complete") {
		if c.traceparent != traceparent && c.together == 0 {
			t.Errorf("%s carries the traceparent %q", c.verb, c.traceparent)
		}
	}
}

// failed expects one report of a failure, as described.
func failed(as func(*call) bool) func(*testing.T, *bench, job) {
	return func(t *testing.T, b *bench, j job) {
		t.Helper()
		if reports := b.calls(j.JobID, "fail"); len(reports) != 1 || !as(&reports[0]) {
			t.Errorf("the failure was reported so: %+v", reports)
		}
	}
}

// throttled expects a failure of that scope.
func throttled(scope string) func(*testing.T, *bench, job) {
	return failed(func(c *call) bool {
		return c.body.Retryable && c.body.Scope == scope && c.body.RetryAfter >= 1 && c.body.Error.Code == "CONFORMANCE_THROTTLED"
	})
}

// conflicted expects that the verb was refused for its rev, and sent again under a new
// request id.
func conflicted(verb string) func(*testing.T, *bench, job) {
	return func(t *testing.T, b *bench, j job) {
		t.Helper()
		answered := func(status int) []call { // A try that had no answer in time has no status.
			return b.proxy.seen(func(c *call) bool { return c.jobID == j.JobID && c.verb == verb && c.status == status })
		}
		var refused, taken []call
		waittest.Until(t, verb+" is refused, then taken", func() bool {
			refused, taken = answered(http.StatusConflict), answered(http.StatusOK)
			return len(refused) > 0 && len(taken) > 0
		})
		if refused[0].body.RequestID == taken[0].body.RequestID {
			t.Errorf("another rev was met with %+v, %+v", refused, taken)
		}
	}
}

// repeated expects the verb that many times under one request id.
func repeated(verb string, times int) func(*testing.T, *bench, job) {
	return func(t *testing.T, b *bench, j job) {
		t.Helper()
		sent := b.sent(t, j.JobID, verb, times)
		for _, c := range sent {
			if c.body.RequestID != sent[0].body.RequestID || c.body.RequestID == "" {
				t.Errorf("a repetition has another request id: %+v", sent)
			}
		}
	}
}
