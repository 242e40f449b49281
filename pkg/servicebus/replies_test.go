package servicebus_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/servicebus"
)

// repliesConfig returns a complete configuration.
func repliesConfig() servicebus.RepliesConfig {
	return servicebus.RepliesConfig{
		ReplyTopics: servicebus.ReplyTopics{Namespace: namespace(), Prefix: "replies-", Subscription: "lucius", Lanes: 1},
		Apply:       new(useCase).Apply,
	}
}

// onLedger returns the use case on a ledger with a job whose step was dispatched.
func onLedger(t *testing.T) (*callbacks.Service, map[string]any) {
	t.Helper()
	l := ledgertest.Publishing(t, ledger.Config{})
	l.Submit(ledgertest.Command("tenant_a", "h"))
	m := l.Handoff.Last()
	return callbacks.New(callbacks.Config{Ledger: l.Ledger}), map[string]any{
		"jobId": m.JobID, "stepId": m.StepID, "attempt_no": m.AttemptNo, "lease_id": m.LeaseID,
	}
}

// with returns the fields with one replaced.
func with(fields map[string]any, name string, value any) map[string]any {
	changed := maps.Clone(fields)
	changed[name] = value
	return changed
}

// The replies of one step, in sequence, on a ledger.
func TestReplies_OnALedger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		to, fields := onLedger(t)
		from := newTopic(
			ack(with(fields, "lease_id", "guessed")), ack(with(fields, "jobId", "gone")), ack(with(fields, "stepId", "gone")),
			ack(with(fields, "tenant_id", "tenant_b")), ack(fields), ack(fields), ack(with(fields, "type", "HEARTBEAT")),
			result("SUCCEEDED", fields), result("SUCCEEDED", fields), result("FAILED_FINAL", fields), ack(with(fields, "type", "HEARTBEAT")),
		)
		c := consume(t, from, to, func(cfg *servicebus.RepliesConfig) { cfg.InHand = 1 })
		pass(time.Minute)
		var got []string
		for _, d := range c.deliveries() {
			got = append(got, string(d.Type)+" "+string(d.Outcome))
		}
		want := []string{
			"ACK refused", "ACK dead_lettered", "ACK dead_lettered", "ACK dead_lettered", "ACK applied", "ACK duplicate", "HEARTBEAT applied",
			"RESULT applied", "RESULT duplicate", "RESULT refused", "HEARTBEAT refused",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("deliveries (-want +got):\n%s", diff)
		}
		settled := "complete m0, dead-letter m1, dead-letter m2, dead-letter m3, complete m4, complete m5, " +
			"complete m6, complete m7, complete m8, complete m9, complete m10"
		if diff := cmp.Diff(settled, from.done()); diff != "" {
			t.Errorf("settled (-want +got):\n%s", diff)
		}
	})
}

// A reply is applied in the context of its sender, and is timed until it is settled.
func TestReplies_NameTheirSenders(t *testing.T) {
	t.Parallel()
	for name, properties := range map[string]map[string]any{
		"00-a": {"traceparent": "00-a", "Diagnostic-Id": "00-b"}, "00-b": {"Diagnostic-Id": "00-b", "traceparent": 1}, "": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				type sender struct{}
				from := newTopic()
				from.replies = make(chan *azservicebus.ReceivedMessage, 1)
				from.replies <- &azservicebus.ReceivedMessage{MessageID: "m0", Body: []byte(ack(nil)), ApplicationProperties: properties}
				to := &useCase{answer: func(ctx context.Context, _ int) (callbacks.Answer, error) {
					if got := ctx.Value(sender{}); got != name {
						t.Errorf("the sender is %q, want %q", got, name)
					}
					time.Sleep(time.Second)
					return callbacks.Answer{}, nil
				}}
				c := consume(t, from, to, func(cfg *servicebus.RepliesConfig) {
					cfg.Received = func(ctx context.Context, at string) context.Context { return context.WithValue(ctx, sender{}, at) }
				})
				pass(time.Minute)
				want := []servicebus.Delivery{{Type: servicebus.ReplyAck, Outcome: servicebus.ReplyApplied}}
				if diff := cmp.Diff(want, c.deliveries()); diff != "" || c.took[0] != time.Second {
					t.Errorf("took %s; deliveries (-want +got):\n%s", c.took, diff)
				}
			})
		})
	}
}

// Each lane has its reply topic, and a broken one does not block the others.
func TestReplies_ReadsATopicForEachLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := repliesConfig()
		cfg.Prefix, cfg.Lanes = "global-bus-replies-p", 12
		var mu sync.Mutex
		topics := map[string]*topic{}
		replies, err := servicebus.WithReceivers(cfg, func(name string) (servicebus.Receiver, error) {
			mu.Lock()
			defer mu.Unlock()
			if strings.HasSuffix(name, "p3") || strings.HasSuffix(name, "p10") {
				return nil, errors.New("closed")
			}
			topics[name] = newTopic(ack(nil))
			return topics[name], nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(replies.Down()) != 0 {
			t.Errorf("down %v before Run", replies.Down())
		}
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- replies.Run(ctx) }()
		pass(time.Minute)
		want := []callbacks.UnreadTopic{{Topic: "global-bus-replies-p3", Reason: "closed"}, {Topic: "global-bus-replies-p10", Reason: "closed"}}
		if diff := cmp.Diff(want, replies.Down()); diff != "" {
			t.Errorf("down, by lane (-want +got):\n%s", diff)
		}
		mu.Lock()
		var read []string
		for name, from := range topics {
			if from.done() == "complete m0" {
				read = append(read, name)
			}
		}
		mu.Unlock()
		slices.Sort(read)
		if len(read) != 10 || read[0] != "global-bus-replies-p0" || slices.Contains(read, "global-bus-replies-p12") {
			t.Errorf("read %v, want the other ten lanes", read)
		}
		stop()
		if err := <-over; err != nil {
			t.Errorf("Run: %v, want nothing: topics that cannot be read are no error", err)
		}
	})
}

func TestReplies_AStopBeforeTheBeginning(t *testing.T) {
	t.Parallel()
	replies, err := servicebus.NewReplies(repliesConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := replies.Run(ctx); err != nil || len(replies.Down()) != 0 {
		t.Errorf("%v, down %v", err, replies.Down())
	}
}

func TestNewReplies_NamesTheInvalidField(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		change func(*servicebus.RepliesConfig)
		want   string
	}{
		{func(c *servicebus.RepliesConfig) { c.Namespace.Host = "example.test" }, "Namespace needs Connection or Host"},
		{func(c *servicebus.RepliesConfig) { c.Apply = nil }, "Apply is required"},
		{func(c *servicebus.RepliesConfig) { c.Prefix = "" }, "Prefix is required"},
		{func(c *servicebus.RepliesConfig) { c.Subscription = "" }, "Subscription is required"},
		{func(c *servicebus.RepliesConfig) { c.Lanes = 0 }, "Lanes must be at least 1, is 0"},
		{func(c *servicebus.RepliesConfig) { c.InHand = -1 }, "InHand must not be negative"},
		{func(c *servicebus.RepliesConfig) { c.MinDelay = -1 }, "MinDelay must not be negative"},
		{func(c *servicebus.RepliesConfig) { c.MaxDelay = -1 }, "MaxDelay must not be negative"},
		{func(c *servicebus.RepliesConfig) { c.Tries = -1 }, "Tries must not be negative"},
		{func(c *servicebus.RepliesConfig) { c.MaxBytes = -1 }, "MaxBytes must not be negative"},
		{func(c *servicebus.RepliesConfig) { c.Namespace.Connection = "Endpoint=sb://example.test" }, "Namespace.Connection cannot be used"},
	} {
		t.Run(test.want, func(t *testing.T) {
			t.Parallel()
			cfg := repliesConfig()
			test.change(&cfg)
			_, err := servicebus.NewReplies(cfg)
			if err == nil || !strings.Contains(err.Error(), "servicebus replies: "+test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
