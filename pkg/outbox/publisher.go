package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Publisher is the port to a bus.
type Publisher interface {
	// Publish hands messages to the bus and returns one error for each, in the
	// same order: nil once the bus durably has it, a [*RejectedError] where it
	// refused the message for its own sake, an [*OutageError] where a topic or
	// the whole bus is out of service. Any other error, [ErrUncertain] among
	// them, says that the bus may or may not have it. A message that is handed
	// over again with the same id is the same message. It may be called
	// concurrently and does not keep or change the messages.
	Publish(ctx context.Context, messages []ledger.Message) []error

	// PublishedByMark reports whether the change that marks a row SENT is its
	// publication, as with the pull queue. Publish does nothing then, and a row is not
	// claimed before: the mark's compare-and-swap decides among replicas.
	PublishedByMark() bool
}

// ErrUncertain is returned for a publish whose outcome is not known.
var ErrUncertain = errors.New("outcome of the publish is unknown")

// RejectedError is returned for a message that the bus refused for its own
// sake. It spends the step's dispatch budget.
type RejectedError struct {
	// Reason is a sentence for the job's history, in words of our own.
	Reason string
	// Err is what the bus said, for the log. Optional.
	Err error
	// Permanent says that no later try can succeed.
	Permanent bool
}

// Error gives the reason, and what the bus said.
func (e *RejectedError) Error() string {
	if e.Err == nil {
		return "message rejected: " + e.Reason
	}
	return fmt.Sprintf("message rejected: %s: %v", e.Reason, e.Err)
}

// Unwrap returns what the bus said.
func (e *RejectedError) Unwrap() error { return e.Err }

// OutageError is returned for a message that was not looked at because its
// topic, or the bus, is out of service. It spends nothing.
type OutageError struct {
	// Entity is the topic; empty for the whole bus.
	Entity string
	Err    error
}

// Error names what is out of service.
func (e *OutageError) Error() string {
	if e.Entity == "" {
		return fmt.Sprintf("bus is out of service: %v", e.Err)
	}
	return fmt.Sprintf("%s is out of service: %v", e.Entity, e.Err)
}

// Unwrap returns the cause.
func (e *OutageError) Unwrap() error { return e.Err }
