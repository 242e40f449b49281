package servicebus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// wireLedger is a use case with a configurable answer.
type wireLedger struct {
	mu     sync.Mutex
	answer func(c callbacks.Callback) error
	called int
}

func (l *wireLedger) apply(_ context.Context, c callbacks.Callback) (callbacks.Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.called++
	if l.answer != nil {
		if err := l.answer(c); err != nil {
			return callbacks.Answer{}, err
		}
	}
	return callbacks.Answer{Outcome: statemachine.Applied}, nil
}

// answers sets the answer from now on.
func (l *wireLedger) answers(answer func(c callbacks.Callback) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = answer
}

// calls returns how often the use case was called.
func (l *wireLedger) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.called
}

// wire is a consumer of replies on a namespace.
type wire struct {
	t          *testing.T
	peer       *fakeservicebus.Server
	ledger     *wireLedger
	deliveries chan servicebus.Delivery
	sender     *azservicebus.Sender
}

// replies starts a consumer on the namespace and stops it when the test ends.
func replies(t *testing.T, peer *fakeservicebus.Server) *wire {
	t.Helper()
	w := &wire{t: t, peer: peer, ledger: &wireLedger{}, deliveries: make(chan servicebus.Delivery, 100)}
	w.consume(peer.ConnectionString(), strings.TrimSuffix(wireReplies, "0"), "lucius-invoker")
	w.connect(peer.ConnectionString(), wireReplies)
	return w
}

// consume runs the consumer until the test ends.
func (w *wire) consume(connection, prefix, subscription string) {
	w.t.Helper()
	consumer, err := servicebus.NewReplies(servicebus.RepliesConfig{
		ReplyTopics: servicebus.ReplyTopics{
			Namespace: servicebus.Namespace{Connection: connection}, Lanes: 1, Prefix: prefix, Subscription: subscription,
		},
		Apply: w.ledger.apply, MinDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond,
		Observe: func(d servicebus.Delivery) { w.deliveries <- d },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- consumer.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("replies: %v", err)
		}
	})
}

// connect opens the sender of the test's replies.
func (w *wire) connect(connection, topic string) {
	w.t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(connection, &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: 5, RetryDelay: 5 * time.Millisecond, MaxRetryDelay: 50 * time.Millisecond},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = client.Close(context.WithoutCancel(w.t.Context())) }) // The broker stops next.
	if w.sender, err = client.NewSender(topic, nil); err != nil {
		w.t.Fatal(err)
	}
}

// send sends a reply.
func (w *wire) send(body string) {
	w.t.Helper()
	if err := w.sender.SendMessage(waittest.Context(w.t), &azservicebus.Message{Body: []byte(body)}, nil); err != nil {
		w.t.Fatal(err)
	}
}

// expect waits for the next delivery and compares its outcome.
func (w *wire) expect(kind servicebus.ReplyType, outcome servicebus.DeliveryOutcome) {
	w.t.Helper()
	d := waittest.Receive(w.t, fmt.Sprintf("a %s is %s", kind, outcome), w.deliveries)
	if d.Type != kind || d.Outcome != outcome {
		w.t.Errorf("a %s is %s, want a %s %s", d.Type, d.Outcome, kind, outcome)
	}
}

// empty fails unless the subscription and its dead-letter queue are empty.
func (w *wire) empty() {
	w.t.Helper()
	for _, path := range []string{wireInvoker, wireInvoker + "/$DeadLetterQueue"} {
		for _, m := range w.peer.Messages(path) {
			w.t.Errorf("%s holds %s: %v", path, m.Body, m.Properties)
		}
	}
}

// replyBody returns a reply of that type about a step.
func replyBody(kind, step string) string {
	body, _ := json.Marshal(map[string]any{
		"type": kind, "jobId": "job", "stepId": step, "tenant_id": "tenant_a", "attempt_no": 1, "lease_id": "lease",
		"timestamp": "2026-01-01T00:00:00Z", "status": map[bool]any{true: "SUCCEEDED"}[kind == "RESULT"],
	})
	return strings.Replace(string(body), `"status":null,`, "", 1)
}

func TestWire_RepliesAreSettledOnceTheLedgerHasThem(t *testing.T) {
	t.Parallel()
	w := replies(t, namespaceOnWire(t, nil))
	for _, kind := range []servicebus.ReplyType{servicebus.ReplyAck, servicebus.ReplyHeartbeat, servicebus.ReplyResult} {
		w.send(replyBody(string(kind), "s"))
		w.expect(kind, servicebus.ReplyApplied)
	}
	w.empty()
}

// The body of a reply may be text, as JMS clients send it, or data in several sections.
func TestWire_RepliesWithOtherBodies(t *testing.T) {
	t.Parallel()
	w := replies(t, namespaceOnWire(t, nil))
	text := replyBody("ACK", "s")
	for body, outcome := range map[*azservicebus.AMQPAnnotatedMessageBody]servicebus.DeliveryOutcome{
		{Value: text}: servicebus.ReplyApplied,
		{Data: [][]byte{[]byte(text[:9]), []byte(text[9:])}}: servicebus.ReplyApplied,
		{Value: int64(1)}: servicebus.ReplyDeadLettered,
	} {
		if err := w.sender.SendAMQPAnnotatedMessage(waittest.Context(t), &azservicebus.AMQPAnnotatedMessage{Body: *body}, nil); err != nil {
			t.Fatal(err)
		}
		if d := waittest.Receive(t, "the delivery", w.deliveries); d.Outcome != outcome {
			t.Errorf("%+v is %s, want %s", body, d.Outcome, outcome)
		}
	}
}

// An unreadable reply is dead-lettered with its reason; a stale one is completed.
func TestWire_RepliesThatAreNotApplied(t *testing.T) {
	t.Parallel()
	w := replies(t, namespaceOnWire(t, nil))
	w.ledger.answers(func(c callbacks.Callback) error {
		return &apierror.Error{Code: apierror.Code(c.StepID), Detail: "says the ledger"}
	})
	for _, code := range []apierror.Code{apierror.StaleAttempt, apierror.ContradictoryResult, apierror.IllegalTransition} {
		w.send(replyBody("ACK", string(code)))
		w.expect(servicebus.ReplyAck, servicebus.ReplyRefused)
	}
	w.empty()
	for body, reason := range map[string]apierror.Code{
		"{": apierror.InvalidJSON, "[]": apierror.InvalidEnvelope, `{"type":"MAYBE"}`: "unknown_type", `{"type":"ACK"}`: apierror.InvalidEnvelope,
		replyBody("ACK", string(apierror.JobNotFound)): apierror.JobNotFound,
	} {
		w.send(body)
		if d := waittest.Receive(t, "the delivery of "+body, w.deliveries); d.Outcome != servicebus.ReplyDeadLettered {
			t.Errorf("%s is %s", body, d.Outcome)
		}
		found := w.peer.Messages(wireInvoker + "/$DeadLetterQueue")
		last := found[len(found)-1]
		if string(last.Body) != body || last.Properties["DeadLetterReason"] != string(reason) {
			t.Errorf("%s is dead-lettered for %v, want %s", body, last.Properties, reason)
		}
	}
}

// During an outage of the store replies are held and their locks renewed, however
// long it lasts.
func TestWire_RepliesWaitForTheStore(t *testing.T) {
	t.Parallel()
	lock := waittest.Scale(10 * time.Second) // A stall of half of it loses the lock.
	w := replies(t, namespaceOnWire(t, func(cfg *fakeservicebus.Config) { cfg.LockDuration, cfg.MaxDeliveries = lock, 1 }))
	w.ledger.answers(func(callbacks.Callback) error { return &apierror.Error{Code: apierror.StoreUnavailable} })
	w.send(replyBody("RESULT", "s"))
	waittest.Until(t, "the reply is in hand", func() bool { return w.ledger.calls() > 0 })
	first := w.peer.Messages(wireInvoker)[0].LockedUntil
	waittest.Until(t, "the lock is renewed twice", func() bool {
		return w.peer.Messages(wireInvoker)[0].LockedUntil.Sub(first) > lock*3/4
	})
	w.ledger.answers(nil)
	w.expect(servicebus.ReplyResult, servicebus.ReplyApplied)
	w.empty()
}

// The SDK panics on a message whose DeadLetterReason is no text. The bus dead-letters it after
// some deliveries, and the replies that were received with it are applied before that.
func TestWire_RepliesReceivedWithOneThatTheSDKCannotDecode(t *testing.T) {
	t.Parallel()
	for name, reason := range map[string]any{"a number": int64(1), "null": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := replies(t, namespaceOnWire(t, func(cfg *fakeservicebus.Config) { cfg.LockDuration = time.Hour }))
			batch, err := w.sender.NewMessageBatch(waittest.Context(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			const others = 4
			for n := range 1 + others {
				m := &azservicebus.Message{Body: []byte(replyBody("ACK", "s"))}
				if n == 0 {
					m.ApplicationProperties = map[string]any{"DeadLetterReason": reason}
				}
				if err := batch.AddMessage(m, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.sender.SendMessageBatch(waittest.Context(t), batch, nil); err != nil {
				t.Fatal(err)
			}
			allLocked := func() bool {
				held := w.peer.Messages(wireInvoker)
				return !slices.ContainsFunc(held, func(m fakeservicebus.Message) bool { return !m.Locked })
			}
			waittest.Until(t, "the others are applied", func() bool {
				if len(w.peer.Messages(wireInvoker)) > 1 && allLocked() {
					w.peer.ExpireLocks(wireInvoker)
				}
				return w.ledger.calls() >= others && len(w.peer.Messages(wireInvoker)) == 1
			})
			waittest.Until(t, "it is dead-lettered", func() bool { return w.peer.ExpireLocks(wireInvoker) == 0 && w.peer.Depth(wireInvoker) == 0 })
			dead := w.peer.Messages(wireInvoker + "/$DeadLetterQueue")
			if len(dead) != 1 || dead[0].Properties["DeadLetterReason"] != "MaxDeliveryCountExceeded" {
				t.Errorf("dead letters: %+v", dead)
			}
		})
	}
}

// If a lock is lost while the ledger works, the reply is redelivered and applied.
func TestWire_ALockThatIsLost(t *testing.T) {
	t.Parallel()
	w := replies(t, namespaceOnWire(t, nil))
	w.ledger.answers(func(callbacks.Callback) error {
		w.peer.ExpireLocks(wireInvoker)
		return nil
	})
	w.send(replyBody("ACK", "s"))
	w.expect(servicebus.ReplyAck, servicebus.ReplyLockLost)
	w.ledger.answers(nil)
	for range 100 { // The redelivery may have come already.
		if d := waittest.Receive(t, "the redelivery", w.deliveries); d.Outcome == servicebus.ReplyApplied {
			w.empty()
			return
		}
	}
	t.Error("it is never applied")
}

// The SDK keeps a link that the bus closed with an error that it takes for passing, and
// receives nothing more on it. The consumer opens another one, and settles by their locks the
// replies that the closed one delivered.
func TestWire_RepliesAfterTheBusClosedTheLink(t *testing.T) {
	t.Parallel()
	for _, condition := range []string{fakeservicebus.ServerBusy, fakeservicebus.Timeout, fakeservicebus.DetachForced} {
		t.Run(condition, func(t *testing.T) {
			t.Parallel()
			w := replies(t, namespaceOnWire(t, nil))
			w.ledger.answers(func(callbacks.Callback) error { return &apierror.Error{Code: apierror.StoreUnavailable} })
			w.send(replyBody("ACK", "s"))
			waittest.Until(t, "the reply is in hand", func() bool { return w.ledger.calls() > 0 })
			if w.peer.CloseReceivers(wireInvoker, fakeservicebus.Refusal{Condition: condition}) != 1 {
				t.Fatal("nothing receives from the topic")
			}
			w.send(replyBody("ACK", "other"))
			waittest.Until(t, "both are locked", func() bool {
				held := w.peer.Messages(wireInvoker)
				return len(held) == 2 && held[0].Locked && held[1].Locked
			})
			w.ledger.answers(nil)
			w.expect(servicebus.ReplyAck, servicebus.ReplyApplied)
			w.expect(servicebus.ReplyAck, servicebus.ReplyApplied)
			w.empty()
		})
	}
}

// The consumer recovers after a restart of the broker and after a cut connection.
func TestWire_RepliesAfterARestart(t *testing.T) {
	t.Parallel()
	w := replies(t, namespaceOnWire(t, nil))
	for round := range 3 {
		w.send(replyBody("ACK", fmt.Sprint("s", round)))
		w.expect(servicebus.ReplyAck, servicebus.ReplyApplied)
		w.peer.Stop()
		if err := w.peer.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	if w.ledger.calls() < 3 {
		t.Errorf("%d calls", w.ledger.calls())
	}
}

// A reply whose connection was cut while the ledger worked is settled by its lock, which
// lasts for long.
func TestWire_RepliesAreSettledAfterAnOutage(t *testing.T) {
	t.Parallel()
	for kind, want := range map[apierror.Code]servicebus.DeliveryOutcome{
		"": servicebus.ReplyApplied, apierror.StaleAttempt: servicebus.ReplyRefused, apierror.JobNotFound: servicebus.ReplyDeadLettered,
	} {
		t.Run(string(want), func(t *testing.T) {
			t.Parallel()
			w := replies(t, namespaceOnWire(t, func(cfg *fakeservicebus.Config) { cfg.LockDuration = time.Hour }))
			reached, release := make(chan struct{}, 10), make(chan struct{})
			w.ledger.answers(func(callbacks.Callback) error {
				reached <- struct{}{}
				<-release
				if kind != "" {
					return &apierror.Error{Code: kind}
				}
				return nil
			})
			w.send(replyBody("ACK", "s"))
			<-reached
			w.peer.Stop()
			if err := w.peer.Restart(); err != nil {
				t.Fatal(err)
			}
			close(release)
			w.expect(servicebus.ReplyAck, want)
			if left := w.peer.Messages(wireInvoker); len(left) > 0 {
				t.Errorf("it is left in the subscription: %+v", left)
			}
		})
	}
}

// Messages that the bus still delivers to a stopping consumer, which had requested them,
// are released at once: otherwise they would stay locked.
func TestWire_RepliesThatAStopDoesNotTakeAreGivenBack(t *testing.T) {
	t.Parallel()
	for range 3 { // Each lane hits the right moment by chance.
		t.Run("", func(t *testing.T) {
			t.Parallel()
			const lanes, each = 8, 200
			peer := namespaceOnWire(t, func(cfg *fakeservicebus.Config) {
				cfg.Topics, cfg.LockDuration = nil, time.Hour
				for n := range lanes {
					cfg.Topics = append(cfg.Topics, fakeservicebus.Topic{
						Name: fmt.Sprint("replies-", n), Subscriptions: []fakeservicebus.Subscription{{Name: "lucius"}},
					})
				}
			})
			w := &wire{t: t, peer: peer}
			for n := range lanes {
				w.connect(peer.ConnectionString(), fmt.Sprint("replies-", n))
				for range each {
					w.send(replyBody("ACK", "s"))
				}
			}
			applied := make(chan struct{}, lanes*each)
			consumer, err := servicebus.NewReplies(servicebus.RepliesConfig{
				ReplyTopics: servicebus.ReplyTopics{
					Namespace: servicebus.Namespace{Connection: peer.ConnectionString()}, Lanes: lanes, Prefix: "replies-", Subscription: "lucius",
				},
				Apply: (&wireLedger{}).apply, Observe: func(servicebus.Delivery) { applied <- struct{}{} },
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			stopped := make(chan error, 1)
			go func() { stopped <- consumer.Run(ctx) }()
			for range lanes * each / 4 {
				<-applied
			}
			stop()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			for n := range lanes {
				for _, m := range peer.Messages(fmt.Sprintf("replies-%d/Subscriptions/lucius", n)) {
					if m.Locked {
						t.Errorf("reply %d of lane %d is locked", m.SequenceNumber, n)
					}
				}
			}
		})
	}
}
