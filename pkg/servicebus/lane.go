package servicebus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/lucius-project/lucius/pkg/outbox"
)

var (
	// errSilent is returned for a send that the topic did not answer in time.
	errSilent = errors.New("the topic did not answer in time")
	// errStuck is returned when abandoned sends hold all permits of a topic.
	errStuck = errors.New("too many sends to the topic have not returned")
)

// lane sends to one topic. It is safe for concurrent use.
type lane struct {
	publisher *Publisher
	topic     string
	courier   courier

	permits chan struct{} // one for each send, including abandoned ones
	stuck   atomic.Int32  // abandoned sends that have not returned
	silent  atomic.Int32  // consecutive sends without an answer
}

// publish sends the messages in order and returns the outcome of each.
func (l *lane) publish(ctx context.Context, messages []*azservicebus.Message) []error {
	outcomes := make([]error, 0, len(messages))
	alone := 0 // how many of the next messages to send one by one
	for len(messages) > 0 {
		next := messages
		if alone > 0 {
			next = messages[:1]
		}
		taken, err := l.transfer(ctx, next)
		_, rejected := errors.AsType[*outbox.RejectedError](err)
		switch {
		case rejected && taken > 1:
			// One of them is at fault; sending each alone shows which.
			alone = taken
			continue
		case err == nil || rejected:
			outcomes = append(outcomes, slices.Repeat([]error{err}, taken)...)
		default:
			// The rest would fail alike, and share the deadline.
			return append(outcomes, slices.Repeat([]error{err}, len(messages))...)
		}
		messages, alone = messages[taken:], max(alone-taken, 0)
	}
	return outcomes
}

// transfer makes one send once a permit is free. It returns after timeout and grace
// at the latest, even if the send does not. An abandoned send keeps its permit until
// it returns; when such sends hold all permits, transfer sends nothing more. The
// errors are those of [outbox.Publisher].
func (l *lane) transfer(ctx context.Context, messages []*azservicebus.Message) (int, error) {
	if int(l.stuck.Load()) >= cap(l.permits) {
		return len(messages), &outbox.OutageError{Entity: l.topic, Err: errStuck}
	}
	select {
	case l.permits <- struct{}{}:
	case <-ctx.Done():
		return len(messages), uncertain(ctx.Err())
	}
	// The timeout starts here: waiting for a permit must not count as the topic's silence.
	ctx, cancel := context.WithTimeout(ctx, l.publisher.cfg.SendTimeout)
	defer cancel()
	type result struct {
		taken int
		err   error
	}
	returned := make(chan result, 1)
	var over atomic.Bool // set by the first of the two: the send returned, or was abandoned
	go func() {
		taken, err := l.courier.send(ctx, messages)
		returned <- result{taken, err}
		if !over.CompareAndSwap(false, true) {
			l.stuck.Add(-1)
		}
		<-l.permits
	}()
	select {
	case r := <-returned:
		return r.taken, l.outcome(ctx, r.err)
	case <-ctx.Done():
	}
	grace := time.NewTimer(l.publisher.cfg.Grace)
	defer grace.Stop()
	select {
	case r := <-returned:
		return r.taken, l.outcome(ctx, r.err)
	case <-grace.C:
	}
	outcome := l.outcome(ctx, errSilent) // Before the cut: outcome asks whether a connection is open.
	l.stuck.Add(1)
	if !over.CompareAndSwap(false, true) {
		l.stuck.Add(-1) // It has just returned.
		return len(messages), outcome
	}
	// Cut the connections, so that the abandoned send returns.
	l.publisher.cuts.Add(1)
	l.publisher.cfg.Logger.ErrorContext(ctx, "send did not return in time, cutting the connections", "topic", l.topic)
	l.publisher.bus.dialer.cut()
	return len(messages), outcome
}

// outcome turns the error of a send into one of [outbox.Publisher]'s. A single
// unanswered send proves nothing; after several in a row the topic is out of service.
func (l *lane) outcome(ctx context.Context, err error) error {
	outcome := verdict(ctx, l.topic, toSend, err)
	// The SDK also takes an error of the topic that it does not know for a lost connection.
	coded, ok := errors.AsType[*azservicebus.Error](err)
	if ok && coded.Code == azservicebus.CodeConnectionLost && ctx.Err() == nil && l.publisher.bus.dialer.connected() {
		outcome = &outbox.OutageError{Entity: l.topic, Err: coded}
	}
	if !errors.Is(outcome, outbox.ErrUncertain) || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		l.silent.Store(0)
		return outcome
	}
	if !l.publisher.bus.dialer.connected() {
		return &outbox.OutageError{Err: fmt.Errorf("no connection: %w", err)}
	}
	if int(l.silent.Add(1)) >= l.publisher.cfg.Patience {
		return &outbox.OutageError{Entity: l.topic, Err: errSilent}
	}
	return outcome
}

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
	opened atomic.Pointer[azservicebus.Sender]
}

// send implements [courier].
func (s *sender) send(ctx context.Context, messages []*azservicebus.Message) (int, error) {
	link := s.opened.Load()
	if link == nil {
		// Without a lock: NewSender blocks while another sender connects. Of two made
		// at once the second is dropped, which costs nothing: neither has a link yet.
		made, err := s.client.NewSender(s.topic, nil)
		if err != nil {
			return len(messages), &linkError{err}
		}
		s.opened.CompareAndSwap(nil, made)
		if link = s.opened.Load(); link == nil {
			link = made // Another send has just dropped the first one.
		}
	}
	taken, err := sendOver(ctx, link, messages)
	if closesLink(err) && s.opened.CompareAndSwap(link, nil) {
		dispose(ctx, link)
	}
	return taken, err
}

// dispose closes a sender or receiver that nothing uses any more, without waiting for the broker.
func dispose(ctx context.Context, link interface {
	Close(ctx context.Context) error
}) {
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		defer cancel()
		_ = link.Close(ctx) // Nothing depends on it.
	}()
}

// closesLink reports whether the topic may have closed the link with that error for good. The
// SDK opens a link again only after errors that it retries. After another one, such as that of
// a topic that is disabled, or of a right that is taken away, its sender or receiver returns the
// same error for each call, also when the topic is back.
func closesLink(err error) bool {
	if _, ok := errors.AsType[*amqp.LinkError](err); ok || errors.Is(err, azservicebus.ErrMessageTooLarge) {
		return true
	}
	coded, ok := errors.AsType[*azservicebus.Error](err) // It hides a link's error.
	return ok && (coded.Code == azservicebus.CodeUnauthorizedAccess || coded.Code == azservicebus.CodeNotFound)
}

// sendOver sends as many of the messages as fit into one batch. A message too large for a
// batch is sent without one: large messages may have a limit of their own.
func sendOver(ctx context.Context, link *azservicebus.Sender, messages []*azservicebus.Message) (int, error) {
	batch, err := link.NewMessageBatch(ctx, nil)
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
