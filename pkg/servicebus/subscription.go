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

// receiver is what is used of the SDK's receiver. ReceiveMessages has one caller
// at a time.
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
	// down says that the topic cannot be read.
	down   atomic.Bool
	places chan struct{} // one for each reply in hand
	inHand sync.WaitGroup
}

// newSubscription returns the consumer of a topic; open makes its receiver.
func newSubscription(cfg *RepliesConfig, topic string, open func() (receiver, error)) *subscription {
	return &subscription{cfg: cfg, name: topic, open: open, places: make(chan struct{}, cfg.InHand)}
}

// run consumes until the context ends, and returns when nothing is in hand.
func (s *subscription) run(ctx context.Context) {
	defer s.inHand.Wait()
	var from receiver
	failures := 0
	for ctx.Err() == nil {
		opened, err := s.opened(from)
		readable := false
		if from = opened; err == nil {
			readable, err = s.take(ctx, from)
		}
		if readable {
			failures = 0
			s.reading(ctx)
			continue
		}
		// Nothing, and no error either, is how a broken connection shows.
		s.notReading(ctx, err, failures)
		s.pause(ctx, failures)
		failures++
	}
}

// opened returns the receiver, and makes it where there is none yet.
func (s *subscription) opened(from receiver) (receiver, error) {
	if from != nil {
		return from, nil
	}
	made, err := s.open()
	if err != nil {
		return nil, err // And not a receiver that is none.
	}
	return made, nil
}

// quiet is how long it takes without a reply and without an error until a topic is
// taken for readable: longer than the SDK tries to connect.
const quiet = 30 * time.Second

// take waits for replies, as many as there are places for, and sets a goroutine
// to each. It reports whether the topic can be read.
func (s *subscription) take(ctx context.Context, from receiver) (readable bool, err error) {
	select {
	case s.places <- struct{}{}: // The first place, for which it has to wait.
		<-s.places
	case <-ctx.Done():
		return false, ctx.Err()
	}
	wait, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	messages, err := from.ReceiveMessages(wait, cap(s.places)-len(s.places), nil)
	for _, m := range messages {
		s.places <- struct{}{}
		s.inHand.Go(func() {
			defer func() { <-s.places }()
			s.cfg.Observe(s.handle(ctx, from, m))
		})
	}
	return len(messages) > 0 || errors.Is(err, context.DeadlineExceeded), err
}

// reading notes that the topic can be read.
func (s *subscription) reading(ctx context.Context) {
	if s.down.Swap(false) {
		s.cfg.Logger.InfoContext(ctx, "reply topic is read again", "topic", s.name)
	}
}

// notReading notes that the topic cannot be read, if that is an error and not
// just the end.
func (s *subscription) notReading(ctx context.Context, err error, failures int) {
	if ctx.Err() != nil || err == nil && failures == 0 {
		return
	}
	if !s.down.Swap(true) {
		s.cfg.Logger.WarnContext(ctx, "reply topic cannot be read", "topic", s.name, "error", err)
	}
}

// pause waits after that many failures before, or until the context ends.
func (s *subscription) pause(ctx context.Context, failures int) {
	timer := time.NewTimer(s.delay(failures))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// delay doubles with each failure, and is spread by half of it.
func (s *subscription) delay(failures int) time.Duration {
	d := float64(s.cfg.MinDelay) * math.Pow(2, float64(min(failures, 32)))
	return time.Duration(min(d, float64(s.cfg.MaxDelay)) * (0.75 + 0.5*s.cfg.Random()))
}
