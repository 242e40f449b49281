package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// eventTypes maps the state in which a job ended to the type of its event.
var eventTypes = map[statemachine.JobState]string{
	statemachine.JobSucceeded:   "job.succeeded",
	statemachine.JobFailedFinal: "job.failed",
	statemachine.JobCancelled:   "job.cancelled",
}

// instant is a time whose text form is in UTC, to the millisecond.
type instant time.Time

// MarshalText returns the time in its wire form. It returns no error.
func (t instant) MarshalText() ([]byte, error) {
	return time.Time(t).UTC().AppendFormat(nil, "2006-01-02T15:04:05.000Z"), nil
}

// event is the payload that Standard Webhooks recommends.
type event struct {
	Type      string  `json:"type"`
	Timestamp instant `json:"timestamp"`
	Data      end     `json:"data"`
}

// end is the end of a job. It has the field names of GET /v1/jobs/{jobId} and leaves
// out empty fields.
type end struct {
	JobID          string                `json:"jobId"`
	TenantID       string                `json:"tenant_id"`
	RequestType    string                `json:"request_type"`
	ProtocolID     string                `json:"protocol_id,omitempty"`
	DocID          string                `json:"doc_id,omitempty"`
	State          statemachine.JobState `json:"state"`
	IdempotencyKey string                `json:"idempotency_key,omitempty"`
	CorrelationID  string                `json:"correlation_id,omitempty"`
	RerunOf        string                `json:"rerun_of,omitempty"`
	FinalOutput    json.RawMessage       `json:"final_output,omitempty"`
	ErrorCode      string                `json:"error_code,omitempty"`
	ErrorMessage   string                `json:"error_message,omitempty"`
	CreatedAt      instant               `json:"created_at"`
	CompletedAt    instant               `json:"completed_at"`
}

// Body returns the body of the webhook for the end of a job. It need not be stored: a job
// that has ended does not change, so each call returns the same bytes. Body fails if the
// job has not ended, or if its FinalOutput is not JSON.
func Body(job *statemachine.Job) ([]byte, error) {
	eventType, ended := eventTypes[job.State]
	if !ended {
		return nil, fmt.Errorf("webhook: job %s has not ended: it is %s", job.ID, job.State)
	}
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // Keep URLs readable.
	err := encoder.Encode(event{Type: eventType, Timestamp: instant(job.CompletedAt), Data: end{
		JobID: job.ID, TenantID: job.TenantID, RequestType: job.RequestType, ProtocolID: job.ProtocolID,
		DocID: job.DocID, State: job.State, IdempotencyKey: job.IdempotencyKey, CorrelationID: job.CorrelationID,
		RerunOf: job.RerunOf, FinalOutput: job.FinalOutput, ErrorCode: job.ErrorCode, ErrorMessage: job.ErrorMessage,
		CreatedAt: instant(job.CreatedAt), CompletedAt: instant(job.CompletedAt),
	}})
	if err != nil {
		return nil, fmt.Errorf("webhook: encode the end of job %s: %w", job.ID, err)
	}
	return bytes.TrimSuffix(body.Bytes(), []byte("\n")), nil
}

// State is the state of a delivery. All but Pending are final, until an operator
// replays the delivery.
type State string

// The states.
const (
	StatePending   State = "PENDING"   // another attempt is due
	StateDelivered State = "DELIVERED" // the receiver answered 2xx
	StateExhausted State = "EXHAUSTED" // every attempt failed, or the host was silent until GiveUp
	StateGone      State = "GONE"      // the receiver answered 410
	StateRefused   State = "REFUSED"   // the URL or its address is not allowed
)

// Delivery is what a store keeps about the attempts to deliver one webhook.
type Delivery struct {
	State State
	// Attempts counts the attempts since the last replay, without deferred and
	// interrupted ones.
	Attempts int
	// NextAttemptAt is when a pending webhook is due.
	NextAttemptAt time.Time
	// Since is when the attempts began: at the end of the job, or with the last replay.
	Since time.Time
	// LastStatus is the HTTP status of the last attempt, 0 if there was no response.
	LastStatus int
	// LastError says why the last attempt failed or was deferred. It is safe to show.
	LastError string
}

// Policy decides when to retry a webhook, and when to give up. It is pure: callers pass
// the time and the randomness.
type Policy struct {
	// Delays are the times between attempts. The first attempt is made at once, so n
	// delays allow n+1 attempts. Optional: without delays there is one attempt.
	Delays []time.Duration
	// Jitter is the greatest fraction, from 0 to 1, by which a delay is lengthened.
	// Optional. Defaults to 0.
	Jitter float64
	// GiveUp is how long after its Since a webhook is given up whose attempt is deferred because
	// the receiver's host does not answer: deferred attempts do not count. Optional. Defaults to
	// never.
	GiveUp time.Duration
}

// StandardPolicy returns the schedule that Standard Webhooks gives as its example, ten
// attempts over three days, and gives up a silent host after a week.
//
// Source: Standard Webhooks 1.0, Deliverability and reliability.
func StandardPolicy() Policy {
	return Policy{
		Delays: []time.Duration{
			5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
			10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
		},
		Jitter: 0.1,
		GiveUp: 7 * 24 * time.Hour,
	}
}

// Validate names the first field that is out of range.
func (p Policy) Validate() error {
	for i, delay := range p.Delays {
		if delay < 0 {
			return fmt.Errorf("webhook: Delays[%d] must not be negative, is %s", i, delay)
		}
	}
	if !(p.Jitter >= 0 && p.Jitter <= 1) {
		return fmt.Errorf("webhook: Jitter must be from 0 to 1, is %g", p.Jitter)
	}
	if p.GiveUp < 0 {
		return fmt.Errorf("webhook: GiveUp must not be negative, is %s", p.GiveUp)
	}
	return nil
}

// Apply returns the delivery after an attempt with this result; random is from [0, 1). The
// next attempt is due after both the schedule's delay and the receiver's Retry-After. An
// attempt that sent nothing does not count. An interrupted one does not count either; it
// keeps the previous result and leaves the delivery due now. A deferred one is due when
// its turn comes, and says why it waits; if its host does not answer, it waits for a tenth of its age
// more, at most an hour, as each take costs writes, and is given up after GiveUp.
func (p Policy) Apply(d Delivery, result Result, now time.Time, random float64) Delivery {
	if result.Outcome == Interrupted {
		d.State, d.NextAttemptAt = StatePending, roundUp(now)
		return d
	}
	if result.Outcome == Deferred {
		age, after := now.Sub(d.Since), result.After
		if result.HostFault && p.GiveUp > 0 && age >= p.GiveUp {
			d.State, d.NextAttemptAt, d.LastError = StateExhausted, time.Time{}, result.Reason
			return d
		}
		if result.HostFault {
			after += min(age/10, time.Hour)
		}
		d.State, d.NextAttemptAt, d.LastError = StatePending, roundUp(now.Add(after)), result.Reason
		return d
	}
	d.LastStatus, d.LastError, d.NextAttemptAt = result.Status, result.Reason, time.Time{}
	if result.Outcome != Refused {
		d.Attempts++
	}
	switch {
	case result.Outcome == Delivered:
		d.State = StateDelivered
	case result.Outcome == Gone:
		d.State = StateGone
	case result.Outcome == Refused:
		d.State = StateRefused
	case d.Attempts > len(p.Delays):
		d.State = StateExhausted
	default:
		delay := max(p.Delays[d.Attempts-1], result.After)
		delay += time.Duration(float64(delay) * p.Jitter * random)
		d.State, d.NextAttemptAt = StatePending, roundUp(now.Add(delay))
	}
	return d
}

// roundUp rounds the time up to milliseconds, the precision of stores and schedules, so
// that it is never early.
func roundUp(t time.Time) time.Time {
	return t.UTC().Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond)
}

// Dispatcher makes attempts. It is safe for concurrent use.
type Dispatcher struct {
	// Send makes one attempt, as [Sender.Send] does. Required.
	Send func(ctx context.Context, message Message) Result
	// Gate isolates receivers from each other. Required.
	Gate *Gate
	// Policy decides when to retry. Optional. Its zero value never does; see
	// [StandardPolicy].
	Policy Policy
	// Random returns numbers in [0, 1), for the jitter. Optional. Defaults to
	// math/rand/v2. It must be safe for concurrent use.
	Random func() float64
}

// Validate names the first field that is missing or invalid.
func (d *Dispatcher) Validate() error {
	switch {
	case d.Send == nil:
		return errors.New("webhook: Send is required")
	case d.Gate == nil:
		return errors.New("webhook: Gate is required")
	}
	return d.Policy.Validate()
}

// Attempt makes one attempt, unless the gate defers it. It returns the delivery to store,
// and the result of the attempt.
func (d *Dispatcher) Attempt(ctx context.Context, message Message, delivery Delivery) (Delivery, Result) {
	pass, result := d.Gate.Enter(message.TenantID, hostOf(message.URL), time.Now())
	if pass != nil {
		result = d.Send(ctx, message)
		pass.Leave(result, time.Now())
	}
	random := d.Random
	if random == nil {
		random = rand.Float64
	}
	return d.Policy.Apply(delivery, result, time.Now(), random()), result
}
