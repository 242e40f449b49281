package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
)

// bus carries messages from the servers to the workers. It does not keep their order, and
// may deliver one more than once. Only the driver uses it.
type bus struct {
	w        *world
	messages []ledger.Message
	down     map[string]time.Time // by topic; "" is the whole bus
}

func newBus(w *world) *bus { return &bus{w: w, down: map[string]time.Time{}} }

// fail takes a topic or the whole bus, for which it returns "", out of service.
func (b *bus) fail(d time.Duration) string {
	topic := []string{"", "topic0", "topic1"}[b.w.rng.IntN(3)]
	b.down[topic] = time.Now().Add(d)
	return topic
}

// take accepts messages, and returns an outcome for each.
func (b *bus) take(messages []ledger.Message) []error {
	now := time.Now()
	outcomes := make([]error, len(messages))
	for i := range messages {
		m := &messages[i]
		switch {
		case now.Before(b.down[""]):
			outcomes[i] = &outbox.OutageError{Err: errors.New("down")}
		case now.Before(b.down[m.Topic]):
			outcomes[i] = &outbox.OutageError{Entity: m.Topic, Err: errors.New("disabled")}
		default:
			b.w.check.published(m)
			b.messages = append(b.messages, *m)
		}
	}
	return outcomes
}

// reject rejects a publish because of its messages, in one of eight cases permanently.
func (b *bus) reject(*call) reply {
	return reply{err: &outbox.RejectedError{Reason: "malformed", Permanent: b.w.rng.IntN(8) == 0}}
}

// deliver returns a random message, nil if there is none.
func (b *bus) deliver() *ledger.Message {
	if len(b.messages) == 0 {
		return nil
	}
	i := b.w.rng.IntN(len(b.messages))
	message := b.messages[i]
	if b.w.faulty && b.w.rng.IntN(6) == 0 {
		b.w.faults[Duplicate]++
		return &message
	}
	b.messages = append(b.messages[:i], b.messages[i+1:]...)
	return &message
}

// busPort is a process's connection to the bus.
type busPort struct {
	w *world
	p *process
}

// PublishedByMark implements [outbox.Publisher].
func (b *busPort) PublishedByMark() bool { return false }

// Publish implements [outbox.Publisher].
func (b *busPort) Publish(ctx context.Context, messages []ledger.Message) []error {
	var detail strings.Builder
	for i := range messages {
		detail.WriteString(messages[i].MessageID() + " ")
	}
	r := b.w.gate.park(&call{
		actor: actorOf(ctx).name, verb: verbPublish, detail: detail.String(), proc: b.p, ctx: ctx,
		exec: func() reply { return reply{value: b.w.bus.take(messages)} },
	})
	outcomes, _ := r.value.([]error)
	if r.err != nil {
		outcomes = make([]error, len(messages))
		for i := range outcomes {
			outcomes[i] = r.err
		}
	}
	return outcomes
}
