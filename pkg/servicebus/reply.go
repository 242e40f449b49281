package servicebus

import (
	"bytes"
	"encoding/json"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
)

// ReplyType is the type of a reply message.
//
// Source: Option B spec, 11.2 and 11.3.
type ReplyType string

// The types of replies; ReplyUnknown stands for any other.
const (
	ReplyAck       ReplyType = "ACK"
	ReplyResult    ReplyType = "RESULT"
	ReplyHeartbeat ReplyType = "HEARTBEAT"
	ReplyUnknown   ReplyType = "unknown"
)

// reasonUnknownType is the dead-letter reason of a message of another type. The
// other reasons are codes of package problem.
const reasonUnknownType apierror.Code = "unknown_type"

// reply is a parsed reply message.
type reply struct {
	kind ReplyType
	// unknown is true if the body has unknown fields.
	unknown  bool
	callback callbacks.Callback
}

// parseReply parses the body of a message: an HTTP callback's body with a type. It
// ignores unknown fields. The error is a [*apierror.Error] that says what is wrong
// and where; the type is set even then, if it could be read. The message id becomes
// the request id in the job's history.
func parseReply(body []byte, maxBytes int, messageID string) (reply, error) {
	if len(body) > maxBytes {
		return reply{kind: ReplyUnknown}, apierror.Newf(apierror.TooLarge, "The body is larger than %d bytes.", maxBytes)
	}
	var head struct {
		Type string `json:"type"`
	}
	if err := decode(body, &head); err != nil {
		return reply{kind: ReplyUnknown}, err
	}
	kind := ReplyType(head.Type)
	var c api.Callback
	switch kind {
	case ReplyAck:
		c = new(api.AckCallback)
	case ReplyHeartbeat:
		c = new(api.HeartbeatCallback)
	case ReplyResult:
		c = new(api.ResultCallback)
	default:
		return reply{kind: ReplyUnknown}, &apierror.Error{
			Code: reasonUnknownType, Errors: []apierror.Violation{{Pointer: "/type", Message: "must be ACK, RESULT or HEARTBEAT"}},
		}
	}
	err := decode(body, c)
	unknown := false
	if err == nil {
		// A body that could be decoded fails here only because of an unknown field.
		strict := json.NewDecoder(bytes.NewReader(body))
		strict.DisallowUnknownFields()
		unknown = strict.Decode(c) != nil
		if violations := c.Check(); len(violations) > 0 {
			err = apierror.Refused(violations)
		}
	}
	id := c.Identity()
	return reply{kind: kind, unknown: unknown, callback: callbacks.Callback{
		JobID: id.JobID, StepID: id.StepID, TenantID: id.TenantID, Event: c.Event(), RequestID: messageID,
		EveryTenant: func(string) bool { return true }, // The reply topics are not divided by tenant.
	}}, err
}

// bodyOf returns the body of a message: its data, or text, which JMS clients send. It is nil if
// the message has neither. The SDK sets Body only if the data is one section.
func bodyOf(m *azservicebus.ReceivedMessage) []byte {
	if m.Body != nil || m.RawAMQPMessage == nil {
		return m.Body
	}
	if text, ok := m.RawAMQPMessage.Body.Value.(string); ok {
		return []byte(text)
	}
	return bytes.Join(m.RawAMQPMessage.Body.Data, nil)
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
