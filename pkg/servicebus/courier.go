package servicebus

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// courier sends messages to one topic.
type courier interface {
	// send transfers as many of the first messages as fit into one batch, and
	// returns how many. They share one outcome. There is at least one message. It
	// is safe for concurrent use.
	send(ctx context.Context, messages []*azservicebus.Message) (taken int, err error)
}

// sender is a courier on the SDK. The first send opens its link.
type sender struct {
	client *azservicebus.Client
	topic  string
	// batchBytes limits a batch to less than the link's maximum, unless it is 0.
	batchBytes uint64

	mu     sync.Mutex
	opened *azservicebus.Sender
}

// send implements [courier]. A message too large for a batch is sent without one:
// large messages may have a limit of their own.
func (s *sender) send(ctx context.Context, messages []*azservicebus.Message) (int, error) {
	link, err := s.open()
	if err != nil {
		return len(messages), &linkError{err}
	}
	batch, err := link.NewMessageBatch(ctx, &azservicebus.MessageBatchOptions{MaxBytes: s.batchBytes})
	if err != nil {
		return len(messages), &linkError{err}
	}
	taken := 0
	for taken < len(messages) {
		err := batch.AddMessage(messages[taken], nil)
		if errors.Is(err, azservicebus.ErrMessageTooLarge) {
			break
		}
		if err != nil {
			return 1, fmt.Errorf("encode the message: %w", err)
		}
		taken++
	}
	if taken < 2 { // An empty batch panics, and a single message needs no batch.
		return 1, link.SendMessage(ctx, messages[0], nil)
	}
	return taken, link.SendMessageBatch(ctx, batch, nil)
}

// open returns the sender, and makes it if there is none yet. Of two made at once
// the second is dropped, which costs nothing: neither has a link yet.
func (s *sender) open() (*azservicebus.Sender, error) {
	s.mu.Lock()
	opened := s.opened
	s.mu.Unlock()
	if opened != nil {
		return opened, nil
	}
	// Not under the lock: NewSender blocks while another sender connects.
	made, err := s.client.NewSender(s.topic, nil)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == nil {
		s.opened = made
	}
	return s.opened, nil
}
