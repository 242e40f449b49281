package servicebus_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/servicebus"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// key is the secret of the namespace.
var key = base64.StdEncoding.EncodeToString([]byte("must stay secret"))

// namespace is a namespace to which no test connects.
func namespace() servicebus.Namespace {
	return servicebus.Namespace{
		Connection: "Endpoint=sb://example.servicebus.windows.net/;SharedAccessKeyName=lucius;SharedAccessKey=" + key,
	}
}

// directive is a message to a topic.
func directive(topic, outboxID string) ledger.Message {
	return ledger.Message{
		Target: statemachine.Target{TenantID: "tenant_a", Service: "ocr"}, OutboxID: outboxID, Topic: topic, AttemptNo: 2, JobID: "job",
		StepType: "OCR", Directive: []byte(`{"type":"DIRECTIVE"}`),
	}
}

// ack returns the body of a reply with some fields replaced, or left out if nil.
func ack(replaced map[string]any) string {
	fields := map[string]any{
		"type": "ACK", "jobId": "job", "stepId": "step", "tenant_id": "tenant_a", "attempt_no": 1,
		"lease_id": "lease", "timestamp": "2026-01-27T10:02:00.000Z",
	}
	maps.Copy(fields, replaced)
	maps.DeleteFunc(fields, func(_ string, value any) bool { return value == nil })
	body, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return string(body)
}

// applier applies replies.
type applier interface {
	Apply(ctx context.Context, callback callbacks.Callback) (callbacks.Answer, error)
}

// useCase gives the answers of a script and records its calls.
type useCase struct {
	// answer answers the n-th call, from 0. Optional. Defaults to applied.
	answer func(ctx context.Context, n int) (callbacks.Answer, error)

	mu    sync.Mutex
	calls []callbacks.Callback
}

func (u *useCase) Apply(ctx context.Context, c callbacks.Callback) (callbacks.Answer, error) {
	u.mu.Lock()
	n := len(u.calls)
	u.calls = append(u.calls, c)
	u.mu.Unlock()
	if u.answer == nil {
		return callbacks.Answer{}, nil
	}
	return u.answer(ctx, n)
}

// topic is a reply topic's subscription, in memory.
type topic struct {
	replies chan *azservicebus.ReceivedMessage
	lock    time.Duration // of a message, from its delivery or renewal
	// receive replaces ReceiveMessages. Optional.
	receive func(ctx context.Context) ([]*azservicebus.ReceivedMessage, error)
	// fail is the error of a verb on a message: complete, abandon, dead-letter or
	// renew. Optional.
	fail func(ctx context.Context, verb string) error

	mu     sync.Mutex
	log    []string // the verbs on messages
	asked  []int    // the message counts asked for
	reason azservicebus.DeadLetterOptions
}

// newTopic returns a topic with these replies, whose ids are m0, m1 and so on.
func newTopic(bodies ...string) *topic {
	f := &topic{replies: make(chan *azservicebus.ReceivedMessage, len(bodies)), lock: time.Minute}
	for i, body := range bodies {
		f.replies <- &azservicebus.ReceivedMessage{MessageID: fmt.Sprintf("m%d", i), Body: []byte(body)}
	}
	return f
}

func (f *topic) ReceiveMessages(
	ctx context.Context, n int, _ *azservicebus.ReceiveMessagesOptions,
) ([]*azservicebus.ReceivedMessage, error) {
	f.mu.Lock()
	f.asked = append(f.asked, n)
	f.mu.Unlock()
	if f.receive != nil {
		return f.receive(ctx)
	}
	select {
	case m := <-f.replies:
		m.LockedUntil = new(time.Now().Add(f.lock))
		return []*azservicebus.ReceivedMessage{m}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *topic) CompleteMessage(
	ctx context.Context, m *azservicebus.ReceivedMessage, _ *azservicebus.CompleteMessageOptions,
) error {
	return f.did(ctx, "complete", m)
}

func (f *topic) AbandonMessage(
	ctx context.Context, m *azservicebus.ReceivedMessage, _ *azservicebus.AbandonMessageOptions,
) error {
	return f.did(ctx, "abandon", m)
}

func (f *topic) DeadLetterMessage(
	ctx context.Context, m *azservicebus.ReceivedMessage, options *azservicebus.DeadLetterOptions,
) error {
	f.mu.Lock()
	f.reason = *options
	f.mu.Unlock()
	return f.did(ctx, "dead-letter", m)
}

func (f *topic) RenewMessageLock(
	ctx context.Context, m *azservicebus.ReceivedMessage, _ *azservicebus.RenewMessageLockOptions,
) error {
	err := f.did(ctx, "renew", m)
	if err == nil {
		m.LockedUntil = new(time.Now().Add(f.lock))
	}
	return err
}

func (f *topic) Close(context.Context) error { return nil }

func (f *topic) did(ctx context.Context, verb string, m *azservicebus.ReceivedMessage) error {
	f.mu.Lock()
	f.log = append(f.log, verb+" "+m.MessageID)
	f.mu.Unlock()
	if f.fail != nil {
		if err := f.fail(ctx, verb); err != nil {
			return err
		}
	}
	if m.LockedUntil != nil && time.Now().After(*m.LockedUntil) {
		return coded(azservicebus.CodeLockLost)
	}
	return nil
}

// done returns the verbs on messages, except renewals of locks.
func (f *topic) done() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var settled []string
	for _, entry := range f.log {
		if !strings.HasPrefix(entry, "renew") {
			settled = append(settled, entry)
		}
	}
	return strings.Join(settled, ", ")
}

// renewals returns how often a lock was renewed.
func (f *topic) renewals() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, entry := range f.log {
		if strings.HasPrefix(entry, "renew") {
			n++
		}
	}
	return n
}

// consumer is a running consumer of one topic.
type consumer struct {
	*servicebus.Replies
	stop context.CancelFunc // of the context that it runs in
	over chan struct{}      // closed when it has returned

	mu        sync.Mutex
	delivered []servicebus.Delivery // without their times
	took      []time.Duration
}

// consume runs a consumer in the test's bubble and stops it when the test ends.
func consume(t *testing.T, from *topic, to applier, change ...func(*servicebus.RepliesConfig)) *consumer {
	t.Helper()
	c := &consumer{over: make(chan struct{})}
	cfg := servicebus.RepliesConfig{
		ReplyTopics: servicebus.ReplyTopics{Namespace: namespace(), Prefix: "replies-", Subscription: "lucius", Lanes: 1}, Apply: to.Apply,
		Random: func() float64 { return 0.5 },
		Observe: func(d servicebus.Delivery) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.took = append(c.took, d.Took)
			d.Took = 0
			c.delivered = append(c.delivered, d)
		},
	}
	for _, set := range change {
		set(&cfg)
	}
	replies, err := servicebus.WithReceivers(cfg, func(string) (servicebus.Receiver, error) { return from, nil })
	if err != nil {
		t.Fatal(err)
	}
	c.Replies = replies
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	go func() {
		defer close(c.over)
		if err := replies.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	t.Cleanup(func() {
		stop()
		<-c.over
	})
	return c
}

// deliveries returns the deliveries observed so far.
func (c *consumer) deliveries() []servicebus.Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]servicebus.Delivery(nil), c.delivered...)
}

// deliver runs one delivery, and returns its outcome and the topic, which recorded
// the verbs on it.
func deliver(
	t *testing.T, body string, to applier, change ...func(*servicebus.RepliesConfig),
) (d servicebus.Delivery, from *topic) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		from = newTopic(body)
		c := consume(t, from, to, change...)
		synctest.Wait()
		all := c.deliveries()
		if len(all) != 1 {
			t.Fatalf("%d deliveries came to an end, want 1", len(all))
		}
		d = all[0]
	})
	return d, from
}

// pass advances the time of the test's bubble and waits for all that became due.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
