package servicebus

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/outbox"
)

var (
	// errSilent is returned for a send that the topic did not answer in time.
	errSilent = errors.New("the topic did not answer in time")
	// errStuck is returned when abandoned sends hold all slots of a topic.
	errStuck = errors.New("too many sends to the topic have not returned")
)

// lane sends to one topic. It is safe for concurrent use.
type lane struct {
	topic   string
	courier courier
	timeout time.Duration // of one send
	grace   time.Duration // after the timeout, before a send is abandoned
	// patience is how many consecutive sends may stay unanswered before the topic
	// counts as out of service.
	patience int32
	// connected reports whether any connection is open.
	connected func() bool
	// abandon is called for a send that did not return in time.
	abandon func(topic string)

	slots  chan struct{} // one for each send, including abandoned ones
	stuck  atomic.Int32  // abandoned sends that have not returned
	silent atomic.Int32  // consecutive sends without an answer
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
			outcomes = append(outcomes, repeat(err, taken)...)
		default:
			// The rest would fail alike, and share the deadline.
			return append(outcomes, repeat(err, len(messages))...)
		}
		messages, alone = messages[taken:], max(alone-taken, 0)
	}
	return outcomes
}

// repeat returns the error n times.
func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// sent is the result of one send.
type sent struct {
	taken int
	err   error
}

// transfer makes one send once a slot is free. It returns after timeout and grace
// at the latest, even if the send does not. An abandoned send keeps its slot until
// it returns; when such sends hold all slots, transfer sends nothing more. The
// errors are those of [outbox.Publisher].
func (l *lane) transfer(ctx context.Context, messages []*azservicebus.Message) (int, error) {
	if int(l.stuck.Load()) >= cap(l.slots) {
		return len(messages), &outbox.OutageError{Entity: l.topic, Err: errStuck}
	}
	select {
	case l.slots <- struct{}{}:
	case <-ctx.Done():
		return len(messages), uncertain(ctx.Err())
	}
	// The timeout starts here: waiting for a slot must not count as the topic's silence.
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	var over atomic.Bool // set by the first of the two: the send returned, or was abandoned
	back := make(chan sent, 1)
	go func() {
		taken, err := l.courier.send(ctx, messages)
		back <- sent{taken, err}
		if !over.CompareAndSwap(false, true) {
			l.stuck.Add(-1)
		}
		<-l.slots
	}()
	if s, ok := l.await(ctx, back); ok {
		return s.taken, l.judge(ctx, s.err)
	}
	outcome := l.judge(ctx, errSilent) // Before the cut: judge asks whether a connection is open.
	l.stuck.Add(1)
	if !over.CompareAndSwap(false, true) {
		l.stuck.Add(-1) // It has just returned.
	} else {
		l.abandon(l.topic)
	}
	return len(messages), outcome
}

// await waits for a send until the grace after the end of its context is over.
func (l *lane) await(ctx context.Context, back <-chan sent) (sent, bool) {
	select {
	case s := <-back:
		return s, true
	case <-ctx.Done():
	}
	grace := time.NewTimer(l.grace)
	defer grace.Stop()
	select {
	case s := <-back:
		return s, true
	case <-grace.C:
		return sent{}, false
	}
}

// judge turns the error of a send into one of [outbox.Publisher]'s. A single
// unanswered send proves nothing; after several in a row the topic is out of service.
func (l *lane) judge(ctx context.Context, err error) error {
	outcome := verdict(ctx, l.topic, err)
	if !errors.Is(outcome, outbox.ErrUncertain) || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		l.silent.Store(0)
		return outcome
	}
	if !l.connected() {
		return &outbox.OutageError{Err: fmt.Errorf("no connection: %w", err)}
	}
	if l.silent.Add(1) >= l.patience {
		return &outbox.OutageError{Entity: l.topic, Err: errSilent}
	}
	return outcome
}
