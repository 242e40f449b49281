package servicebus_test

import (
	"context"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// realNamespace names the variable with a connection string of a real namespace on
// Azure, with the right to manage. If it is set, these tests run there too.
const realNamespace = "LUCIUS_TEST_SERVICEBUS_CONNECTION"

// broker is a namespace with one topic that the test observes only through the SDK.
type broker struct {
	connection string
	topic      string // with a subscription "worker", and duplicate detection
}

// onBrokers runs the test on the fake Service Bus, and on Azure's if realNamespace
// is set.
func onBrokers(t *testing.T, test func(*testing.T, broker)) {
	t.Helper()
	t.Run("peer", func(t *testing.T) {
		t.Parallel()
		peer, err := fakeservicebus.Start(fakeservicebus.Config{Topics: []fakeservicebus.Topic{
			{Name: "test-p0", Subscriptions: []fakeservicebus.Subscription{{Name: "worker"}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(peer.Close)
		test(t, broker{peer.ConnectionString(), "test-p0"})
	})
	if connection := os.Getenv(realNamespace); connection != "" {
		t.Run("azure", func(t *testing.T) {
			t.Parallel()
			test(t, broker{connection, realTopic(t, connection)})
		})
	}
}

// realTopic creates a topic that is deleted after the test.
func realTopic(t *testing.T, connection string) string {
	t.Helper()
	client, err := admin.NewClientFromConnectionString(connection, nil)
	if err != nil {
		t.Fatal(err)
	}
	var random [8]byte
	for i := range random {
		random[i] = byte(rand.N(256))
	}
	name := "lucius-test-" + hex.EncodeToString(random[:]) + "-p0"
	if _, err = client.CreateTopic(t.Context(), name, &admin.CreateTopicOptions{
		Properties: &admin.TopicProperties{RequiresDuplicateDetection: new(true)},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := client.DeleteTopic(context.WithoutCancel(t.Context()), name, nil); err != nil {
			t.Error(err)
		}
	})
	if _, err = client.CreateSubscription(t.Context(), name, "worker", nil); err != nil {
		t.Fatal(err)
	}
	return name
}

// take receives and completes messages until that many have arrived and none more does for a
// while, and returns their ids.
func (b broker) take(t *testing.T, least int) (ids []string) {
	t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(b.connection, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close(context.WithoutCancel(t.Context())) }() // The test has its messages.
	receiver, err := client.NewReceiverForSubscription(b.topic, "worker", nil)
	if err != nil {
		t.Fatal(err)
	}
	for {
		patience := waittest.Scale(3 * time.Second)
		if len(ids) < least {
			patience = waittest.Bound(t)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		messages, err := receiver.ReceiveMessages(ctx, 100, nil)
		cancel()
		for _, m := range messages {
			if err := receiver.CompleteMessage(t.Context(), m, nil); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, m.MessageID)
		}
		if err != nil {
			slices.Sort(ids)
			return ids
		}
	}
}

// Each directive arrives once, even if the relay sends it again.
func TestAzure_DirectivesArriveOnce(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, b broker) {
		publisher, err := servicebus.NewPublisher(servicebus.PublisherConfig{
			Namespace: servicebus.Namespace{Connection: b.connection}, AckTimeout: ackTimeout, SendTimeout: 30 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = publisher.Close(context.WithoutCancel(t.Context())) }() // Its error does not matter.
		messages := onTopic(b.topic, 5)
		for range 2 {
			published(t, publish(t, publisher, messages))
		}
		if got := b.take(t, 5); !slices.Equal(got, []string{"row-0/1", "row-1/1", "row-2/1", "row-3/1", "row-4/1"}) {
			t.Errorf("arrived: %v", got)
		}
		missing := publish(t, publisher, onTopic(b.topic+"-missing", 1))[0]
		if !isOutageOf(b.topic + "-missing")(missing) {
			t.Errorf("to a missing topic: %v", missing)
		}
	})
}

// An applied reply is removed from its subscription; an unreadable one is
// dead-lettered.
func TestAzure_RepliesAreSettled(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, b broker) {
		w := &wire{t: t, ledger: &wireLedger{}, deliveries: make(chan servicebus.Delivery, 100)}
		w.consume(b.connection, strings.TrimSuffix(b.topic, "0"), "worker")
		w.connect(b.connection, b.topic)
		w.send(replyBody("RESULT", "s"))
		w.expect(servicebus.ReplyResult, servicebus.ReplyApplied)
		w.send("not a reply")
		w.expect(servicebus.ReplyUnknown, servicebus.ReplyDeadLettered)
		if w.ledger.calls() != 1 {
			t.Errorf("%d calls", w.ledger.calls())
		}
	})
}
