package busworker_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/busworker"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	worker  = "global-bus-p0/Subscriptions/ocr"
	replies = "global-bus-replies-p0/Subscriptions/lucius"
)

// bus is a namespace with one lane.
type bus struct {
	*fakeservicebus.Server
	t *testing.T
}

func newBus(t *testing.T) *bus {
	t.Helper()
	peer, err := fakeservicebus.Start(fakeservicebus.Config{Topics: []fakeservicebus.Topic{
		{Name: "global-bus-p0", Subscriptions: []fakeservicebus.Subscription{{Name: "ocr"}}},
		{Name: "global-bus-replies-p0", Subscriptions: []fakeservicebus.Subscription{{Name: "lucius"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Close)
	return &bus{peer, t}
}

// handlerOf returns a worker with the handler.
func handlerOf(handler lucius.Handler) *lucius.Worker {
	w := lucius.NewWorker(lucius.WorkerConfig{Log: slog.New(slog.DiscardHandler)})
	w.Handle(lucius.AnyStep, handler)
	return w
}

// work runs a worker until stop is called.
func (b *bus) work(change func(*busworker.Config)) (stop func()) {
	b.t.Helper()
	cfg := busworker.Config{
		Connection: b.ConnectionString(), Lanes: 1, Subscription: "ocr",
		Worker: handlerOf(func(context.Context, *lucius.Task) (any, error) { return lucius.URI("s3://out"), nil }),
	}
	if change != nil {
		change(&cfg)
	}
	w, err := busworker.New(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("worker: %v", err)
		}
	}
}

// send sends a directive, or whatever it is.
func (b *bus) send(body string) {
	b.t.Helper()
	client, err := azservicebus.NewClientFromConnectionString(b.ConnectionString(), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = client.Close(b.t.Context()) }() // The message is there.
	sender, err := client.NewSender("global-bus-p0", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := sender.SendMessage(b.t.Context(), &azservicebus.Message{Body: []byte(body)}, nil); err != nil {
		b.t.Fatal(err)
	}
}

// replied waits for so many replies and returns their types and the last one.
func (b *bus) replied(n int) (types string, last api.ResultCallback) {
	b.t.Helper()
	b.until(func() bool { return b.Depth(replies) >= n })
	for _, m := range b.Messages(replies) {
		last = api.ResultCallback{}
		if err := json.Unmarshal(m.Body, &last); err != nil {
			b.t.Fatalf("reply %s: %v", m.Body, err)
		}
		types += last.Type + " "
	}
	return strings.TrimSpace(types), last
}

// until waits until something is so.
func (b *bus) until(so func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatal("it does not come to that")
		}
	}
}

const directive = `{"type":"DIRECTIVE","jobId":"j","stepId":"s","tenant_id":"t","attempt_no":2,"lease_id":"l"}`

func TestWorker_AnswersADirectiveAndCompletesItLast(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	stop := b.work(nil)
	b.send(directive)
	types, last := b.replied(2)
	if types != "ACK RESULT" || last.Status != api.ResultStatusSucceeded || string(last.ResultRef) != `{"uri":"s3://out"}` ||
		last.JobID != "j" || last.StepID != "s" || last.TenantID != "t" || last.AttemptNo != 2 || last.LeaseID != "l" {
		t.Errorf("%s: %+v", types, last)
	}
	stop()
	if b.Depth(worker) != 0 {
		t.Error("the directive is still there")
	}
}

func TestWorker_ReportsWhatFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		handler lucius.Handler
		status  api.ResultStatus
		code    string
		message string
		after   float64
	}{
		"once": {
			func(context.Context, *lucius.Task) (any, error) {
				return nil, lucius.RetryAfter(time.Minute, "blank", "the page is blank")
			},
			api.ResultStatusFailedRetry, "blank", "the page is blank", 60,
		},
		"for good": {
			func(context.Context, *lucius.Task) (any, error) {
				return nil, lucius.Final("blank", "the page is blank")
			},
			api.ResultStatusFailedFinal, "blank", "the page is blank", 0,
		},
		"panicked": {
			func(context.Context, *lucius.Task) (any, error) { panic("at the page") },
			api.ResultStatusFailedRetry, "handler_panicked", "the handler panicked: at the page", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBus(t)
			defer b.work(func(cfg *busworker.Config) { cfg.Worker = handlerOf(test.handler) })()
			b.send(directive)
			_, last := b.replied(2)
			if want := (api.ReportedError{Code: test.code, Message: test.message}); last.Status != test.status || last.Error != want ||
				last.RetryAfterSeconds != test.after {
				t.Errorf("%+v", last)
			}
		})
	}
}

// Heartbeats keep a long step alive, even across an outage of the bus.
func TestWorker_BeatsWhileItWorks(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	release := make(chan struct{})
	stop := b.work(func(cfg *busworker.Config) {
		cfg.Heartbeat = 10 * time.Millisecond
		cfg.Worker = handlerOf(func(context.Context, *lucius.Task) (any, error) { <-release; return nil, nil })
	})
	b.send(directive)
	b.replied(3)
	b.Stop()
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	b.replied(b.Depth(replies) + 2)
	close(release)
	stop()
	types, last := b.replied(5)
	if !strings.HasPrefix(types, "ACK HEARTBEAT HEARTBEAT") || last.Type != "RESULT" {
		t.Errorf("%s", types)
	}
}

// What is no directive is put aside, and does not keep the worker from the next.
func TestWorker_PutsAsideWhatIsNoDirective(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	defer b.work(nil)()
	b.send("not json")
	b.send(directive)
	b.replied(2)
	if b.Depth(worker+"/$DeadLetterQueue") != 1 {
		t.Error("it is not among the dead letters")
	}
}

// A worker that stops abandons directives that take longer than its grace; the
// bus redelivers the directive to another worker.
func TestWorker_StopsWithinItsGrace(t *testing.T) {
	t.Parallel()
	b := newBus(t)
	stop := b.work(func(cfg *busworker.Config) {
		cfg.Grace = 10 * time.Millisecond
		cfg.Worker = handlerOf(func(ctx context.Context, _ *lucius.Task) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	b.send(directive)
	b.replied(1)
	stop()
	if b.Depth(worker) != 1 || b.Depth(replies) != 1 {
		t.Errorf("%d directives, %d replies", b.Depth(worker), b.Depth(replies))
	}
}

func TestNew_NamesTheField(t *testing.T) {
	t.Parallel()
	worker := lucius.NewWorker(lucius.WorkerConfig{})
	for want, cfg := range map[string]busworker.Config{
		"Connection":   {Lanes: 1, Subscription: "s", Worker: worker},
		"Lanes":        {Connection: "c", Subscription: "s", Worker: worker},
		"Subscription": {Connection: "c", Lanes: 1, Worker: worker},
		"Worker":       {Connection: "c", Lanes: 1, Subscription: "s"},
		"Grace":        {Connection: "c", Lanes: 1, Subscription: "s", Worker: worker, Grace: -1},
	} {
		if _, err := busworker.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	w, err := busworker.New(busworker.Config{Connection: "key=hunter2", Lanes: 1, Subscription: "s", Worker: worker})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Run(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a bad connection string: %v", err)
	}
}
