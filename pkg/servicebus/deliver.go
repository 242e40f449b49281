package servicebus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

var (
	// errStopping is returned for a reply that the store did not accept before the stop.
	errStopping = errors.New("the process stops")
	// errLockLost is returned for a reply that another consumer may have by now.
	errLockLost = errors.New("the lock is lost")
)

// handle applies one delivery and settles it according to the result, after the
// commit if there is one.
func (s *subscription) handle(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage) Delivery {
	parsed, err := s.parse(m)
	d := Delivery{Type: parsed.kind, UnknownFields: parsed.unknown}
	if unreadable, ok := errors.AsType[*problem.Error](err); ok { // Its code may be outside the wire contract.
		d.Outcome = s.deadLetter(ctx, from, m, unreadable)
		return d
	}
	answer, err := s.apply(ctx, from, m, parsed)
	known := problem.From(err)
	switch {
	case err == nil:
		if answer.PostErr != nil {
			s.cfg.Logger.WarnContext(ctx, "clean-up after a reply left to the sweeper", "topic", s.name, "error", answer.PostErr)
		}
		d.Outcome = ReplyApplied
		if answer.Outcome == statemachine.Duplicate {
			d.Outcome = ReplyDuplicate
		}
		d.Outcome = s.complete(ctx, from, m, d.Outcome)
	case errors.Is(err, errLockLost):
		d.Outcome = ReplyLockLost
	case transient(known.Code):
		d.Outcome = s.abandon(ctx, from, m, err)
	case recorded(known.Code):
		s.cfg.Logger.InfoContext(ctx, "reply refused",
			"topic", s.name, "message_id", m.MessageID, "type", parsed.kind, "reason", known.Code, "description", known.Summary())
		d.Outcome = s.complete(ctx, from, m, ReplyRefused)
	default:
		d.Outcome = s.deadLetter(ctx, from, m, known)
	}
	return d
}

// parse parses a message. The error is a [*problem.Error].
func (s *subscription) parse(m *azservicebus.ReceivedMessage) (reply, error) {
	if len(m.Body) > s.cfg.MaxBytes {
		return reply{kind: ReplyUnknown}, problem.Newf(problem.TooLarge, "The body is larger than %d bytes.", s.cfg.MaxBytes)
	}
	return parseReply(m.Body, m.MessageID)
}

// transient reports whether a reply that failed with this code may succeed later.
func transient(code problem.Code) bool {
	return code == problem.StoreUnavailable || code == problem.Conflict || code == problem.Internal
}

// recorded reports whether the use case has recorded a reply that it refused with
// this code.
func recorded(code problem.Code) bool {
	return code == problem.StaleAttempt || code == problem.ContradictoryResult || code == problem.IllegalTransition
}

// apply applies a reply, and retries while the store does not answer. It holds the
// reply for as long as the lock can be renewed and does not abandon it: the bus
// dead-letters a reply after a number of deliveries.
func (s *subscription) apply(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, r reply) (callbacks.Answer, error) {
	lock := time.Duration(0) // how long a lock lasts; 0 if the message does not say
	if m.LockedUntil != nil {
		lock = time.Until(*m.LockedUntil)
	}
	for failures := 0; ; failures++ {
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout) // A stop does not interrupt the call.
		answer, err := s.cfg.Apply(work, r.callback)
		cancel()
		if err == nil {
			return answer, nil
		}
		code := problem.From(err).Code
		if !transient(code) || code == problem.Internal && failures+1 >= s.cfg.Tries {
			return answer, err
		}
		s.pause(ctx, failures)
		if ctx.Err() != nil {
			return answer, fmt.Errorf("%w: %w", errStopping, err)
		}
		if err := s.renew(ctx, from, m, lock); err != nil {
			return answer, err
		}
	}
}

// renew renews the lock once half of its duration has passed. If that fails while
// the lock holds, it returns nil: the next call tries again.
func (s *subscription) renew(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, duration time.Duration) error {
	if held(m, duration/2) {
		return nil
	}
	renewal, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err := from.RenewMessageLock(renewal, m, nil)
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
	broken, ok := errors.AsType[*azservicebus.Error](err)
	return ok && broken.Code == azservicebus.CodeLockLost
}
