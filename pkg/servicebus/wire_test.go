package servicebus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/amqppeer"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// The names on the tests' namespaces.
const (
	wireTopic   = "global-bus-p0"
	wireWorker  = "global-bus-p0/Subscriptions/worker"
	wireReplies = "global-bus-replies-p0"
	wireInvoker = "global-bus-replies-p0/Subscriptions/lucius-invoker"
)

// namespaceOnWire starts a namespace with one lane, which the unmodified SDK talks
// to over TCP.
func namespaceOnWire(t *testing.T, change func(*amqppeer.Config)) *amqppeer.Server {
	t.Helper()
	cfg := amqppeer.Config{Topics: []amqppeer.Topic{
		{Name: wireTopic, Subscriptions: []amqppeer.Subscription{{Name: "worker"}}},
		{Name: wireReplies, Subscriptions: []amqppeer.Subscription{{Name: "lucius-invoker"}}},
	}}
	if change != nil {
		change(&cfg)
	}
	peer, err := amqppeer.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	return peer
}

// publisherOnWire is a publisher to the namespace, which is closed with the test.
func publisherOnWire(t *testing.T, peer *amqppeer.Server, change func(*servicebus.PublisherConfig)) *servicebus.Publisher {
	t.Helper()
	cfg := servicebus.PublisherConfig{
		Namespace:   servicebus.Namespace{Connection: peer.ConnectionString()},
		AckTimeout:  ackTimeout,
		SendTimeout: 20 * time.Second, // No test waits for it by chance.
	}
	if change != nil {
		change(&cfg)
	}
	publisher, err := servicebus.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		_ = publisher.Close(ctx) // A peer that is silent is no defect of the publisher's.
	})
	return publisher
}

// ackTimeout is that of the message's step.
func ackTimeout(m *ledger.Message) time.Duration { return m.AckTimeout }

// onTopic are so many messages for the topic.
func onTopic(topic string, n int) []ledger.Message {
	messages := make([]ledger.Message, n)
	for i := range messages {
		messages[i] = ledger.Message{
			OutboxID: fmt.Sprint("row-", i), JobID: fmt.Sprint("job-", i), TenantID: "tenant_a", Service: "ocr", StepType: "ocr.page",
			AttemptNo: 1, Topic: topic, AckTimeout: time.Minute, CorrelationID: "c", Traceparent: "00-t",
			Directive: []byte(`{"type":"DIRECTIVE"}`),
		}
	}
	return messages
}

// publish publishes within a minute.
func publish(t *testing.T, publisher *servicebus.Publisher, messages []ledger.Message) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return publisher.Publish(ctx, messages)
}

// published fails unless all have gone out.
func published(t *testing.T, outcomes []error) {
	t.Helper()
	for i, err := range outcomes {
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
}

func TestWire_ADirectiveAsTheWorkerSeesIt(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	published(t, publish(t, publisherOnWire(t, peer, nil), onTopic(wireTopic, 1)))
	found := peer.Messages(wireWorker)
	if len(found) != 1 {
		t.Fatalf("%d messages", len(found))
	}
	m := found[0]
	if m.ID != "row-0/1" || m.Subject != "ocr.page" || m.ContentType != "application/json" || m.CorrelationID != "c" ||
		string(m.Body) != `{"type":"DIRECTIVE"}` || m.TimeToLive != 90*time.Second {
		t.Errorf("%+v", m)
	}
	for name, want := range map[string]any{
		"tenant_id": "tenant_a", "service": "ocr", "step_type": "ocr.page", "jobId": "job-0", "attempt_no": int64(1),
		"traceparent": "00-t",
	} {
		if m.Properties[name] != want {
			t.Errorf("property %s is %v (%T)", name, m.Properties[name], m.Properties[name])
		}
	}
}

// Many rows go out in few transfers, in their order, each once: also when they are
// published again, as after an outcome that was not known.
func TestWire_BatchesAndCopies(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	var transfers atomic.Int64
	peer.SetHooks(amqppeer.Hooks{OnSend: func(string, []string) amqppeer.Fault {
		transfers.Add(1)
		return amqppeer.Fault{}
	}})
	publisher := publisherOnWire(t, peer, nil)
	messages := onTopic(wireTopic, 300)
	published(t, publish(t, publisher, messages))
	published(t, publish(t, publisher, messages))
	found := peer.Messages(wireWorker)
	if len(found) != 300 || peer.Duplicates() != 300 || transfers.Load() > 4 {
		t.Fatalf("%d messages, %d copies dropped, in %d transfers", len(found), peer.Duplicates(), transfers.Load())
	}
	for i, m := range found {
		if m.ID != fmt.Sprintf("row-%d/1", i) {
			t.Fatalf("message %d is %s", i, m.ID)
		}
	}
}

// What the broker says decides what the relay is told, whatever the SDK makes of it.
func TestWire_WhatABrokerSays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault amqppeer.Fault
		want  func(error) bool
	}{
		"not allowed":         {reject(amqppeer.NotAllowed), isRejected(false)},
		"a condition unknown": {reject("com.example:unheard-of"), isRejected(false)},
		"too large":           {reject(amqppeer.MessageSizeExceeded), isRejected(true)},
		"full":                {reject(amqppeer.LimitExceeded), isOutageOf(wireTopic)},
		"disabled":            {reject(amqppeer.EntityDisabled), isOutageOf(wireTopic)},
		"throttled":           {reject(amqppeer.ServerBusy), isOutageOf(wireTopic)},
		"released":            {amqppeer.Fault{Effect: amqppeer.Release}, isUncertain},
		"modified":            {amqppeer.Fault{Effect: amqppeer.Modify}, isUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peer := namespaceOnWire(t, nil)
			publisher := publisherOnWire(t, peer, nil)
			peer.SetHooks(amqppeer.Hooks{OnSend: func(string, []string) amqppeer.Fault { return test.fault }})
			for i, err := range publish(t, publisher, onTopic(wireTopic, 2)) {
				if !test.want(err) {
					t.Errorf("message %d: %v", i, err)
				}
			}
			if depth := peer.Depth(wireWorker); depth != 0 {
				t.Errorf("%d messages are there", depth)
			}
			peer.SetHooks(amqppeer.Hooks{})
			published(t, publish(t, publisher, onTopic(wireTopic, 2)))
		})
	}
}

func reject(condition string) amqppeer.Fault {
	return amqppeer.Fault{Effect: amqppeer.Reject, Condition: condition, Description: "says the broker"}
}

// One message that the broker refuses does not keep the others of its batch.
func TestWire_OneRefusedAmongMany(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	peer.SetHooks(amqppeer.Hooks{OnSend: func(_ string, ids []string) amqppeer.Fault {
		if slices.Contains(ids, "row-1/1") {
			return reject(amqppeer.NotAllowed)
		}
		return amqppeer.Fault{}
	}})
	outcomes := publish(t, publisherOnWire(t, peer, nil), onTopic(wireTopic, 4))
	for i, err := range outcomes {
		if refused := isRejected(false)(err); refused != (i == 1) || err != nil && !refused {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if depth := peer.Depth(wireWorker); depth != 3 {
		t.Errorf("%d messages are there", depth)
	}
}

// A topic that is not there is out of service, and its neighbours are not.
func TestWire_ATopicThatIsNotThere(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	publisher := publisherOnWire(t, peer, nil)
	outcomes := publish(t, publisher, append(onTopic("global-bus-p1", 1), onTopic(wireTopic, 1)...))
	if !isOutageOf("global-bus-p1")(outcomes[0]) || outcomes[1] != nil {
		t.Errorf("%v", outcomes)
	}
	if err := peer.AddTopic(amqppeer.Topic{Name: "global-bus-p1"}); err != nil {
		t.Fatal(err)
	}
	published(t, publish(t, publisher, onTopic("global-bus-p1", 1)))
}

func TestWire_ACredentialThatIsNotTaken(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	peer.SetHooks(amqppeer.Hooks{OnToken: func(string) *amqppeer.Refusal { return &amqppeer.Refusal{Description: "no"} }})
	publisher := publisherOnWire(t, peer, nil)
	if err := publish(t, publisher, onTopic(wireTopic, 1))[0]; !isOutageOf(wireTopic)(err) {
		t.Errorf("%v", err)
	}
	peer.SetHooks(amqppeer.Hooks{})
	published(t, publish(t, publisher, onTopic(wireTopic, 1)))
}

// A confirmation that is lost makes the SDK send again; the topic drops the copy.
func TestWire_AConfirmationThatIsLost(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	var sends atomic.Int64
	peer.SetHooks(amqppeer.Hooks{OnSend: func(string, []string) amqppeer.Fault {
		if sends.Add(1) == 1 {
			return amqppeer.Fault{Effect: amqppeer.DropAfter}
		}
		return amqppeer.Fault{}
	}})
	published(t, publish(t, publisherOnWire(t, peer, nil), onTopic(wireTopic, 3)))
	if depth := peer.Depth(wireWorker); depth != 3 || peer.Duplicates() != 3 {
		t.Errorf("%d messages are there, %d copies dropped", depth, peer.Duplicates())
	}
}

// A broker that restarts is found again by the same publisher, and what it could not
// be told is an outage of the whole bus.
func TestWire_ABrokerThatRestarts(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	publisher := publisherOnWire(t, peer, nil)
	published(t, publish(t, publisher, onTopic(wireTopic, 1)))
	for range 3 {
		peer.Stop()
		if err := publish(t, publisher, onTopic(wireTopic, 1))[0]; !isOutageOf("")(err) {
			t.Errorf("while it is away: %v", err)
		}
		if err := peer.Restart(); err != nil {
			t.Fatal(err)
		}
		published(t, publish(t, publisher, onTopic(wireTopic, 1)))
	}
	if depth := peer.Depth(wireWorker); depth != 1 {
		t.Errorf("%d messages are there", depth)
	}
}

// A broker that takes everything and never answers costs a deadline, not the relay;
// after some of these the topic counts as out of service. It is used again at once
// when it answers.
func TestWire_ABrokerThatIsSilent(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	publisher := publisherOnWire(t, peer, func(cfg *servicebus.PublisherConfig) {
		cfg.SendTimeout, cfg.Grace, cfg.Patience = time.Second, 10*time.Second, 3
	})
	peer.SetHooks(amqppeer.Hooks{OnSend: func(string, []string) amqppeer.Fault {
		return amqppeer.Fault{Effect: amqppeer.Silence}
	}})
	for try := range 4 {
		err := publish(t, publisher, onTopic(wireTopic, 1))[0]
		if want := map[bool]func(error) bool{true: isUncertain, false: isOutageOf(wireTopic)}[try < 2]; !want(err) {
			t.Errorf("try %d: %v", try, err)
		}
	}
	peer.SetHooks(amqppeer.Hooks{})
	published(t, publish(t, publisher, onTopic(wireTopic, 1)))
	if depth := peer.Depth(wireWorker); depth != 1 || publisher.Stuck() != 0 {
		t.Errorf("%d messages are there, %d sends are stuck", depth, publisher.Stuck())
	}
}

// Links that the broker closes, as it does with idle ones and for upgrades, cost
// nothing but a moment.
func TestWire_LinksThatAreClosed(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	publisher := publisherOnWire(t, peer, nil)
	for range 3 {
		published(t, publish(t, publisher, onTopic(wireTopic, 1)))
		peer.Cut()
	}
	var sends atomic.Int64
	peer.SetHooks(amqppeer.Hooks{OnSend: func(string, []string) amqppeer.Fault {
		if sends.Add(1)%2 == 1 {
			return amqppeer.Fault{Effect: amqppeer.Detach, Condition: amqppeer.DetachForced}
		}
		return amqppeer.Fault{}
	}})
	published(t, publish(t, publisher, onTopic(wireTopic, 1)))
}

// What is larger than a topic takes is refused for good, before it is sent.
func TestWire_ADirectiveThatIsTooLarge(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, func(cfg *amqppeer.Config) { cfg.MaxMessageSize = 2000 })
	messages := onTopic(wireTopic, 3)
	messages[1].Directive = make([]byte, 3000)
	outcomes := publish(t, publisherOnWire(t, peer, nil), messages)
	if outcomes[0] != nil || !isRejected(true)(outcomes[1]) || outcomes[2] != nil {
		t.Errorf("%v", outcomes)
	}
}

// Deadlines hold whatever the bus does.
func TestWire_AContextThatHasEnded(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := publisherOnWire(t, peer, nil).Publish(ctx, onTopic(wireTopic, 1))[0]; !isUncertain(err) {
		t.Errorf("%v", err)
	}
}

// isRejected tells a refusal for the message's own sake.
func isRejected(permanent bool) func(error) bool {
	return func(err error) bool {
		refused, ok := errors.AsType[*outbox.RejectedError](err)
		return ok && refused.Permanent == permanent
	}
}

// isOutageOf tells an outage of a topic, or of the bus where it has no name.
func isOutageOf(entity string) func(error) bool {
	return func(err error) bool {
		outage, ok := errors.AsType[*outbox.OutageError](err)
		return ok && outage.Entity == entity
	}
}

func isUncertain(err error) bool { return errors.Is(err, outbox.ErrUncertain) }
