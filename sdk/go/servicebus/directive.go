package servicebus

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/internal/workerlog"
)

// attend answers one directive, and completes it last: until then the bus redelivers it.
func (l *lane) attend(handling, replying context.Context, m *azservicebus.ReceivedMessage) {
	var what lucius.Directive
	err := json.Unmarshal(m.Body, &what)
	if err == nil && (what.JobID == "" || what.StepID == "" || what.LeaseID == "") {
		err = errors.New("it names no attempt")
	}
	if err != nil {
		l.cfg.Log.WarnContext(replying, "not a directive", "message_id", m.MessageID, "error", err)
		why := &azservicebus.DeadLetterOptions{Reason: new("not_a_directive"), ErrorDescription: new(err.Error())}
		l.settle(replying, "dead-letter", m, func(ctx context.Context, from *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
			return from.DeadLetterMessage(ctx, m, why)
		})
		return
	}
	if !l.worker.Handles(what.StepType) {
		workerlog.Task(l.cfg.Log, what.JobID, what.StepID, what.StepType, what.AttemptNo).
			WarnContext(replying, "no handler: directive given back", "deliveries", m.DeliveryCount)
		pause(handling, unknownDelay)
		l.settle(replying, "abandon", m, abandon)
		return
	}
	d, answered := l.take(m, &what)
	switch {
	case answered:
		l.settle(replying, "complete", m, complete)
	case d == nil: // A handler is at it.
	case d.do(handling, replying):
		l.settle(replying, "complete", d.release(true), complete)
	default: // The worker has stopped. Its link would get the directive again, and keep the lock.
		select {
		case <-l.closed:
		case <-replying.Done():
		}
		l.settle(replying, "abandon", d.release(false), abandon)
	}
}

// unknownDelay is how long a directive without a handler is held: the bus delivers what is
// given back at once, perhaps to the same worker, and only as often as the subscription
// allows.
const unknownDelay = time.Second

// complete has the bus delete a message.
func complete(ctx context.Context, from *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
	return from.CompleteMessage(ctx, m, nil)
}

// abandon gives a message back to the bus, which delivers it again.
func abandon(ctx context.Context, from *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
	return from.AbandonMessage(ctx, m, nil)
}

// renew extends a message's lock.
func renew(ctx context.Context, from *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error {
	return from.RenewMessageLock(ctx, m, nil)
}

// do has the handler do the directive, and reports whether its RESULT is on the bus. It is
// not if the handler failed because the worker has stopped and the message can be given
// back to the bus, for another worker. The message's lock is renewed all the while, the
// attempt's lease between ACK and RESULT.
func (d *directive) do(handling, replying context.Context) bool {
	defer d.every(replying, func(ctx context.Context) { d.lane.settle(ctx, "renew", d.held(), renew) })()
	begun := time.Now()
	if !d.reply(replying, reply{Type: "ACK", LeaseSeconds: d.lane.cfg.Lease.Seconds()}) {
		return false
	}
	quiet := d.every(replying, func(ctx context.Context) { d.reply(ctx, reply{Type: "HEARTBEAT", Progress: d.takeProgress()}) })
	result, failure := d.lane.worker.Do(handling, lucius.NewTask(d.Directive, d.setProgress))
	quiet()
	took := time.Since(begun)
	outcome, reason := workerlog.Succeeded, ""
	answer := reply{Type: "RESULT", Status: lucius.ResultStatusSucceeded, OutputRef: result.Output, ResultRef: result.Ref}
	if failure != nil {
		reported := failure.Reported(secrets(d.lane.cfg.Connection)...)
		outcome, reason = workerlog.Failure(reported.Code, reported.Message, failure.Retryable)
		answer = reply{Type: "RESULT", Status: lucius.ResultStatusFailedFinal, Error: reported}
		if failure.Retryable {
			answer.Status, answer.RetryAfterSeconds = lucius.ResultStatusFailedRetry, failure.After.Seconds()
			answer.Scope = failure.Scope
		}
	}
	givenBack := failure != nil && errors.Is(context.Cause(handling), lucius.ErrStopped) && !d.expired()
	sent := !givenBack && d.reply(replying, answer)
	if !sent && !givenBack {
		outcome, reason = workerlog.NotSent, context.Cause(replying).Error()
		d.log().WarnContext(replying, "result not sent", "error", reason)
	}
	workerlog.Ended(replying, d.log(), took, outcome, reason)
	return sent
}

// log returns the logger of the attempt.
func (d *directive) log() *slog.Logger {
	return workerlog.Task(d.lane.cfg.Log, d.JobID, d.StepID, d.StepType, d.AttemptNo)
}

// expired reports whether the message's time to live is over, or almost: it exists only
// while it is locked, and the bus would drop it if the worker gave it back.
func (d *directive) expired() bool {
	m := d.held()
	// The SDK shows no time to live as one of 0, and an ExpiresAt that has passed.
	return m.ExpiresAt != nil && *m.TimeToLive > 0 && time.Until(*m.ExpiresAt) < lastCalls
}

// every makes the call each Heartbeat until quiet is called.
func (d *directive) every(ctx context.Context, call func(context.Context)) (quiet func()) {
	ctx, cancel := context.WithCancel(ctx)
	var calling sync.WaitGroup
	calling.Go(func() {
		for pause(ctx, d.lane.cfg.Heartbeat) {
			call(ctx)
		}
	})
	return func() {
		cancel()
		calling.Wait()
	}
}

// setProgress has the next heartbeat show the progress.
func (d *directive) setProgress(progress lucius.Progress) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.progress = &progress
}

// takeProgress returns the progress that no heartbeat has shown yet, nil if there is none.
func (d *directive) takeProgress() *lucius.Progress {
	d.mu.Lock()
	defer d.mu.Unlock()
	progress := d.progress
	d.progress = nil
	return progress
}

// reply is the body of a message on a reply topic.
type reply struct {
	lucius.CallbackIdentity

	Type string `json:"type"`
	// LeaseSeconds is an ACK's, Progress a HEARTBEAT's, the rest a RESULT's.
	LeaseSeconds      float64              `json:"lease_seconds,omitzero"`
	Progress          *lucius.Progress     `json:"progress,omitzero"`
	Status            lucius.ResultStatus  `json:"status,omitzero"`
	Error             lucius.ReportedError `json:"error,omitzero"`
	OutputRef         lucius.Reference     `json:"output_ref,omitzero"`
	ResultRef         lucius.Reference     `json:"result_ref,omitzero"`
	RetryAfterSeconds float64              `json:"retry_after_seconds,omitzero"`
	Scope             lucius.ThrottleScope `json:"scope,omitzero"`
}

// reply sends a reply to the directive, and repeats it until the bus has it. It reports
// false if the context ends first.
func (d *directive) reply(ctx context.Context, answer reply) bool {
	answer.CallbackIdentity = lucius.CallbackIdentity{
		JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID, Timestamp: time.Now().UTC(),
	}
	if d.CorrelationID != nil {
		answer.CorrelationID = *d.CorrelationID
	}
	body, err := json.Marshal(answer)
	if err != nil {
		d.log().ErrorContext(ctx, "reply not encoded", "error", err)
		return false
	}
	message := &azservicebus.Message{
		MessageID: new(rand.Text()), Subject: &answer.Type, ContentType: new("application/json"), Body: body,
	}
	if traceparent := d.lane.cfg.Traceparent(&d.Directive); traceparent != "" {
		message.ApplicationProperties = map[string]any{"traceparent": traceparent}
	}
	for failures := 1; ; failures++ {
		asked := time.Now()
		once, cancel := context.WithTimeout(ctx, callTimeout)
		err := d.lane.send(once, message)
		cancel()
		if err == nil {
			d.lane.cfg.link.Answered(ctx, asked)
			return true
		}
		if ctx.Err() == nil {
			d.lane.failed(ctx, d.log(), strings.ToLower(answer.Type), failures, err)
		}
		if !pause(ctx, delay(failures)) {
			return false
		}
	}
}
