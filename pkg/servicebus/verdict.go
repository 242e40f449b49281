package servicebus

import (
	"context"
	"errors"
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/lucius-project/lucius/pkg/outbox"
)

// linkError is a failure to open the topic, so nothing was sent.
type linkError struct{ err error }

func (e *linkError) Error() string { return "open the topic: " + e.err.Error() }
func (e *linkError) Unwrap() error { return e.err }

// verdict turns an error of the SDK into one of [outbox.Publisher]'s, for a request that
// needs that right on the topic. The context is the send's: once it has ended, verdict
// believes only a rejection of the message itself.
//
//	too large                        rejected, permanent
//	amqp:not-allowed                 rejected; from the link: the topic is out
//	not found, disabled, full,       the topic is out
//	unauthorised, throttled
//	connection lost, after retries,  the whole bus is out
//	no token
//	timeout, cancelled, closed,      unknown
//	released, modified, all else
func verdict(ctx context.Context, topic string, need right, err error) error {
	var condition amqp.ErrCond
	if fault, ok := errors.AsType[*amqp.Error](err); ok {
		condition = fault.Condition
	}
	_, link := errors.AsType[*linkError](err)
	if _, closed := errors.AsType[*amqp.LinkError](err); closed { // Any message on it may be the cause, or none.
		link = true
	}
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
	if denied, ok := errors.AsType[*accessError](explained(err, need)); ok {
		if denied.noToken {
			return &outbox.OutageError{Err: denied}
		}
		return &outbox.OutageError{Entity: topic, Err: denied}
	}
	// The SDK hides the cause of an error to which it gives a code.
	if coded, ok := errors.AsType[*azservicebus.Error](err); ok {
		switch coded.Code {
		case azservicebus.CodeNotFound:
			return &outbox.OutageError{Entity: topic, Err: coded}
		case azservicebus.CodeConnectionLost:
			return &outbox.OutageError{Err: coded}
		default:
			return uncertain(coded)
		}
	}
	switch condition {
	case amqp.ErrCondNotFound, conditionDisabled, amqp.ErrCondResourceLimitExceeded, amqp.ErrCondNotAllowed, conditionServerBusy:
		return &outbox.OutageError{Entity: topic, Err: err}
	}
	return uncertain(err)
}

// uncertain returns the error of a send whose outcome is unknown.
func uncertain(err error) error { return fmt.Errorf("%w: %w", outbox.ErrUncertain, err) }
