package fakeservicebus_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/go-amqp"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

// ask sends one request and returns the status of its reply.
func ask(t *testing.T, session *amqp.Session, address, operation string, body any) any {
	t.Helper()
	s, err := session.NewSender(waittest.Context(t), address, nil)
	if err != nil {
		t.Fatalf("sender to %s: %v", address, err)
	}
	r, err := session.NewReceiver(waittest.Context(t), address, &amqp.ReceiverOptions{TargetAddress: "me-" + operation})
	if err != nil {
		t.Fatalf("receiver from %s: %v", address, err)
	}
	if err := s.Send(waittest.Context(t), &amqp.Message{
		Properties:            &amqp.MessageProperties{MessageID: "q", ReplyTo: new("me-" + operation)},
		ApplicationProperties: map[string]any{"operation": operation},
		Value:                 body,
	}, nil); err != nil {
		t.Fatalf("ask: %v", err)
	}
	reply, err := r.Receive(waittest.Context(t), nil)
	if err != nil {
		t.Fatalf("reply: %v", err)
	}
	if reply.Properties.CorrelationID != "q" {
		t.Errorf("the reply is to %v", reply.Properties.CorrelationID)
	}
	return reply.ApplicationProperties["status-code"]
}

func TestRequestsHaveAStatus(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	tokens := []amqp.UUID{{1}}
	for name, test := range map[string]struct {
		address, operation string
		body               any
		want               int32
	}{
		"token":             {"$cbs", "put-token", "token", 202},
		"another of tokens": {"$cbs", "delete-token", nil, 501},
		"topic":             {orders + "/$management", "com.microsoft:peek-message", nil, 501},
		"unknown":           {audit + "/$management", "com.microsoft:unknown", nil, 501},
		"renew a lost lock": {audit + "/$management", "com.microsoft:renew-lock", map[string]any{"lock-tokens": tokens}, 410},
		"renew nothing":     {dead + "/$management", "com.microsoft:renew-lock", map[string]any{}, 200},
		"settle lost":       {audit + "/$management", "com.microsoft:update-disposition", map[string]any{"disposition-status": "completed", "lock-tokens": tokens}, 410},
		"defer":             {audit + "/$management", "com.microsoft:update-disposition", map[string]any{"disposition-status": "defered", "lock-tokens": tokens}, 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ask(t, dial(t, server), test.address, test.operation, test.body); got != test.want {
				t.Errorf("status %v, want %v", got, test.want)
			}
		})
	}
}

func TestARequestThatIsTooLargeEndsTheConnection(t *testing.T) {
	t.Parallel()
	server := start(t, func(c *fakeservicebus.Config) { c.MaxMessageSize = 1000 })
	answer := string(talk(t, server, asking(),
		fakeservicebus.Frame(0, 0, 0x14, uint32(0), uint32(0), []byte{1}, uint32(0), false, true), transferOf(1200)))
	if want := "a request is too large"; !strings.Contains(answer, want) {
		t.Errorf("%q is not in the answer %q", want, answer)
	}
}

func TestPeekingLeavesMessagesWhereTheyAre(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	r := receiver(t, client, nil)
	peek := func() []string {
		t.Helper()
		got, err := r.PeekMessages(waittest.Context(t), 2, nil)
		if err != nil {
			t.Fatalf("peek: %v", err)
		}
		return idsOf(got)
	}
	if got := peek(); len(got) != 0 {
		t.Errorf("peeked %v from an empty queue", got)
	}
	send(t, sender(t, client), "a", "b", "c")
	if got := append(peek(), peek()...); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("peeked %v", got)
	}
	if got := server.Depth(audit); got != 3 {
		t.Errorf("%d messages, want 3", got)
	}
}

func TestAPeekIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	server := start(t, nil)
	client := connect(t, server)
	s, r := sender(t, client), receiver(t, client, nil)
	for range 3 {
		if err := s.SendMessage(waittest.Context(t), &azservicebus.Message{Body: make([]byte, 40<<10)}, nil); err != nil {
			t.Fatalf("send: %v", err)
		}
	}
	if got, err := r.PeekMessages(waittest.Context(t), 3, nil); err != nil || len(got) != 1 {
		t.Errorf("peeked %d messages, %v; want 1", len(got), err)
	}
}
