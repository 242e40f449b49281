package servicebus

import (
	"errors"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
)

// right is what a credential needs on an entity: a right of a shared access policy, or a role.
type right struct{ policy, role string }

var (
	toSend = right{"Send", "Azure Service Bus Data Sender"}
	toRead = right{"Listen", "Azure Service Bus Data Receiver"}
)

// accessError is the error of a request to which the namespace denied access, or for which
// the credential got no token. Nothing was sent.
type accessError struct {
	// noToken says that there was no token, for any entity.
	noToken bool
	need    right
	err     error
}

// Error says what the server needs, and what the namespace or the credential answers, in one
// line.
func (e *accessError) Error() string {
	answer := strings.Join(strings.Fields(e.err.Error()), " ") // A credential's text has several lines.
	if e.noToken {
		return "the credential gets no token: " + answer
	}
	return "access is denied (it needs the right " + e.need.policy + ", or the role " + e.need.role + "): " + answer
}

// Unwrap returns the SDK's error.
func (e *accessError) Unwrap() error { return e.err }

// explained returns an accessError for an error of the SDK that stands for denied access, and
// any other error unchanged.
func explained(err error, need right) error {
	if _, ok := errors.AsType[*accessError](err); ok {
		return err
	}
	// The SDK passes on what a credential returns, which is marked so.
	if refused, ok := errors.AsType[interface {
		error
		NonRetriable()
	}](err); ok {
		return &accessError{noToken: true, err: refused}
	}
	if coded, ok := errors.AsType[*azservicebus.Error](err); ok && coded.Code == azservicebus.CodeUnauthorizedAccess {
		return &accessError{need: need, err: coded}
	}
	if fault, ok := errors.AsType[*amqp.Error](err); ok && fault.Condition == amqp.ErrCondUnauthorizedAccess {
		return &accessError{need: need, err: fault}
	}
	return err
}
