package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bus is a publisher with scripted answers, which records its messages.
type bus struct {
	byMark   bool // like the pull queue
	mu       sync.Mutex
	answers  []error // the next answers; nil once they are used up
	forever  error
	messages []ledger.Message
	hang     chan struct{}
	obeys    bool // It stops hanging when its context ends.
}

func (b *bus) PublishedByMark() bool { return b.byMark }

func (b *bus) Publish(ctx context.Context, messages []ledger.Message) []error {
	b.mu.Lock()
	hang := b.hang
	var ended <-chan struct{}
	if b.obeys {
		ended = ctx.Done()
	}
	b.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ended:
			return slices.Repeat([]error{outbox.ErrUncertain}, len(messages))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]error, len(messages))
	for i := range messages {
		b.messages = append(b.messages, messages[i])
		out[i] = b.forever
		if len(b.answers) > 0 {
			out[i] = b.answers[0]
			b.answers = b.answers[1:]
		}
	}
	return out
}

func (b *bus) ids() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := make([]string, len(b.messages))
	for i := range b.messages {
		ids[i] = b.messages[i].MessageID()
	}
	return ids
}

// bundle is a relay over a real ledger.
type bundle struct {
	*outbox.Relay
	ledger   *ledgertest.Ledger
	handoff  *outbox.Handoff
	bus      *bus
	outcomes map[outbox.Outcome]int
	sent     []string    // the outcomes of the publishes, and how long each took
	held     atomic.Bool // dispatch is paused for the relay
	known    atomic.Bool // dispatch is paused for the ledger
	mu       sync.Mutex
	serial   int
	log      bytes.Buffer // may be read once the relay has stopped
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return setupOn(t, ledgertest.Split(), statemachine.BusServiceBus)
}

// setupOn returns a process on the store that publishes to that bus.
func setupOn(t *testing.T, store tablestore.Store, to statemachine.Bus) *bundle {
	t.Helper()
	b := &bundle{
		handoff: outbox.NewHandoff(8), bus: &bus{byMark: to == statemachine.BusQueue}, outcomes: map[outbox.Outcome]int{},
	}
	covers := func(target statemachine.Target) bool {
		return target == statemachine.Target{TenantID: "t", ProtocolID: "p", Lane: 1, Service: "s"}
	}
	b.ledger = ledgertest.Open(t, ledger.Config{
		Store: store, Bus: to, Handoff: b.handoff, Shards: 2,
		Held: func(target statemachine.Target) bool { return b.known.Load() && covers(target) },
	})
	breakers := breaker.NewSet(breaker.Config{})
	b.Relay = musttest.Make(t, outbox.NewRelay, outbox.Config{
		Ledger: b.ledger.Ledger, Publisher: b.bus, Handoff: b.handoff, Breakers: breakers, Workers: 1,
		Fatal:   func(illegal *seqledger.IllegalTransitionError) { t.Errorf("illegal transition: %v", illegal) },
		Observe: b.observe, Sent: b.answered, PassLimit: 4, Replica: "replica-7", Logger: slog.New(slog.NewTextHandler(&b.log, nil)),
		Admit: func(target statemachine.Target) bool {
			return !b.held.Load() || !covers(target)
		},
		Held: func(target statemachine.Target) bool { return b.held.Load() && covers(target) },
	})
	return b
}

func (b *bundle) observe(outcome outbox.Outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outcomes[outcome]++
}

func (b *bundle) answered(answer outbox.Outcome, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = append(b.sent, fmt.Sprint(answer, " ", took))
}

func (b *bundle) saw(outcome outbox.Outcome) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.outcomes[outcome]
}

// start runs the relay for the rest of the test.
func (b *bundle) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- b.Run(ctx) }()
	go func() { done <- background.Loop{Name: "relay", Pass: b.pass}.Run(ctx) }()
	return func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Errorf("relay: %v", err)
		}
	}
}

func (b *bundle) pass(ctx context.Context) error {
	_, err := b.RunOnce(ctx)
	return err
}

func (b *bundle) accept() string { return b.acceptOf("t") }

// acceptOf is accept for another tenant.
func (b *bundle) acceptOf(tenantID string) string { return b.acceptIn(tenantID, 1) }

// acceptIn is acceptOf for another lane.
func (b *bundle) acceptIn(tenantID string, lane int) string {
	return b.ledger.Submit(b.command(tenantID, lane))
}

// command is a command of one step.
func (b *bundle) command(tenantID string, lane int) ledger.Command {
	b.serial++
	cmd := ledgertest.Command(tenantID, fmt.Sprint(b.serial), statemachine.Step{
		ID: "one", Service: "s", Routing: statemachine.Routing{Topic: "topic-1", Lane: lane},
		Policy: statemachine.Policy{
			AckTimeout: time.Hour, Lease: time.Hour, Dispatch: []time.Duration{time.Minute}, Ack: []time.Duration{time.Minute},
		},
	})
	cmd.Job.ProtocolID = "p"
	return cmd
}
