package api

import (
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Callback is a worker's report as it comes over the wire, by HTTP or on a reply
// topic: [*AckCallback], [*HeartbeatCallback] or [*ResultCallback].
type Callback interface {
	// Check returns what is wrong with the callback by itself.
	Check() []apierror.Violation
	// Identity returns which attempt of which step the callback is about.
	Identity() CallbackIdentity
	// Event returns the state machine's event for the callback.
	Event() statemachine.Event
}

// Check returns what is wrong with the callback by itself.
func (c *AckCallback) Check() []apierror.Violation {
	v := checkCallback(c.Identity(), c.Type, "ACK")
	v.number("/lease_seconds", c.LeaseSeconds, MaxLease)
	return v
}

// Identity returns which attempt of which step the callback is about.
func (c *AckCallback) Identity() CallbackIdentity {
	return CallbackIdentity{
		AttemptNo: c.AttemptNo, CorrelationID: c.CorrelationID, JobID: c.JobID, LeaseID: c.LeaseID,
		StepID: c.StepID, TenantID: c.TenantID, Timestamp: c.Timestamp,
	}
}

// Event returns the state machine's event for the callback.
func (c *AckCallback) Event() statemachine.Event {
	return statemachine.Ack{
		StepID: c.StepID, Pair: pair(c.AttemptNo, c.LeaseID), Report: report(c.Timestamp, c.CorrelationID),
		Lease: AskedLease(c.LeaseSeconds),
	}
}

// Check returns what is wrong with the callback by itself.
func (c *HeartbeatCallback) Check() []apierror.Violation {
	v := checkCallback(c.Identity(), c.Type, "HEARTBEAT")
	v.progress(c.Progress)
	return v
}

// Identity returns which attempt of which step the callback is about.
func (c *HeartbeatCallback) Identity() CallbackIdentity {
	return CallbackIdentity{
		AttemptNo: c.AttemptNo, CorrelationID: c.CorrelationID, JobID: c.JobID, LeaseID: c.LeaseID,
		StepID: c.StepID, TenantID: c.TenantID, Timestamp: c.Timestamp,
	}
}

// Event returns the state machine's event for the callback.
func (c *HeartbeatCallback) Event() statemachine.Event {
	return statemachine.Heartbeat{
		StepID: c.StepID, Pair: pair(c.AttemptNo, c.LeaseID), Report: report(c.Timestamp, c.CorrelationID),
		Progress: (*statemachine.Progress)(c.Progress),
	}
}

// Check returns what is wrong with the callback by itself, and turns a null
// reference into an absent one.
func (c *ResultCallback) Check() []apierror.Violation {
	v := checkCallback(c.Identity(), c.Type, "RESULT")
	if !c.Status.Valid() {
		v.add("/status", "must be SUCCEEDED, FAILED_RETRY or FAILED_FINAL")
	}
	v.text("/error/code", c.Error.Code, 0, MaxName)
	v.ref("/output_ref", &c.OutputRef)
	v.ref("/result_ref", &c.ResultRef)
	v.number("/retry_after_seconds", c.RetryAfterSeconds, MaxRetryAfter)
	v.throttle(c.Scope, c.RetryAfterSeconds, c.Status == ResultStatusFailedRetry, "unless status is FAILED_RETRY")
	return v
}

// Check returns what is wrong with the request by itself, and turns a null
// reference into an absent one.
func (c *WorkCompletion) Check() []apierror.Violation {
	var v violations
	v.verb(WorkVerb{Owner: c.Owner, ExpectedRev: c.ExpectedRev, RequestID: c.RequestID})
	v.ref("/output_ref", &c.OutputRef)
	v.ref("/result_ref", &c.ResultRef)
	return v
}

// Check returns what is wrong with the completion by itself, and turns a null reference
// into an absent one.
func (c *ItemCompletion) Check() []apierror.Violation {
	var v violations
	v.text("/work_id", c.WorkID, 1, MaxName)
	v.verb(WorkVerb{Owner: c.Owner, ExpectedRev: c.ExpectedRev, RequestID: c.RequestID})
	v.ref("/output_ref", &c.OutputRef)
	v.ref("/result_ref", &c.ResultRef)
	return v
}

// Product returns what the worker gives with the result.
func (c *ResultCallback) Product() statemachine.Product {
	return statemachine.Product{OutputRef: c.OutputRef, ResultRef: c.ResultRef}
}

// Product returns what the worker gives with the result.
func (c *WorkCompletion) Product() statemachine.Product {
	return statemachine.Product{OutputRef: c.OutputRef, ResultRef: c.ResultRef}
}

// Product returns what the worker gives with the result.
func (c *ItemCompletion) Product() statemachine.Product {
	return statemachine.Product{OutputRef: c.OutputRef, ResultRef: c.ResultRef}
}

// Identity returns which attempt of which step the callback is about.
func (c *ResultCallback) Identity() CallbackIdentity {
	return CallbackIdentity{
		AttemptNo: c.AttemptNo, CorrelationID: c.CorrelationID, JobID: c.JobID, LeaseID: c.LeaseID,
		StepID: c.StepID, TenantID: c.TenantID, Timestamp: c.Timestamp,
	}
}

// Event returns the state machine's event for the callback.
func (c *ResultCallback) Event() statemachine.Event {
	return statemachine.Result{
		StepID: c.StepID, Pair: pair(c.AttemptNo, c.LeaseID), Report: report(c.Timestamp, c.CorrelationID),
		Status:    statemachine.ResultStatus(c.Status),
		ErrorCode: c.Error.Code, ErrorMessage: c.Error.Message, Product: c.Product(),
		RetryAfter: time.Duration(c.RetryAfterSeconds * float64(time.Second)),
		Throttled:  statemachine.Throttle(c.Scope),
	}
}

// AskedLease returns the lease that lease_seconds asks for, 0 if it asks for none. One that
// ends before the worker has the answer would only spend the step's retries.
func AskedLease(seconds float64) time.Duration {
	if seconds == 0 {
		return 0
	}
	return max(time.Duration(seconds*float64(time.Second)), time.Second)
}

// pair is the fence of an attempt.
func pair(attemptNo int32, leaseID string) statemachine.Pair {
	return statemachine.Pair{AttemptNo: int(attemptNo), LeaseID: leaseID}
}

// report is what the callback says of its sending.
func report(at Time, correlationID string) statemachine.Report {
	return statemachine.Report{Timestamp: at.String(), CorrelationID: correlationID}
}

// checkCallback checks the fields that all callbacks share: the identity, and the
// type, which may be absent.
func checkCallback(c CallbackIdentity, kind, want string) violations {
	var v violations
	v.text("/jobId", c.JobID, 1, MaxName)
	v.text("/stepId", c.StepID, 1, MaxName)
	v.text("/tenant_id", c.TenantID, 1, MaxTenantID)
	v.atLeast("/attempt_no", float64(c.AttemptNo), 1)
	v.text("/lease_id", c.LeaseID, 1, MaxName)
	if c.Timestamp.IsZero() {
		v.add("/timestamp", "is required")
	}
	v.text("/correlation_id", c.CorrelationID, 0, MaxName)
	if kind != "" && kind != want {
		v.add("/type", "must be "+want+" here")
	}
	return v
}
