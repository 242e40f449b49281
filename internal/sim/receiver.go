package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// Announced is the bit of the seeds whose commands have callback URLs.
const Announced = 1 << 60

// The times of webhooks. They have the same proportions as in the program.
const (
	sendTimeout = 5 * time.Second  // bounds an attempt
	webhookHold = 15 * time.Second // is how long a claim of a webhook lasts
)

// webhookDelays are the times between attempts: so many, and one more attempt.
var webhookDelays = []time.Duration{time.Second, 4 * time.Second, 12 * time.Second}

// hosts are the receivers of webhooks: each answers in a manner of its own.
var hosts = []string{"steady", "steady", "flaky", "flaky", "broken", "gone", "gone", "refused"}

// callbacks returns the callback URLs of a command, by its hash: two of three commands have some.
func (w *world) callbacks(hash string) []string {
	rng := w.source("callbacks of " + hash)
	if !w.scenario.announced || rng.IntN(3) == 0 {
		return nil
	}
	urls := make([]string, 1+rng.IntN(2))
	for i := range urls {
		urls[i] = fmt.Sprintf("https://%s.test/%s/%d", hosts[rng.IntN(len(hosts))], hash, i)
	}
	return urls
}

// receiver answers webhooks. Only the driver uses it.
type receiver struct {
	w    *world
	rng  *rand.Rand
	down map[string]time.Time // host → until when it does not answer
}

func newReceiver(w *world) *receiver {
	return &receiver{w: w, rng: w.source("receiver"), down: map[string]time.Time{}}
}

// take receives a webhook, and returns the result of the attempt.
func (r *receiver) take(m *webhook.Message) webhook.Result {
	host, _, _ := strings.Cut(strings.TrimPrefix(m.URL, "https://"), ".")
	result, came := r.answer(host)
	r.w.check.webhooks.results[result.Outcome]++
	if came {
		r.w.check.received(m, result)
	}
	return result
}

// answer draws how a host answers, and reports whether the webhook came to it. In the calm phase, a host always
// answers in the same way.
func (r *receiver) answer(host string) (result webhook.Result, came bool) {
	status := func(code int, outcome webhook.Outcome) (webhook.Result, bool) {
		return webhook.Result{Outcome: outcome, Status: code, Reason: fmt.Sprintf("the receiver answered %d", code)}, true
	}
	silent := webhook.Result{Outcome: webhook.Failed, HostFault: true, Reason: "the receiver did not answer in time"}
	now, chance := time.Now(), func(percent int) bool { return r.w.faulty && r.rng.IntN(100) < percent }
	switch {
	case r.w.faulty && now.Before(r.down[host]):
		return silent, false
	case chance(2):
		r.down[host] = now.Add(r.w.logUniform(time.Second, time.Minute))
		return silent, false
	case chance(5): // It handles the webhook, and the answer is lost.
		return silent, true
	case chance(10) || (host == "flaky" && chance(50)):
		switch r.rng.IntN(5) {
		case 0:
			result, came = status(503, webhook.RetryAfter)
			result.HostFault, result.After = true, time.Duration(1+r.rng.IntN(8))*time.Second
			return result, came
		case 1:
			return status(404, webhook.Failed)
		default:
			return status(500, webhook.Failed)
		}
	case host == "refused" && !chance(20):
		return webhook.Result{Outcome: webhook.Refused, Reason: "the address is not allowed"}, false
	case host == "gone" && !chance(30):
		return status(410, webhook.Gone)
	case host == "broken" && !chance(10):
		return status(500, webhook.Failed)
	}
	return status(200, webhook.Delivered)
}

// send makes an attempt to send a webhook over the network.
func (p *process) send(w *world) func(context.Context, webhook.Message) webhook.Result {
	return func(ctx context.Context, m webhook.Message) webhook.Result {
		w.check.webhooks.tries(m.ID)
		bounded, cancel := context.WithTimeout(ctx, sendTimeout)
		defer cancel()
		h := fnv.New32a()
		_, _ = h.Write(m.Body)
		r := w.gate.park(&call{
			actor: actorOf(ctx).name, verb: verbSend, detail: fmt.Sprintf("%s %s #%08x", m.ID, m.URL, h.Sum32()), proc: p, ctx: bounded,
			exec: func() reply { return reply{value: w.receiver.take(&m)} },
		})
		switch result, answered := r.value.(webhook.Result); {
		case r.err == nil && answered:
			return result
		case ctx.Err() != nil:
			return webhook.Result{Outcome: webhook.Interrupted, Reason: "interrupted before the receiver answered"}
		}
		return webhook.Result{Outcome: webhook.Failed, HostFault: true, Reason: "the connection broke before the receiver answered"}
	}
}

// openWebhooks opens the sender of webhooks, and adds its loops.
func (m *parts) openWebhooks(w *world, p *process) {
	gate := webhook.NewGate(webhook.GateConfig{
		Attempts: 6, PerHost: 2, MaxDefer: 30 * time.Second,
		Circuit: breaker.Settings{CoolDown: 5 * time.Second, MaxCoolDown: 20 * time.Second},
	})
	steady := func() float64 { return 0.5 } // Several attempts may end at once, in any order.
	m.webhooks = background.NewWebhooks(background.WebhooksConfig{
		Ledger: m.ledger, Workers: 6, Hold: webhookHold, Logger: w.log,
		Random: (&randomSource{rng: w.source(p.name + "/webhooks")}).float,
		Send:   p.send(w), Gate: gate, Policy: background.WebhookPolicy{Delays: webhookDelays, Jitter: 0.3}, Jitter: steady,
	})
	m.loops = append(m.loops, loop{"offers", m.webhooks.Run})
	m.every(sweepInterval, m.webhooks.Loop())
}

// offer offers the webhooks of a job that has ended to their sender.
func (m *parts) offer(ended *statemachine.Job) {
	if m.webhooks != nil {
		m.webhooks.Offer(ended)
	}
}

// webhookTries counts the attempts to send each webhook, by its id. Any goroutine may use it.
type webhookTries struct {
	mu sync.Mutex
	n  map[string]int
}

func (t *webhookTries) tries(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n[id]++
}

func (t *webhookTries) of(id string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n[id]
}
