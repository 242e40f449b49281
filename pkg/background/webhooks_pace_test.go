package background_test

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

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// sends is a sender that calls a function and counts the calls.
type sends struct {
	mu       sync.Mutex
	messages []webhook.Message
	act      func(ctx context.Context, message webhook.Message) webhook.Result
}

func (s *sends) send(ctx context.Context, message webhook.Message) webhook.Result {
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

func always(result webhook.Result) *sends {
	return &sends{act: func(context.Context, webhook.Message) webhook.Result { return result }}
}

var (
	delivered = webhook.Result{Outcome: webhook.Delivered, Status: 200}
	failed    = webhook.Result{Outcome: webhook.Failed, Status: 500, Reason: "the receiver answered 500"}
	silent    = webhook.Result{Outcome: webhook.Failed, Reason: "the receiver did not answer in time", HostFault: true}
)

// roundDelays is a policy with round delays.
var roundDelays = background.WebhookPolicy{Delays: []time.Duration{10 * time.Second, time.Minute}, Jitter: 0.5}

func sending(t testing.TB, h *hooks, s *sends, change func(*background.WebhooksConfig)) *background.Webhooks {
	t.Helper()
	cfg := background.WebhooksConfig{
		Ledger: h, Send: s.send, Gate: webhook.NewGate(webhook.GateConfig{}), Policy: roundDelays, Jitter: func() float64 { return 0 },
	}
	if change != nil {
		change(&cfg)
	}
	return background.NewWebhooks(cfg)
}

func TestWebhooks_SendWhatIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		later := due("later", "https://a.example")
		later.NextAttemptAt = time.Now().Add(time.Second)
		q := newHooks(due("j", "https://a.example/x"), later)
		s := always(delivered)
		r := sending(t, q, s, nil)
		pass, err := r.RunOnce(t.Context())
		r.Wait()
		if pass.More || pass.Done != 1 || err != nil {
			t.Errorf("RunOnce = %+v, %v", pass, err)
		}
		body, err := webhook.Body(&ended("j").Job)
		musttest.NoError(t, err)
		want := []webhook.Message{{ID: "j.0", TenantID: "tenant_a", URL: "https://a.example/x", Body: body}}
		if diff := cmp.Diff(want, s.messages); diff != "" {
			t.Errorf("messages (-want +got):\n%s", diff)
		}
		if got := q.get("j.0"); got.State != ledger.WebhookDelivered || got.Attempts != 1 || got.LastStatus != 200 {
			t.Errorf("Delivery = %+v", got)
		}
		if got := q.get("later.0"); got.Attempts != 0 {
			t.Errorf("Delivery = %+v, want it untouched", got)
		}
	})
}

func TestWebhooks_StopAfterTheLastAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		q := newHooks(due("j", "https://a.example"))
		var at []string
		s := &sends{act: func(context.Context, webhook.Message) webhook.Result {
			at = append(at, time.Since(begin).String())
			return failed
		}}
		stop := running(t, sending(t, q, s, nil).Loop())
		time.Sleep(time.Hour)
		stop()
		if diff := cmp.Diff([]string{"0s", "10s", "1m10s"}, at); diff != "" {
			t.Errorf("attempts (-want +got):\n%s", diff)
		}
		if got := q.get("j.0"); got.State != ledger.WebhookExhausted || got.Attempts != 3 {
			t.Errorf("Delivery = %+v, want it exhausted", got)
		}
	})
}

// One host hangs, with its whole backlog due first. The webhooks of other hosts arrive
// within seconds.
func TestWebhooks_ASlowReceiverDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deliveries []ledger.WebhookRow
		for i := range 200 {
			deliveries = append(deliveries, due(fmt.Sprintf("a%d", i), "https://slow.example/x"))
		}
		for i := range 200 {
			deliveries = append(deliveries, due(fmt.Sprintf("b%d", i), fmt.Sprintf("https://well%d.example/", i%10)))
		}
		q := newHooks(deliveries...)
		s := &sends{act: func(_ context.Context, message webhook.Message) webhook.Result {
			if strings.Contains(message.URL, "slow") {
				time.Sleep(15 * time.Second)
				return silent
			}
			time.Sleep(10 * time.Millisecond)
			return delivered
		}}
		stop := running(t, sending(t, q, s, func(cfg *background.WebhooksConfig) {
			cfg.Workers = 16
			cfg.Gate = webhook.NewGate(webhook.GateConfig{PerHost: 4})
		}).Loop())
		time.Sleep(5 * time.Second)
		if n := q.count(ledger.WebhookDelivered); n != 200 {
			t.Errorf("%d of 200 were delivered while one receiver hung", n)
		}
		stop()
	})
}

// One tenant's receiver hangs, with its whole backlog due first. Another tenant's receiver on
// the same host gets its webhooks within seconds. The waiting webhooks say why they wait.
func TestWebhooks_ATenantsReceiverDoesNotHoldUpAnotherTenants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deliveries []ledger.WebhookRow
		for i := range 200 {
			deliveries = append(deliveries, due(fmt.Sprintf("a%d", i), "https://shared.example/a"))
		}
		for i := range 20 {
			other := due(fmt.Sprintf("b%d", i), "https://shared.example/b")
			other.TenantID = "tenant_b"
			deliveries = append(deliveries, other)
		}
		q := newHooks(deliveries...)
		s := &sends{act: func(_ context.Context, message webhook.Message) webhook.Result {
			if message.TenantID == "tenant_a" {
				time.Sleep(15 * time.Second)
				return silent
			}
			time.Sleep(10 * time.Millisecond)
			return delivered
		}}
		stop := running(t, sending(t, q, s, nil).Loop())
		time.Sleep(5 * time.Second)
		if n := q.count(ledger.WebhookDelivered); n != 20 {
			t.Errorf("%d of 20 were delivered while another tenant's receiver hung", n)
		}
		time.Sleep(time.Minute)
		explained := 0
		for i := range 200 {
			row := q.get(fmt.Sprintf("a%d.0", i))
			if row.Attempts == 0 && row.LastError == "circuit open: the receiver did not answer in time" {
				explained++
			}
		}
		if explained < 100 {
			t.Errorf("%d of 200 say that the circuit is open, want most", explained)
		}
		stop()
	})
}

// While a host is down, only the probes of its circuit are sent; the deferred webhooks are
// delivered afterwards.
func TestWebhooks_AnOutageSpendsNoAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deliveries []ledger.WebhookRow
		for i := range 100 {
			deliveries = append(deliveries, due(fmt.Sprintf("j%d", i), "https://a.example/"))
		}
		q := newHooks(deliveries...)
		up := time.Now().Add(10 * time.Minute)
		s := &sends{act: func(context.Context, webhook.Message) webhook.Result {
			if time.Now().Before(up) {
				return silent
			}
			return delivered
		}}
		stop := running(t, sending(t, q, s, func(cfg *background.WebhooksConfig) {
			cfg.Gate = webhook.NewGate(webhook.GateConfig{Circuit: breaker.Settings{CoolDown: time.Minute, MaxCoolDown: time.Minute}})
		}).Loop())
		time.Sleep(9 * time.Minute)
		if n := s.count(); n > 40 {
			t.Errorf("%d attempts to a host that is down", n)
		}
		time.Sleep(time.Hour)
		stop()
		if pending, exhausted := q.count(ledger.WebhookPending), q.count(ledger.WebhookExhausted); pending > 0 || exhausted > 15 {
			t.Errorf("%d pending and %d exhausted of 100", pending, exhausted)
		}
	})
}

// A host that never answers again costs ever fewer takes, and its webhooks are given up.
func TestWebhooks_OfASilentHostAreGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deliveries []ledger.WebhookRow
		for i := range 200 {
			deliveries = append(deliveries, due(fmt.Sprintf("j%d", i), "https://a.example/"))
		}
		q := newHooks(deliveries...)
		stop := running(t, sending(t, q, always(silent), func(cfg *background.WebhooksConfig) {
			cfg.Gate = webhook.NewGate(webhook.GateConfig{})
			cfg.Policy.GiveUp = time.Hour
		}).Loop())
		time.Sleep(3 * time.Hour)
		stop()
		if pending, gone := q.count(ledger.WebhookPending), q.count(ledger.WebhookExhausted); pending != 0 || gone != 200 {
			t.Errorf("%d pending and %d exhausted of 200", pending, gone)
		}
		if n := len(q.settled); n > 200*25 {
			t.Errorf("%d results were stored", n)
		}
	})
}

// A backlog does not wait for the interval.
func TestWebhooks_StartMoreAttemptsAsWorkersBecomeFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deliveries []ledger.WebhookRow
		for i := range 100 {
			deliveries = append(deliveries, due(fmt.Sprintf("j%d", i), fmt.Sprintf("https://host%d.example/", i)))
		}
		q := newHooks(deliveries...)
		s := &sends{act: func(context.Context, webhook.Message) webhook.Result {
			time.Sleep(time.Millisecond)
			return delivered
		}}
		stop := running(t, sending(t, q, s, func(cfg *background.WebhooksConfig) { cfg.Workers = 4 }).Loop())
		time.Sleep(time.Second)
		if n := q.count(ledger.WebhookDelivered); n != 100 {
			t.Errorf("%d of 100 were delivered before the second pass", n)
		}
		stop()
	})
}

// Offer never blocks, and offered webhooks wait for a free worker.
func TestWebhooks_LeaveToTheScheduleWhatTheQueueCannotHold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newHooks()
		s := always(delivered)
		r := sending(t, q, s, nil)
		for i := range 1500 {
			row := due(fmt.Sprintf("j%d", i), fmt.Sprintf("https://host%d.example/", i))
			q.rows[row.ID()] = row
			job := ended(row.JobID).Job
			job.CallbackURLs = []string{row.URL}
			r.Offer(&job)
		}
		stop := running(t, background.Loop{Name: "handed over", Pass: r.Run})
		synctest.Wait()
		if n := q.count(ledger.WebhookDelivered); n == 0 || n == 1500 {
			t.Errorf("%d of 1500 were delivered at once, want as many as the queue holds", n)
		}
		stop()
		stop = running(t, r.Loop())
		time.Sleep(time.Minute)
		stop()
		if n := q.count(ledger.WebhookDelivered); n != 1500 {
			t.Errorf("%d of 1500 were delivered", n)
		}
	})
}

// An attempt under way is interrupted and stays due; a webhook that waits for a worker is not
// sent.
func TestWebhooks_StoppingLeavesOfferedWebhooksDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newHooks(due("j", "https://a.example"), due("k", "https://b.example"))
		s := &sends{act: func(ctx context.Context, _ webhook.Message) webhook.Result {
			<-ctx.Done()
			return webhook.Result{Outcome: webhook.Interrupted}
		}}
		r := sending(t, q, s, func(cfg *background.WebhooksConfig) { cfg.Workers = 1 })
		for _, id := range []string{"j", "k"} {
			job := ended(id).Job
			job.CallbackURLs = []string{"https://a.example"}
			r.Offer(&job)
		}
		stop := running(t, background.Loop{Name: "handed over", Pass: r.Run})
		synctest.Wait()
		stop()
		if got := q.get("j.0"); got.State != ledger.WebhookPending || got.NextAttemptAt.After(time.Now()) || s.count() != 1 {
			t.Errorf("sent %d, Delivery = %+v, want one attempt, due again", s.count(), got)
		}
		if diff := cmp.Diff([]string{"PENDING"}, q.settled); diff != "" {
			t.Errorf("settled (-want +got):\n%s", diff)
		}
	})
}

func TestWebhooks_ReadTheScheduleOncePerInterval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newHooks(due("j", "https://a.example"), due("k", "https://b.example"))
		stop := running(t, sending(t, q, always(delivered), nil).Loop())
		time.Sleep(10*time.Second + time.Millisecond)
		stop()
		if q.asked != 11 {
			t.Errorf("asked %d times in 10 s, want 11", q.asked)
		}
	})
}

// The interrupted attempts do not count, and their webhooks stay due.
func TestWebhooks_StoppingInterruptsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newHooks(due("j", "https://a.example"))
		s := &sends{act: func(ctx context.Context, _ webhook.Message) webhook.Result {
			<-ctx.Done()
			return webhook.Result{Outcome: webhook.Interrupted}
		}}
		stop := running(t, sending(t, q, s, nil).Loop())
		time.Sleep(3 * time.Second)
		stop()
		got := q.get("j.0")
		if got.State != ledger.WebhookPending || got.Attempts != 0 || got.NextAttemptAt.After(time.Now()) {
			t.Errorf("Delivery = %+v, want it due", got)
		}
		if diff := cmp.Diff([]string{"PENDING"}, q.settled); diff != "" {
			t.Errorf("settled (-want +got):\n%s", diff)
		}
	})
}

// A webhook that could not be claimed, or whose attempt could not be stored, is due again.
func TestWebhooks_SurviveStoreErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("store is down")
		q := newHooks(due("j", "https://a.example"))
		q.dueErr, q.settleErr = broken, broken
		s := always(delivered)
		var log bytes.Buffer
		stop := running(t, sending(t, q, s, func(cfg *background.WebhooksConfig) {
			cfg.Hold = 10 * time.Second
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		}).Loop())
		time.Sleep(5 * time.Second)
		q.mu.Lock()
		q.dueErr, q.settleErr = nil, nil
		q.mu.Unlock()
		time.Sleep(10 * time.Second)
		stop()
		if got := q.get("j.0"); got.State != ledger.WebhookDelivered || s.count() != 2 {
			t.Errorf("sent %d times, Delivery = %+v", s.count(), got)
		}
		for _, line := range []string{"webhook attempt not stored; it will be repeated", broken.Error()} {
			if !strings.Contains(log.String(), line) {
				t.Errorf("no %q in the log:\n%s", line, &log)
			}
		}
	})
}

func TestWebhooks_OfAPurgedJobAreNotRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newHooks(due("j", "https://a.example"))
		q.settleErr = ledger.ErrJobNotFound
		var log bytes.Buffer
		w := sending(t, q, always(delivered), func(cfg *background.WebhooksConfig) { cfg.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		if _, err := w.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.Wait()
		if said := log.String(); !strings.Contains(said, "purged") || strings.Contains(said, "again") {
			t.Errorf("the log says %s", said)
		}
	})
}

// Another process claims the webhook while the attempt takes longer than the claim.
func TestWebhooks_ALostClaimChangesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newHooks(due("j", "https://a.example"))
		s := &sends{act: func(context.Context, webhook.Message) webhook.Result {
			time.Sleep(2 * time.Minute) // longer than the claim lasts
			return delivered
		}}
		var seen []webhook.Outcome
		var mu sync.Mutex
		r := sending(t, q, s, func(cfg *background.WebhooksConfig) {
			cfg.Observe = func(_ *statemachine.Job, _ time.Time, result webhook.Result) {
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
		if diff := cmp.Diff([]webhook.Outcome{webhook.Delivered, webhook.Delivered}, seen); diff != "" {
			t.Errorf("observed (-want +got):\n%s", diff)
		}
	})
}

// Two spellings of a host name count as one host.
func TestWebhooks_DeferIfTheHostIsBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := newHooks(due("j", "https://a.example/x"), due("k", "https://A.example:443/y"))
		over := make(chan struct{})
		s := &sends{act: func(context.Context, webhook.Message) webhook.Result {
			<-over
			return delivered
		}}
		r := sending(t, q, s, func(cfg *background.WebhooksConfig) { cfg.Gate = webhook.NewGate(webhook.GateConfig{PerHost: 1}) })
		if _, err := r.RunOnce(t.Context()); err != nil {
			t.Errorf("RunOnce: %v", err)
		}
		synctest.Wait()
		put, other := q.get("j.0"), q.get("k.0") // Either may be sent.
		if put.NextAttemptAt.Before(other.NextAttemptAt) {
			put = other
		}
		if !put.NextAttemptAt.After(time.Now()) || put.Attempts != 0 || put.State != ledger.WebhookPending || s.count() != 1 {
			t.Errorf("sent %d, deferred %+v", s.count(), put)
		}
		close(over)
		r.Wait()
	})
}
