//go:build integration && !race

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
)

// TestServe_DoesNotSweepByAWrongClock: a server whose clock is a minute ahead of the
// account's accepts commands and hands out work, but takes no item from a worker whose ACK
// is overdue. Once its clock is right again, it does.
func TestServe_DoesNotSweepByAWrongClock(t *testing.T) {
	t.Parallel()
	d := newFrontDoor(t)
	d.clock.Store(int64(-time.Minute))
	s := serveOn(t, t.TempDir(), "--storage-backend", config.BackendLedger, "--table-connection", d.connection,
		"--ack-timeout", "1ms")
	s.submit(t)
	item := s.claim(t, "c", false)
	const passes = `lucius_loop_pass_seconds_count{loop="sweeper"} `
	waittest.Until(t, "the sweeper had a hundred chances", func() bool {
		_, rest, _ := strings.Cut(scrape(t, s), passes)
		n, _, _ := strings.Cut(rest, "\n")
		return len(n) > 2
	})
	if status(t, s, item) != api.WorkStatusClaimed {
		t.Error("with a wrong clock the worker's item is taken")
	}
	ready, err := s.client.GetReadinessWithResponse(t.Context())
	if err != nil || !strings.Contains(string(ready.Body), "ahead of the store's") {
		t.Errorf("readiness: %v, %s", err, bodyOf(ready))
	}
	if text := scrape(t, s); !strings.Contains(text, "\nlucius_clock_skew_seconds 5") {
		t.Error("the metrics do not show the skew of nearly a minute")
	}
	d.clock.Store(0)
	waittest.Until(t, "the worker that sent no ACK loses its item", func() bool {
		return status(t, s, item) != api.WorkStatusClaimed
	})
}

// status reads the status of a work item.
func status(t *testing.T, s *testServer, item *api.WorkItem) api.WorkStatus {
	t.Helper()
	response, err := s.client.GetWorkWithResponse(t.Context(), item.WorkID)
	if err != nil || response.JSON200 == nil {
		t.Fatalf("%v, %s", err, bodyOf(response))
	}
	return response.JSON200.Status
}
