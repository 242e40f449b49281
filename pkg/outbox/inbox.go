package outbox

import (
	"sync/atomic"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Inbox is the hot path from the commits of a process to its relay: a bounded
// queue in memory. What does not fit is dropped, since the row's timer finds
// it; so is what is left at a crash. It is safe for concurrent use.
type Inbox struct {
	messages chan ledger.Message
	dropped  atomic.Int64
}

// NewInbox returns an inbox for that many messages.
func NewInbox(capacity int) *Inbox {
	return &Inbox{messages: make(chan ledger.Message, capacity)}
}

// Offer puts a message in, or drops it. It never blocks.
func (i *Inbox) Offer(message ledger.Message) {
	select {
	case i.messages <- message:
	default:
		i.dropped.Add(1)
	}
}

// Dropped is the number of messages that did not fit.
func (i *Inbox) Dropped() int64 { return i.dropped.Load() }

// Waiting is the number of messages inside.
func (i *Inbox) Waiting() int { return len(i.messages) }

// take waits for nothing: it adds what is inside to the batch, up to limit.
func (i *Inbox) take(batch []ledger.Message, limit int) []ledger.Message {
	for len(batch) < limit {
		select {
		case message := <-i.messages:
			batch = append(batch, message)
		default:
			return batch
		}
	}
	return batch
}
