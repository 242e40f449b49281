package servicebus

import (
	"context"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/problem"
)

// complete removes a handled reply from the subscription.
func (s *subscription) complete(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, as DeliveryOutcome) DeliveryOutcome {
	return s.settle(ctx, as, func(ctx context.Context) error { return from.CompleteMessage(ctx, m, nil) })
}

// deadLetter dead-letters a reply that can never be handled, with its reason.
func (s *subscription) deadLetter(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, why *problem.Error) DeliveryOutcome {
	s.cfg.Logger.WarnContext(ctx, "reply dead-lettered",
		"topic", s.name, "message_id", m.MessageID, "reason", why.Code, "description", why.Summary())
	options := &azservicebus.DeadLetterOptions{
		Reason: new(string(why.Code)), ErrorDescription: new(cut(why.Summary(), maxDescription)),
	}
	return s.settle(ctx, ReplyDeadLettered, func(ctx context.Context) error { return from.DeadLetterMessage(ctx, m, options) })
}

// abandon returns a reply to the bus, which redelivers it and dead-letters it after
// a number of deliveries.
func (s *subscription) abandon(ctx context.Context, from receiver, m *azservicebus.ReceivedMessage, why error) DeliveryOutcome {
	s.cfg.Logger.WarnContext(ctx, "reply not handled, the bus will redeliver it",
		"topic", s.name, "message_id", m.MessageID, "deliveries", m.DeliveryCount, "error", why)
	return s.settle(ctx, ReplyAbandoned, func(ctx context.Context) error { return from.AbandonMessage(ctx, m, nil) })
}

// settle settles a reply, even during a stop. If that fails, the bus redelivers the
// reply, which is then a duplicate.
func (s *subscription) settle(ctx context.Context, as DeliveryOutcome, how func(context.Context) error) DeliveryOutcome {
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
	defer cancel()
	err := how(work)
	if lockLost(err) {
		return ReplyLockLost
	}
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "reply not settled, the bus will redeliver it", "topic", s.name, "outcome", as, "error", err)
		return ReplyUnsettled
	}
	return as
}

// maxDescription is the longest description that the bus accepts, in bytes.
const maxDescription = 4096

// cut shortens a text to at most limit bytes, at the end of a character.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && text[limit]&0xc0 == 0x80 {
		limit--
	}
	return text[:limit]
}
