package servicebus_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// meaning returns the class of an error of [outbox.Publisher].
func meaning(err error) string {
	rejected, isRejected := errors.AsType[*outbox.RejectedError](err)
	outage, isOutage := errors.AsType[*outbox.OutageError](err)
	switch {
	case err == nil:
		return "sent"
	case isRejected && rejected.Permanent:
		return "rejected for good"
	case isRejected:
		return "rejected"
	case isOutage && outage.Entity == "":
		return "bus"
	case isOutage:
		return outage.Entity
	case errors.Is(err, outbox.ErrUncertain):
		return "unknown"
	}
	return "not of the port: " + err.Error()
}

// said returns an error of the broker.
func said(condition amqp.ErrCond) error {
	return &amqp.Error{Condition: condition, Description: "so it is"}
}

// noTokenError is the error of a credential that gets no token, as azidentity marks and writes it.
type noTokenError struct{}

func (noTokenError) Error() string {
	return "DefaultAzureCredential: failed to acquire a token.\nAttempted credentials:\n\tnone"
}
func (noTokenError) NonRetriable() {}

// coded returns an error of the SDK with a code.
func coded(code azservicebus.Code) error { return &azservicebus.Error{Code: code} }

// The SDK's errors for the broker's answers were measured; the table says what the
// relay must make of each.
func TestVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		err      error
		sending  string
		entering string // if the topic answers its opening with the same error
	}{
		{"nothing", nil, "sent", "unknown"},
		{"missing entity", said(amqp.ErrCondNotFound), "topic", "topic"},
		{"missing entity, from a request", coded(azservicebus.CodeNotFound), "topic", "topic"},
		{"no right", coded(azservicebus.CodeUnauthorizedAccess), "topic", "topic"},
		{"no right, raw", said(amqp.ErrCondUnauthorizedAccess), "topic", "topic"},
		{"no right any more", &amqp.LinkError{RemoteErr: &amqp.Error{Condition: amqp.ErrCondUnauthorizedAccess}}, "topic", "topic"},
		{"no token", noTokenError{}, "bus", "bus"},
		{"full", said(amqp.ErrCondResourceLimitExceeded), "topic", "topic"},
		{"disabled", said("com.microsoft:entity-disabled"), "topic", "topic"},
		{"not allowed", said(amqp.ErrCondNotAllowed), "rejected", "topic"},
		{"not allowed to go on", &amqp.LinkError{RemoteErr: &amqp.Error{Condition: amqp.ErrCondNotAllowed}}, "topic", "topic"},
		{"throttled", said("com.microsoft:server-busy"), "topic", "topic"},
		{"too large, alone", azservicebus.ErrMessageTooLarge, "rejected for good", "rejected for good"},
		{"too large, in a batch", said(amqp.ErrCondMessageSizeExceeded), "rejected for good", "rejected for good"},
		{"lock lost", coded(azservicebus.CodeLockLost), "unknown", "unknown"},
		{"the broker's time is up", coded(azservicebus.CodeTimeout), "unknown", "unknown"},
		{"the broker's time is up, raw", said("com.microsoft:timeout"), "unknown", "unknown"},
		{"cancelled by the broker", said("com.microsoft:operation-cancelled"), "unknown", "unknown"},
		{"internal error, raw", said(amqp.ErrCondInternalError), "unknown", "unknown"},
		{"unknown condition, raw", said("com.example:new"), "unknown", "unknown"},
		{"connection lost", coded(azservicebus.CodeConnectionLost), "bus", "bus"},
		{"sender closed", coded(azservicebus.CodeClosed), "unknown", "unknown"},
		{"a code to come", coded("new"), "unknown", "unknown"},
		{"no credit", said(amqp.ErrCondTransferLimitExceeded), "unknown", "unknown"},
		{"link detached", &amqp.LinkError{RemoteErr: &amqp.Error{Condition: amqp.ErrCondDetachForced}}, "unknown", "unknown"},
		{"time is up", context.DeadlineExceeded, "unknown", "unknown"},
		{"cancelled", context.Canceled, "unknown", "unknown"},
		{"anything else", io.ErrUnexpectedEOF, "unknown", "unknown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := meaning(servicebus.Verdict(t.Context(), "topic", test.err, false)); got != test.sending {
				t.Errorf("sending: %s, want %s", got, test.sending)
			}
			if test.err == nil {
				return
			}
			if got := meaning(servicebus.Verdict(t.Context(), "topic", test.err, true)); got != test.entering {
				t.Errorf("opening the topic: %s, want %s", got, test.entering)
			}
			wrapped := fmt.Errorf("send: %w", test.err)
			if got := meaning(servicebus.Verdict(t.Context(), "topic", wrapped, false)); got != test.sending {
				t.Errorf("sending, wrapped: %s, want %s", got, test.sending)
			}
		})
	}
}

// After the end of the context most errors are consequences of it; only a rejection
// of the message itself counts.
func TestVerdict_AfterTheContextEndedOnlyRejectionsCount(t *testing.T) {
	t.Parallel()
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	t.Cleanup(cancel)
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"too large", azservicebus.ErrMessageTooLarge, "rejected for good"},
		{"refused", said(amqp.ErrCondNotAllowed), "rejected"},
		{"missing entity", said(amqp.ErrCondNotFound), "unknown"},
		{"connection lost", coded(azservicebus.CodeConnectionLost), "unknown"},
		{"sent", nil, "sent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := meaning(servicebus.Verdict(expired, "topic", test.err, false)); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

func TestVerdict_SaysWhy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		err     error
		opening bool
		want    string
	}{
		{"with the broker's words", said(amqp.ErrCondNotAllowed), false, "message rejected: the topic does not take the message: *Error{Condition: amqp:not-allowed, Description: so it is, Info: map[]}"},
		{"too large", azservicebus.ErrMessageTooLarge, false, "message rejected: the message is larger than the topic takes: the message is too large"},
		{"on the way in", context.Canceled, true, "outcome of the publish is unknown: open the topic: context canceled"},
		{"the topic", coded(azservicebus.CodeNotFound), false, "topic is out of service: (notfound): unknown error"},
		{"the bus", coded(azservicebus.CodeConnectionLost), false, "bus is out of service: (connlost): unknown error"},
		{"the right", coded(azservicebus.CodeUnauthorizedAccess), false, "topic is out of service: access is denied " +
			"(it needs the right Send, or the role Azure Service Bus Data Sender): (unauthorized): unknown error"},
		{"the credential", noTokenError{}, true, "bus is out of service: the credential gets no token: " +
			"DefaultAzureCredential: failed to acquire a token. Attempted credentials: none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := servicebus.Verdict(t.Context(), "topic", test.err, test.opening); got.Error() != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// The broker's text goes to the log only; the job's history and clients get texts of
// Lucius.
func TestVerdict_KeepsTheBrokersWordsForTheLog(t *testing.T) {
	t.Parallel()
	refused, ok := errors.AsType[*outbox.RejectedError](servicebus.Verdict(t.Context(), "topic", said(amqp.ErrCondNotAllowed), false))
	if !ok || refused.Reason != "the topic does not take the message" {
		t.Errorf("%+v", refused)
	}
	if fault, ok := errors.AsType[*amqp.Error](refused); !ok || fault.Description != "so it is" {
		t.Errorf("its cause is %v", refused.Err)
	}
}
