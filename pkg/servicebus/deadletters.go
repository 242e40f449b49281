package servicebus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

const (
	// peekPage is how many messages are peeked at once.
	peekPage = 100
	// maxCounted is how many dead letters of one lane a survey counts.
	maxCounted = 500
	// maxSkipped is how many dead letters of one lane may lie before those that are
	// handled. They stay locked until the end.
	maxSkipped = 1000
	// arrival is how long the bus may take to deliver an available message.
	arrival = 5 * time.Second
	// handlingTime is how long a replay or a purge starts to handle dead letters, so that
	// it answers before its caller gives up.
	handlingTime = 30 * time.Second
)

// DeadLetters lists, replays and purges the dead letters of the reply topics. It
// implements [callbacks.DeadLetters] and is safe for concurrent use.
//
// A replay applies a reply itself, and does not send it to its topic again: that would
// take the right to send, and duplicate detection drops a message whose id it knows.
type DeadLetters struct {
	cfg   RepliesConfig
	bus   *bus
	lanes []*deadLane
	time  time.Duration // handlingTime

	mu     sync.Mutex
	survey callbacks.Survey
}

var _ callbacks.DeadLetters = (*DeadLetters)(nil)

// deadLane is the dead-letter queue of one reply topic.
type deadLane struct {
	topic string
	open  func() (*azservicebus.Receiver, error)

	mu     sync.Mutex // guards peeker, one peek at a time
	peeker *azservicebus.Receiver
}

// NewDeadLetters returns the dead letters of the reply topics. It does not connect yet.
// The error names the invalid field.
func NewDeadLetters(cfg RepliesConfig) (*DeadLetters, error) {
	if err := cfg.withDefaults(); err != nil {
		return nil, fmt.Errorf("servicebus dead letters: %w", err)
	}
	opened, err := openBus(cfg.Namespace)
	if err != nil {
		return nil, fmt.Errorf("servicebus dead letters: %w", err)
	}
	d := &DeadLetters{cfg: cfg, bus: opened, time: handlingTime}
	for lane := range cfg.Lanes {
		topic := cfg.Prefix + strconv.Itoa(lane)
		d.lanes = append(d.lanes, &deadLane{topic: topic, open: func() (*azservicebus.Receiver, error) {
			return opened.client.NewReceiverForSubscription(topic, cfg.Subscription, &azservicebus.ReceiverOptions{
				ReceiveMode: azservicebus.ReceiveModePeekLock, SubQueue: azservicebus.SubQueueDeadLetter,
			})
		}})
	}
	return d, nil
}

// Close closes the connections.
func (d *DeadLetters) Close(ctx context.Context) error { return d.bus.close(ctx) }

// place is where a dead letter lies.
type place struct {
	lane     int
	sequence int64
}

func (p place) id() string { return strconv.Itoa(p.lane) + "-" + strconv.FormatInt(p.sequence, 10) }

// placeOf parses an id. The error is a [*apierror.Error].
func (d *DeadLetters) placeOf(id string) (p place, err error) {
	lane, sequence, _ := strings.Cut(id, "-")
	p.lane, err = strconv.Atoi(lane)
	if err == nil {
		p.sequence, err = strconv.ParseInt(sequence, 10, 64)
	}
	if err != nil || p.lane < 0 || p.lane >= len(d.lanes) || p.sequence < 0 || p.id() != id {
		return place{}, apierror.Newf(apierror.InvalidEnvelope, "There is no dead letter with the id %q; the list shows the ids.", id)
	}
	return p, nil
}

// peek returns dead letters of a lane from a sequence number on, at most that many and
// at most a page.
func (d *DeadLetters) peek(ctx context.Context, lane int, from int64, limit int) ([]callbacks.DeadLetter, error) {
	l := d.lanes[lane]
	l.mu.Lock()
	defer l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	var err error
	if l.peeker == nil {
		if l.peeker, err = l.open(); err != nil {
			return nil, d.unavailable(l, err)
		}
	}
	messages, err := l.peeker.PeekMessages(ctx, min(limit, peekPage), &azservicebus.PeekMessagesOptions{FromSequenceNumber: &from})
	if err != nil {
		return nil, d.unavailable(l, err)
	}
	letters := make([]callbacks.DeadLetter, len(messages))
	for i, m := range messages {
		letters[i] = callbacks.DeadLetter{
			ID: place{lane, sequenceOf(m)}.id(), Lane: lane, Topic: l.topic, MessageID: m.MessageID, Body: m.Body,
			Reason: textOf(m.DeadLetterReason), Description: textOf(m.DeadLetterErrorDescription),
		}
		if m.EnqueuedTime != nil {
			letters[i].SentAt = *m.EnqueuedTime
		}
	}
	return letters, nil
}

func sequenceOf(m *azservicebus.ReceivedMessage) int64 {
	if m.SequenceNumber == nil {
		return 0
	}
	return *m.SequenceNumber
}

func textOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// unavailable returns the problem of a lane that cannot be read.
func (d *DeadLetters) unavailable(l *deadLane, err error) error {
	return &apierror.Error{
		Code: apierror.BusUnavailable, Detail: "The dead letters of " + l.topic + " cannot be read.", RetryAfter: time.Second,
		Err: explained(err, toRead),
	}
}

// List implements [callbacks.DeadLetters].
func (d *DeadLetters) List(ctx context.Context, limit int, after string) (page []callbacks.DeadLetter, next string, err error) {
	from := place{}
	if after != "" {
		if from, err = d.placeOf(after); err != nil {
			return nil, "", err
		}
		from.sequence++
	}
	for ; from.lane < len(d.lanes); from = (place{lane: from.lane + 1}) {
		for {
			found, err := d.peek(ctx, from.lane, from.sequence, limit+1-len(page)) // One more, to see whether there is a next page.
			if err != nil {
				return nil, "", err
			}
			if len(found) == 0 {
				break
			}
			if page = append(page, found...); len(page) > limit {
				return page[:limit], page[limit-1].ID, nil
			}
			last, err := d.placeOf(page[len(page)-1].ID)
			if err != nil {
				return nil, "", err
			}
			from.sequence = last.sequence + 1
		}
	}
	return page, "", nil
}

// Count counts the dead letters for [DeadLetters.Survey]. The error is that of the first
// topic that cannot be read; the others are counted.
func (d *DeadLetters) Count(ctx context.Context) error {
	var found callbacks.Survey
	var first error
	for lane := range d.lanes {
		for from, counted := int64(0), 0; counted < maxCounted; {
			letters, err := d.peek(ctx, lane, from, peekPage)
			if err != nil && first == nil {
				first = err
			}
			if len(letters) == 0 {
				break
			}
			for i := range letters {
				if at := letters[i].SentAt; found.Oldest.IsZero() || at.Before(found.Oldest) {
					found.Oldest = at
				}
			}
			last, err := d.placeOf(letters[len(letters)-1].ID)
			if err != nil {
				return err
			}
			from, counted = last.sequence+1, counted+len(letters)
			found.Count += len(letters)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if first == nil || found.Count > 0 {
		d.survey = found
	}
	return first
}

// Survey returns what the last Count found.
func (d *DeadLetters) Survey() callbacks.Survey {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.survey
}

// Replay implements [callbacks.DeadLetters].
func (d *DeadLetters) Replay(ctx context.Context, ids []string) ([]callbacks.HandledDeadLetter, bool, error) {
	return d.handle(ctx, ids, d.replay)
}

// Purge implements [callbacks.DeadLetters].
func (d *DeadLetters) Purge(ctx context.Context, ids []string) ([]callbacks.HandledDeadLetter, bool, error) {
	return d.handle(ctx, ids, func(context.Context, string, *azservicebus.ReceivedMessage) (callbacks.DeadLetterOutcome, *apierror.Error) {
		return callbacks.DeadLetterPurged, nil
	})
}

// decision decides about a dead letter of a topic.
type decision func(ctx context.Context, topic string, m *azservicebus.ReceivedMessage) (callbacks.DeadLetterOutcome, *apierror.Error)

// replay applies a dead letter.
func (d *DeadLetters) replay(ctx context.Context, topic string, m *azservicebus.ReceivedMessage,
) (callbacks.DeadLetterOutcome, *apierror.Error) {
	parsed, err := parseReply(m.Body, d.cfg.MaxBytes, m.MessageID)
	parsed.callback.Caller = topic // as for a live reply
	var answer callbacks.Answer
	if err == nil {
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		defer cancel()
		answer, err = d.cfg.Apply(work, parsed.callback)
	}
	if err != nil {
		cause := apierror.From(err)
		if refused(cause.Code) {
			return callbacks.DeadLetterRefused, cause
		}
		return callbacks.DeadLetterKept, cause
	}
	if answer.Outcome == statemachine.Duplicate {
		return callbacks.DeadLetterDuplicate, nil
	}
	return callbacks.DeadLetterApplied, nil
}

// handle handles the dead letters with these ids, or the first ones.
func (d *DeadLetters) handle(ctx context.Context, ids []string, decide decision) (
	handled []callbacks.HandledDeadLetter, more bool, err error,
) {
	if ids == nil {
		first, next, err := d.List(ctx, callbacks.MaxDeadLetters, "")
		if err != nil {
			return nil, false, err
		}
		for i := range first {
			ids = append(ids, first[i].ID)
		}
		more = next != ""
	}
	wanted := map[int][]int64{}
	for _, id := range ids {
		p, err := d.placeOf(id)
		if err != nil {
			return nil, false, err
		}
		if !slices.Contains(wanted[p.lane], p.sequence) {
			wanted[p.lane] = append(wanted[p.lane], p.sequence)
		}
	}
	end := time.Now().Add(d.time)
	for lane := range d.lanes {
		if len(wanted[lane]) == 0 {
			continue
		}
		done, err := d.handleLane(ctx, end, lane, wanted[lane], decide)
		if handled = append(handled, done...); err != nil {
			return handled, true, err
		}
	}
	return handled, more, nil
}

// handleLane receives the dead letters of a lane until it has seen all that are wanted,
// or the time is over. It abandons the letters before them at the end, since the bus would
// redeliver them at once. It never requests more than are wanted: once all have arrived, no
// request is open, and abandoned letters stay in the queue.
//
// It takes few at once and handles them concurrently, in at most two rounds, so that no
// lock expires while its letter waits for others, however slow the store is.
func (d *DeadLetters) handleLane(ctx context.Context, end time.Time, lane int, wanted []int64, decide decision) (
	handled []callbacks.HandledDeadLetter, err error,
) {
	l := d.lanes[lane]
	from, err := l.open()
	if err != nil {
		return nil, d.unavailable(l, err)
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
	rest := callbacks.HandledDeadLetter{Outcome: callbacks.DeadLetterKept, Cause: &apierror.Error{
		Code: apierror.BusUnavailable, Detail: "It was not reached in time, or too many lie before it. Ask again.",
	}}
	for len(wanted) > 0 && len(skipped) < maxSkipped && time.Now().Before(end) {
		waiting, cancel := context.WithTimeout(ctx, arrival)
		messages, err := from.ReceiveMessages(waiting, min(len(wanted), d.cfg.InHand), nil)
		cancel()
		if err != nil && (!errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil) {
			return handled, d.unavailable(l, err)
		}
		if len(messages) == 0 {
			rest = callbacks.HandledDeadLetter{Outcome: callbacks.DeadLetterAbsent}
			break
		}
		var meant []*azservicebus.ReceivedMessage
		for _, m := range messages {
			at := slices.Index(wanted, sequenceOf(m))
			if at < 0 || ctx.Err() != nil {
				skipped = append(skipped, m)
				continue
			}
			wanted = slices.Delete(wanted, at, at+1)
			meant = append(meant, m)
		}
		letters := make([]callbacks.HandledDeadLetter, len(meant))
		var inHand sync.WaitGroup
		for i, m := range meant {
			inHand.Go(func() { letters[i] = handleLetter(ctx, from, l.topic, m, decide) })
		}
		inHand.Wait()
		for i, m := range meant {
			letters[i].ID = place{lane, sequenceOf(m)}.id()
			if letters[i].Outcome == callbacks.DeadLetterKept {
				skipped = append(skipped, m)
			}
		}
		handled = append(handled, letters...)
	}
	for _, sequence := range wanted {
		rest.ID = place{lane, sequence}.id()
		handled = append(handled, rest)
	}
	return handled, nil
}

// handleLetter decides about a dead letter, and deletes it unless it is kept.
func handleLetter(ctx context.Context, from *azservicebus.Receiver, topic string, m *azservicebus.ReceivedMessage, decide decision,
) (letter callbacks.HandledDeadLetter) {
	letter.Outcome, letter.Cause = decide(ctx, topic, m)
	if letter.Outcome == callbacks.DeadLetterKept {
		return letter
	}
	err := settle(ctx, from, m, func(ctx context.Context, m *azservicebus.ReceivedMessage) error {
		return from.CompleteMessage(ctx, m, nil)
	})
	if err != nil {
		letter.Outcome, letter.Cause = callbacks.DeadLetterKept, &apierror.Error{
			Code: apierror.BusUnavailable, Detail: "It could not be deleted. Ask again: no reply is applied twice.", Err: err,
		}
	}
	return letter
}
