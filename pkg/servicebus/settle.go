package servicebus

import (
	"context"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/problem"
)

// complete settles a reply for good.
func (s *subscription) complete(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, as DeliveryOutcome) DeliveryOutcome {
	return s.settle(ctx, as, func(ctx context.Context) error { return from.CompleteMessage(ctx, m, nil) })
}

// deadLetter puts a reply that can never be handled aside, with its reason.
func (s *subscription) deadLetter(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, why *problem.Error) DeliveryOutcome {
	s.cfg.Logger.WarnContext(ctx, "reply goes to the dead letters",
		"topic", s.name, "message_id", m.MessageID, "reason", why.Code, "description", why.Summary())
	options := &azservicebus.DeadLetterOptions{
		Reason: new(string(why.Code)), ErrorDescription: new(cut(why.Summary(), maxDescription)),
	}
	return s.settle(ctx, ReplyDeadLettered, func(ctx context.Context) error { return from.DeadLetterMessage(ctx, m, options) })
}

// abandon gives a reply back. The bus counts it and gives it up in the end, which
// is meant for what fails each time.
func (s *subscription) abandon(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, why error) DeliveryOutcome {
	s.cfg.Logger.WarnContext(ctx, "reply not handled, it will come again",
		"topic", s.name, "message_id", m.MessageID, "deliveries", m.DeliveryCount, "error", why)
	return s.settle(ctx, ReplyAbandoned, func(ctx context.Context) error { return from.AbandonMessage(ctx, m, nil) })
}

// settle settles a reply, also while the process stops. One that cannot be
// settled comes again, and is then a duplicate.
func (s *subscription) settle(ctx context.Context, as DeliveryOutcome, how func(context.Context) error) DeliveryOutcome {
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	err := how(work)
	if lockLost(err) {
		return ReplyLockLost
	}
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "reply not settled, it will come again", "topic", s.name, "outcome", as, "error", err)
		return ReplyUnsettled
	}
	return as
}

// maxDescription is as much of a description as the bus takes, in bytes.
const maxDescription = 4096

// cut shortens a text to at most so many bytes, at the end of a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && text[limit]&0xc0 == 0x80 {
		limit--
	}
	return text[:limit]
}
