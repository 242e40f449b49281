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
	// errStopping is returned for a reply that the store did not take before the end.
	errStopping = errors.New("the process stops")
	// errLockLost is returned for a reply that somebody else may have by now.
	errLockLost = errors.New("the lock is lost")
)

// handle brings one delivery to the use case and settles it by what became of it.
// It returns after the commit, or when there will be none.
func (s *subscription) handle(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage) Delivery {
	parsed, err := s.parse(m)
	d := Delivery{Type: parsed.kind, UnknownFields: parsed.unknown}
	if unreadable, ok := errors.AsType[*problem.Error](err); ok { // Its code may be none of the wire contract's.
		d.Outcome = s.deadLetter(ctx, from, m, unreadable)
		return d
	}
	answer, err := s.bring(ctx, from, m, parsed)
	known := problem.From(err)
	switch {
	case err == nil:
		if answer.PostErr != nil {
			s.cfg.Logger.WarnContext(ctx, "clean-up after a reply failed, the sweeper does it", "topic", s.name, "error", answer.PostErr)
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

// parse reads a message. The error is a [*problem.Error].
func (s *subscription) parse(m *azservicebus.ReceivedMessage) (reply, error) {
	if len(m.Body) > s.cfg.MaxBytes {
		return reply{kind: ReplyUnknown}, problem.Newf(problem.TooLarge, "The body is larger than %d bytes.", s.cfg.MaxBytes)
	}
	return parseReply(m.Body, m.MessageID)
}

// transient reports whether a reply that fails so may succeed as it is.
func transient(code problem.Code) bool {
	return code == problem.StoreUnavailable || code == problem.Conflict || code == problem.Internal
}

// recorded reports whether the use case has taken note of a reply that it refused.
func recorded(code problem.Code) bool {
	return code == problem.StaleAttempt || code == problem.ContradictoryResult || code == problem.IllegalTransition
}

// bring brings a reply to the use case, again and again while the store does not
// answer. The bus counts how often a reply is given back and gives it up in the
// end; so it is held instead, for as long as its lock can be renewed.
func (s *subscription) bring(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, r reply) (callbacks.Answer, error) {
	lock := newLock(m)
	for failures := 0; ; failures++ {
		answer, err := s.call(ctx, r)
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
		if err := s.keep(ctx, from, m, lock); err != nil {
			return answer, err
		}
	}
}

// call makes one call. What is in hand is finished also when the process stops.
func (s *subscription) call(ctx context.Context, r reply) (callbacks.Answer, error) {
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	return r.bring(work, s.cfg.Callbacks)
}

// lock is how long a delivery is ours.
type lock struct{ span time.Duration }

// newLock returns the lock of a message that has just come.
func newLock(m *azservicebus.ReceivedMessage) lock {
	if m.LockedUntil == nil {
		return lock{}
	}
	return lock{span: time.Until(*m.LockedUntil)}
}

// keep renews the lock when half of its time has gone. A renewal that fails is
// tried again as long as the lock holds.
func (s *subscription) keep(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, l lock) error {
	if held(m, l.span/2) {
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

// held reports whether the lock of a message holds for longer than that.
func held(m *azservicebus.ReceivedMessage, longer time.Duration) bool {
	return m.LockedUntil != nil && time.Until(*m.LockedUntil) > longer
}

// lockLost reports whether the bus says that a lock is lost.
func lockLost(err error) bool {
	broken, ok := errors.AsType[*azservicebus.Error](err)
	return ok && broken.Code == azservicebus.CodeLockLost
}
