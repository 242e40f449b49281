package servicebus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// sending is the send of a topic's courier.
type sending func(ctx context.Context, topic string, messages []*azservicebus.Message) (int, error)

// publisherConfig returns a complete configuration.
func publisherConfig() servicebus.PublisherConfig {
	return servicebus.PublisherConfig{
		Namespace:  namespace(),
		AckTimeout: func(*ledger.Message) time.Duration { return time.Minute },
	}
}

// publisher returns a connected publisher that sends with this function.
func publisher(t *testing.T, send sending, change ...func(*servicebus.PublisherConfig)) *servicebus.Publisher {
	t.Helper()
	return connectedOrNot(t, true, send, change...)
}

// connectedOrNot returns a publisher, connected or not, that sends with this function.
func connectedOrNot(t *testing.T, connects bool, send sending, change ...func(*servicebus.PublisherConfig)) *servicebus.Publisher {
	t.Helper()
	cfg := publisherConfig()
	for _, set := range change {
		set(&cfg)
	}
	p, err := servicebus.WithCouriers(cfg, connects, func(topic string) servicebus.SendFunc {
		return func(ctx context.Context, messages []*azservicebus.Message) (int, error) {
			return send(ctx, topic, messages)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// directives returns n messages to a topic, with the outbox ids 0, 1 and so on.
func directives(topic string, n int) []ledger.Message {
	messages := make([]ledger.Message, n)
	for i := range messages {
		messages[i] = directive(topic, fmt.Sprint(i))
	}
	return messages
}

// ids returns the messages' outbox ids.
func ids(messages []*azservicebus.Message) string {
	var all []string
	for _, m := range messages {
		all = append(all, strings.TrimSuffix(*m.MessageID, "/2"))
	}
	return strings.Join(all, " ")
}

// meanings returns the meaning of each outcome.
func meanings(outcomes []error) []string {
	said := make([]string, len(outcomes))
	for i, err := range outcomes {
		said[i] = meaning(err)
	}
	return said
}

func TestPublisher_SendsToSeveralTopicsConcurrently(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var together sync.WaitGroup
		together.Add(3) // Sending to one topic after the other would block for ever.
		var mu sync.Mutex
		got := map[string]string{}
		p := publisher(t, func(_ context.Context, topic string, messages []*azservicebus.Message) (int, error) {
			together.Done()
			together.Wait()
			mu.Lock()
			defer mu.Unlock()
			got[topic] = ids(messages)
			return len(messages), nil
		})
		outcomes := p.Publish(t.Context(), []ledger.Message{
			directive("b", "1"), directive("a", "2"), directive("b", "3"), directive("c", "4"), directive("a", "5"),
		})
		if diff := cmp.Diff([]string{"sent", "sent", "sent", "sent", "sent"}, meanings(outcomes)); diff != "" {
			t.Errorf("outcomes (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]string{"a": "2 5", "b": "1 3", "c": "4"}, got); diff != "" {
			t.Errorf("the topics got (-want +got):\n%s", diff)
		}
	})
}

func TestPublisher_TheOutcomesAreInTheOrderOfTheMessages(t *testing.T) {
	t.Parallel()
	p := publisher(t, func(_ context.Context, topic string, messages []*azservicebus.Message) (int, error) {
		switch {
		case topic == "missing":
			return len(messages), coded(azservicebus.CodeNotFound)
		case topic == "sick":
			return len(messages), coded(azservicebus.CodeConnectionLost)
		case len(messages) > 1 || ids(messages) == "refused":
			return len(messages), said("amqp:not-allowed")
		case ids(messages) == "large":
			return 1, azservicebus.ErrMessageTooLarge
		}
		return 1, nil
	})
	outcomes := p.Publish(t.Context(), []ledger.Message{
		directive("here", "1"), directive("missing", "2"), directive("here", "refused"), directive("sick", "3"),
		directive("missing", "4"), directive("here", "large"), directive("here", "5"),
	})
	want := []string{"sent", "missing", "rejected", "sick", "missing", "rejected for good", "sent"}
	if diff := cmp.Diff(want, meanings(outcomes)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

func TestPublisher_NothingToSend(t *testing.T) {
	t.Parallel()
	p := publisher(t, func(context.Context, string, []*azservicebus.Message) (int, error) {
		t.Error("something was sent")
		return 0, nil
	})
	if outcomes := p.Publish(t.Context(), nil); len(outcomes) != 0 {
		t.Errorf("outcomes %v, want none", outcomes)
	}
}

func TestPublisher_OpensATopicOnce(t *testing.T) {
	t.Parallel()
	opened := map[string]int{}
	p, err := servicebus.WithCouriers(publisherConfig(), true, func(topic string) servicebus.SendFunc {
		opened[topic]++
		return func(_ context.Context, messages []*azservicebus.Message) (int, error) { return len(messages), nil }
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.Publish(t.Context(), []ledger.Message{directive("a", "1"), directive("b", "2")})
	}
	if diff := cmp.Diff(map[string]int{"a": 1, "b": 1}, opened); diff != "" {
		t.Errorf("opened (-want +got):\n%s", diff)
	}
}

func TestPublisher_TheDeadlineStartsWithThePublish(t *testing.T) {
	t.Parallel()
	if publisher(t, nil).PublishedByMark() {
		t.Error("it is published by its mark, but a topic is another system")
	}
}

// Nothing was sent, so nothing is connected: it closes at once, and twice.
func TestPublisher_Close(t *testing.T) {
	t.Parallel()
	p, err := servicebus.NewPublisher(publisherConfig())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := p.Close(t.Context()); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Close(over); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Close without any time: %v", err)
	}
}

// After Close the outcome of a message is unknown.
func TestPublisher_PublishAfterClose(t *testing.T) {
	t.Parallel()
	p, err := servicebus.NewPublisher(publisherConfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := meanings(p.Publish(t.Context(), directives("topic", 2))); !cmp.Equal(got, []string{"unknown", "unknown"}) {
		t.Errorf("outcomes %v, want unknown", got)
	}
}

func TestNewPublisher_NamesTheInvalidField(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		change func(*servicebus.PublisherConfig)
		want   string
	}{
		{func(c *servicebus.PublisherConfig) { c.Namespace = servicebus.Namespace{} }, "Namespace needs"},
		{func(c *servicebus.PublisherConfig) { c.AckTimeout = nil }, "AckTimeout is required"},
		{func(c *servicebus.PublisherConfig) { c.SendTimeout = -1 }, "SendTimeout must not be negative"},
		{func(c *servicebus.PublisherConfig) { c.Grace = -1 }, "Grace must not be negative"},
		{func(c *servicebus.PublisherConfig) { c.Parallel = -1 }, "Parallel must not be negative"},
		{func(c *servicebus.PublisherConfig) { c.Patience = -1 }, "Patience must not be negative"},
		{func(c *servicebus.PublisherConfig) { c.Namespace.Connection = "Endpoint=sb://example.test" }, "Namespace.Connection cannot be used"},
	} {
		t.Run(test.want, func(t *testing.T) {
			t.Parallel()
			cfg := publisherConfig()
			test.change(&cfg)
			_, err := servicebus.NewPublisher(cfg)
			if err == nil || !strings.Contains(err.Error(), "servicebus publisher: "+test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// A directive on the bus is a contract with platform services, their duplicate
// detection and their filters.
func TestPublisher_DirectiveAsAMessage(t *testing.T) {
	t.Parallel()
	full := ledger.Message{
		Target:   statemachine.Target{TenantID: "tenant_a", ProtocolID: "doc_ingest_v1", Lane: 4, Service: "ocr"},
		OutboxID: "0197f0c2", JobID: "job_123", StepID: "step_01",
		StepIndex: 1, StepType: "OCR", AttemptNo: 3, LeaseID: "9a7c", Topic: "global-bus-p4",
		CorrelationID: "corr-123", Traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
		Directive: []byte(`{"type":"DIRECTIVE", "as":"it is"}`),
	}
	bare := full
	bare.CorrelationID, bare.Traceparent = "", ""
	properties := func() map[string]any {
		return map[string]any{
			"tenant_id": "tenant_a", "service": "ocr", "step_type": "OCR", "jobId": "job_123", "attempt_no": int64(3),
		}
	}
	traced := properties()
	traced["traceparent"] = full.Traceparent
	for _, test := range []struct {
		name    string
		message ledger.Message
		want    *azservicebus.Message
	}{
		{"with all it may have", full, &azservicebus.Message{
			MessageID: new("0197f0c2/3"), Subject: new("OCR"), ContentType: new("application/json"), CorrelationID: new("corr-123"),
			TimeToLive: new(90 * time.Second), ApplicationProperties: traced, Body: full.Directive,
		}},
		{"with the required fields only", bare, &azservicebus.Message{
			MessageID: new("0197f0c2/3"), Subject: new("OCR"), ContentType: new("application/json"),
			TimeToLive: new(90 * time.Second), ApplicationProperties: properties(), Body: full.Directive,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var sent []*azservicebus.Message
			p := publisher(t, func(_ context.Context, _ string, messages []*azservicebus.Message) (int, error) {
				sent = append(sent, messages...)
				return len(messages), nil
			}, func(cfg *servicebus.PublisherConfig) {
				cfg.AckTimeout = func(m *ledger.Message) time.Duration { return time.Duration(m.AttemptNo) * 20 * time.Second }
			})
			if got := p.Publish(t.Context(), []ledger.Message{test.message}); got[0] != nil {
				t.Fatal(got)
			}
			if diff := cmp.Diff([]*azservicebus.Message{test.want}, sent); diff != "" {
				t.Errorf("on the bus (-want +got):\n%s", diff)
			}
		})
	}
}

// The topic drops copies of the same attempt as duplicates, and nothing else.
func TestPublisher_TheMessageIDIsThatOfTheAttempt(t *testing.T) {
	t.Parallel()
	var ids []string
	p := publisher(t, func(_ context.Context, _ string, messages []*azservicebus.Message) (int, error) {
		ids = append(ids, *messages[0].MessageID)
		return 1, nil
	})
	first := directive("topic", "o")
	second := first
	second.AttemptNo++
	p.Publish(t.Context(), []ledger.Message{first, second})
	p.Publish(t.Context(), []ledger.Message{first})
	if diff := cmp.Diff([]string{"o/2", "o/3", "o/2"}, ids); diff != "" {
		t.Errorf("message ids (-want +got):\n%s", diff)
	}
}
