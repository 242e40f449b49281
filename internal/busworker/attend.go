package busworker

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/api"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

// The types of replies.
const (
	typeAck       = "ACK"
	typeHeartbeat = "HEARTBEAT"
	typeResult    = "RESULT"
)

// maxMessage is the longest error message that is reported, in bytes.
const maxMessage = 1000

// attend answers one directive and completes it last: until then the bus redelivers
// it.
func (l *lane) attend(ctx context.Context, m *azservicebus.ReceivedMessage) {
	var task lucius.Task
	d := &task.Directive
	if err := json.Unmarshal(m.Body, d); err != nil {
		l.cfg.Log.WarnContext(ctx, "not a directive", "message_id", m.MessageID, "error", err)
		l.settle(ctx, m, func(ctx context.Context) error { return l.from.DeadLetterMessage(ctx, m, nil) })
		return
	}
	if !l.reply(ctx, d, typeAck, api.AckCallback{
		Type: typeAck, JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID,
		Timestamp: api.Time{Time: time.Now()},
	}) {
		return
	}
	quiet := l.beat(ctx, m, d)
	result, failure := l.cfg.Worker.Do(ctx, &task)
	quiet()
	if ctx.Err() != nil {
		return // Another worker will get it.
	}
	answer := api.ResultCallback{
		Type: typeResult, JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID,
		Timestamp: api.Time{Time: time.Now()}, Status: api.ResultStatusSucceeded,
		OutputRef: json.RawMessage(result.Output), ResultRef: json.RawMessage(result.Ref),
	}
	if failure != nil {
		text := failure.Error()
		answer.Error = api.ReportedError{
			Code: failure.Code, Message: strings.ToValidUTF8(text[:min(len(text), maxMessage)], ""),
		}
		answer.Status = api.ResultStatusFailedFinal
		if failure.Retryable {
			answer.Status, answer.RetryAfterSeconds = api.ResultStatusFailedRetry, failure.After.Seconds()
		}
	}
	if l.reply(ctx, d, typeResult, answer) {
		l.settle(ctx, m, func(ctx context.Context) error { return l.from.CompleteMessage(ctx, m, nil) })
	}
}

// beat extends the attempt's lease and the message's lock until quiet is called.
func (l *lane) beat(ctx context.Context, m *azservicebus.ReceivedMessage, d *lucius.Directive) (quiet func()) {
	ctx, cancel := context.WithCancel(ctx)
	var beating sync.WaitGroup
	beating.Go(func() {
		for sleep(ctx, l.cfg.Heartbeat) {
			l.reply(ctx, d, typeHeartbeat, api.HeartbeatCallback{
				Type: typeHeartbeat, JobID: d.JobID, StepID: d.StepID, TenantID: d.TenantID, AttemptNo: d.AttemptNo, LeaseID: d.LeaseID,
				Timestamp: api.Time{Time: time.Now()},
			})
			l.settle(ctx, m, func(ctx context.Context) error { return l.from.RenewMessageLock(ctx, m, nil) })
		}
	})
	return func() {
		cancel()
		beating.Wait()
	}
}

// reply sends a callback and retries until the bus has it. It reports false if the
// context ends first.
func (l *lane) reply(ctx context.Context, d *lucius.Directive, kind string, callback any) bool {
	body, err := json.Marshal(callback)
	if err != nil {
		l.cfg.Log.ErrorContext(ctx, "reply not encoded", "type", kind, "error", err)
		return false
	}
	message := &azservicebus.Message{
		MessageID: new(uuid.NewString()), Subject: new(kind), ContentType: new("application/json"), Body: body,
	}
	if traceparent := l.cfg.Traceparent(d); traceparent != "" {
		message.ApplicationProperties = map[string]any{"traceparent": traceparent}
	}
	for {
		once, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := l.replies.SendMessage(once, message, nil)
		cancel()
		if err == nil {
			return true
		}
		l.cfg.Log.WarnContext(ctx, "reply not sent", "type", kind, "error", err)
		if !sleep(ctx, 100*time.Millisecond) {
			return false
		}
	}
}

// settle makes one call about a message. If it fails, the bus redelivers the
// directive, and the worker answers it again.
func (l *lane) settle(ctx context.Context, m *azservicebus.ReceivedMessage, how func(context.Context) error) {
	once, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := how(once); err != nil && ctx.Err() == nil {
		l.cfg.Log.WarnContext(ctx, "directive not settled, the bus will redeliver it", "message_id", m.MessageID, "error", err)
	}
}
