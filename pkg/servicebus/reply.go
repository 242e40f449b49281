package servicebus

import (
	"bytes"
	"context"
	"encoding/json"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// ReplyType is the type of a reply message.
//
// Source: Option B spec, 11.2 and 11.3.
type ReplyType string

// The types of replies, and that of a message that says no such type.
const (
	ReplyAck       ReplyType = "ACK"
	ReplyResult    ReplyType = "RESULT"
	ReplyHeartbeat ReplyType = "HEARTBEAT"
	ReplyUnknown   ReplyType = "unknown"
)

// reasonUnknownType is the reason in the dead letters of a message whose type is
// none of a reply's. The other reasons are codes of package problem.
const reasonUnknownType problem.Code = "unknown_type"

// Callbacks is the use case that replies are brought to. Its errors are
// [*problem.Error]s. It must be safe for concurrent use.
type Callbacks interface {
	Ack(ctx context.Context, id callbacks.Identity, opts ...ledger.Option) (callbacks.Answer, error)
	Heartbeat(ctx context.Context, id callbacks.Identity, opts ...ledger.Option) (callbacks.Answer, error)
	Result(ctx context.Context, id callbacks.Identity, report callbacks.Report, opts ...ledger.Option) (callbacks.Answer, error)
}

// reply is a reply message that was understood.
type reply struct {
	kind ReplyType
	// unknown says that there are fields that no reply has.
	unknown bool
	// bring brings it to the use case.
	bring func(ctx context.Context, to Callbacks) (callbacks.Answer, error)
}

// parseReply reads the body of a message: those of the HTTP callbacks, with the
// type that says which. Unknown fields are ignored. The error is a
// [*problem.Error] that says what is wrong and where; the type is known as far as
// it was read.
func parseReply(body []byte, messageID string) (reply, error) {
	var head struct {
		Type string `json:"type"`
	}
	if err := decode(body, &head); err != nil {
		return reply{kind: ReplyUnknown}, err
	}
	switch kind := ReplyType(head.Type); kind {
	case ReplyAck:
		return parseAck(body, messageID)
	case ReplyHeartbeat:
		return parseHeartbeat(body, messageID)
	case ReplyResult:
		return parseResult(body, messageID)
	case ReplyUnknown:
	}
	return reply{kind: ReplyUnknown}, &problem.Error{
		Code: reasonUnknownType, Errors: []problem.Violation{{Pointer: "/type", Message: "must be ACK, RESULT or HEARTBEAT"}},
	}
}

func parseAck(body []byte, messageID string) (reply, error) {
	var c api.AckCallback
	unknown, err := read(body, &c)
	return reply{kind: ReplyAck, unknown: unknown, bring: func(ctx context.Context, to Callbacks) (callbacks.Answer, error) {
		return to.Ack(ctx, identity(c.JobID, c.StepID, c.TenantID, c.AttemptNo, c.LeaseID, messageID))
	}}, err
}

func parseHeartbeat(body []byte, messageID string) (reply, error) {
	var c api.HeartbeatCallback
	unknown, err := read(body, &c)
	return reply{kind: ReplyHeartbeat, unknown: unknown, bring: func(ctx context.Context, to Callbacks) (callbacks.Answer, error) {
		return to.Heartbeat(ctx, identity(c.JobID, c.StepID, c.TenantID, c.AttemptNo, c.LeaseID, messageID))
	}}, err
}

func parseResult(body []byte, messageID string) (reply, error) {
	var c api.ResultCallback
	unknown, err := read(body, &c)
	return reply{kind: ReplyResult, unknown: unknown, bring: func(ctx context.Context, to Callbacks) (callbacks.Answer, error) {
		return to.Result(ctx, identity(c.JobID, c.StepID, c.TenantID, c.AttemptNo, c.LeaseID, messageID), callbacks.Report{
			Status: statemachine.ResultStatus(c.Status), ErrorCode: c.Error.Code, ErrorMessage: c.Error.Message,
			OutputRef: c.OutputRef, ResultRef: c.ResultRef,
			RetryAfter: time.Duration(c.RetryAfterSeconds * float64(time.Second)),
		})
	}}, err
}

// identity is what a reply says about itself. Its message id stands where a
// request's id would, for the history.
func identity(jobID, stepID, tenantID string, attemptNo int32, leaseID, messageID string) callbacks.Identity {
	return callbacks.Identity{
		JobID: jobID, StepID: stepID, TenantID: tenantID,
		Pair:  statemachine.Pair{AttemptNo: int(attemptNo), LeaseID: leaseID},
		Actor: string(api.ActorPlatform), RequestID: messageID,
	}
}

// read decodes a callback, checks it, and reports whether it has fields that the
// contract does not know.
func read(body []byte, into interface{ Check() []problem.Violation }) (unknown bool, err error) {
	if err := decode(body, into); err != nil {
		return false, err
	}
	// What could be decoded fails here by a field that is unknown, and by nothing else.
	strict := json.NewDecoder(bytes.NewReader(body))
	strict.DisallowUnknownFields()
	unknown = strict.Decode(into) != nil
	if violations := into.Check(); len(violations) > 0 {
		return unknown, problem.Refused(violations)
	}
	return unknown, nil
}

// decode decodes a JSON object; the error says what is wrong with it.
func decode(body []byte, into any) error {
	if err := api.CheckText(body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return api.DecodeFault(body, err)
	}
	return nil
}
