package liveness_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/liveness"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ward is a ledger of two shards with one page of findings each.
type ward struct {
	findings [2][]ledger.Finding
	err      error
	pending  time.Time // since when a row is
	gone     error     // why its job cannot be read
}

func (w *ward) Shards() int { return 2 }

func (w *ward) Inspect(_ context.Context, shard, _ int, from string) ([]ledger.Finding, string, error) {
	if w.err != nil {
		return nil, "", w.err
	}
	if from == "" && shard == 0 {
		return nil, "more", nil
	}
	return w.findings[shard], "", nil
}

func (w *ward) Message(_ context.Context, agg *statemachine.Aggregate) (*ledger.Message, error) {
	return &ledger.Message{JobID: agg.Job.ID}, nil
}

func (w *ward) Due(_ context.Context, _ ledger.Kind, shard int, _ time.Time, _ int, _ string,
) ([]ledger.Entry, string, error) {
	if shard == 1 && !w.pending.IsZero() {
		return []ledger.Entry{{Due: time.Now(), JobID: "pending"}}, "", nil
	}
	return nil, "", nil
}

func (w *ward) Job(_ context.Context, id string) (*statemachine.Aggregate, error) {
	agg := job(id)
	agg.Outbox = &statemachine.Outbox{State: statemachine.OutboxPending, CreatedAt: w.pending}
	return agg, w.gone
}

// round makes a whole round.
func round(t *testing.T, c *liveness.Checker) {
	t.Helper()
	for range 10 {
		if ended, err := c.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		} else if ended {
			return
		}
	}
	t.Fatal("the round does not end")
}

// job is a live job.
func job(id string) *statemachine.Aggregate {
	return &statemachine.Aggregate{Job: statemachine.Job{ID: id, State: statemachine.JobInProgress}}
}

func TestRound(t *testing.T) {
	t.Parallel()
	w := &ward{findings: [2][]ledger.Finding{
		{{JobID: "fine", Job: job("fine")}, {JobID: "stuck", Job: job("stuck"), Stuck: "no entry"}},
		{
			{JobID: "repaired", Repaired: "slot"}, {JobID: "waits", Job: job("waits"), Waits: true},
			{JobID: "lost", Job: job("lost"), Waits: true},
		},
	}}
	c, err := liveness.New(liveness.Config{Ledger: w, Ensure: func(_ context.Context, m *ledger.Message) (bool, error) {
		return m.JobID == "lost", nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	round(t, c)
	report := c.Report()
	if report.Checked != 5 || report.Repaired != 2 || len(report.Stuck) != 1 || report.Stuck[0].JobID != "stuck" ||
		report.Stuck[0].Reason != "no entry" || report.RoundEnded.IsZero() {
		t.Errorf("%+v", report)
	}
	w.findings = [2][]ledger.Finding{}
	round(t, c)
	if report = c.Report(); len(report.Stuck) != 0 || report.Checked != 0 || report.Repaired != 2 {
		t.Errorf("after it was put right: %+v", report)
	}
}

func TestRunOnce_LooksAgainAfterAnError(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	w := &ward{err: away}
	c, err := liveness.New(liveness.Config{Ledger: w})
	if err != nil {
		t.Fatal(err)
	}
	if ended, err := c.RunOnce(t.Context()); !errors.Is(err, away) || ended {
		t.Errorf("%t, %v", ended, err)
	}
	w.err = nil
	round(t, c)
	w.findings[0] = []ledger.Finding{{JobID: "waits", Job: job("waits"), Waits: true}}
	failing, err := liveness.New(liveness.Config{Ledger: w, Ensure: func(context.Context, *ledger.Message) (bool, error) {
		return false, away
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = failing.RunOnce(t.Context()) // The empty first page.
	if _, err := failing.RunOnce(t.Context()); !errors.Is(err, away) {
		t.Errorf("a queue that does not answer: %v", err)
	}
}

func TestRun_TellsHowLongTheOldestRowWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := liveness.New(liveness.Config{Ledger: &ward{pending: time.Now()}}) // It is due again all the time.
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		time.Sleep(90 * time.Second)
		cancel()
		if err := <-done; err != nil || c.Report().OldestPending < 60*time.Second {
			t.Errorf("%+v, %v", c.Report(), err)
		}
	})
}

func TestRunOnce_OfAPendingRowWhoseJobIsGone(t *testing.T) {
	t.Parallel()
	w := &ward{pending: time.Now().Add(-time.Hour), gone: ledger.ErrJobNotFound}
	c, err := liveness.New(liveness.Config{Ledger: w})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.RunOnce(t.Context()); err != nil || c.Report().OldestPending != 0 {
		t.Errorf("%+v, %v", c.Report(), err)
	}
	w.gone = errors.New("the row makes no sense")
	if _, err := c.RunOnce(t.Context()); err != nil {
		t.Errorf("a job that cannot be read: %v", err)
	}
	w.gone = tablestore.ErrUnavailable
	if _, err := c.RunOnce(t.Context()); !errors.Is(err, w.gone) {
		t.Errorf("a ledger that does not answer: %v", err)
	}
}

func TestNew_NamesTheField(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]liveness.Config{"no ledger": {}, "negative": {Ledger: &ward{}, Page: -1}} {
		if _, err := liveness.New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
