package webhooks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/webhooks"
)

// sends is a sender that does what a function says, and keeps count.
type sends struct {
	mu       sync.Mutex
	messages []webhooks.Message
	act      func(ctx context.Context, message webhooks.Message) webhooks.Result
}

func (s *sends) send(ctx context.Context, message webhooks.Message) webhooks.Result {
	s.mu.Lock()
	s.messages = append(s.messages, message)
	s.mu.Unlock()
	return s.act(ctx, message)
}

func (s *sends) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.messages)
}

func always(result webhooks.Result) *sends {
	return &sends{act: func(context.Context, webhooks.Message) webhooks.Result { return result }}
}

func runner(t testing.TB, q *queue, s *sends, change func(*webhooks.RunnerConfig)) *webhooks.Runner {
	t.Helper()
	cfg := webhooks.RunnerConfig{
		Queue: q, Send: s.send, Gate: gate(t, webhooks.GateConfig{}), Policy: small, Random: func() float64 { return 0 },
	}
	if change != nil {
		change(&cfg)
	}
	made, err := webhooks.NewRunner(cfg)
	if err != nil {
		t.Fatalf("NewRunner: %v", err)
	}
	return made
}

// running runs the loop until the function it returns is called.
func running(t testing.TB, r *webhooks.Runner) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var loop sync.WaitGroup
	loop.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return func() {
		cancel()
		loop.Wait()
	}
}

func TestRunOnce_SendsWhatIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		later := due("later.0", "https://a.example")
		later.NextAttemptAt = time.Now().Add(time.Second)
		q := newQueue(due("j.0", "https://a.example/x"), later)
		s := always(delivered)
		r := runner(t, q, s, nil)
		full, err := r.RunOnce(t.Context())
		r.Wait()
		if full || err != nil {
			t.Errorf("RunOnce = %t, %v", full, err)
		}
		want := []webhooks.Message{{ID: "j.0", TenantID: "tenant_a", URL: "https://a.example/x", Body: []byte("{}")}}
		if diff := cmp.Diff(want, s.messages); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
		if got := q.get("j.0"); got.State != webhooks.StateDelivered || got.Attempts != 1 || got.LastStatus != 200 {
			t.Errorf("Delivery = %+v", got)
		}
		if got := q.get("later.0"); got.Attempts != 0 {
			t.Errorf("Delivery = %+v, want it untouched", got)
		}
	})
}

// TestRun_UntilItIsExhausted lives through a whole schedule.
func TestRun_UntilItIsExhausted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		q := newQueue(due("j.0", "https://a.example"))
		var at []string
		s := &sends{act: func(context.Context, webhooks.Message) webhooks.Result {
			at = append(at, time.Since(begin).String())
			return failed()
		}}
		stop := running(t, runner(t, q, s, nil))
		time.Sleep(time.Hour)
		stop()
		if diff := cmp.Diff([]string{"0s", "10s", "1m10s"}, at); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if got := q.get("j.0"); got.State != webhooks.StateExhausted || got.Attempts != 3 {
			t.Errorf("Delivery = %+v, want it exhausted", got)
		}
	})
}

// TestRun_ASlowReceiverDoesNotHoldTheOthers: one host hangs with all of its
// backlog in front, and everybody else's webhooks arrive within seconds.
func TestRun_ASlowReceiverDoesNotHoldTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deliveries []webhooks.Delivery
		for i := range 200 {
			deliveries = append(deliveries, due(fmt.Sprintf("a%d", i), "https://slow.example/x"))
		}
		for i := range 200 {
			deliveries = append(deliveries, due(fmt.Sprintf("b%d", i), fmt.Sprintf("https://well%d.example/", i%10)))
		}
		q := newQueue(deliveries...)
		s := &sends{act: func(_ context.Context, message webhooks.Message) webhooks.Result {
			if strings.Contains(message.URL, "slow") {
				time.Sleep(15 * time.Second)
				return silent
			}
			time.Sleep(10 * time.Millisecond)
			return delivered
		}}
		stop := running(t, runner(t, q, s, func(cfg *webhooks.RunnerConfig) {
			cfg.Workers = 16
			cfg.Gate = gate(t, webhooks.GateConfig{PerHost: 4})
		}))
		time.Sleep(5 * time.Second)
		if n := q.count(webhooks.StateDelivered); n != 200 {
			t.Errorf("%d of 200 were delivered while one receiver hung", n)
		}
		stop()
	})
}

// TestRun_AnOutageSpendsNoAttempts: while a host is down, only the probes of its
// circuit are sent, and what was put off is delivered afterwards.
func TestRun_AnOutageSpendsNoAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deliveries []webhooks.Delivery
		for i := range 100 {
			deliveries = append(deliveries, due(fmt.Sprintf("j%d", i), "https://a.example/"))
		}
		q := newQueue(deliveries...)
		up := time.Now().Add(10 * time.Minute)
		s := &sends{act: func(context.Context, webhooks.Message) webhooks.Result {
			if time.Now().Before(up) {
				return silent
			}
			return delivered
		}}
		stop := running(t, runner(t, q, s, func(cfg *webhooks.RunnerConfig) {
			cfg.Gate = gate(t, webhooks.GateConfig{Circuit: breaker.Settings{CoolDown: time.Minute, MaxCoolDown: time.Minute}})
		}))
		time.Sleep(9 * time.Minute)
		if n := s.count(); n > 40 {
			t.Errorf("%d attempts in vain", n)
		}
		time.Sleep(time.Hour)
		stop()
		if pending, exhausted := q.count(webhooks.StatePending), q.count(webhooks.StateExhausted); pending > 0 || exhausted > 15 {
			t.Errorf("%d pending and %d exhausted of 100", pending, exhausted)
		}
	})
}

// TestRun_TakesMoreAsWorkersAreFreed: a backlog does not wait for the interval.
func TestRun_TakesMoreAsWorkersAreFreed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deliveries []webhooks.Delivery
		for i := range 100 {
			deliveries = append(deliveries, due(fmt.Sprintf("j%d", i), fmt.Sprintf("https://host%d.example/", i)))
		}
		q := newQueue(deliveries...)
		s := &sends{act: func(context.Context, webhooks.Message) webhooks.Result {
			time.Sleep(time.Millisecond)
			return delivered
		}}
		stop := running(t, runner(t, q, s, func(cfg *webhooks.RunnerConfig) { cfg.Workers, cfg.Interval = 4, time.Hour }))
		time.Sleep(time.Second)
		if n := q.count(webhooks.StateDelivered); n != 100 {
			t.Errorf("%d of 100 were delivered before the second pass", n)
		}
		stop()
	})
}

// TestRun_AsksAtEachInterval and not more often, while there is little to do.
func TestRun_AsksAtEachInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(due("j.0", "https://a.example"), due("j.1", "https://b.example"))
		stop := running(t, runner(t, q, always(delivered), nil))
		time.Sleep(10*time.Second + time.Millisecond)
		stop()
		if q.asked != 11 {
			t.Errorf("asked %d times in 10 s, want 11", q.asked)
		}
	})
}

// TestRun_Stops breaks attempts off, and leaves them due without counting them.
func TestRun_Stops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(due("j.0", "https://a.example"))
		s := &sends{act: func(ctx context.Context, _ webhooks.Message) webhooks.Result {
			<-ctx.Done()
			return webhooks.Result{Outcome: webhooks.Interrupted}
		}}
		stop := running(t, runner(t, q, s, nil))
		time.Sleep(3 * time.Second)
		stop()
		got := q.get("j.0")
		if got.State != webhooks.StatePending || got.Attempts != 0 || got.NextAttemptAt.After(time.Now()) {
			t.Errorf("Delivery = %+v, want it due", got)
		}
		if diff := cmp.Diff([]string{"PENDING"}, q.settled); diff != "" {
			t.Errorf("settled (-want +got):\n%s", diff)
		}
	})
}

// TestRun_SurvivesItsStore: what could not be taken or settled comes again.
func TestRun_SurvivesItsStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("store is down")
		q := newQueue(due("j.0", "https://a.example"))
		q.takeErr, q.settleErr = broken, broken
		s := always(delivered)
		var log bytes.Buffer
		stop := running(t, runner(t, q, s, func(cfg *webhooks.RunnerConfig) {
			cfg.Hold = 10 * time.Second
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}))
		time.Sleep(5 * time.Second)
		q.mu.Lock()
		q.takeErr, q.settleErr = nil, nil
		q.mu.Unlock()
		time.Sleep(10 * time.Second)
		stop()
		if got := q.get("j.0"); got.State != webhooks.StateDelivered || s.count() != 2 {
			t.Errorf("sent %d times, Delivery = %+v", s.count(), got)
		}
		for _, line := range []string{"due webhooks could not be taken", "webhook not settled; it will be sent again", broken.Error()} {
			if !strings.Contains(log.String(), line) {
				t.Errorf("no %q in the log:\n%s", line, &log)
			}
		}
	})
}

// TestRunOnce_AClaimThatWasLost changes nothing: somebody else has it.
func TestRunOnce_AClaimThatWasLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(due("j.0", "https://a.example"))
		s := &sends{act: func(context.Context, webhooks.Message) webhooks.Result {
			time.Sleep(2 * time.Minute) // longer than the claim holds
			return delivered
		}}
		var seen []webhooks.Outcome
		var mu sync.Mutex
		r := runner(t, q, s, func(cfg *webhooks.RunnerConfig) {
			cfg.Observe = func(result webhooks.Result) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, result.Outcome)
			}
		})
		for range 2 {
			if _, err := r.RunOnce(t.Context()); err != nil {
				t.Errorf("RunOnce: %v", err)
			}
			time.Sleep(90 * time.Second)
		}
		r.Wait()
		if diff := cmp.Diff([]string{"DELIVERED"}, q.settled); diff != "" || q.get("j.0").Attempts != 1 {
			t.Errorf("%+v, settled (-want +got):\n%s", q.get("j.0"), diff)
		}
		if diff := cmp.Diff([]webhooks.Outcome{webhooks.Delivered, webhooks.Delivered}, seen); diff != "" {
			t.Errorf("observed (-want +got):\n%s", diff)
		}
	})
}

// TestRunOnce_PutsOffWhatItsHostHasNoRoomFor: two spellings are one host.
func TestRunOnce_PutsOffWhatItsHostHasNoRoomFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(due("j.0", "https://a.example/x"), due("j.1", "https://A.example:443/y"))
		over := make(chan struct{})
		s := &sends{act: func(context.Context, webhooks.Message) webhooks.Result {
			<-over
			return delivered
		}}
		r := runner(t, q, s, func(cfg *webhooks.RunnerConfig) { cfg.Gate = gate(t, webhooks.GateConfig{PerHost: 1}) })
		if _, err := r.RunOnce(t.Context()); err != nil {
			t.Errorf("RunOnce: %v", err)
		}
		synctest.Wait()
		put, other := q.get("j.0"), q.get("j.1") // which of them is sent is open
		if put.NextAttemptAt.Before(other.NextAttemptAt) {
			put = other
		}
		if !put.NextAttemptAt.After(time.Now()) || put.Attempts != 0 || put.State != webhooks.StatePending || s.count() != 1 {
			t.Errorf("sent %d, put off %+v", s.count(), put)
		}
		close(over)
		r.Wait()
	})
}

func TestNewRunner_NamesTheBadField(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*webhooks.RunnerConfig){
		"Queue":    func(c *webhooks.RunnerConfig) { c.Queue = nil },
		"Send":     func(c *webhooks.RunnerConfig) { c.Send = nil },
		"Gate":     func(c *webhooks.RunnerConfig) { c.Gate = nil },
		"Workers":  func(c *webhooks.RunnerConfig) { c.Workers = -1 },
		"Interval": func(c *webhooks.RunnerConfig) { c.Interval = -1 },
		"Hold":     func(c *webhooks.RunnerConfig) { c.Hold = -1 },
		"Jitter":   func(c *webhooks.RunnerConfig) { c.Policy.Jitter = 2 },
	}
	for field, spoil := range tests {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			cfg := webhooks.RunnerConfig{Queue: newQueue(), Send: always(delivered).send, Gate: gate(t, webhooks.GateConfig{})}
			spoil(&cfg)
			if _, err := webhooks.NewRunner(cfg); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("NewRunner: %v, want an error about %s", err, field)
			}
		})
	}
}
