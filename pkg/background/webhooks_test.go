package background_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// receiver gives the listed answers, and records what it got and when.
type receiver struct {
	mu      sync.Mutex
	answers []webhook.Result // the next answers; after the last one, delivered
	bodies  []string
	at      []time.Duration
	begun   time.Time
}

func (r *receiver) send(_ context.Context, m webhook.Message) webhook.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bodies = append(r.bodies, string(m.Body))
	r.at = append(r.at, time.Since(r.begun).Truncate(time.Second))
	if len(r.answers) == 0 {
		return webhook.Result{Outcome: webhook.Delivered, Status: 200}
	}
	answer := r.answers[0]
	r.answers = r.answers[1:]
	return answer
}

// announcement is a job that ended, in a real ledger, and the runner that sends its webhook.
type announcement struct {
	*background.Webhooks
	ledger   *ledgertest.Ledger
	receiver *receiver
	faults   *storetest.Faults
	jobID    string
}

// cancelled adds a cancelled job with a webhook.
func cancelled(l *ledgertest.Ledger, key string) string {
	cmd := ledgertest.Command("t", key)
	cmd.Job.CallbackURLs = []string{"https://a.example/hook"}
	id := l.Submit(cmd)
	l.Apply(id, statemachine.Cancel{})
	return id
}

func announce(t *testing.T, answers ...webhook.Result) *announcement {
	t.Helper()
	store, faults := storetest.Faulty(ledgertest.Split())
	b := &announcement{receiver: &receiver{answers: answers, begun: time.Now()}, faults: faults}
	b.ledger = ledgertest.Open(t, ledger.Config{Store: store, Shards: 2, Ended: func(job *statemachine.Job) { b.Offer(job) }})
	b.Webhooks = background.NewWebhooks(background.WebhooksConfig{
		Ledger: b.ledger, Send: b.receiver.send, Gate: webhook.NewGate(webhook.GateConfig{}),
		Policy: background.WebhookPolicy{Delays: []time.Duration{10 * time.Second, time.Minute}},
	})
	b.jobID = cancelled(b.ledger, "h")
	return b
}

// send runs the sending of offered webhooks until nothing more happens.
func (b *announcement) send(t *testing.T) {
	t.Helper()
	stop := running(t, background.Loop{Pass: b.Run})
	synctest.Wait()
	stop()
}

// webhook returns the job's only webhook.
func (b *announcement) webhook(t *testing.T) ledger.WebhookRow {
	t.Helper()
	found, err := b.ledger.Webhooks(t.Context(), b.jobID)
	if err != nil || len(found) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	return found[0]
}

func TestWebhooks_RetryUntilAFinalOutcome(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answers  []webhook.Result
		state    ledger.WebhookState
		attempts []time.Duration
	}{
		"delivered at once":         {nil, ledger.WebhookDelivered, []time.Duration{0}},
		"delivered the second time": {[]webhook.Result{failed}, ledger.WebhookDelivered, []time.Duration{0, 10 * time.Second}},
		"every attempt failed": {
			slices.Repeat([]webhook.Result{failed}, 9), ledger.WebhookExhausted,
			[]time.Duration{0, 10 * time.Second, 70 * time.Second},
		},
		"the receiver answers 410": {[]webhook.Result{{Outcome: webhook.Gone, Status: 410}}, ledger.WebhookGone, []time.Duration{0}},
		"the receiver asks for an hour": {
			[]webhook.Result{{Outcome: webhook.RetryAfter, Status: 503, After: time.Hour}}, ledger.WebhookDelivered,
			[]time.Duration{0, time.Hour},
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := announce(t, test.answers...)
			run(t, b.Loop(), 3*time.Hour)
			if got := b.webhook(t); got.State != test.state || got.Attempts != len(test.attempts) {
				t.Errorf("%s: %+v", name, got)
			}
			if diff := cmp.Diff(test.attempts, b.receiver.at, cmp.Comparer(about)); diff != "" {
				t.Errorf("%s: attempts (-want +got):\n%s", name, diff)
			}
		})
	}
}

// An offered webhook needs no time and no pass.
func TestWebhooks_AreSentAtTheEndOfTheJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := announce(t)
		b.send(t)
		if got := b.webhook(t); got.State != ledger.WebhookDelivered || got.Attempts != 1 || len(b.receiver.bodies) != 1 {
			t.Errorf("%+v, sent %d times", got, len(b.receiver.bodies))
		}
		run(t, b.Loop(), time.Hour)
		if len(b.receiver.bodies) != 1 {
			t.Errorf("sent %d times, want once", len(b.receiver.bodies))
		}
	})
}

// about reports whether two times are within two passes of each other.
func about(a, b time.Duration) bool { return (a - b).Abs() <= 2*time.Second }

// unclaimable is a ledger that cannot claim webhooks: those of all jobs but one, or of one only.
type unclaimable struct {
	*ledger.Ledger
	but, only string
	err       error
}

func (u *unclaimable) TakeWebhook(ctx context.Context, entry ledger.Entry, hold time.Duration,
) (*ledger.WebhookRow, *statemachine.Aggregate, error) {
	if u.only == "" && entry.JobID != u.but || entry.JobID == u.only {
		return nil, nil, u.err
	}
	return u.Ledger.TakeWebhook(ctx, entry, hold)
}

// The webhooks that cannot be claimed outnumber the workers, and are due first.
func TestWebhooks_FailedClaimsDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := ledgertest.Open(t, ledger.Config{Shards: 1})
		last := ""
		for _, key := range []string{"a", "b", "c"} {
			time.Sleep(time.Second)
			last = cancelled(l, key)
		}
		r := &receiver{begun: time.Now()}
		w := background.NewWebhooks(background.WebhooksConfig{
			Ledger: &unclaimable{Ledger: l.Ledger, but: last, err: errors.New("the row is damaged")}, Workers: 1,
			Send: r.send, Gate: webhook.NewGate(webhook.GateConfig{}),
		})
		if _, err := w.RunOnce(t.Context()); err == nil {
			t.Error("the failures are not reported")
		}
		if w.Wait(); len(r.bodies) != 1 {
			t.Errorf("%d webhooks were sent, want 1", len(r.bodies))
		}
	})
}

// One job whose webhook cannot be claimed does not make a backlog wait for the interval.
func TestWebhooks_ABadJobDoesNotSlowABacklog(t *testing.T) {
	t.Parallel()
	for _, bad := range []error{errors.New("the row is damaged"), tablestore.ErrUnavailable} {
		synctest.Test(t, func(t *testing.T) {
			l := ledgertest.Open(t, ledger.Config{Shards: 4})
			u := &unclaimable{Ledger: l.Ledger, only: cancelled(l, "bad"), err: bad}
			for i := range 300 {
				cancelled(l, strconv.Itoa(i))
			}
			s := &sends{act: func(context.Context, webhook.Message) webhook.Result {
				time.Sleep(time.Millisecond)
				return delivered
			}}
			w := background.NewWebhooks(background.WebhooksConfig{
				Ledger: u, Workers: 4, Send: s.send, Gate: webhook.NewGate(webhook.GateConfig{PerHost: 64}),
			})
			run(t, w.Loop(), 900*time.Millisecond)
			if n := s.count(); n != 300 {
				t.Errorf("%v: %d of 300 were sent before the second interval", bad, n)
			}
		})
	}
}

func TestWebhooks_TheBodyDescribesTheEndOfTheJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := announce(t, failed)
		run(t, b.Loop(), time.Minute)
		var event struct {
			Type string
			Data struct{ JobID, State string }
		}
		musttest.NoError(t, json.Unmarshal([]byte(b.receiver.bodies[0]), &event))
		if event.Type != "job.cancelled" || event.Data.JobID != b.jobID || event.Data.State != "CANCELLED" {
			t.Errorf("%+v", event)
		}
		if len(b.receiver.bodies) != 2 || b.receiver.bodies[0] != b.receiver.bodies[1] {
			t.Errorf("the attempts differ: %q", b.receiver.bodies)
		}
	})
}

func TestWebhooks_AReplayRestoresTheAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := announce(t, slices.Repeat([]webhook.Result{failed}, 3)...)
		run(t, b.Loop(), time.Hour)
		if _, replayed, err := b.ledger.ReplayWebhook(t.Context(), b.jobID+".0"); err != nil || !replayed {
			t.Fatal(replayed, err)
		}
		run(t, b.Loop(), time.Minute)
		if got := b.webhook(t); got.State != ledger.WebhookDelivered || got.Attempts != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// If any one store call fails, before or after it took effect, the webhook is still
// delivered at least once: a pass finds what Run did not send.
func TestWebhooks_SurviveAnySingleFault(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for _, offered := range []bool{false, true} {
			for nth := 1; nth <= 16; nth++ {
				synctest.Test(t, func(t *testing.T) {
					b := announce(t)
					b.faults.Plan(storetest.Fault{Nth: nth, After: after})
					if offered {
						b.send(t)
					}
					run(t, b.Loop(), 10*time.Minute)
					if got := b.webhook(t); got.State != ledger.WebhookDelivered || len(b.receiver.bodies) == 0 {
						t.Errorf("call %d, after %t, offered %t: %+v, sent %d times", nth, after, offered, got, len(b.receiver.bodies))
					}
				})
			}
		}
	}
}

func TestWebhooks_ReturnStoreErrors(t *testing.T) {
	t.Parallel()
	b := announce(t)
	b.faults.Plan(storetest.Fault{Onwards: true})
	if pass, err := b.RunOnce(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) || pass.Done != 0 {
		t.Errorf("%+v, %v", pass, err)
	}
}

// hooks is a fake ledger of webhooks. All are in the first of two shards; the other may
// fail.
type hooks struct {
	mu        sync.Mutex
	rows      map[string]ledger.WebhookRow
	taken     map[string]time.Time // until when each webhook is claimed
	versions  map[string]int
	claims    map[*ledger.WebhookRow]int // the version that was claimed
	dueErr    error
	settleErr error
	asked     int      // how often the schedule was read
	settled   []string // the states that were stored, in order
}

func newHooks(rows ...ledger.WebhookRow) *hooks {
	h := &hooks{
		rows: map[string]ledger.WebhookRow{}, taken: map[string]time.Time{}, versions: map[string]int{},
		claims: map[*ledger.WebhookRow]int{},
	}
	for _, row := range rows {
		h.rows[row.ID()] = row
	}
	return h
}

// due returns a webhook of the job that is due now.
func due(jobID, url string) ledger.WebhookRow {
	now := time.Now()
	return ledger.WebhookRow{
		JobID: jobID, TenantID: "tenant_a", URL: url, State: ledger.WebhookPending, NextAttemptAt: now, CreatedAt: now, UpdatedAt: now,
	}
}

// ended returns the job of a webhook.
func ended(jobID string) *statemachine.Aggregate {
	return &statemachine.Aggregate{Job: statemachine.Job{ID: jobID, TenantID: "tenant_a", State: statemachine.JobSucceeded}}
}

func (h *hooks) Shards() int { return 2 }

func (h *hooks) Due(_ context.Context, kind ledger.Kind, shard int, now time.Time, limit int, _ string,
) ([]ledger.Entry, string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if shard == 1 {
		return nil, "", h.dueErr
	}
	h.asked++
	var entries []ledger.Entry
	for id, row := range h.rows {
		if row.State == ledger.WebhookPending && !row.NextAttemptAt.After(now) && !h.taken[id].After(now) {
			entries = append(entries, ledger.Entry{
				Kind: kind, Due: row.NextAttemptAt, JobID: row.JobID, Nonce: strconv.Itoa(row.Index),
			})
		}
	}
	slices.SortFunc(entries, func(a, b ledger.Entry) int {
		if order := a.Due.Compare(b.Due); order != 0 {
			return order
		}
		return strings.Compare(a.JobID, b.JobID)
	})
	return entries[:min(limit, len(entries))], "", nil
}

func (h *hooks) TakeWebhook(_ context.Context, entry ledger.Entry, hold time.Duration,
) (*ledger.WebhookRow, *statemachine.Aggregate, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id := entry.JobID + "." + entry.Nonce
	row := h.rows[id]
	h.taken[id] = time.Now().Add(hold)
	h.versions[id]++
	h.claims[&row] = h.versions[id]
	return &row, ended(row.JobID), nil
}

func (h *hooks) RecordWebhookAttempt(ctx context.Context, taken, next *ledger.WebhookRow) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := errors.Join(ctx.Err(), h.settleErr); err != nil {
		return false, err
	}
	id := taken.ID()
	if h.versions[id] != h.claims[taken] {
		return false, nil
	}
	h.rows[id] = *next
	h.versions[id]++
	delete(h.taken, id)
	h.settled = append(h.settled, string(next.State))
	return true, nil
}

func (h *hooks) get(id string) ledger.WebhookRow {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.rows[id]
}

// count returns how many webhooks are in a state.
func (h *hooks) count(state ledger.WebhookState) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, row := range h.rows {
		if row.State == state {
			n++
		}
	}
	return n
}
