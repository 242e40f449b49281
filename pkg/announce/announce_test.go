package announce_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/announce"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receiver answers as it is told, and remembers when it was asked.
type receiver struct {
	mu      sync.Mutex
	answers []announce.Verdict // the next ones; delivered when they have run out
	asked   []string
	at      []time.Duration
	begun   time.Time
}

func (r *receiver) Send(_ context.Context, w *ledger.WebhookRow, job *statemachine.Aggregate) announce.Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, w.ID()+" "+string(job.Job.State))
	r.at = append(r.at, time.Since(r.begun).Truncate(time.Second))
	if len(r.answers) == 0 {
		return announce.Verdict{State: ledger.WebhookDelivered, Status: 200}
	}
	answer := r.answers[0]
	r.answers = r.answers[1:]
	return answer
}

var failed = announce.Verdict{State: ledger.WebhookPending, Status: 500, Reason: "the receiver answered 500"}

// bundle is an announcer over a real ledger, and a job that ended.
type bundle struct {
	*announce.Announcer
	ledger   *ledger.Ledger
	receiver *receiver
	faults   *storetest.Faults
	jobID    string
}

func setup(t *testing.T, answers ...announce.Verdict) *bundle {
	t.Helper()
	store, faults := storetest.Faulty(memstore.New(memstore.Options{Split: true}))
	b := &bundle{receiver: &receiver{answers: answers, begun: time.Now()}, faults: faults}
	var err error
	if b.ledger, err = ledger.Open(t.Context(), ledger.Config{Store: store, Shards: 2}); err != nil {
		t.Fatal(err)
	}
	b.Announcer, err = announce.New(announce.Config{
		Ledger: b.ledger, Sender: b.receiver, Delays: []time.Duration{10 * time.Second, time.Minute},
	})
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := b.ledger.Accept(t.Context(), ledger.Command{
		Job:   statemachine.Job{TenantID: "t", IdempotencyHash: "h", CallbackURLs: []string{"https://a.example/hook"}},
		Steps: []statemachine.Step{{ID: "one"}}, Payload: []byte(`{}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	b.jobID = accepted.Job.ID
	if _, err := b.ledger.Change(t.Context(), b.jobID, statemachine.Cancel{}); err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs the announcer for that long.
func (b *bundle) run(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := b.Run(ctx); err != nil {
		t.Error(err)
	}
}

// webhook is the job's only one.
func (b *bundle) webhook(t *testing.T) ledger.WebhookRow {
	t.Helper()
	found, err := b.ledger.Webhooks(t.Context(), b.jobID)
	if err != nil || len(found) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	return found[0]
}

func TestAttempts(t *testing.T) {
	t.Parallel()
	later := announce.Verdict{State: ledger.WebhookPending, Status: 503, RetryAfter: time.Hour}
	for name, test := range map[string]struct {
		answers  []announce.Verdict
		state    ledger.WebhookState
		attempts []time.Duration
	}{
		"delivered at once":             {nil, ledger.WebhookDelivered, []time.Duration{0}},
		"delivered the second time":     {[]announce.Verdict{failed}, ledger.WebhookDelivered, []time.Duration{0, 10 * time.Second}},
		"every attempt failed":          {slices.Repeat([]announce.Verdict{failed}, 9), ledger.WebhookExhausted, []time.Duration{0, 10 * time.Second, 70 * time.Second}},
		"the receiver wants no more":    {[]announce.Verdict{{State: ledger.WebhookGone, Status: 410}}, ledger.WebhookGone, []time.Duration{0}},
		"the address is not allowed":    {[]announce.Verdict{{State: ledger.WebhookRefused}}, ledger.WebhookRefused, []time.Duration{0}},
		"the receiver asks for an hour": {[]announce.Verdict{later}, ledger.WebhookDelivered, []time.Duration{0, time.Hour}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := setup(t, test.answers...)
			b.run(t, 3*time.Hour)
			if got := b.webhook(t); got.State != test.state || got.Attempts != len(test.attempts) {
				t.Errorf("%s: %+v", name, got)
			}
			if diff := cmp.Diff(test.attempts, b.receiver.at, cmp.Comparer(about)); diff != "" {
				t.Errorf("%s: attempts (-want +got):\n%s", name, diff)
			}
			for _, asked := range b.receiver.asked {
				if asked != b.jobID+".0 CANCELLED" {
					t.Errorf("%s: sent %s", name, asked)
				}
			}
		})
	}
}

// about reports whether two times are within two passes of each other.
func about(a, b time.Duration) bool { return (a - b).Abs() <= 2*time.Second }

func TestAReplayStartsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, slices.Repeat([]announce.Verdict{failed}, 3)...)
		b.run(t, time.Hour)
		if _, replayed, err := b.ledger.ReplayWebhook(t.Context(), b.jobID+".0"); err != nil || !replayed {
			t.Fatal(replayed, err)
		}
		b.run(t, time.Minute)
		if got := b.webhook(t); got.State != ledger.WebhookDelivered || got.Attempts != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// Whatever store call fails, before or after it took effect, the webhook is
// delivered in the end, and at least once.
func TestEveryStoreCallMayFail(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		for nth := 1; nth <= 16; nth++ {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t)
				b.faults.Plan(storetest.Fault{Nth: nth, After: after})
				b.run(t, 10*time.Minute)
				if got := b.webhook(t); got.State != ledger.WebhookDelivered || len(b.receiver.asked) == 0 {
					t.Errorf("call %d, after %t: %+v, sent %d times", nth, after, got, len(b.receiver.asked))
				}
			})
		}
	}
}

func TestNew_NamesTheField(t *testing.T) {
	t.Parallel()
	l := &ledger.Ledger{}
	for name, cfg := range map[string]announce.Config{
		"nothing": {}, "no sender": {Ledger: l}, "negative hold": {Ledger: l, Sender: &receiver{}, Hold: -1},
		"jitter": {Ledger: l, Sender: &receiver{}, Jitter: 2},
	} {
		if _, err := announce.New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
