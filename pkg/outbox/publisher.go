package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Publisher is the interface to a bus.
type Publisher interface {
	// Publish hands messages to the bus and returns one error for each, in the
	// same order: nil once the bus durably has it, a [*RejectedError] if it refused
	// the message because of the message itself, an [*OutageError] if a topic or
	// the whole bus is out of service. Any other error, such as [ErrUncertain],
	// says that the bus may or may not have it. A message that is handed over again
	// with the same id is the same message. It may be called concurrently and does
	// not keep or change the messages.
	Publish(ctx context.Context, messages []ledger.Message) []error

	// PublishedByMark reports whether the change that marks a row SENT publishes it,
	// as with the pull queue. Publish does nothing then, and a row is not taken
	// before: the mark's compare-and-swap decides among replicas.
	PublishedByMark() bool
}

// ErrUncertain is returned for a publish whose outcome is not known.
var ErrUncertain = errors.New("outcome of the publish is unknown")

// RejectedError is returned for a message that the bus refused because of the message
// itself. It spends the step's dispatch budget.
type RejectedError struct {
	// Reason is a sentence for the job's history, in words of our own.
	Reason string
	// Err is the bus's error, for the log. Optional.
	Err error
	// Permanent says that no later try can succeed.
	Permanent bool
}

// Error gives the reason and the bus's error.
func (e *RejectedError) Error() string {
	if e.Err == nil {
		return "message rejected: " + e.Reason
	}
	return fmt.Sprintf("message rejected: %s: %v", e.Reason, e.Err)
}

// Unwrap returns the bus's error.
func (e *RejectedError) Unwrap() error { return e.Err }

// OutageError is returned for a message that the bus did not process because its topic, or
// the bus, is unavailable. It spends no budget.
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

// Handoff is the hot path from the commits of a process to its relay: a bounded
// queue in memory. A message that does not fit is dropped, and so are those left at a
// crash, since the row's timer finds it. It is safe for concurrent use.
type Handoff struct {
	messages chan ledger.Message
	dropped  atomic.Int64
}

// NewHandoff returns a handoff for that many messages.
func NewHandoff(capacity int) *Handoff {
	return &Handoff{messages: make(chan ledger.Message, capacity)}
}

// Offer puts a message in, or drops it. It never blocks.
func (h *Handoff) Offer(message ledger.Message) {
	select {
	case h.messages <- message:
	default:
		h.dropped.Add(1)
	}
}

// Dropped is the number of messages that did not fit.
func (h *Handoff) Dropped() int64 { return h.dropped.Load() }

// Waiting is the number of messages inside.
func (h *Handoff) Waiting() int { return len(h.messages) }

// take adds the messages inside to the batch, up to the limit. It never blocks.
func (h *Handoff) take(batch []ledger.Message, limit int) []ledger.Message {
	for len(batch) < limit {
		select {
		case message := <-h.messages:
			batch = append(batch, message)
		default:
			return batch
		}
	}
	return batch
}
