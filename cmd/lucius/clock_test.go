package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/upkeep"
)

// clocked is a store with a clock of its own.
type clocked struct {
	tablestore.Store

	ahead time.Duration // of the store, the own one is
}

func (c *clocked) Skew() time.Duration { return c.ahead }

// TestClock_HoldsLoopsWhileItIsWrong: no pass is made, the log says so once, and the
// first pass afterwards is as after a standstill.
func TestClock_HoldsLoopsWhileItIsWrong(t *testing.T) {
	t.Parallel()
	out := &output{}
	store := &clocked{memstore.New(memstore.Options{}), 0}
	c := newClockCheck(store, 5*time.Second, slog.New(slog.NewTextHandler(out, nil)))
	passes, resumed := 0, 0
	loop := c.guard(upkeep.Loop{
		Pass: func(context.Context) error { passes++; return io.EOF }, Resumed: func(time.Time) { resumed++ },
	})
	for i, step := range []struct {
		ahead           time.Duration
		passes, resumed int
		warning         string
		lines           int // of the log, so far
	}{
		{0, 1, 0, "", 0},
		{5 * time.Second, 2, 0, "", 0},
		{6 * time.Second, 2, 0, "this host's clock is 6s ahead of the store's", 1},
		{-time.Hour, 2, 0, "this host's clock is 1h0m0s behind the store's", 1},
		{-5 * time.Second, 3, 1, "", 2},
		{0, 4, 1, "", 2},
	} {
		store.ahead = step.ahead
		if err := loop.Pass(t.Context()); errors.Is(err, io.EOF) != (step.warning == "") {
			t.Errorf("step %d: the pass returns %v", i, err)
		}
		warning := c.warning()
		if passes != step.passes || resumed != step.resumed || !strings.HasPrefix(warning, step.warning) ||
			(warning == "") != (step.warning == "") || strings.Count(out.String(), "\n") != step.lines {
			t.Errorf("step %d: %d passes, %d after a standstill, warning %q, log %s", i, passes, resumed, warning, out)
		}
	}
	store.ahead = time.Hour
	for name, unchecked := range map[string]*clockCheck{
		"switched off": newClockCheck(store, 0, c.log), "of a local store": newClockCheck(store.Store, time.Second, c.log),
	} {
		if unchecked.isWrong() || unchecked.warning() != "" {
			t.Errorf("%s: it is wrong", name)
		}
	}
}

// TestServe_DoesNotSweepByAWrongClock: a server whose clock is a minute ahead of the
// account's takes commands and hands out work, but takes none from a worker. Once its
// clock is right again, it does.
func TestServe_DoesNotSweepByAWrongClock(t *testing.T) {
	t.Parallel()
	d := newFrontDoor(t)
	d.clock.Store(int64(-time.Minute))
	s := serveOn(t, t.TempDir(), "--storage-backend", config.BackendLedger, "--table-connection", d.connection,
		"--ack-timeout", "1ms", "--lease-duration", "10m")
	s.submit(t)
	item := s.claim(t, "c", false)
	until := func(what string, found func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !found(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	const passes = `lucius_loop_pass_seconds_count{loop="sweeper"} `
	until("the sweeper had a hundred chances", func() bool {
		_, rest, _ := strings.Cut(scrape(t, s), passes)
		n, _, _ := strings.Cut(rest, "\n")
		return len(n) > 2
	})
	if status(t, s, item) != api.WorkStatusClaimed {
		t.Error("with a wrong clock the worker's item is taken")
	}
	ready, err := s.client.GetReadinessWithResponse(t.Context())
	if err != nil || !strings.Contains(string(ready.Body), "ahead of the store's") {
		t.Errorf("readiness: %v, %s", err, ready.Body)
	}
	if text := scrape(t, s); !strings.Contains(text, "\nlucius_clock_skew_seconds 5") {
		t.Error("the metrics do not show the skew of nearly a minute")
	}
	d.clock.Store(0)
	until("the worker that sent no ACK loses its item", func() bool {
		return status(t, s, item) != api.WorkStatusClaimed
	})
}

// status reads the status of a work item.
func status(t *testing.T, s *testServer, item *api.WorkItem) api.WorkStatus {
	t.Helper()
	response, err := s.client.GetWorkWithResponse(t.Context(), item.WorkID)
	if err != nil || response.JSON200 == nil {
		t.Fatalf("%v, %s", err, response.Body)
	}
	return response.JSON200.Status
}
