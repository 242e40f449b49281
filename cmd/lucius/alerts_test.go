// An hour of virtual time takes minutes under the race detector. The observability stage of
// make check runs these tests without it.

//go:build integration && !race

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/fakeservicebus"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// lead is how long a server works normally before a situation.
const lead = 5 * time.Minute

// virtually has the situations of a server on virtual time.
var virtually = map[string]struct {
	flags func(t *testing.T) []string
	roles []string // all by default
	begin func(s *situation)
	lasts time.Duration
	shows string // in the metrics at the end, as a regular expression
}{
	"NormalHour": {
		begin: func(s *situation) { s.schedule("last") },
		lasts: time.Hour - lead, shows: `lucius_job_duration_seconds_count{outcome="succeeded",request_type="doc.ingest"} 1\d\d\n`,
	},
	"NothingToDo": {begin: func(s *situation) { s.idle = true }, shows: `lucius_jobs{state="in_progress"} 0\n`},
	"NoWorker": {
		begin: func(s *situation) { s.workers.Store(nil) },
		shows: `lucius_work_oldest_seconds{service="extract",step_type="EXTRACT"} 1[12]\d\d`,
	},
	"FewWorkers": {
		begin: func(s *situation) {
			s.workers.Store(&workers{takes: 10 * time.Minute, fails: normal.fails, failure: normal.failure})
		},
		shows: `lucius_work_oldest_seconds{service="extract",step_type="EXTRACT"} ([4-9]\d\d|\d{4})`,
	},
	"FailingService": {
		begin: func(s *situation) {
			s.workers.Store(&workers{
				takes: time.Second, fails: func(int64) bool { return true },
				failure: `,"retryable":false,"error":{"code":"bad_scan","message":"m"}`,
			})
		},
		shows: `lucius_step_failures_total{cause="reported",retried="no",service="extract"} [34]\d\n`,
	},
	"WaitingCommand": {begin: func(s *situation) { s.inbox.waits.Store(true) }, shows: `lucius_inbox_oldest_seconds 1[0-5]\d\d`},
	"InboxThatHangs": {begin: func(s *situation) { s.inbox.hangs.Store(true) }, shows: `lucius_loop_pass_seconds_count{loop="inbox"} `},
	"RefusedCommand": {begin: func(s *situation) { s.inbox.refused.Store(3) }, shows: `lucius_inbox_refused 3\n`},
	"DiskNearlyFull": {
		begin: func(s *situation) { s.leave(3 * pebblestore.DefaultReserve) }, shows: `lucius_store_free_bytes 8.05306368e\+08\n`,
	},
	"DiskFull": {
		begin: func(s *situation) { s.leave(pebblestore.DefaultReserve / 2) },
		shows: `lucius_store_requests_total{operation="commit",outcome="unreachable"} \d\d+\n`,
	},
	"SlowStore": {
		begin: func(s *situation) {
			s.workers.Store(&workers{
				takes: normal.takes, fails: func(n int64) bool { return n%10 == 0 }, failure: normal.failure, // Retries are due.
			})
			s.beforeScans("timer:", func(context.Context) error { time.Sleep(4 * time.Minute); return nil })
		},
		shows: `lucius_sweeper_late_seconds ([3-9]\d|\d\d\d)`,
	},
	"NothingPurged": { // No process sweeps, so that a step that fails would not be retried.
		begin: func(s *situation) {
			s.workers.Store(&workers{takes: normal.takes, fails: func(int64) bool { return false }})
		},
		flags: func(*testing.T) []string { return []string{"--retention", "1m", "--idempotency-ttl", "1m"} },
		roles: []string{config.RoleAPI, config.RoleRelay}, shows: `lucius_retention_oldest_seconds 1[3-5]\d\d`,
	},
	"StoreThatHangs": { // It answers nothing to the reconciler.
		begin: func(s *situation) {
			s.beforeScans("live:", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		},
		shows: `lucius_loop_pass_seconds_count{loop="reconciler"} `,
	},
	"StoreThatFails": { // It answers errors to the reconciler.
		begin: func(s *situation) {
			s.beforeScans("live:", func(context.Context) error { return fmt.Errorf("broken: %w", tablestore.ErrUnavailable) })
		},
		shows: `lucius_loop_failures_total{loop="reconciler"} \d\d+\n`,
	},
	"ExpiredJobs": {
		begin: func(s *situation) {
			s.workers.Store(nil)
			s.expires = time.Minute
		},
		shows: `lucius_expired_total \d\d+\n`,
	},
	"OneLine": {
		begin: func(s *situation) { s.key = "document-1" }, lasts: 40 * time.Minute, shows: `lucius_line_blocked_seconds 0\n`,
	},
	"BlockedLine": { // Its first job fails; the others wait.
		begin: func(s *situation) {
			var failed atomic.Bool
			s.key = "document-1"
			s.workers.Store(&workers{
				takes: normal.takes, fails: func(int64) bool { return !failed.Swap(true) },
				failure: `,"retryable":false,"error":{"code":"bad_scan","message":"m"}`,
			})
		},
		lasts: 40 * time.Minute, shows: `lucius_line_blocked_seconds 2[34]\d\d`,
	},
	"MissedSchedule": {
		begin: func(s *situation) {
			s.schedule("none")
			s.slowSchedules(100 * time.Second)
		},
		lasts: 40 * time.Minute, shows: `lucius_schedule_fires_total{outcome="missed"} \d\d?\n`,
	},
	"LateSchedule": {
		begin: func(s *situation) {
			s.schedule("all")
			s.slowSchedules(100 * time.Second)
		},
		lasts: 40 * time.Minute, shows: `lucius_schedule_fires_total{outcome="missed"} 0\n`,
	},
	"StuckJob":      {begin: func(s *situation) { s.loseEntry(true) }, shows: "lucius_jobs_stuck 1\n"},
	"RepairedJob":   {begin: func(s *situation) { s.loseEntry(false) }, shows: "lucius_reconciler_repaired_total 1\n"},
	"BadProtocol":   {begin: func(s *situation) { s.breakProtocols() }, shows: "lucius_protocols_refused 1\n"},
	"ShortLivedTLS": {flags: certificateFor(13 * 24 * time.Hour), shows: "lucius_tls_certificate_expires_timestamp_seconds "},
	"LongLivedTLS":  {flags: certificateFor(90 * 24 * time.Hour), shows: "lucius_tls_certificate_expires_timestamp_seconds "},
	"NoRelay":       {flags: withoutRelay, roles: []string{config.RoleAPI, config.RoleSweeper}, shows: `lucius_outbox_oldest_pending_seconds 1[0-5]\d\d`},
	"PausedNoRelay": {
		flags: withoutRelay, roles: []string{config.RoleAPI, config.RoleSweeper}, begin: func(s *situation) {
			s.want(s.t, http.StatusOK, http.MethodPost, "/v1/admin/pauses", `{"all":true,"reason":"why"}`)
		},
		shows: "lucius_pauses_active 1\n",
	},
}

// TestSituation produces the situations that alerts are for, and situations that look
// similar. The module deploy/observability evaluates the alerts on what Prometheus would
// have read.
func TestSituation(t *testing.T) {
	t.Parallel()
	for name, test := range virtually {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var flags []string
				if test.flags != nil {
					flags = test.flags(t)
				}
				inSituation(t, test.roles, func(s *situation) {
					s.passes(lead)
					if test.begin != nil {
						test.begin(s)
					}
					s.passes(max(test.lasts, 20*time.Minute))
					text := s.want(t, http.StatusOK, http.MethodGet, "/metrics", "").body
					if !regexp.MustCompile(`\n` + test.shows).MatchString(text) {
						t.Errorf("the metrics have no %s", test.shows)
					}
				}, flags...)
			})
		})
	}
}

// held records a server's metrics once they match, as if they lasted ten minutes.
func held(t *testing.T, s *testServer, shows string) {
	t.Helper()
	matches := regexp.MustCompile(`\n` + shows)
	waittest.Until(t, "the metrics have "+shows, func() bool { return matches.MatchString(scrape(t, s)) })
	var r recording
	began := time.Now()
	for n := range 20 {
		r.scraped(began.Add(time.Duration(n)*scrapeInterval), scrape(t, s))
	}
	r.keep(t)
}

// TestSituation_Held produces situations on Azure, with fakes on the wire, in real time.
func TestSituation_Held(t *testing.T) {
	t.Parallel()
	t.Run("ClockAhead", func(t *testing.T) {
		t.Parallel()
		d := newFrontDoor(t)
		d.clock.Store(int64(-time.Minute))
		s := serveOn(t, t.TempDir(), "--storage-backend", config.BackendLedger, "--table-connection", d.connection)
		held(t, s, `lucius_clock_skew_seconds [56]\d`)
	})
	t.Run("AccountAway", func(t *testing.T) {
		t.Parallel()
		d := newFrontDoor(t)
		s := serveOn(t, t.TempDir(), "--storage-backend", config.BackendLedger, "--table-connection", d.connection)
		d.throttles.Store(true)
		held(t, s, `lucius_store_outage_seconds [1-9]`)
		d.throttles.Store(false)
	})
	t.Run("TopicMissing", func(t *testing.T) {
		t.Parallel()
		namespace, err := fakeservicebus.Start(fakeservicebus.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(namespace.Close)
		s := serveOn(t, t.TempDir(), append(onBus(namespace), "--servicebus-replies", "false")...)
		s.submit(t)
		held(t, s, `lucius_circuits_open 1\n`)
	})
	t.Run("DeadLetters", func(t *testing.T) {
		t.Parallel()
		namespace := newNamespace(t)
		buryReply(t, namespace, "global-bus-replies-p0", "not JSON")
		s := serveOn(t, t.TempDir(), onBus(namespace)...)
		held(t, s, `lucius_bus_dead_letters 1\n`)
	})
}

// beforeScans calls a function before each scan of the schedule that starts at the prefix.
func (s *situation) beforeScans(prefix string, before func(context.Context) error) {
	s.store.scans.Store(new(func(ctx context.Context, query tablestore.Query) error {
		if query.Table == "luciusschedule" && strings.HasPrefix(query.From, prefix) {
			return before(ctx)
		}
		return nil
	}))
}

// schedule makes a schedule that is due every minute.
func (s *situation) schedule(catchUp string) {
	s.t.Helper()
	s.want(s.t, http.StatusCreated, http.MethodPut, "/v1/schedules/tenant_a/minutely", `{"every":"1m","overlap":"allow",`+
		`"catch_up":{"policy":"`+catchUp+`","window":"1h"},"command":{"request_type":"doc.ingest","schema_version":"1",`+
		`"payload":{"language":"en"},"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"}}}`)
}

// slowSchedules delays each look for due schedules.
func (s *situation) slowSchedules(delay time.Duration) {
	s.store.scans.Store(new(func(ctx context.Context, query tablestore.Query) error {
		if query.Table == "luciusschedule" && query.Partition == "cron" {
			time.Sleep(delay)
		}
		return ctx.Err()
	}))
}

// loseEntry deletes the schedule entry of a job that a worker has, and the job's reference to
// it if the loss is to be beyond repair. No known defect does that, so the test changes the
// store.
func (s *situation) loseEntry(beyondRepair bool) {
	s.t.Helper()
	s.workers.Store(&workers{takes: time.Hour, fails: normal.fails})
	s.idle = true
	s.passes(time.Minute) // Claims of the earlier workers end.
	s.submit()
	s.passes(scrapeInterval)
	job := s.row("luciusledger", func(row *tablestore.Row) bool {
		return row.Key.Row == "JOB" && row.Properties.Get("state").String() == "IN_PROGRESS"
	})
	nonce := job.Properties.Get("entry_nonce").String()
	entry := s.row("luciusschedule", func(row *tablestore.Row) bool { return strings.HasSuffix(row.Key.Row, nonce) })
	batches := []tablestore.Batch{{{Verb: tablestore.Discard, Key: entry.Key}}}
	if beyondRepair {
		left := slices.DeleteFunc(job.Properties, func(p tablestore.Property) bool { return strings.HasPrefix(p.Name, "entry_") })
		batches = append(batches, tablestore.Batch{{Verb: tablestore.Replace, Key: job.Key, ETag: job.ETag, Properties: left}})
	}
	if _, err := s.store.CommitAll(s.t.Context(), batches, nil); err != nil {
		s.t.Fatal(err)
	}
}

// row finds the only row of that kind in the table.
func (s *situation) row(table string, is func(*tablestore.Row) bool) *tablestore.Row {
	s.t.Helper()
	var found []*tablestore.Row
	for walk := (tablestore.Walk{Table: table}); ; {
		rows, err := s.store.Walk(s.t.Context(), walk)
		if err != nil {
			s.t.Fatal(err)
		}
		for i := range rows {
			if is(&rows[i]) {
				found = append(found, &rows[i])
			}
			walk.Partition, walk.Row = rows[i].Key.Partition, rows[i].Key.Row
		}
		if len(rows) == 0 {
			break
		}
	}
	if len(found) != 1 {
		s.t.Fatalf("%s has %d such rows", table, len(found))
	}
	return found[0]
}

// breakProtocols makes the protocol files invalid.
func (s *situation) breakProtocols() {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.protocols, "bad.yaml"), []byte("protocol_id: [\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// certificateFor returns the flags of a certificate that expires after that time.
func certificateFor(valid time.Duration) func(t *testing.T) []string {
	return func(t *testing.T) []string {
		t.Helper()
		dir := t.TempDir()
		newAuthority(t).issueFor(t, valid, dir, "server", "cert.pem", "key.pem")
		return []string{"--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem")}
	}
}

// withoutRelay returns the flags of a process whose directives another one should publish.
func withoutRelay(*testing.T) []string {
	return []string{
		"--bus", config.BusServiceBus, "--servicebus-connection",
		"Endpoint=sb://example.servicebus.windows.net/;SharedAccessKeyName=lucius;SharedAccessKey=c2VjcmV0",
	}
}
