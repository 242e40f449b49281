package servicebus

import (
	"context"
	"errors"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/lucius-project/lucius/pkg/outbox"
)

// linkError is a failure before anything was handed over: the topic did not let
// the sender in.
type linkError struct{ err error }

// Error is the text of the cause.
func (e *linkError) Error() string { return "open the topic: " + e.err.Error() }

// Unwrap returns the cause.
func (e *linkError) Unwrap() error { return e.err }

// verdict says in the words of the publisher's port what an error of the SDK
// means for what was to be sent to the topic. The context is the send's: once it
// has ended, only what the broker said about the message itself is believed.
//
//	too large                        rejected, for good
//	amqp:not-allowed                 rejected; where it is the link, the topic
//	not found, disabled, full,       the topic
//	unauthorised, throttled
//	connection lost, after retries   the whole bus
//	time is up, cancelled, closed,   unknown
//	released, modified, all else
func verdict(ctx context.Context, topic string, err error) error {
	condition := amqpCondition(err)
	_, link := errors.AsType[*linkError](err)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, azservicebus.ErrMessageTooLarge), condition == amqp.ErrCondMessageSizeExceeded:
		return &outbox.RejectedError{Reason: "the message is larger than the topic takes", Permanent: true, Err: err}
	case condition == amqp.ErrCondNotAllowed && !link:
		return &outbox.RejectedError{Reason: "the topic does not take the message", Err: err}
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return uncertain(err)
	}
	if broken, ok := errors.AsType[*azservicebus.Error](err); ok {
		return codeVerdict(topic, broken)
	}
	switch condition {
	case amqp.ErrCondNotFound, conditionDisabled, amqp.ErrCondResourceLimitExceeded, amqp.ErrCondNotAllowed,
		amqp.ErrCondUnauthorizedAccess, conditionServerBusy:
		return &outbox.OutageError{Entity: topic, Err: err}
	}
	return uncertain(err)
}

// codeVerdict is the verdict on an error that the SDK has a code for. It hides
// the cause of those, so the code is all there is.
func codeVerdict(topic string, err *azservicebus.Error) error {
	switch err.Code {
	case azservicebus.CodeUnauthorizedAccess, azservicebus.CodeNotFound:
		return &outbox.OutageError{Entity: topic, Err: err}
	case azservicebus.CodeConnectionLost:
		return &outbox.OutageError{Err: err}
	default:
		return uncertain(err)
	}
}

// amqpCondition is the condition of an AMQP error; empty for any other error.
func amqpCondition(err error) amqp.ErrCond {
	if fault, ok := errors.AsType[*amqp.Error](err); ok {
		return fault.Condition
	}
	return ""
}

// uncertain is the error of a send whose outcome is not known.
func uncertain(err error) error { return fmt.Errorf("%w: %w", outbox.ErrUncertain, err) }
