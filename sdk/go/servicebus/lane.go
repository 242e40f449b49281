package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"
	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/internal/workerlog"
)

// lane is one lane's receiver and the sender of its replies.
type lane struct {
	cfg     *Config
	topic   string
	worker  *lucius.Worker
	open    func() (*azservicebus.Receiver, error)
	reopen  func() (*azservicebus.Sender, error)
	replies atomic.Pointer[azservicebus.Sender]

	// from is replaced if the bus closes its link (see replaceReceiver).
	from atomic.Pointer[azservicebus.Receiver]
	// settling is nil until the lane is no longer read; then it replaces from, and closed is
	// closed once from is.
	settling atomic.Pointer[azservicebus.Receiver]
	closed   chan struct{}

	mu     sync.Mutex
	inHand map[attempt]*directive
	// answered holds the last attempts whose RESULT is on the bus.
	answered []attempt
}

// maxAnswered limits the attempts that a lane remembers as answered.
const maxAnswered = 1000

// openLane returns the nth lane. It does not connect yet.
func openLane(receiving, sending *azservicebus.Client, cfg *Config, n int) (*lane, error) {
	topic := cfg.TopicPrefix + strconv.Itoa(n)
	open := func() (*azservicebus.Receiver, error) {
		return receiving.NewReceiverForSubscription(topic, cfg.Subscription, nil)
	}
	from, err := open()
	if err != nil {
		return nil, fmt.Errorf("subscription %s of %s: %w", cfg.Subscription, topic, err)
	}
	reopen := func() (*azservicebus.Sender, error) { return sending.NewSender(cfg.ReplyPrefix+strconv.Itoa(n), nil) }
	replies, err := reopen()
	if err != nil {
		return nil, fmt.Errorf("replies of lane %d: %w", n, err)
	}
	l := &lane{
		cfg: cfg, topic: topic, open: open, closed: make(chan struct{}), reopen: reopen, inHand: map[attempt]*directive{},
	}
	l.from.Store(from)
	l.replies.Store(replies)
	return l, nil
}

// send sends a reply once. If the topic closed the sender's link, another sender takes its
// place.
//
// The server's publisher does the same. It is written twice, since neither module may depend
// on the other for it.
func (l *lane) send(ctx context.Context, message *azservicebus.Message) error {
	sender := l.replies.Load()
	err := sender.SendMessage(ctx, message, nil)
	if !closesLink(err) {
		return err
	}
	if another, failed := l.reopen(); failed == nil && l.replies.CompareAndSwap(sender, another) {
		dispose(ctx, sender)
	}
	return err
}

// dispose closes a sender or receiver that nothing uses any more, without waiting for the bus.
func dispose(ctx context.Context, link interface {
	Close(ctx context.Context) error
}) {
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		_ = link.Close(ctx) // Nothing depends on it.
	}()
}

// closesLink reports whether the topic may have closed the link with that error for good. The
// SDK opens a link again only after errors that it retries. After another one, such as that of
// a topic that is disabled, or of a right that is taken away, its sender returns the same
// error for each message, also when the topic is back.
func closesLink(err error) bool {
	if _, ok := errors.AsType[*amqp.LinkError](err); ok || errors.Is(err, azservicebus.ErrMessageTooLarge) {
		return true
	}
	coded, ok := errors.AsType[*azservicebus.Error](err) // It hides a link's error.
	return ok && (coded.Code == azservicebus.CodeUnauthorizedAccess || coded.Code == azservicebus.CodeNotFound)
}

// run reads the lane until the context ends, and waits for the directives in hand.
func (l *lane) run(ctx, handling, replying context.Context) {
	var inHand sync.WaitGroup
	defer inHand.Wait()
	defer l.receiveNoMore(replying)
	slots := make(chan struct{}, l.cfg.Parallel)
	for failures := 0; ; {
		select {
		case slots <- struct{}{}: // Wait until a slot is free.
		case <-ctx.Done():
			return
		}
		<-slots
		messages, err := l.from.Load().ReceiveMessages(ctx, cap(slots)-len(slots), nil)
		for _, m := range messages {
			slots <- struct{}{}
			inHand.Go(func() {
				defer func() { <-slots }()
				l.attend(handling, replying, m)
			})
		}
		if len(messages) > 0 {
			l.cfg.link.Answered(ctx, time.Now())
			failures = 0
			continue
		}
		// A broken connection may show as no messages and no error.
		failures++
		switch {
		case ctx.Err() != nil:
		case err != nil:
			l.failed(ctx, l.cfg.Log, "receive", failures, fmt.Errorf("%s: %w", l.topic, err))
		case failures > 1:
			l.replaceReceiver(ctx)
		}
		if !pause(ctx, delay(failures)) {
			return
		}
	}
}

// replaceReceiver opens another receiver in the place of one that returns nothing. A link that
// is open waits for messages. If the bus closes it with an error that the SDK takes for
// passing, such as com.microsoft:server-busy, the SDK keeps it, and each call returns at once.
// The directives in hand are settled by their locks then.
//
// The server's subscriptions do the same.
func (l *lane) replaceReceiver(ctx context.Context) {
	if another, err := l.open(); err == nil { // It fails if the client is closed.
		dispose(ctx, l.from.Swap(another))
	}
}

// failed logs that a call of the bus failed for the nth time, and is repeated. One topic may
// fail while the others work.
func (l *lane) failed(ctx context.Context, log *slog.Logger, name string, n int, err error) {
	switch {
	case !workerlog.Sparse(n):
	case closesLink(err):
		log.WarnContext(ctx, "call repeated", "call", name, "tries", n, "error", err)
	default:
		l.cfg.link.Lost(ctx, err)
	}
}

// receiveNoMore replaces the receiver, after the drainTime, by one that only settles: the bus
// may still deliver to the old one what it asked for, even what this worker gives back. It
// does not wait for calls in progress: those of the old receiver fail, and are repeated.
func (l *lane) receiveNoMore(ctx context.Context) {
	defer close(l.closed)
	pause(ctx, drainTime)
	settling, err := l.open()
	if err == nil {
		l.settling.Store(settling)
		ctx, cancel := context.WithTimeout(ctx, linkTimeout)
		defer cancel()
		err = l.from.Load().Close(ctx)
	}
	if err != nil {
		l.cfg.Log.WarnContext(ctx, "lane not closed cleanly", "error", err)
	}
}

// attempt identifies what a directive asks for: redelivered copies have the same.
type attempt struct {
	jobID, stepID, leaseID string
	no                     int32
}

// directive is a directive in hand.
type directive struct {
	lane *lane
	lucius.Directive

	mu sync.Mutex
	// message is the newest copy, whose lock is held.
	message  *azservicebus.ReceivedMessage
	progress *lucius.Progress // as the handler said it last
}

// take takes the directive of a message in hand, unless the message is a copy: if a lock is
// lost, the bus redelivers what a handler is still at, or what was answered but not yet
// completed. It returns nil then; a handler's directive takes over the copy's lock.
func (l *lane) take(m *azservicebus.ReceivedMessage, what *lucius.Directive) (_ *directive, answered bool) {
	key := attempt{what.JobID, what.StepID, what.LeaseID, what.AttemptNo}
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.inHand[key]; d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.message = m
		return nil, false
	}
	if slices.Contains(l.answered, key) {
		return nil, true
	}
	d := &directive{lane: l, Directive: *what, message: m}
	l.inHand[key] = d
	return d, false
}

// release returns the message of a directive, which is in hand no longer, and remembers
// whether its RESULT is on the bus.
func (d *directive) release(answered bool) *azservicebus.ReceivedMessage {
	l, key := d.lane, attempt{d.JobID, d.StepID, d.LeaseID, d.AttemptNo}
	l.mu.Lock()
	defer l.mu.Unlock()
	if answered {
		l.answered = append(l.answered[max(0, len(l.answered)+1-maxAnswered):], key)
	}
	delete(l.inHand, key)
	return d.held()
}

// held returns the message whose lock is held.
func (d *directive) held() *azservicebus.ReceivedMessage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.message
}

// settlement is a call that settles a message, or renews its lock.
type settlement func(ctx context.Context, from *azservicebus.Receiver, m *azservicebus.ReceivedMessage) error

// settle settles a message. If that fails, the bus redelivers the directive.
func (l *lane) settle(ctx context.Context, name string, m *azservicebus.ReceivedMessage, call settlement) {
	err := l.settleOnLink(ctx, m, call)
	if err != nil && ctx.Err() == nil && !lockLost(err) {
		// The link that delivered the message is gone. Its lock holds, and has a token.
		again, cancel := context.WithTimeout(ctx, callTimeout)
		from, held := cmp.Or(l.settling.Load(), l.from.Load()), &azservicebus.ReceivedMessage{LockToken: m.LockToken}
		// A renewal opens a lost connection again at once, a settlement after 3 to 5 seconds.
		if err = from.RenewMessageLock(again, held, nil); err == nil {
			err = call(again, from, held)
		}
		cancel()
	}
	if err != nil && !errors.Is(context.Cause(ctx), context.Canceled) {
		l.cfg.Log.WarnContext(ctx, "a call about a directive failed: the bus may redeliver it", "call", name, "error", err)
	}
}

// settleOnLink settles a message on the link that delivered it. Once the lane is no longer
// read, it waits until that link is closed, and returns an error.
func (l *lane) settleOnLink(ctx context.Context, m *azservicebus.ReceivedMessage, call settlement) error {
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	if l.settling.Load() == nil {
		return call(ctx, l.from.Load(), m)
	}
	select {
	case <-l.closed:
	case <-ctx.Done():
	}
	return errLinkClosed
}

// errLinkClosed says that the lane is no longer read.
var errLinkClosed = errors.New("the link that delivered the message is closed")

// lockLost reports whether the bus answered that the message's lock is lost.
func lockLost(err error) bool {
	coded, ok := errors.AsType[*azservicebus.Error](err)
	return ok && coded.Code == azservicebus.CodeLockLost
}

// drainTime is how long a lane stays open after a stop. The bus may still deliver what the
// lane asked for, which the SDK cannot withdraw, but gives back at once while the lane is
// open. Afterwards it would stay locked.
const drainTime = time.Second

// linkTimeout is how long a message may take to be settled on the link that delivered it.
// If that link's connection is gone, the SDK would try the same link again after 3 to 5
// seconds, and close the connection that all others use by then.
const linkTimeout = 2 * time.Second

// callTimeout is how long one call of the bus may take, with the links that it opens again
// after an outage. A broker that says nothing would be waited for without end.
const callTimeout = 20 * time.Second

// delay returns the delay before the next try after that many failures.
func delay(failures int) time.Duration {
	return min(50*time.Millisecond<<min(failures, 10), 2*time.Second)
}
