package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/tablestore"
)

// TestStoreSummary simulates an outage of the store: each message is logged once, then
// counted every ten seconds, and logged again in the next outage. Lines about anything else
// pass.
func TestStoreSummary(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out output
		seen := 0
		log := slog.New(newStoreSummary(slog.NewJSONHandler(&out, nil)))
		expect := func(when string, lines int, parts ...string) {
			t.Helper()
			synctest.Wait()
			got := out.String()[seen:]
			seen += len(got)
			if strings.Count(got, "\n") != lines {
				t.Errorf("%s: want %d lines, got:\n%s", when, lines, got)
			}
			for _, part := range parts {
				if !strings.Contains(got, part) {
					t.Errorf("%s: no %s in\n%s", when, part, got)
				}
			}
		}
		away, lost := fmt.Errorf("%w: HTTP 503", tablestore.ErrUnavailable), fmt.Errorf("%w: EOF", tablestore.ErrUnknown)
		outage := func(n int) {
			for i := range n {
				log.Warn("deadline not handled", "jobId", i, "error", away)
				log.With("loop", "sweeper").WithGroup("g").Error("pass failed", "err", lost)
			}
		}
		outage(1000)
		log.Warn("another error", "error", errors.New("about something else"))
		log.Warn("another error", "error", errors.New("about something else"))
		log.Info("no error of the store", "error", away)
		log.Info("no error of the store", "error", away)
		expect("at first", 6, `"jobId":0`, `"loop":"sweeper"`)
		time.Sleep(summaryInterval)
		expect("in the first summary", 1, `"level":"WARN"`, `"lines":1998`,
			`"messages":{"deadline not handled":999,"pass failed":999}`, `"last_error":"outcome of the write is unknown: EOF"`)
		outage(1)
		expect("while it lasts", 0)
		time.Sleep(summaryInterval)
		expect("in the second summary", 1, `"lines":2`)
		time.Sleep(2 * summaryInterval)
		expect("afterwards", 0)
		outage(1)
		expect("in the next outage", 2, "deadline not handled", "pass failed")
	})
}
