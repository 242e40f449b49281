package servicebus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"

	"github.com/lucius-project/lucius/internal/amqppeer"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// wireLedger is a use case that answers as it is told.
type wireLedger struct {
	mu     sync.Mutex
	answer func(kind string, id callbacks.Identity) error
	seen   []string
}

func (l *wireLedger) take(kind string, id callbacks.Identity) (callbacks.Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, kind+" "+id.StepID)
	if l.answer != nil {
		if err := l.answer(kind, id); err != nil {
			return callbacks.Answer{}, err
		}
	}
	return callbacks.Answer{Outcome: statemachine.Applied}, nil
}

func (l *wireLedger) Ack(_ context.Context, id callbacks.Identity, _ ...ledger.Option) (callbacks.Answer, error) {
	return l.take("ACK", id)
}

func (l *wireLedger) Heartbeat(_ context.Context, id callbacks.Identity, _ ...ledger.Option) (callbacks.Answer, error) {
	return l.take("HEARTBEAT", id)
}

func (l *wireLedger) Result(_ context.Context, id callbacks.Identity, _ callbacks.Report, _ ...ledger.Option) (callbacks.Answer, error) {
	return l.take("RESULT", id)
}

// answers sets what the use case says from now on.
func (l *wireLedger) answers(answer func(kind string, id callbacks.Identity) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = answer
}

// calls is how often the use case was called.
func (l *wireLedger) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.seen)
}

// wire is a consumer of replies on a namespace.
type wire struct {
	t          *testing.T
	peer       *amqppeer.Server
	ledger     *wireLedger
	deliveries chan servicebus.Delivery
	sender     *azservicebus.Sender
}

// replies starts a consumer on the namespace, which ends with the test.
func replies(t *testing.T, peer *amqppeer.Server) *wire {
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
		Namespace: servicebus.Namespace{Connection: connection}, Callbacks: w.ledger, Lanes: 1,
		Prefix: prefix, Subscription: subscription, MinDelay: 5 * time.Millisecond, MaxDelay: 50 * time.Millisecond,
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

// connect opens the way for what the test sends.
func (w *wire) connect(connection, topic string) {
	w.t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(connection, &azservicebus.ClientOptions{
		RetryOptions: azservicebus.RetryOptions{MaxRetries: 5, RetryDelay: 5 * time.Millisecond, MaxRetryDelay: 50 * time.Millisecond},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = client.Close(context.WithoutCancel(w.t.Context())) }) // The peer ends next.
	if w.sender, err = client.NewSender(topic, nil); err != nil {
		w.t.Fatal(err)
	}
}

// send sends a reply.
func (w *wire) send(body string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	if err := w.sender.SendMessage(ctx, &azservicebus.Message{Body: []byte(body)}, nil); err != nil {
		w.t.Fatal(err)
	}
}

// expect waits for the next delivery's end.
func (w *wire) expect(kind servicebus.ReplyType, outcome servicebus.DeliveryOutcome) {
	w.t.Helper()
	select {
	case d := <-w.deliveries:
		if d.Type != kind || d.Outcome != outcome {
			w.t.Errorf("a %s is %s, want a %s %s", d.Type, d.Outcome, kind, outcome)
		}
	case <-time.After(30 * time.Second):
		w.t.Fatalf("no delivery, want a %s %s", kind, outcome)
	}
}

// empty fails unless the subscription is empty, and so are its dead letters.
func (w *wire) empty() {
	w.t.Helper()
	for _, path := range []string{wireInvoker, wireInvoker + "/$DeadLetterQueue"} {
		for _, m := range w.peer.Messages(path) {
			w.t.Errorf("%s holds %s: %v", path, m.Body, m.Properties)
		}
	}
}

// replyBody is a reply of that type about a step.
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

// What nobody can read is put aside with its reason; what is stale is done with.
func TestWire_RepliesThatAreNotApplied(t *testing.T) {
	t.Parallel()
	w := replies(t, namespaceOnWire(t, nil))
	w.ledger.answers(func(_ string, id callbacks.Identity) error {
		return &problem.Error{Code: problem.Code(id.StepID), Detail: "says the ledger"}
	})
	for _, code := range []problem.Code{problem.StaleAttempt, problem.ContradictoryResult, problem.IllegalTransition} {
		w.send(replyBody("ACK", string(code)))
		w.expect(servicebus.ReplyAck, servicebus.ReplyRefused)
	}
	w.empty()
	for body, reason := range map[string]problem.Code{
		"{": problem.InvalidJSON, "[]": problem.InvalidEnvelope, `{"type":"MAYBE"}`: "unknown_type", `{"type":"ACK"}`: problem.InvalidEnvelope,
		replyBody("ACK", string(problem.JobNotFound)): problem.JobNotFound,
	} {
		w.send(body)
		select {
		case d := <-w.deliveries:
			if d.Outcome != servicebus.ReplyDeadLettered {
				t.Errorf("%s is %s", body, d.Outcome)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s is not delivered", body)
		}
		found := w.peer.Messages(wireInvoker + "/$DeadLetterQueue")
		last := found[len(found)-1]
		if string(last.Body) != body || last.Properties["DeadLetterReason"] != string(reason) {
			t.Errorf("%s is put aside for %v, want %s", body, last.Properties, reason)
		}
	}
}

// While the store is away replies are held, their locks renewed, and none is given
// up however long it takes.
func TestWire_RepliesWaitForTheStore(t *testing.T) {
	t.Parallel()
	w := replies(t, namespaceOnWire(t, func(cfg *amqppeer.Config) { cfg.LockDuration, cfg.MaxDeliveries = 2*time.Second, 1 }))
	w.ledger.answers(func(string, callbacks.Identity) error { return &problem.Error{Code: problem.StoreUnavailable} })
	w.send(replyBody("RESULT", "s"))
	time.Sleep(5 * time.Second) // Longer than two locks hold.
	w.ledger.answers(nil)
	w.expect(servicebus.ReplyResult, servicebus.ReplyApplied)
	w.empty()
}

// A lock that is lost while the ledger works makes the reply come again, and that
// is all.
func TestWire_ALockThatIsLost(t *testing.T) {
	t.Parallel()
	w := replies(t, namespaceOnWire(t, nil))
	w.ledger.answers(func(string, callbacks.Identity) error {
		w.peer.ExpireLocks(wireInvoker)
		return nil
	})
	w.send(replyBody("ACK", "s"))
	w.expect(servicebus.ReplyAck, servicebus.ReplyLockLost)
	w.ledger.answers(nil)
	for range 100 { // It may have come again before.
		select {
		case d := <-w.deliveries:
			if d.Outcome == servicebus.ReplyApplied {
				w.empty()
				return
			}
		case <-time.After(30 * time.Second):
			t.Fatal("it does not come again")
		}
	}
	t.Error("it is never applied")
}

// The consumer goes on after the broker was away, and after its connection was cut.
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
