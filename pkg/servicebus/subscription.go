package servicebus

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

// receiver is the part of the SDK's receiver that this package uses.
// ReceiveMessages has one caller at a time.
type receiver interface {
	ReceiveMessages(ctx context.Context, n int, options *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
	CompleteMessage(ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.CompleteMessageOptions) error
	AbandonMessage(ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.AbandonMessageOptions) error
	DeadLetterMessage(ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.DeadLetterOptions) error
	RenewMessageLock(ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.RenewMessageLockOptions) error
}

// subscription consumes the replies of one topic.
type subscription struct {
	cfg  *RepliesConfig
	name string
	open func() (receiver, error)
	// down is true while the topic cannot be read.
	down   atomic.Bool
	slots  chan struct{} // one for each reply in hand
	inHand sync.WaitGroup
}

// newSubscription returns the consumer of a topic; open returns a new receiver.
func newSubscription(cfg *RepliesConfig, topic string, open func() (receiver, error)) *subscription {
	return &subscription{cfg: cfg, name: topic, open: open, slots: make(chan struct{}, cfg.InHand)}
}

// run consumes until the context ends and returns when no reply is in hand.
func (s *subscription) run(ctx context.Context) {
	defer s.inHand.Wait()
	var from receiver
	failures := 0
	for ctx.Err() == nil {
		opened, err := s.opened(from)
		readable := false
		if from = opened; err == nil {
			readable, err = s.receive(ctx, from)
		}
		if readable {
			failures = 0
			s.markReadable(ctx)
			continue
		}
		// A broken connection shows as no messages and no error.
		s.markDown(ctx, err, failures)
		s.pause(ctx, failures)
		failures++
	}
}

// opened returns the receiver, and makes it if there is none yet.
func (s *subscription) opened(from receiver) (receiver, error) {
	if from != nil {
		return from, nil
	}
	made, err := s.open()
	if err != nil {
		return nil, err // Not made, which may be a nil pointer in a non-nil interface.
	}
	return made, nil
}

// quiet is how long a receive may last without a reply or an error before the topic
// counts as readable: longer than the SDK tries to connect.
const quiet = 30 * time.Second

// receive waits for replies, as many as there are free slots, and starts a
// goroutine for each. It reports whether the topic can be read.
func (s *subscription) receive(ctx context.Context, from receiver) (readable bool, err error) {
	select {
	case s.slots <- struct{}{}: // Wait until a slot is free.
		<-s.slots
	case <-ctx.Done():
		return false, ctx.Err()
	}
	wait, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	messages, err := from.ReceiveMessages(wait, cap(s.slots)-len(s.slots), nil)
	for _, m := range messages {
		s.slots <- struct{}{}
		s.inHand.Go(func() {
			defer func() { <-s.slots }()
			s.cfg.Observe(s.handle(ctx, from, m))
		})
	}
	return len(messages) > 0 || errors.Is(err, context.DeadlineExceeded), err
}

// markReadable records that the topic can be read.
func (s *subscription) markReadable(ctx context.Context) {
	if s.down.Swap(false) {
		s.cfg.Logger.InfoContext(ctx, "reply topic is read again", "topic", s.name)
	}
}

// markDown records that the topic cannot be read. It does nothing when the process
// is stopping, or after a first empty receive without an error.
func (s *subscription) markDown(ctx context.Context, err error, failures int) {
	if ctx.Err() != nil || err == nil && failures == 0 {
		return
	}
	if !s.down.Swap(true) {
		s.cfg.Logger.WarnContext(ctx, "reply topic cannot be read", "topic", s.name, "error", err)
	}
}

// pause waits for the delay after that many earlier failures, or until the context
// ends.
func (s *subscription) pause(ctx context.Context, failures int) {
	timer := time.NewTimer(s.delay(failures))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// delay doubles with each failure, with a jitter of a quarter either way.
func (s *subscription) delay(failures int) time.Duration {
	d := float64(s.cfg.MinDelay) * math.Pow(2, float64(min(failures, 32)))
	return time.Duration(min(d, float64(s.cfg.MaxDelay)) * (0.75 + 0.5*s.cfg.Random()))
}
