package fakeservicebus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

func TestASentMessageIsInEverySubscription(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	err := sender(t, connect(t, server)).SendMessage(waittest.Context(t), &azservicebus.Message{
		MessageID: new("m-1"), Subject: new("PLAN"), ContentType: new("application/json"),
		CorrelationID: new("c-1"), ReplyTo: new("answers"), TimeToLive: new(time.Hour),
		ApplicationProperties: map[string]any{"tenant": "acme", "attempt": int64(3), "large": int64(1 << 40), "urgent": true},
		Body:                  []byte(`{"a":1}`),
	}, nil)
	if err != nil {
		t.Fatalf("send: %v", err)
	}
	want := []fakeservicebus.Message{{
		ID: "m-1", Subject: "PLAN", ContentType: "application/json", CorrelationID: "c-1", ReplyTo: "answers",
		Properties: map[string]any{"tenant": "acme", "attempt": int64(3), "large": int64(1 << 40), "urgent": true},
		Body:       []byte(`{"a":1}`), SequenceNumber: 1, TimeToLive: time.Hour,
	}}
	for _, path := range []string{audit, billing} {
		if diff := cmp.Diff(want, server.Messages(path), cmpopts.IgnoreFields(fakeservicebus.Message{}, "EnqueuedAt")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	if got := server.Accepted(); got != 1 {
		t.Errorf("accepted %d, want 1", got)
	}
}

func TestABatchIsStoredMessageByMessage(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	s := sender(t, connect(t, server))
	batch, err := s.NewMessageBatch(waittest.Context(t), nil)
	if err != nil {
		t.Fatalf("batch: %v", err)
	}
	var want []string
	for i := range 1000 {
		id := fmt.Sprintf("m-%d", i)
		if err := batch.AddMessage(message(id), nil); err != nil {
			t.Fatalf("add %s: %v", id, err)
		}
		want = append(want, id)
	}
	if err := s.SendMessageBatch(waittest.Context(t), batch, nil); err != nil {
		t.Fatalf("send: %v", err)
	}
	if diff := cmp.Diff(want, stored(server, audit)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	if got := string(server.Messages(audit)[7].Body); got != "body of m-7" {
		t.Errorf("body %q", got)
	}
}

func TestAMessageOfManyFramesArrivesWhole(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	body := bytes.Repeat([]byte("0123456789"), 25_000)
	if err := sender(t, client).SendMessage(waittest.Context(t), &azservicebus.Message{Body: body}, nil); err != nil {
		t.Fatalf("send: %v", err)
	}
	if got := receive(t, receiver(t, client, nil), 1)[0].Body; !bytes.Equal(got, body) {
		t.Errorf("received %d bytes, sent %d", len(got), len(body))
	}
}

func TestAMessageThatIsTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.MaxMessageSize = 1000 })
	err := sender(t, connect(t, server)).SendMessage(waittest.Context(t), &azservicebus.Message{Body: make([]byte, 2000)}, nil)
	if !errors.Is(err, azservicebus.ErrMessageTooLarge) {
		t.Errorf("got %v, want ErrMessageTooLarge", err)
	}
}

func TestManySendersShareAConnection(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	s := sender(t, connect(t, server))
	ctx := waittest.Context(t)
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 400 { // More than the credit that a link begins with, all together.
				if err := s.SendMessage(ctx, message(fmt.Sprintf("%d-%d", worker, i)), nil); err != nil {
					t.Errorf("send: %v", err)
					return
				}
			}
		})
	}
	group.Wait()
	if got := server.Depth(audit); got != 3200 {
		t.Errorf("%d messages are stored, want 3200", got)
	}
}

func TestAKnownMessageIDIsDroppedWithinTheWindow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		window            time.Duration
		want              []string
		wantAccepted, dup int64
	}{
		"known":       {0, []string{"a", "b"}, 2, 1},
		"forgotten":   {time.Nanosecond, []string{"a", "b", "a"}, 3, 0},
		"not wanted":  {-1, []string{"a", "b", "a"}, 3, 0},
		"long window": {time.Hour, []string{"a", "b"}, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, func(c *fakeservicebus.Config) { c.Topics[0].DuplicateWindow = test.window })
			send(t, sender(t, connect(t, server)), "a", "b", "a")
			if diff := cmp.Diff(test.want, stored(server, audit)); diff != "" {
				t.Errorf("stored (-want +got):\n%s", diff)
			}
			if a, d := server.Accepted(), server.Duplicates(); a != test.wantAccepted || d != test.dup {
				t.Errorf("accepted %d and dropped %d, want %d and %d", a, d, test.wantAccepted, test.dup)
			}
		})
	}
}

func TestMessagesWithoutAnIDAreAllDifferent(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	s := sender(t, connect(t, server))
	for range 2 {
		if err := s.SendMessage(waittest.Context(t), &azservicebus.Message{Body: []byte("same")}, nil); err != nil {
			t.Fatalf("send: %v", err)
		}
	}
	if got := server.Depth(audit); got != 2 {
		t.Errorf("%d messages, want 2", got)
	}
}

func TestAClientOutlivesItsIdleTime(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.KeepAlive = time.Millisecond })
	s := sender(t, connect(t, server))
	send(t, s, "a")
	ctx, cancel := context.WithTimeout(waittest.Context(t), 50*time.Millisecond)
	defer cancel()
	<-ctx.Done() // Some fifty empty frames.
	send(t, s, "b")
	if diff := cmp.Diff([]string{"a", "b"}, stored(server, audit)); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

func TestAFilterLetsSomeMessagesIn(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) {
		c.Topics[0].Subscriptions[0].Filter = map[string]string{"service": "search", "tenant": "acme"}
	})
	s := sender(t, connect(t, server))
	for id, properties := range map[string]map[string]any{
		"both":     {"service": "search", "tenant": "acme", "more": true},
		"one":      {"service": "search"},
		"another":  {"service": "search", "tenant": "other"},
		"no text":  {"service": "search", "tenant": int64(7)},
		"none":     nil,
		"no match": {"tenant": "acme", "service": "Search"},
	} {
		m := message(id)
		m.ApplicationProperties = properties
		if err := s.SendMessage(waittest.Context(t), m, nil); err != nil {
			t.Fatalf("send %s: %v", id, err)
		}
	}
	if diff := cmp.Diff([]string{"both"}, stored(server, audit)); diff != "" {
		t.Errorf("with a filter (-want +got):\n%s", diff)
	}
	if got := server.Depth(billing); got != 6 {
		t.Errorf("without one there are %d, want 6", got)
	}
}

func TestABareClientHearsThatItsMessageIsTooLarge(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.MaxMessageSize = 1000 })
	answer := string(talk(t, server, attached(),
		fakeservicebus.Frame(0, 0, 0x14, uint32(0), uint32(0), []byte(strings.Repeat("x", 32)), uint32(0), false, true),
		transferOf(1200), fakeservicebus.Frame(0, 0, 0x18)))
	if !strings.Contains(answer, fakeservicebus.MessageSizeExceeded) {
		t.Errorf("the answer is %q", answer)
	}
	if got := server.Depth(audit); got != 0 {
		t.Errorf("%d messages are stored", got)
	}
}
