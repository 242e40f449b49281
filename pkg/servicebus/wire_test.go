package servicebus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The entities of the tests' namespaces.
const (
	wireTopic   = "global-bus-p0"
	wireWorker  = "global-bus-p0/Subscriptions/worker"
	wireReplies = "global-bus-replies-p0"
	wireInvoker = "global-bus-replies-p0/Subscriptions/lucius-invoker"
)

// namespaceOnWire starts a namespace with one lane. The unmodified SDK talks to it
// over TCP.
func namespaceOnWire(t *testing.T, change func(*fakeservicebus.Config)) *fakeservicebus.Server {
	t.Helper()
	cfg := fakeservicebus.Config{Topics: []fakeservicebus.Topic{
		{Name: wireTopic, Subscriptions: []fakeservicebus.Subscription{{Name: "worker"}}},
		{Name: wireReplies, Subscriptions: []fakeservicebus.Subscription{{Name: "lucius-invoker"}}},
	}}
	if change != nil {
		change(&cfg)
	}
	peer, err := fakeservicebus.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	return peer
}

// publisherOnWire returns a publisher to the namespace and closes it when the test
// ends.
func publisherOnWire(t *testing.T, peer *fakeservicebus.Server, change func(*servicebus.PublisherConfig)) *servicebus.Publisher {
	t.Helper()
	cfg := servicebus.PublisherConfig{
		Namespace:   servicebus.Namespace{Connection: peer.ConnectionString()},
		AckTimeout:  ackTimeout,
		SendTimeout: waittest.Scale(20 * time.Second), // So long that no test hits it by chance.
	}
	if change != nil {
		change(&cfg)
	}
	publisher, err := servicebus.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waittest.Scale(time.Second))
		defer cancel()
		_ = publisher.Close(ctx) // It fails if the test made the broker silent.
	})
	return publisher
}

// ackTimeout is the ACK timeout of every step here.
func ackTimeout(m *ledger.Message) time.Duration { return m.AckTimeout }

// onTopic returns n messages for the topic.
func onTopic(topic string, n int) []ledger.Message {
	messages := make([]ledger.Message, n)
	for i := range messages {
		messages[i] = ledger.Message{
			Target:   statemachine.Target{TenantID: "tenant_a", Service: "ocr"},
			OutboxID: fmt.Sprint("row-", i), JobID: fmt.Sprint("job-", i), StepType: "ocr.page",
			AttemptNo: 1, Topic: topic, AckTimeout: time.Minute, CorrelationID: "c", Traceparent: "00-t",
			Directive: []byte(`{"type":"DIRECTIVE"}`),
		}
	}
	return messages
}

// publish publishes.
func publish(t *testing.T, publisher *servicebus.Publisher, messages []ledger.Message) []error {
	t.Helper()
	return publisher.Publish(waittest.Context(t), messages)
}

// published fails unless every message was sent.
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

// AMQP carries a time to live of 49.7 days at most: a longer one does not wrap around to a short one.
func TestWire_ALongAckTimeout(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	messages := onTopic(wireTopic, 1)
	messages[0].AckTimeout = 1200 * time.Hour
	published(t, publish(t, publisherOnWire(t, peer, nil), messages))
	if life := peer.Messages(wireWorker)[0].TimeToLive; life < 1193*time.Hour {
		t.Errorf("it lives for %s", life)
	}
}

// Many rows are sent in few transfers, in order, and arrive once, even if they are
// published again, as after an unknown outcome.
func TestWire_BatchesAndCopies(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	var transfers atomic.Int64
	peer.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
		transfers.Add(1)
		return fakeservicebus.Fault{}
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

// The relay's error follows the broker's answer, whatever the SDK makes of it.
func TestWire_ErrorsOfTheBroker(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault fakeservicebus.Fault
		want  func(error) bool
	}{
		"not allowed":         {reject(fakeservicebus.NotAllowed), isRejected(false)},
		"a condition unknown": {reject("com.example:unheard-of"), isRejected(false)},
		"too large":           {reject(fakeservicebus.MessageSizeExceeded), isRejected(true)},
		"full":                {reject(fakeservicebus.LimitExceeded), isOutageOf(wireTopic)},
		"disabled":            {reject(fakeservicebus.EntityDisabled), isOutageOf(wireTopic)},
		"throttled":           {reject(fakeservicebus.ServerBusy), isOutageOf(wireTopic)},
		"released":            {fakeservicebus.Fault{Effect: fakeservicebus.Release}, isUncertain},
		"modified":            {fakeservicebus.Fault{Effect: fakeservicebus.Modify}, isUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			peer := namespaceOnWire(t, nil)
			publisher := publisherOnWire(t, peer, nil)
			peer.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault { return test.fault }})
			for i, err := range publish(t, publisher, onTopic(wireTopic, 2)) {
				if !test.want(err) {
					t.Errorf("message %d: %v", i, err)
				}
			}
			if depth := peer.Depth(wireWorker); depth != 0 {
				t.Errorf("%d messages are there", depth)
			}
			peer.SetHooks(fakeservicebus.Hooks{})
			published(t, publish(t, publisher, onTopic(wireTopic, 2)))
		})
	}
}

func reject(condition string) fakeservicebus.Fault {
	return fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: condition, Description: "says the broker"}
}

// One rejected message does not hold back the others of its batch.
func TestWire_OneRefusedAmongMany(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	peer.SetHooks(fakeservicebus.Hooks{OnSend: func(_ string, ids []string) fakeservicebus.Fault {
		if slices.Contains(ids, "row-1/1") {
			return reject(fakeservicebus.NotAllowed)
		}
		return fakeservicebus.Fault{}
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

// A missing topic is out of service; the other topics are not.
func TestWire_AMissingTopic(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	publisher := publisherOnWire(t, peer, nil)
	outcomes := publish(t, publisher, append(onTopic("global-bus-p1", 1), onTopic(wireTopic, 1)...))
	if !isOutageOf("global-bus-p1")(outcomes[0]) || outcomes[1] != nil {
		t.Errorf("%v", outcomes)
	}
	if err := peer.AddTopic(fakeservicebus.Topic{Name: "global-bus-p1"}); err != nil {
		t.Fatal(err)
	}
	published(t, publish(t, publisher, onTopic("global-bus-p1", 1)))
}

// A topic that refuses or closes its link with an error that the SDK takes for a lost connection
// is out of service alone: the other topics are not.
func TestWire_ATopicThatRefusesItsLink(t *testing.T) {
	t.Parallel()
	const sick = "global-bus-p1"
	for _, condition := range []string{fakeservicebus.InternalError, "com.example:unheard-of"} {
		for name, hooks := range map[string]fakeservicebus.Hooks{
			"refuses": {OnAttach: func(address string) *fakeservicebus.Refusal {
				if !strings.HasPrefix(address, sick) {
					return nil
				}
				return &fakeservicebus.Refusal{Condition: condition, Description: "says the broker"}
			}},
			"closes": {OnSend: func(topic string, _ []string) fakeservicebus.Fault {
				if topic != sick {
					return fakeservicebus.Fault{}
				}
				return fakeservicebus.Fault{Effect: fakeservicebus.Detach, Condition: condition, Description: "says the broker"}
			}},
		} {
			t.Run(name+" "+condition, func(t *testing.T) {
				t.Parallel()
				peer := namespaceOnWire(t, func(cfg *fakeservicebus.Config) {
					cfg.Topics = append(cfg.Topics, fakeservicebus.Topic{Name: sick})
				})
				publisher := publisherOnWire(t, peer, nil)
				peer.SetHooks(hooks)
				for range 2 {
					outcomes := publish(t, publisher, append(onTopic(sick, 1), onTopic(wireTopic, 1)...))
					if !isOutageOf(sick)(outcomes[0]) || outcomes[1] != nil {
						t.Errorf("%v", outcomes)
					}
				}
				peer.SetHooks(fakeservicebus.Hooks{})
				published(t, publish(t, publisher, onTopic(sick, 1)))
			})
		}
	}
}

// A right is taken away while a link is open: its topic is out of service until it is back,
// and the error says which right the server needs.
func TestWire_ARightThatIsTakenAway(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	publisher := publisherOnWire(t, peer, nil)
	published(t, publish(t, publisher, onTopic(wireTopic, 1)))
	refusal := fakeservicebus.Refusal{Condition: fakeservicebus.UnauthorizedAccess, Description: "'Send' claim(s) are required"}
	peer.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
		return fakeservicebus.Fault{Effect: fakeservicebus.Reject, Condition: refusal.Condition, Description: refusal.Description}
	}})
	err := publish(t, publisher, onTopic(wireTopic, 1))[0]
	if !isOutageOf(wireTopic)(err) || !strings.Contains(err.Error(), "access is denied (it needs the right Send,") ||
		!strings.Contains(err.Error(), refusal.Description) {
		t.Errorf("%v", err)
	}
	peer.SetHooks(fakeservicebus.Hooks{})
	published(t, publish(t, publisher, onTopic(wireTopic, 1)))
}

// A topic may close an open link for a reason that lasts: it was disabled or deleted, is full,
// or the right to send was taken away. Once the reason is gone, messages are sent again.
func TestWire_ALinkThatIsClosedForAReason(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{
		fakeservicebus.UnauthorizedAccess, fakeservicebus.NotFound, fakeservicebus.EntityDisabled, fakeservicebus.LimitExceeded,
		fakeservicebus.NotAllowed, fakeservicebus.MessageSizeExceeded, fakeservicebus.DetachForced,
	} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			peer := namespaceOnWire(t, nil)
			publisher := publisherOnWire(t, peer, nil)
			for _, n := range []int{1, 3} { // alone, and in a batch
				published(t, publish(t, publisher, onTopic(wireTopic, n)))
				peer.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
					return fakeservicebus.Fault{Effect: fakeservicebus.Detach, Condition: condition, Description: "Disabled."}
				}})
				if outcomes := publish(t, publisher, onTopic(wireTopic, n)); slices.Contains(outcomes, nil) {
					t.Errorf("%d while the topic closes the link: %v", n, outcomes)
				}
				peer.SetHooks(fakeservicebus.Hooks{})
				published(t, publish(t, publisher, onTopic(wireTopic, n)))
			}
		})
	}
}

// withoutToken is a credential that gets no token.
type withoutToken struct{}

func (withoutToken) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{}, noTokenError{}
}

// Without a token nothing can be sent to any topic: the bus is out of service.
func TestWire_ACredentialThatGetsNoToken(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	namespace := overWebSockets(t, peer).namespace
	_, host, _ := strings.Cut(namespace.Connection, "Endpoint=sb://")
	namespace.Host, _, _ = strings.Cut(host, "/;")
	namespace.Connection, namespace.Credential = "", withoutToken{}
	publisher := publisherOnWire(t, peer, func(cfg *servicebus.PublisherConfig) { cfg.Namespace = namespace })
	err := publish(t, publisher, onTopic(wireTopic, 1))[0]
	if !isOutageOf("")(err) || !strings.Contains(err.Error(), "the credential gets no token: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

func TestWire_ARefusedCredential(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	peer.SetHooks(fakeservicebus.Hooks{OnToken: func(string) *fakeservicebus.Refusal { return &fakeservicebus.Refusal{Description: "no"} }})
	publisher := publisherOnWire(t, peer, nil)
	if err := publish(t, publisher, onTopic(wireTopic, 1))[0]; !isOutageOf(wireTopic)(err) {
		t.Errorf("%v", err)
	}
	peer.SetHooks(fakeservicebus.Hooks{})
	published(t, publish(t, publisher, onTopic(wireTopic, 1)))
}

// A lost confirmation makes the SDK resend; the topic drops the copy.
func TestWire_AConfirmationThatIsLost(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	var sends atomic.Int64
	peer.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
		if sends.Add(1) == 1 {
			return fakeservicebus.Fault{Effect: fakeservicebus.DropAfter}
		}
		return fakeservicebus.Fault{}
	}})
	published(t, publish(t, publisherOnWire(t, peer, nil), onTopic(wireTopic, 3)))
	if depth := peer.Depth(wireWorker); depth != 3 || peer.Duplicates() != 3 {
		t.Errorf("%d messages are there, %d copies dropped", depth, peer.Duplicates())
	}
}

// The publisher reconnects to a restarted broker; sends in between fail with an
// outage of the whole bus.
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

// A broker that never answers costs each send its timeout; after several the topic
// counts as out of service. It is used again as soon as it answers.
func TestWire_ABrokerThatIsSilent(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	publisher := publisherOnWire(t, peer, func(cfg *servicebus.PublisherConfig) {
		cfg.SendTimeout, cfg.Grace, cfg.Patience = waittest.Scale(time.Second), waittest.Scale(10*time.Second), 3
	})
	sent := func() bool { return publish(t, publisher, onTopic(wireTopic, 1))[0] == nil }
	waittest.Until(t, "the link is open", sent)
	peer.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
		return fakeservicebus.Fault{Effect: fakeservicebus.Silence}
	}})
	for try := range 4 {
		err := publish(t, publisher, onTopic(wireTopic, 1))[0]
		if want := map[bool]func(error) bool{true: isUncertain, false: isOutageOf(wireTopic)}[try < 2]; !want(err) {
			t.Errorf("try %d: %v", try, err)
		}
	}
	peer.SetHooks(fakeservicebus.Hooks{})
	waittest.Until(t, "the topic is used again", sent)
	if depth := peer.Depth(wireWorker); depth != 1 || publisher.Stuck() != 0 {
		t.Errorf("%d messages are there, %d sends are stuck", depth, publisher.Stuck())
	}
}

// Sends survive links that the broker closes, as it does with idle ones and for
// upgrades.
func TestWire_LinksThatAreClosed(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	publisher := publisherOnWire(t, peer, nil)
	for range 3 {
		published(t, publish(t, publisher, onTopic(wireTopic, 1)))
		peer.Cut()
	}
	var sends atomic.Int64
	peer.SetHooks(fakeservicebus.Hooks{OnSend: func(string, []string) fakeservicebus.Fault {
		if sends.Add(1)%2 == 1 {
			return fakeservicebus.Fault{Effect: fakeservicebus.Detach, Condition: fakeservicebus.DetachForced}
		}
		return fakeservicebus.Fault{}
	}})
	published(t, publish(t, publisher, onTopic(wireTopic, 1)))
}

// A message above the topic's limit is rejected permanently, before it is sent.
func TestWire_ADirectiveThatIsTooLarge(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, func(cfg *fakeservicebus.Config) { cfg.MaxMessageSize = 2000 })
	messages := onTopic(wireTopic, 3)
	messages[1].Directive = make([]byte, 3000)
	outcomes := publish(t, publisherOnWire(t, peer, nil), messages)
	if outcomes[0] != nil || !isRejected(true)(outcomes[1]) || outcomes[2] != nil {
		t.Errorf("%v", outcomes)
	}
}

// A publish returns at its deadline whatever the bus does.
func TestWire_AContextThatHasEnded(t *testing.T) {
	t.Parallel()
	peer := namespaceOnWire(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := publisherOnWire(t, peer, nil).Publish(ctx, onTopic(wireTopic, 1))[0]; !isUncertain(err) {
		t.Errorf("%v", err)
	}
}

// isRejected matches a rejection of the message itself.
func isRejected(permanent bool) func(error) bool {
	return func(err error) bool {
		refused, ok := errors.AsType[*outbox.RejectedError](err)
		return ok && refused.Permanent == permanent
	}
}

// isOutageOf matches an outage of a topic, or of the whole bus if the name is empty.
func isOutageOf(entity string) func(error) bool {
	return func(err error) bool {
		outage, ok := errors.AsType[*outbox.OutageError](err)
		return ok && outage.Entity == entity
	}
}

func isUncertain(err error) bool { return errors.Is(err, outbox.ErrUncertain) }
