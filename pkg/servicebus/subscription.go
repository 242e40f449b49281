package servicebus

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

var (
	// errStopping is returned for a reply that the store did not accept before the stop.
	errStopping = errors.New("the process stops")
	// errLockLost is returned for a reply that another consumer may have by now.
	errLockLost = errors.New("the lock is lost")
)

// stepTimeout bounds one call of Apply, one renewal and one settlement by a lock's token:
// well below the lock duration of a subscription.
const stepTimeout = 10 * time.Second

// receiver is the part of the SDK's receiver that this package uses.
// ReceiveMessages has one caller at a time.
type receiver interface {
	ReceiveMessages(ctx context.Context, n int, options *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
	CompleteMessage(ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.CompleteMessageOptions) error
	AbandonMessage(ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.AbandonMessageOptions) error
	DeadLetterMessage(ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.DeadLetterOptions) error
	RenewMessageLock(ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.RenewMessageLockOptions) error
	Close(ctx context.Context) error
}

// subscription consumes the replies of one topic.
type subscription struct {
	cfg  *RepliesConfig
	name string
	open func() (receiver, error)
	// from is nil until a receiver could be made. Another one may replace it while replies
	// that it delivered are in hand: their locks have tokens.
	from atomic.Pointer[receiver]
	// down is why the topic cannot be read, as far as that is known; nil while it can.
	down    atomic.Pointer[string]
	permits chan struct{} // one for each reply in hand
	inHand  sync.WaitGroup
	singly  time.Time // Until then messages are received one at a time.
}

// drainTime is how long a topic stays open after a stop. The bus may still deliver
// requested messages. The SDK cannot withdraw the request, but releases such messages at
// once while the receiver is open. After that they would stay locked, and other replicas
// would wait for them.
const drainTime = time.Second

// run consumes until the context ends and returns when the topic is drained and no reply is
// in hand.
func (s *subscription) run(ctx context.Context) {
	defer func() {
		if s.from.Load() != nil {
			time.Sleep(drainTime)
		}
		s.inHand.Wait()
	}()
	failures := 0
	for ctx.Err() == nil {
		var err error
		if s.from.Load() == nil {
			err = s.renewReceiver(ctx)
		}
		readable := false
		if err == nil {
			readable, err = s.receive(ctx)
		}
		if readable {
			failures = 0
			if s.down.Swap(nil) != nil {
				s.cfg.Logger.InfoContext(ctx, "reply topic is read again", "topic", s.name)
			}
			continue
		}
		// A broken connection shows as no messages and no error. A first empty
		// receive proves nothing.
		if ctx.Err() == nil && (err != nil || failures > 0) {
			s.unreadable(ctx, err)
		}
		if err == nil && failures > 0 {
			_ = s.renewReceiver(ctx) // The old one stays if it fails.
		}
		s.pause(ctx, failures)
		failures++
	}
}

// renewReceiver makes a receiver, which replaces the one that there is. A link that is open
// waits for replies. If the bus closes it with an error that the SDK takes for passing, such
// as com.microsoft:server-busy, the SDK keeps it, and each call returns at once with nothing.
func (s *subscription) renewReceiver(ctx context.Context) error {
	made, err := s.open()
	if err != nil { // The receiver may be a nil pointer in a non-nil interface.
		return err
	}
	if old := s.from.Swap(&made); old != nil {
		dispose(ctx, *old)
	}
	return nil
}

// unreadable notes that the topic cannot be read. It logs the first error of an outage.
func (s *subscription) unreadable(ctx context.Context, err error) {
	reason := ""
	if err = explained(err, toRead); err != nil {
		reason = err.Error()
	}
	known := s.down.Load()
	if known == nil || reason != "" {
		s.down.Store(&reason)
	}
	if known == nil {
		s.cfg.Logger.WarnContext(ctx, "reply topic cannot be read", "topic", s.name, "error", err)
	}
}

// quiet is how long a receive may last without a reply or an error before the topic
// counts as readable: longer than the SDK tries to connect.
const quiet = 30 * time.Second

// suspicion is how long replies are received one at a time after one could not be decoded. The SDK
// returns none of those that it received with it: they stay locked, at most for 5 minutes, and the bus
// would dead-letter them with it after ten deliveries. Twice that time covers its next delivery.
const suspicion = 10 * time.Minute

// errUndecodable is returned for messages that the SDK cannot decode.
var errUndecodable = errors.New("the SDK cannot decode a message")

// decoded returns what get returns. The SDK panics on a message whose DeadLetterReason or
// DeadLetterErrorDescription is no text. The messages of the call stay locked.
func decoded(get func() ([]*azservicebus.ReceivedMessage, error)) (messages []*azservicebus.ReceivedMessage, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			messages, err = nil, fmt.Errorf("%w: %v", errUndecodable, cause)
		}
	}()
	return get()
}

// receive waits for replies, as many as there are free permits, and starts a
// goroutine for each. It reports whether the topic can be read.
func (s *subscription) receive(ctx context.Context) (readable bool, err error) {
	select {
	case s.permits <- struct{}{}: // Wait until a permit is free.
		<-s.permits
	case <-ctx.Done():
		return false, ctx.Err()
	}
	wait, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	n := cap(s.permits) - len(s.permits)
	if time.Now().Before(s.singly) {
		n = 1
	}
	messages, err := decoded(func() ([]*azservicebus.ReceivedMessage, error) { return (*s.from.Load()).ReceiveMessages(wait, n, nil) })
	if errors.Is(err, errUndecodable) {
		s.cfg.Logger.WarnContext(ctx, "replies cannot be decoded, the bus will redeliver them", "topic", s.name, "error", err)
		s.singly = time.Now().Add(suspicion)
		return false, nil // Like a broken connection: a first one proves nothing about the topic.
	}
	for _, m := range messages {
		s.permits <- struct{}{}
		s.inHand.Go(func() {
			defer func() { <-s.permits }()
			began := time.Now()
			delivery := s.handle(s.cfg.Received(ctx, senderOf(m)), m)
			delivery.Took = time.Since(began)
			s.cfg.Observe(delivery)
		})
	}
	return len(messages) > 0 || errors.Is(err, context.DeadlineExceeded), err
}

// senderOf returns the traceparent of a reply's sender, possibly empty. It reads the
// property of W3C Trace Context for AMQP, or the older one of the Azure SDKs, which has the
// same format.
func senderOf(m *azservicebus.ReceivedMessage) string {
	for _, name := range []string{"traceparent", "Diagnostic-Id"} {
		if traceparent, ok := m.ApplicationProperties[name].(string); ok {
			return traceparent
		}
	}
	return ""
}

// pause waits for the delay after that many earlier failures, or until the context
// ends. The delay doubles with each failure, with a jitter of a quarter either way.
func (s *subscription) pause(ctx context.Context, failures int) {
	delay := min(float64(s.cfg.MinDelay)*math.Pow(2, float64(min(failures, 32))), float64(s.cfg.MaxDelay))
	timer := time.NewTimer(time.Duration(delay * (0.75 + 0.5*s.cfg.Random())))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// handle applies one delivery and settles it according to the result, after the
// commit if there is one.
func (s *subscription) handle(ctx context.Context, m *azservicebus.ReceivedMessage) Delivery {
	parsed, err := parseReply(bodyOf(m), s.cfg.MaxBytes, m.MessageID)
	d := Delivery{Type: parsed.kind, UnknownFields: parsed.unknown}
	if unreadable, ok := errors.AsType[*apierror.Error](err); ok { // Its code may be outside the wire contract.
		d.Outcome = s.deadLetter(ctx, m, unreadable)
		return d
	}
	parsed.callback.Caller = s.name // The bus does not tell who sent it.
	answer, err := s.apply(ctx, m, parsed.callback)
	known := apierror.From(err)
	switch {
	case err == nil:
		if answer.PostErr != nil {
			s.cfg.Logger.WarnContext(ctx, "clean-up after a reply left to the sweeper", "topic", s.name, "error", answer.PostErr)
		}
		d.Outcome = ReplyApplied
		if answer.Outcome == statemachine.Duplicate {
			d.Outcome = ReplyDuplicate
		}
		d.Outcome = s.complete(ctx, m, d.Outcome)
	case errors.Is(err, errLockLost):
		d.Outcome = ReplyLockLost
	case transient(known.Code):
		// The bus redelivers it, and dead-letters it after a number of deliveries.
		s.cfg.Logger.WarnContext(ctx, "reply not handled, the bus will redeliver it",
			"topic", s.name, "message_id", m.MessageID, "deliveries", m.DeliveryCount, "error", err)
		d.Outcome = s.settle(ctx, m, ReplyAbandoned, func(ctx context.Context, m *azservicebus.ReceivedMessage) error {
			return (*s.from.Load()).AbandonMessage(ctx, m, nil)
		})
	case refused(known.Code):
		// The use case has recorded the reply that it refused.
		s.cfg.Logger.InfoContext(ctx, "reply refused",
			"topic", s.name, "message_id", m.MessageID, "type", parsed.kind, "reason", known.Code, "description", known.Summary())
		d.Outcome = s.complete(ctx, m, ReplyRefused)
	default:
		d.Outcome = s.deadLetter(ctx, m, known)
	}
	return d
}

// transient reports whether a reply that failed with this code may succeed later.
func transient(code apierror.Code) bool {
	return code == apierror.StoreUnavailable || code == apierror.Conflict || code == apierror.Internal
}

// refused reports whether a reply that failed with this code will never count.
func refused(code apierror.Code) bool {
	return code == apierror.StaleAttempt || code == apierror.ContradictoryResult || code == apierror.IllegalTransition
}

// apply applies a reply, and retries while the store does not answer. It holds the
// reply for as long as the lock can be renewed and does not abandon it: the bus
// dead-letters a reply after a number of deliveries.
func (s *subscription) apply(
	ctx context.Context, m *azservicebus.ReceivedMessage, callback callbacks.Callback,
) (callbacks.Answer, error) {
	lock := time.Duration(0) // how long a lock lasts; 0 if the message does not say
	if m.LockedUntil != nil {
		lock = time.Until(*m.LockedUntil)
	}
	for failures := 0; ; failures++ {
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout) // A stop does not interrupt the call.
		answer, err := s.cfg.Apply(work, callback)
		cancel()
		if err == nil {
			return answer, nil
		}
		code := apierror.From(err).Code
		if !transient(code) || code == apierror.Internal && failures+1 >= s.cfg.Tries {
			return answer, err
		}
		s.pause(ctx, failures)
		if ctx.Err() != nil {
			return answer, fmt.Errorf("%w: %w", errStopping, err)
		}
		if err := s.renew(ctx, m, lock); err != nil {
			return answer, err
		}
	}
}

// renew renews the lock once half of its duration has passed. If that fails while
// the lock holds, it returns nil: the next call tries again.
func (s *subscription) renew(ctx context.Context, m *azservicebus.ReceivedMessage, duration time.Duration) error {
	if held(m, duration/2) {
		return nil
	}
	_, err := renewByToken(ctx, *s.from.Load(), m)
	if err == nil || !lockLost(err) && held(m, 0) {
		return nil
	}
	return fmt.Errorf("%w: %w", errLockLost, err)
}

// held reports whether the lock of a message holds for longer than the duration.
func held(m *azservicebus.ReceivedMessage, longer time.Duration) bool {
	return m.LockedUntil != nil && time.Until(*m.LockedUntil) > longer
}

// lockLost reports whether the bus answered that the lock is lost.
func lockLost(err error) bool {
	coded, ok := errors.AsType[*azservicebus.Error](err)
	return ok && coded.Code == azservicebus.CodeLockLost
}

// complete removes a handled reply from the subscription.
func (s *subscription) complete(ctx context.Context, m *azservicebus.ReceivedMessage, as DeliveryOutcome) DeliveryOutcome {
	return s.settle(ctx, m, as, func(ctx context.Context, m *azservicebus.ReceivedMessage) error {
		return (*s.from.Load()).CompleteMessage(ctx, m, nil)
	})
}

// maxDescription is the longest description that the bus accepts, in bytes.
const maxDescription = 4096

// deadLetter dead-letters a reply that can never be handled, with its reason.
func (s *subscription) deadLetter(
	ctx context.Context, m *azservicebus.ReceivedMessage, why *apierror.Error,
) DeliveryOutcome {
	description := why.Summary()
	s.cfg.Logger.WarnContext(ctx, "reply dead-lettered",
		"topic", s.name, "message_id", m.MessageID, "reason", why.Code, "description", description)
	description = strings.ToValidUTF8(description[:min(len(description), maxDescription)], "") // Not half a character.
	options := &azservicebus.DeadLetterOptions{Reason: new(string(why.Code)), ErrorDescription: &description}
	return s.settle(ctx, m, ReplyDeadLettered, func(ctx context.Context, m *azservicebus.ReceivedMessage) error {
		return (*s.from.Load()).DeadLetterMessage(ctx, m, options)
	})
}

// settlement is a call of the receiver that settles a message.
type settlement func(ctx context.Context, m *azservicebus.ReceivedMessage) error

// settle settles a reply, even during a stop. If that fails, the bus redelivers the
// reply, which is then a duplicate.
func (s *subscription) settle(
	ctx context.Context, m *azservicebus.ReceivedMessage, as DeliveryOutcome, how settlement,
) DeliveryOutcome {
	err := settle(ctx, *s.from.Load(), m, how)
	if lockLost(err) {
		return ReplyLockLost
	}
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "reply not settled, the bus will redeliver it", "topic", s.name, "outcome", as, "error", err)
		return ReplyUnsettled
	}
	return as
}

// linkTimeout is how long a message may take to be settled on the link that delivered it.
// If that link's connection is gone, the SDK would try the same link again after 3 to 5
// seconds, and close the connection that all others use by then.
const linkTimeout = 2 * time.Second

// settle settles a message, even if the context has ended: on the link that delivered it
// or, if that link is gone, by the lock's token, since locks outlive connections.
//
// The workers of sdk/go/servicebus do the same. It is written twice, since neither module
// may depend on the other for it: a function that both call would be part of the SDK's API.
func settle(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, how settlement) error {
	ctx = context.WithoutCancel(ctx)
	onLink, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	err := how(onLink, m)
	if err == nil || lockLost(err) {
		return err
	}
	// A renewal opens a lost connection again at once, a settlement after 3 to 5 seconds.
	held, err := renewByToken(ctx, from, m)
	if err != nil {
		return err
	}
	byToken, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return how(byToken, held)
}

// renewByToken renews the lock of a message by the lock's token alone. It returns a copy of
// the message that does not name the link that delivered it, which may be gone.
func renewByToken(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage) (*azservicebus.ReceivedMessage, error) {
	renewal, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	held := &azservicebus.ReceivedMessage{MessageID: m.MessageID, LockToken: m.LockToken}
	err := from.RenewMessageLock(renewal, held, nil)
	if err == nil {
		m.LockedUntil = held.LockedUntil
	}
	return held, err
}
