//go:build integration && !race

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
)

// firings are the kill points around the writes that fire an occurrence, in their order. What becomes of it otherwise is written with
// HEAD, as luciuscron.replace.
var firings = around(
	"fire.claimed", "luciusschedule.replace", "luciusjobindex.put", "luciusqueue.put", "luciusschedule.put", "commit.accept",
	"cron.put", "luciuscron.replace", "cron.discard")

// TestCrash_AtEachWriteOfAFiring makes the server kill itself at each write with which it fires schedules, on each store. After
// each restart it dies at the next write. In the end the jobs are those that the calendars say: each occurrence has exactly
// one job, or an outcome that its schedule allows and none, and the audit of the store is clean.
func TestCrash_AtEachWriteOfAFiring(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		points []string
		// open returns a site on a new store, the flags of a server on it, and what audits the store.
		open func(t *testing.T) (s *site, flags []string, audit func(servers ...*process))
	}{
		"the embedded store, write by write": {firings, onDirectory},
		"the embedded store, in one write":   {around("whole.accept", "whole.cron"), onDirectory},
		"PostgreSQL, write by write":         {firings, onDatabase},
		"PostgreSQL, in one write":           {around("whole.accept", "whole.cron"), onDatabase},
		"Azure, one table":                   {firings, onLayout(config.BackendLedger)},
		"Azure, the tables of Phase 1":       {firings, onLayout(config.BackendTable)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, flags, audit := test.open(t)
			// The first server of a store decides whether it lists live jobs, which takes changes in one write. So it makes
			// its changes as the next ones do; it gets nowhere near its point.
			first, _ := s.startToDie(test.points[0]+":1000000", flags...)
			planned := s.plan()
			first.kill()
			for i, point := range test.points {
				p, _ := s.startToDie(fmt.Sprintf("%s:%d", point, 1+i%3), flags...)
				p.expectDeath(point)
			}
			server := s.start(flags...)
			until := time.Now()
			s.stopAfter(planned, until)
			s.endAll()
			s.expectCalendar(planned, until)
			audit(server)
		})
	}
}

func onDirectory(t *testing.T) (*site, []string, func(...*process)) {
	t.Helper()
	s := newSite(t)
	return s, nil, func(servers ...*process) {
		t.Helper()
		servers[0].terminate()
		auditRows(t, s)
	}
}

func onDatabase(t *testing.T) (*site, []string, func(...*process)) {
	t.Helper()
	at := onPostgres(t).URL.String()
	flags := append(remoteFlags(), "--storage-backend", config.BackendPostgres, "--postgres-url", at)
	return newSite(t), flags, func(servers ...*process) {
		t.Helper()
		expectQuiet(t, auditDatabase(t, at), servers...)
	}
}

func onLayout(layout string) func(t *testing.T) (*site, []string, func(...*process)) {
	return func(t *testing.T) (*site, []string, func(...*process)) {
		t.Helper()
		account, err := azurite.Start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(account.Stop)
		flags := append(remoteFlags(), "--storage-backend", layout, "--table-connection", account.ConnectionString())
		s := newSite(t)
		s.http.Transport = &patient{t, s.http.Transport}
		return s, flags, func(servers ...*process) {
			t.Helper()
			expectQuiet(t, auditAccount(t, layout, account), servers...)
		}
	}
}

// tenantOfPlans is the tenant of the schedules of [site.plan].
const tenantOfPlans = "tenant_a"

// patient repeats what was answered with 503 or not at all, as clients do: the emulator of a busy machine may be slow, and a
// server that does not get to a request in time ends its connection. What is sent here may be repeated.
type patient struct {
	t    *testing.T
	next http.RoundTripper
}

func (p *patient) RoundTrip(r *http.Request) (response *http.Response, err error) {
	for end := time.Now().Add(waittest.Bound(p.t)); ; time.Sleep(waittest.Scale(100 * time.Millisecond)) {
		response, err = p.next.RoundTrip(r)
		if err == nil && response.StatusCode != http.StatusServiceUnavailable || r.Context().Err() != nil || time.Now().After(end) {
			return response, err
		}
		if err == nil {
			_ = response.Body.Close()
		}
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// plan makes two schedules of each overlap. Each is due every 10 seconds, at another second. The commands name their
// schedule and occurrence.
func (s *site) plan() (planned []api.Schedule) {
	s.t.Helper()
	anchor := time.Now().Truncate(10 * time.Second)
	for i, overlap := range []api.ScheduleOverlap{
		api.ScheduleOverlapAllow, api.ScheduleOverlapSkip, api.ScheduleOverlapQueue, api.ScheduleOverlapCancelRunning,
		api.ScheduleOverlapAllow, api.ScheduleOverlapSkip, api.ScheduleOverlapQueue, api.ScheduleOverlapCancelRunning,
	} {
		name := fmt.Sprintf("%s-%d", overlap, i)
		made, err := s.client.PutScheduleWithResponse(s.t.Context(), tenantOfPlans, name, api.ScheduleRequest{
			Every: "10s", StartAt: api.NewTime(anchor.Add(time.Duration(i) * time.Second)), Overlap: overlap,
			CatchUp: api.ScheduleCatchUp{Policy: api.ScheduleCatchUpPolicyAll, Window: "1h"},
			Command: json.RawMessage(`{"request_type":"doc.ingest","schema_version":"1","payload":{"language":"en"},` +
				`"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"},"correlation_id":"` + name + ` ${scheduled_for}"}`),
		})
		if err == nil && made.JSON201 == nil {
			made.JSON201 = made.JSON200 // The first request made it, and was not answered.
		}
		if err != nil || made.JSON201 == nil {
			s.t.Fatalf("schedule %s: %v, %s", name, err, bodyOf(made))
		}
		planned = append(planned, *made.JSON201)
	}
	return planned
}

// stopAfter pauses the schedules once all occurrences up to that time are decided.
func (s *site) stopAfter(planned []api.Schedule, until time.Time) {
	s.t.Helper()
	for _, one := range planned {
		waittest.Until(s.t, "the occurrences of "+one.Name+" are decided", func() bool {
			now, err := s.client.GetScheduleWithResponse(s.t.Context(), tenantOfPlans, one.Name)
			if err != nil || now.JSON200 == nil {
				s.t.Fatalf("schedule %s: %v, %s", one.Name, err, bodyOf(now))
			}
			return len(now.JSON200.Next) > 0 && now.JSON200.Next[0].At.After(until)
		})
	}
	for _, one := range planned {
		paused, err := s.client.PauseScheduleWithResponse(s.t.Context(), tenantOfPlans, one.Name, api.PauseScheduleJSONRequestBody{})
		if err != nil || paused.JSON200 == nil {
			s.t.Fatalf("pause schedule %s: %v, %s", one.Name, err, bodyOf(paused))
		}
	}
}

// endAll lets workers do what there is, until all jobs have ended. Until then no job ended, so that schedules with a line
// have met the jobs of earlier occurrences.
func (s *site) endAll() {
	s.t.Helper()
	ctx, rest := context.WithCancel(s.t.Context())
	var workers sync.WaitGroup
	for i := range 2 {
		worker := newWorker(s.t, siteURL, s.http, fmt.Sprint("worker-", i), handle)
		workers.Go(func() { _ = worker.Run(ctx) }) // Jobs that do not end fail the test.
	}
	defer func() { rest(); workers.Wait() }()
	waittest.Until(s.t, "all jobs end", func() bool {
		return !slices.ContainsFunc(s.jobsAgain(), func(job api.Job) bool {
			return job.State != api.JobStateSucceeded && job.State != api.JobStateCancelled
		})
	})
}

// expectCalendar compares the jobs and the histories with the calendars: the history has each occurrence until that time once,
// one that was fired has exactly one job, any other none, and there are no other jobs.
func (s *site) expectCalendar(planned []api.Schedule, until time.Time) {
	s.t.Helper()
	jobs := map[string][]string{} // by the name and the occurrence
	for _, job := range s.jobsAgain() {
		jobs[job.CorrelationID] = append(jobs[job.CorrelationID], job.JobID)
	}
	fired := len(jobs)
	for _, one := range planned {
		history := s.historyOf(one.Name)
		for at, found := range history {
			command := one.Name + " " + at
			if len(found) != 1 {
				s.t.Errorf("the history has occurrence %s %d times", command, len(found))
			}
			var want []string
			if found[0].Outcome == api.FireOutcomeFired {
				want = []string{found[0].JobID}
			}
			if !slices.Equal(jobs[command], want) {
				s.t.Errorf("occurrence %s is %s with job %q, and has the jobs %q", command, found[0].Outcome, found[0].JobID, jobs[command])
			}
			delete(jobs, command)
		}
		cal, err := calendar.Parse(calendar.Spec{Every: 10 * time.Second, StartAt: one.StartAt.Time})
		if err != nil {
			s.t.Fatal(err)
		}
		for at, ok := cal.Next(one.CreatedAt.Time); ok && !at.After(until); at, ok = cal.Next(at) {
			s.expectOutcome(&one, at, history[at.UTC().Format(time.RFC3339)])
		}
	}
	for command, of := range jobs {
		s.t.Errorf("the jobs %q of %s are of no occurrence", of, command)
	}
	s.t.Logf("%d occurrences were fired", fired)
}

// expectOutcome checks what became of an occurrence. Only lines may leave one without a job, because the earlier ones do not end: one
// that waits is missed in the end if its line is full.
func (s *site) expectOutcome(of *api.Schedule, at time.Time, found []api.ScheduleFire) {
	s.t.Helper()
	allowed := []api.FireOutcome{api.FireOutcomeFired}
	switch of.Overlap {
	case api.ScheduleOverlapSkip:
		allowed = append(allowed, api.FireOutcomeSkipped)
	case api.ScheduleOverlapQueue:
		allowed = append(allowed, api.FireOutcomeMissed)
	case api.ScheduleOverlapAllow, api.ScheduleOverlapCancelRunning:
	}
	if len(found) == 0 || !slices.Contains(allowed, found[0].Outcome) {
		s.t.Errorf("occurrence %s of %s is %+v, want one of %q", at, of.Name, found, allowed)
	}
}

// historyOf returns the history of a schedule, by the time of the occurrence.
func (s *site) historyOf(name string) map[string][]api.ScheduleFire {
	s.t.Helper()
	limit := api.Limit(1000)
	page, err := s.client.ListFiresWithResponse(s.t.Context(), tenantOfPlans, name, &api.ListFiresParams{Limit: &limit})
	if err != nil || page.JSON200 == nil || page.JSON200.NextPageToken != "" {
		s.t.Fatalf("the history of %s: %v, %s", name, err, bodyOf(page))
	}
	history := map[string][]api.ScheduleFire{}
	for _, fire := range page.JSON200.Fires {
		at := fire.ScheduledFor.UTC().Format(time.RFC3339)
		history[at] = append(history[at], fire)
	}
	return history
}
