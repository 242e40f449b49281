package servicebus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/callbacks"
)

const (
	// peekPage is how many messages are peeked at once.
	peekPage = 100
	// maxCounted is how many dead letters of one topic are counted.
	maxCounted = 500
	// maxSkipped is how many dead letters of one topic may lie before those that are
	// handled. They stay locked until the end.
	maxSkipped = 1000
	// inHand is how many dead letters are locked at once to be handled one after the other,
	// well within their locks.
	inHand = 10
	// arrival is how long the bus may take to deliver an available message.
	arrival = 5 * time.Second
	// maxKeptID is how much of a message's id is kept in that of its copy: the bus allows 128.
	maxKeptID = 100
)

// ReplyTopics are the topics that replies come from.
type ReplyTopics struct {
	// Namespace has the topics. Required.
	Namespace Namespace
	// Prefix is a reply topic without its number. Required.
	Prefix string
	// Subscription is the subscription to read on each of them. Required.
	Subscription string
	// Lanes is the number of topics. Required.
	Lanes int
}

// Validate returns an error that names the invalid field.
func (t *ReplyTopics) Validate() error {
	if err := t.Namespace.Validate(); err != nil {
		return err
	}
	switch {
	case t.Prefix == "":
		return errors.New("Prefix is required")
	case t.Subscription == "":
		return errors.New("Subscription is required")
	case t.Lanes < 1:
		return fmt.Errorf("Lanes must be at least 1, is %d", t.Lanes)
	}
	return nil
}

// DeadLetter is a reply that the consumer of the reply topics could not handle.
type DeadLetter struct {
	// ID identifies it while it exists: its lane and its sequence number.
	ID, Topic, MessageID string
	// Reason and Description say why it is here: a problem's code, or the bus's words.
	Reason, Description string
	// SentAt is when the topic got it.
	SentAt time.Time
	// Body is as the worker sent it, with the lease id.
	Body []byte
}

// ErrNoDeadLetter is returned when a dead letter does not exist, or another process has
// locked it.
var ErrNoDeadLetter = errors.New("it does not exist, or another process is handling it")

// DeadLetters counts, lists, replays and purges the dead letters of the reply topics.
// Count may run at the same time as Counted only.
type DeadLetters struct {
	bus     *bus
	lanes   []deadLane
	counted atomic.Pointer[callbacks.DeadLetters]
}

// deadLane is the dead-letter queue of one reply topic.
type deadLane struct {
	topic  string
	open   func() (*azservicebus.Receiver, error)
	peeker *azservicebus.Receiver // replaced when the topic closes its links (see closesLink)
}

// NewDeadLetters returns the dead letters of the reply topics. It does not connect yet.
// The error names the invalid field.
func NewDeadLetters(topics ReplyTopics) (*DeadLetters, error) {
	if err := topics.Validate(); err != nil {
		return nil, fmt.Errorf("servicebus dead letters: %w", err)
	}
	opened, err := openBus(topics.Namespace)
	if err != nil {
		return nil, fmt.Errorf("servicebus dead letters: %w", err)
	}
	d := &DeadLetters{bus: opened}
	d.counted.Store(new(callbacks.DeadLetters))
	for lane := range topics.Lanes {
		l := deadLane{topic: topics.Prefix + strconv.Itoa(lane)}
		l.open = func() (*azservicebus.Receiver, error) {
			return opened.client.NewReceiverForSubscription(l.topic, topics.Subscription, &azservicebus.ReceiverOptions{
				ReceiveMode: azservicebus.ReceiveModePeekLock, SubQueue: azservicebus.SubQueueDeadLetter,
			})
		}
		if l.peeker, err = l.open(); err != nil {
			return nil, fmt.Errorf("servicebus dead letters: %w", err)
		}
		d.lanes = append(d.lanes, l)
	}
	return d, nil
}

// Close closes the connections.
func (d *DeadLetters) Close(ctx context.Context) error { return d.bus.close(ctx) }

// unread returns the error of a topic whose dead letters cannot be read.
func (l *deadLane) unread(err error) error {
	return fmt.Errorf("the dead letters of %s cannot be read: %w", l.topic, explained(err, toRead))
}

// peek iterates over the dead letters of a lane by age, and leaves them as they are. It ends
// with the first error.
func (d *DeadLetters) peek(ctx context.Context, lane int) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		l := &d.lanes[lane]
		for from := int64(0); ; {
			peeking, cancel := context.WithTimeout(ctx, stepTimeout)
			messages, err := decoded(func() ([]*azservicebus.ReceivedMessage, error) {
				return l.peeker.PeekMessages(peeking, peekPage, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &from})
			})
			cancel()
			if closesLink(err) {
				if again, openErr := l.open(); openErr == nil { // It fails if the bus is closed.
					dispose(ctx, l.peeker)
					l.peeker = again
				}
			}
			if err != nil {
				yield(DeadLetter{}, l.unread(err))
				return
			}
			if len(messages) == 0 {
				return
			}
			for _, m := range messages {
				letter := DeadLetter{
					ID: strconv.Itoa(lane) + "-" + strconv.FormatInt(valueOf(m.SequenceNumber), 10), Topic: l.topic, MessageID: m.MessageID,
					Reason: valueOf(m.DeadLetterReason), Description: valueOf(m.DeadLetterErrorDescription),
					SentAt: valueOf(m.EnqueuedTime), Body: bodyOf(m),
				}
				if !yield(letter, nil) {
					return
				}
				from = valueOf(m.SequenceNumber) + 1
			}
		}
	}
}

// valueOf returns what a pointer of the SDK points to, or the zero value.
func valueOf[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// All iterates over all dead letters, by lane and age, and leaves them as they are. The error of
// a topic that cannot be read comes after what was read of it, and then the other topics, unless
// those cannot be read either.
func (d *DeadLetters) All(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for lane := range d.lanes {
			for letter, err := range d.peek(ctx, lane) {
				if !yield(letter, err) || err != nil && d.lost(ctx) {
					return
				}
			}
		}
	}
}

// lost reports whether an error concerns all topics: the context has ended, or the bus cannot be
// reached.
func (d *DeadLetters) lost(ctx context.Context) bool {
	return ctx.Err() != nil || !d.bus.dialer.connected()
}

// Count counts the dead letters for [DeadLetters.Counted]. The error is that of the first
// topic that cannot be read; the others are counted.
func (d *DeadLetters) Count(ctx context.Context) error {
	var found callbacks.DeadLetters
	var first error
	for lane := range d.lanes {
		inLane := 0
		for letter, err := range d.peek(ctx, lane) {
			if err != nil {
				first = cmp.Or(first, err)
				break
			}
			if found.Oldest.IsZero() || letter.SentAt.Before(found.Oldest) {
				found.Oldest = letter.SentAt
			}
			found.Count++
			if inLane++; inLane == maxCounted {
				break
			}
		}
	}
	if first == nil || found.Count > 0 {
		d.counted.Store(&found)
	}
	return first
}

// Counted returns the result of the last Count.
func (d *DeadLetters) Counted() callbacks.DeadLetters { return *d.counted.Load() }

// Replay sends the dead letters with these ids to their topics again and deletes them, in the
// order of lanes and ages. It calls told with the outcome of each whose topic can be read. The
// consumers then handle them like new replies, so that each counts at most once.
//
// The copy has an id of its own, since duplicate detection drops a message whose id it knows.
// It is the same for each replay of one dead letter, so that a replay that could not delete it
// can be repeated.
func (d *DeadLetters) Replay(ctx context.Context, ids []string, told func(id string, err error)) error {
	senders := map[*deadLane]*azservicebus.Sender{} // They are closed with the connection.
	return d.handle(ctx, ids, told, func(ctx context.Context, l *deadLane, m *azservicebus.ReceivedMessage) error {
		again := m.Message()
		if again.Body = bodyOf(m); len(again.Body) == 0 {
			return errors.New("its body is neither data nor text, so it cannot be sent again: purge it")
		}
		if senders[l] == nil {
			sender, err := d.bus.client.NewSender(l.topic, nil)
			if err != nil {
				return explained(err, toSend)
			}
			senders[l] = sender
		}
		again.ApplicationProperties = map[string]any{}
		for name, value := range m.ApplicationProperties {
			if name != "DeadLetterReason" && name != "DeadLetterErrorDescription" {
				again.ApplicationProperties[name] = value
			}
		}
		id := m.MessageID[:min(len(m.MessageID), maxKeptID)] + "/" + strconv.FormatInt(valueOf(m.SequenceNumber), 10)
		again.MessageID = &id
		return explained(senders[l].SendMessage(ctx, again, nil), toSend)
	})
}

// Purge deletes the dead letters with these ids. It calls told with the outcome of each whose
// topic can be read.
func (d *DeadLetters) Purge(ctx context.Context, ids []string, told func(id string, err error)) error {
	return d.handle(ctx, ids, told, func(context.Context, *deadLane, *azservicebus.ReceivedMessage) error { return nil })
}

// handle deletes the dead letters with these ids for which do succeeds. A topic that cannot be
// read does not keep it from the others.
func (d *DeadLetters) handle(ctx context.Context, ids []string, told func(string, error),
	do func(context.Context, *deadLane, *azservicebus.ReceivedMessage) error,
) error {
	wanted := make([]map[int64]string, len(d.lanes))
	for _, id := range ids {
		lane, sequence, ok := strings.Cut(id, "-")
		l, err := strconv.ParseUint(lane, 10, 31)
		number, alsoErr := strconv.ParseInt(sequence, 10, 64)
		if !ok || errors.Join(err, alsoErr) != nil || l >= uint64(len(d.lanes)) {
			return fmt.Errorf("there is no dead letter with the id %q; the list shows the ids", id)
		}
		if wanted[l] == nil {
			wanted[l] = map[int64]string{}
		}
		wanted[l][number] = id
	}
	var failed error
	for lane := range d.lanes {
		if len(wanted[lane]) == 0 {
			continue
		}
		if err := d.handleLane(ctx, &d.lanes[lane], wanted[lane], told, do); err != nil {
			if failed = errors.Join(failed, err); d.lost(ctx) {
				break
			}
		}
	}
	return failed
}

// handleLane receives the dead letters of a lane until it has seen all that are wanted. It
// abandons the others at the end, since the bus would redeliver them at once. It never requests
// more than are wanted: once all have arrived, no request is open, and abandoned letters stay in
// the queue.
func (d *DeadLetters) handleLane(ctx context.Context, l *deadLane, wanted map[int64]string, told func(string, error),
	do func(context.Context, *deadLane, *azservicebus.ReceivedMessage) error,
) error {
	from, err := l.open()
	if err != nil {
		return l.unread(err)
	}
	var skipped []*azservicebus.ReceivedMessage
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		defer cancel()
		for _, m := range skipped {
			_ = from.AbandonMessage(closing, m, nil) // Its lock expires anyway.
		}
		_ = from.Close(closing) // Nothing depends on it.
	}()
	for len(wanted) > 0 && len(skipped) < maxSkipped {
		waiting, cancel := context.WithTimeout(ctx, arrival)
		messages, err := decoded(func() ([]*azservicebus.ReceivedMessage, error) {
			return from.ReceiveMessages(waiting, min(len(wanted), inHand), nil)
		})
		cancel()
		if err != nil && (!errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil) {
			return l.unread(err)
		}
		if len(messages) == 0 {
			break
		}
		for _, m := range messages {
			id, meant := wanted[valueOf(m.SequenceNumber)]
			if !meant || ctx.Err() != nil {
				skipped = append(skipped, m)
				continue
			}
			delete(wanted, valueOf(m.SequenceNumber))
			err := handleLetter(ctx, l, from, m, do)
			if err != nil {
				skipped = append(skipped, m)
			}
			told(id, err)
		}
	}
	for _, id := range wanted {
		told(id, ErrNoDeadLetter)
	}
	return ctx.Err()
}

// handleLetter deletes a dead letter if do succeeds. It completes both even if the context ends.
func handleLetter(ctx context.Context, l *deadLane, from *azservicebus.Receiver, m *azservicebus.ReceivedMessage,
	do func(context.Context, *deadLane, *azservicebus.ReceivedMessage) error,
) error {
	doing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
	defer cancel()
	if err := do(doing, l, m); err != nil {
		return err
	}
	err := settle(ctx, from, m, func(ctx context.Context, m *azservicebus.ReceivedMessage) error {
		return from.CompleteMessage(ctx, m, nil)
	})
	if err != nil {
		return fmt.Errorf("it could not be deleted: %w", err)
	}
	return nil
}
