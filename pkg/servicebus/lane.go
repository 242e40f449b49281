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
	// errSilent is returned for a send that nobody has answered in its time.
	errSilent = errors.New("the topic did not answer in time")
	// errStuck is returned where all places of a topic are held by sends that did
	// not come back.
	errStuck = errors.New("too many sends to the topic have not come back")
)

// lane sends to one topic. It is safe for concurrent use.
type lane struct {
	topic   string
	courier courier
	timeout time.Duration // of one send
	grace   time.Duration // beyond it, before a send is left behind
	// patience is how many sends in a row may stay without an answer before that
	// is the topic's fault.
	patience int32
	// connected reports whether there is a connection at all.
	connected func() bool
	// abandon is told of a send that did not come back.
	abandon func(topic string)

	places chan struct{} // one for each send, those left behind included
	stuck  atomic.Int32  // sends left behind
	silent atomic.Int32  // sends in a row without an answer
}

// publish sends the messages, in their order, and returns the outcome of each.
func (l *lane) publish(ctx context.Context, messages []*azservicebus.Message) []error {
	outcomes := make([]error, 0, len(messages))
	alone := 0 // how many of the next messages are sent one by one
	for len(messages) > 0 {
		next := messages
		if alone > 0 {
			next = messages[:1]
		}
		taken, err := l.transfer(ctx, next)
		_, rejected := errors.AsType[*outbox.RejectedError](err)
		switch {
		case rejected && taken > 1:
			// One of them is at fault; which one, only they can tell.
			alone = taken
			continue
		case err == nil || rejected:
			outcomes = append(outcomes, repeat(err, taken)...)
		default:
			// It would be the same for the others, and their deadline is the same.
			return append(outcomes, repeat(err, len(messages))...)
		}
		messages, alone = messages[taken:], max(alone-taken, 0)
	}
	return outcomes
}

// repeat returns n times the error.
func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// sent is what came of one send.
type sent struct {
	taken int
	err   error
}

// transfer makes one send, once there is a place for it, and returns after its time
// at the latest, whether the send comes back or not. One that does not keeps its place until it does; when
// all places are gone that way, nothing more is sent. The error is one of the
// publisher's port.
func (l *lane) transfer(ctx context.Context, messages []*azservicebus.Message) (int, error) {
	if int(l.stuck.Load()) >= cap(l.places) {
		return len(messages), &outbox.OutageError{Entity: l.topic, Err: errStuck}
	}
	select {
	case l.places <- struct{}{}:
	case <-ctx.Done():
		return len(messages), uncertain(ctx.Err())
	}
	// From here on: to wait for a place is no silence of the topic's.
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	// The state of one send: its goroutine and its waiter settle who comes first.
	var over atomic.Bool
	back := make(chan sent, 1)
	go func() {
		taken, err := l.courier.send(ctx, messages)
		back <- sent{taken, err}
		if !over.CompareAndSwap(false, true) {
			l.stuck.Add(-1)
		}
		<-l.places
	}()
	if s, ok := l.await(ctx, back); ok {
		return s.taken, l.judge(ctx, s.err)
	}
	outcome := l.judge(ctx, errSilent) // Before its connections are cut: then there are none.
	l.stuck.Add(1)
	if !over.CompareAndSwap(false, true) {
		l.stuck.Add(-1) // It came back just now.
	} else {
		l.abandon(l.topic)
	}
	return len(messages), outcome
}

// await waits for a send, for the grace beyond the end of its context at most.
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

// judge turns the error of a send into one of the port, and counts silence: a
// single send without an answer says nothing, several in a row do.
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
