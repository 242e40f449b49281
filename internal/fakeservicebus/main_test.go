package fakeservicebus_test

import (
	"context"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The one topic of most tests.
const (
	orders  = "orders"
	audit   = "orders/Subscriptions/audit"
	billing = "orders/Subscriptions/billing"
	dead    = audit + "/$DeadLetterQueue"
)

// start starts a server with the topic and its two subscriptions, and closes it when
// the test ends.
func start(t *testing.T, change func(*fakeservicebus.Config)) *fakeservicebus.Server {
	t.Helper()
	cfg := fakeservicebus.Config{Topics: []fakeservicebus.Topic{{
		Name: orders, Subscriptions: []fakeservicebus.Subscription{{Name: "audit"}, {Name: "billing"}},
	}}}
	if change != nil {
		change(&cfg)
	}
	server, err := fakeservicebus.Start(cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(server.Close)
	return server
}

// connect returns a client of the server that retries often and quickly. It is closed
// before the server is.
func connect(t *testing.T, server *fakeservicebus.Server) *azservicebus.Client {
	t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(server.ConnectionString(), &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{
			MaxRetries: 5, RetryDelay: 5 * time.Millisecond, MaxRetryDelay: 50 * time.Millisecond,
		},
	})
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		if err := client.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close the client: %v", err)
		}
	})
	return client
}

// sender returns a sender to the topic.
func sender(t *testing.T, client *azservicebus.Client) *azservicebus.Sender {
	t.Helper()
	s, err := client.NewSender(orders, nil)
	if err != nil {
		t.Fatalf("sender: %v", err)
	}
	return s
}

// message returns a message with an id, which is also its body.
func message(id string) *azservicebus.Message {
	return &azservicebus.Message{MessageID: &id, Body: []byte("body of " + id)}
}

// send sends messages, one after the other.
func send(t *testing.T, s *azservicebus.Sender, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := s.SendMessage(waittest.Context(t), message(id), nil); err != nil {
			t.Fatalf("send %s: %v", id, err)
		}
	}
}

// receiver returns a receiver of the audit subscription.
func receiver(t *testing.T, client *azservicebus.Client, options *azservicebus.ReceiverOptions) *azservicebus.Receiver {
	t.Helper()
	r, err := client.NewReceiverForSubscription(orders, "audit", options)
	if err != nil {
		t.Fatalf("receiver: %v", err)
	}
	return r
}

// receive receives exactly count messages.
func receive(t *testing.T, r *azservicebus.Receiver, count int) []*azservicebus.ReceivedMessage {
	t.Helper()
	var got []*azservicebus.ReceivedMessage
	for len(got) < count {
		more, err := r.ReceiveMessages(waittest.Context(t), count-len(got), nil)
		if err != nil {
			t.Fatalf("receive after %d of %d: %v", len(got), count, err)
		}
		got = append(got, more...)
	}
	return got
}

// idsOf returns the message ids, in order.
func idsOf(messages []*azservicebus.ReceivedMessage) []string {
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.MessageID
	}
	return ids
}

// stored returns the message ids at a path, in order.
func stored(server *fakeservicebus.Server, path string) []string {
	ids := []string{}
	for _, m := range server.Messages(path) {
		ids = append(ids, m.ID)
	}
	return ids
}
