package fakeservicebus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

func TestAReceiverGetsWhatWasSent(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	err := sender(t, client).SendMessage(waittest.Context(t), &azservicebus.Message{
		MessageID: new("m-1"), Subject: new("PLAN"), ApplicationProperties: map[string]any{"attempt": int64(300)},
		PartitionKey: new("acme"), Body: []byte("hello"),
	}, nil)
	if err != nil {
		t.Fatalf("send: %v", err)
	}
	r := receiver(t, client, nil)
	got := receive(t, r, 1)[0]
	if got.MessageID != "m-1" || *got.Subject != "PLAN" || string(got.Body) != "hello" || *got.PartitionKey != "acme" ||
		got.ApplicationProperties["attempt"] != int64(300) || got.DeliveryCount != 1 || *got.SequenceNumber != 1 {
		t.Errorf("received %+v", got)
	}
	if got.LockedUntil == nil || got.EnqueuedTime == nil || !got.LockedUntil.After(*got.EnqueuedTime) {
		t.Errorf("enqueued at %v, locked until %v", got.EnqueuedTime, got.LockedUntil)
	}
	if there := server.Messages(audit); len(there) != 1 || !there[0].Locked {
		t.Errorf("before it is completed the queue holds %+v", there)
	}
	if err := r.CompleteMessage(waittest.Context(t), got, nil); err != nil {
		t.Fatalf("complete: %v", err)
	}
	if a, b := server.Depth(audit), server.Depth(billing); a != 0 || b != 1 {
		t.Errorf("the audit has %d and billing %d, want 0 and 1", a, b)
	}
}

func TestAReceiverThatWaitsIsServed(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	waiting := make(chan []*azservicebus.ReceivedMessage)
	r := receiver(t, client, nil)
	ctx := waittest.Context(t)
	go func() {
		got, err := r.ReceiveMessages(ctx, 1, nil)
		if err != nil {
			t.Errorf("receive: %v", err)
		}
		waiting <- got
	}()
	send(t, sender(t, client), "a")
	if got := idsOf(<-waiting); !slices.Equal(got, []string{"a"}) {
		t.Errorf("received %v", got)
	}
}

func TestEveryMessageIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	s, r := sender(t, client), receiver(t, client, nil)
	const count = 6000 // More than the session's window of the client.
	for first := 0; first < count; first += 1000 {
		batch, err := s.NewMessageBatch(waittest.Context(t), nil)
		if err != nil {
			t.Fatalf("batch: %v", err)
		}
		for i := range 1000 {
			if err := batch.AddMessage(message(fmt.Sprint(first+i)), nil); err != nil {
				t.Fatalf("add: %v", err)
			}
		}
		if err := s.SendMessageBatch(waittest.Context(t), batch, nil); err != nil {
			t.Fatalf("send: %v", err)
		}
	}
	seen := map[string]bool{}
	for len(seen) < count {
		for _, m := range receive(t, r, 100) {
			if seen[m.MessageID] || m.DeliveryCount != 1 {
				t.Fatalf("message %s for the %d. time", m.MessageID, m.DeliveryCount)
			}
			seen[m.MessageID] = true
			if err := r.CompleteMessage(waittest.Context(t), m, nil); err != nil {
				t.Fatalf("complete: %v", err)
			}
		}
	}
	if got := server.Depth(audit); got != 0 {
		t.Errorf("%d messages are left", got)
	}
}

func TestAnAbandonedMessageComesAgainAtItsPlace(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	send(t, sender(t, client), "a", "b")
	r := receiver(t, client, nil)
	first := receive(t, r, 1)[0]
	err := r.AbandonMessage(waittest.Context(t), first, &azservicebus.AbandonMessageOptions{PropertiesToModify: map[string]any{"why": "busy"}})
	if err != nil {
		t.Fatalf("abandon: %v", err)
	}
	if diff := cmp.Diff([]string{"a", "b"}, stored(server, audit)); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	again := receive(t, r, 1)[0]
	if again.MessageID != "a" || again.DeliveryCount != 2 || again.ApplicationProperties["why"] != "busy" {
		t.Errorf("received %s for the %d. time with %v", again.MessageID, again.DeliveryCount, again.ApplicationProperties)
	}
}

func TestADeadLetterHasItsReason(t *testing.T) {
	t.Parallel()
	var attached atomic.Int32
	server := start(t, func(c *fakeservicebus.Config) {
		c.Hooks.OnAttach = func(address string) *fakeservicebus.Refusal {
			if address == audit {
				attached.Add(1)
			}
			return nil
		}
	})
	client := connect(t, server)
	send(t, sender(t, client), "a")
	r := receiver(t, client, nil)
	err := r.DeadLetterMessage(waittest.Context(t), receive(t, r, 1)[0], &azservicebus.DeadLetterOptions{
		Reason: new("malformed"), ErrorDescription: new("no job"), PropertiesToModify: map[string]any{"seen": true},
	})
	if err != nil {
		t.Fatalf("dead-letter: %v", err)
	}
	if got := attached.Load(); got != 1 {
		t.Errorf("it took %d links, so the SDK heard of an error", got)
	}
	if a, d := server.Depth(audit), server.Depth(dead); a != 0 || d != 1 {
		t.Fatalf("the queue has %d and the dead letters %d, want 0 and 1", a, d)
	}
	letters := receiver(t, client, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
	got := receive(t, letters, 1)[0]
	if *got.DeadLetterReason != "malformed" || *got.DeadLetterErrorDescription != "no job" ||
		*got.DeadLetterSource != audit || got.ApplicationProperties["seen"] != true {
		t.Errorf("received %+v", got)
	}
	if err := letters.CompleteMessage(waittest.Context(t), got, nil); err != nil {
		t.Fatalf("complete: %v", err)
	}
	if d := server.Depth(dead); d != 0 {
		t.Errorf("%d dead letters are left", d)
	}
}

func TestADeadLetterStaysADeadLetter(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.MaxDeliveries = 1 })
	client := connect(t, server)
	send(t, sender(t, client), "a")
	r := receiver(t, client, nil)
	if err := r.AbandonMessage(waittest.Context(t), receive(t, r, 1)[0], nil); err != nil {
		t.Fatalf("abandon: %v", err)
	}
	letters := receiver(t, client, &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
	if err := letters.AbandonMessage(waittest.Context(t), receive(t, letters, 1)[0], nil); err != nil {
		t.Fatalf("abandon the dead letter: %v", err)
	}
	if err := letters.DeadLetterMessage(waittest.Context(t), receive(t, letters, 1)[0], nil); err != nil {
		t.Fatalf("dead-letter the dead letter: %v", err)
	}
	if d := server.Depth(dead); d != 1 {
		t.Errorf("%d dead letters, want 1", d)
	}
}

func TestTooManyFailuresMakeADeadLetter(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.Topics[0].Subscriptions[0].MaxDeliveries = 2 })
	client := connect(t, server)
	send(t, sender(t, client), "a")
	r := receiver(t, client, nil)
	for range 2 {
		if err := r.AbandonMessage(waittest.Context(t), receive(t, r, 1)[0], nil); err != nil {
			t.Fatalf("abandon: %v", err)
		}
	}
	letters := server.Messages(dead)
	if len(letters) != 1 || letters[0].Properties["DeadLetterReason"] != "MaxDeliveryCountExceeded" ||
		letters[0].Properties["DeadLetterErrorDescription"] != "Message could not be consumed after 2 delivery attempts." {
		t.Errorf("dead letters: %+v", letters)
	}
}

func TestReceiveAndDeleteRemovesTheMessage(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	send(t, sender(t, client), "a", "b")
	r := receiver(t, client, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
	if got := idsOf(receive(t, r, 2)); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("received %v", got)
	}
	if got := server.Depth(audit); got != 0 {
		t.Errorf("%d messages are left", got)
	}
}

func TestAMessageIsNotDeliveredAfterItsTime(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	s := sender(t, client)
	short := message("short")
	short.TimeToLive = new(time.Millisecond)
	if err := s.SendMessage(waittest.Context(t), short, nil); err != nil {
		t.Fatalf("send: %v", err)
	}
	waittest.Until(t, "the message is gone", func() bool { return server.Depth(audit) == 0 })
	send(t, s, "long")
	if got := idsOf(receive(t, receiver(t, client, nil), 1)); !slices.Equal(got, []string{"long"}) {
		t.Errorf("received %v", got)
	}
}

func TestADeadLetterOutlivesItsTime(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	s, r := sender(t, client), receiver(t, client, nil)
	const life = time.Second
	for try := 0; server.Depth(dead) == 0; try++ { // A slow machine may let one expire before it is received.
		short := message(strconv.Itoa(try))
		short.TimeToLive = new(life)
		if err := s.SendMessage(waittest.Context(t), short, nil); err != nil {
			t.Fatalf("send: %v", err)
		}
		ctx, cancel := context.WithTimeout(waittest.Context(t), life)
		received, _ := r.ReceiveMessages(ctx, 1, nil) // None if the message has expired.
		cancel()
		for _, m := range received {
			if err := r.DeadLetterMessage(waittest.Context(t), m, nil); err != nil {
				t.Fatalf("dead-letter: %v", err)
			}
		}
	}
	over := server.Messages(dead)[0].EnqueuedAt.Add(2 * life)
	waittest.Until(t, "its time is over", func() bool { return time.Now().After(over) })
	if got := server.Depth(dead); got != 1 {
		t.Errorf("%d dead letters, want 1", got)
	}
}

func TestDeferralIsRefused(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	send(t, sender(t, client), "a")
	r := receiver(t, client, nil)
	if err := r.DeferMessage(waittest.Context(t), receive(t, r, 1)[0], nil); err == nil {
		t.Error("a message was deferred")
	}
}

func TestTheSDKReleasesMessagesBeyondTheRequest(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	r := receiver(t, client, nil)
	ctx, cancel := context.WithCancel(waittest.Context(t))
	cancel()
	if _, err := r.ReceiveMessages(ctx, 10, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("receive: %v", err)
	}
	send(t, sender(t, client), "a", "b")
	for _, m := range receive(t, r, 2) {
		if m.DeliveryCount != 1 {
			t.Errorf("%s is delivered for the %d. time", m.MessageID, m.DeliveryCount)
		}
	}
}
