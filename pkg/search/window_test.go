package search_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

var ocrKind = ledger.WorkKind{Service: "ocr", StepType: "T"}

func TestWindows_HaveTheRatesAndDurationsOfTheLastHour(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		var timed []string
		p.timed = &timed
		// In each of 100 s an attempt waits 500 ms and then runs, for 1 s to 100 s. Every
		// fourth fails.
		for n := 1; n <= 100; n++ {
			p.submit("ocr")
			time.Sleep(500 * time.Millisecond)
			item := p.claim("ocr", 1, true)[0]
			time.Sleep(time.Duration(n) * time.Second)
			if n%4 == 0 {
				p.fail(item, false)
			} else {
				p.complete(item)
			}
		}
		want := []string{"ocr waited 500ms", "ocr SUCCEEDED after 3s", "ocr waited 500ms", "ocr FAILED_FINAL after 4s"}
		if diff := cmp.Diff(want, timed[4:8]); diff != "" || len(timed) != 200 {
			t.Errorf("%d were timed (-want +timed):\n%s", len(timed), diff)
		}
		end := time.Now()
		ocr := p.service("ocr")
		if ocr.Attempts.Total != 100 || ocr.Took.Count == 0 || ocr.Waited.Count == 0 {
			t.Errorf("%+v", ocr)
		}
		// The last hour has the attempts that took at least 54 s.
		if ocr.Took.P50 != 77*time.Second || ocr.Took.P95 != 98*time.Second || ocr.Waited.P95 != 500*time.Millisecond {
			t.Errorf("took %+v, waited %+v", ocr.Took, ocr.Waited)
		}
		hour := ocr.Attempts.Hour
		if rate := hour.ErrorRate(); rate < 0.2 || rate > 0.3 || hour.Over < time.Hour || hour.Over > 61*time.Minute {
			t.Errorf("error rate %g over %s", rate, hour.Over)
		}
		if second := hour.PerSecond(); math.Abs(second-float64(hour.Count)/hour.Over.Seconds()) > 1e-9 || second == 0 {
			t.Errorf("%g each second", second)
		}
		if minute := ocr.Attempts.Minute; minute.Count != 1 || minute.Over > 2*time.Minute {
			t.Errorf("in the last minute: %+v", minute)
		}
		report := p.Report()
		if failed := report.Ended[statemachine.JobFailedFinal]; failed.Total != 25 || report.Accepted.Total != 100 {
			t.Errorf("%+v", report)
		}
		time.Sleep(time.Until(end.Add(62 * time.Minute)))
		if ocr = p.service("ocr"); ocr.Attempts.Hour.Count != 0 || ocr.Attempts.Total != 100 {
			t.Errorf("after an hour: %+v", ocr)
		}
		if ocr.Took.Count != 0 || ocr.Took.P95 != 0 {
			t.Errorf("after an hour: %+v", ocr)
		}
	})
}

// Durations of a day are counted in buckets, and their percentiles are at most an eighth off.
func TestDurations_AreThoseOfTheLastDay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		attempt := func(took time.Duration) {
			p.submit("ocr")
			item := p.claim("ocr", 1, true)[0]
			time.Sleep(took)
			p.complete(item)
		}
		expect := func(when string, hour search.Percentiles, inDay int, p50, others time.Duration) {
			t.Helper()
			ocr := p.service("ocr")
			if diff := cmp.Diff(hour, ocr.Took); diff != "" {
				t.Errorf("%s, of the hour (-want +got):\n%s", when, diff)
			}
			about := func(got, want time.Duration) bool { return got >= want*7/8 && got <= want*9/8 }
			if day := ocr.TookInDay; day.Count != inDay || !about(day.P50, p50) || !about(day.P95, others) || !about(day.P99, others) {
				t.Errorf("%s, of the day: %+v", when, day)
			}
			if ended := p.Report().InDay[statemachine.JobSucceeded]; ocr.WaitedInDay.Count != inDay || ended != inDay {
				t.Errorf("%s: waited %+v, %d ended", when, ocr.WaitedInDay, ended)
			}
		}
		of := func(n int, all time.Duration) search.Percentiles {
			return search.Percentiles{Count: n, P50: all, P95: all, P99: all}
		}
		began := p.Report().Since
		for range 3 {
			attempt(time.Second)
		}
		expect("at once", of(3, time.Second), 3, time.Second, time.Second)
		time.Sleep(5 * time.Hour)
		attempt(5 * time.Second)
		expect("five hours later", of(1, 5*time.Second), 4, time.Second, 5*time.Second)
		if since := p.Report().DaySince; !since.Equal(began) {
			t.Errorf("the day begins at %s, counting at %s", since, began)
		}
		musttest.NoError(t, p.Close(t.Context(), true))
		p = start(t, p.store, "")
		expect("after a restart", search.Percentiles{}, 4, time.Second, 5*time.Second)
		time.Sleep(23 * time.Hour)
		expect("a day after the first ones", search.Percentiles{}, 1, 5*time.Second, 5*time.Second)
		if since := time.Since(p.Report().DaySince); since < 24*time.Hour || since > 28*time.Hour {
			t.Errorf("the day began %s ago", since)
		}
		time.Sleep(6 * time.Hour)
		expect("a day after all", search.Percentiles{}, 0, 0, 0)
	})
}

func TestDurations_OfADayAreAtMostAnEighthOff(t *testing.T) {
	t.Parallel()
	for _, took := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 1234 * time.Millisecond, time.Minute, 50 * time.Hour} {
		if got := search.DayOf(time.Now(), took).P50; got < took*7/8 || got > took*9/8 {
			t.Errorf("%s counts as %s", took, got)
		}
	}
	if got := search.DayOf(time.Now(), 0, -time.Second, math.MaxInt64); got.Count != 3 || got.P50 > time.Millisecond {
		t.Errorf("%+v", got)
	}
}

func TestEnds_AreCountedByProtocol(t *testing.T) {
	t.Parallel()
	p := alone(t)
	p.submit("ocr") // Protocols take turns.
	p.submit("ocr")
	items := p.claim("ocr", 2, true)
	p.complete(items[0])
	p.fail(items[1], false)
	expect := func(p *process) {
		t.Helper()
		var got [][2]int64
		for _, protocol := range []string{"", protocols[0], protocols[1], "unknown"} {
			ended := p.ReportOf(protocol).Ended
			got = append(got, [2]int64{ended[statemachine.JobSucceeded].Total, ended[statemachine.JobFailedFinal].Hour.Failed})
		}
		if diff := cmp.Diff([][2]int64{{1, 1}, {0, 1}, {1, 0}, {0, 0}}, got); diff != "" {
			t.Errorf("succeeded and failed jobs of all, of each and of no protocol (-want +got):\n%s", diff)
		}
	}
	expect(p)
	musttest.NoError(t, p.Close(t.Context(), true))
	expect(start(t, p.store, ""))
}

func TestAttempts_CountResultsAndDeadlines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end    func(p *process, job string)
		failed int64
		took   int
	}{
		"RESULT":             {end: func(p *process, _ string) { p.fail(p.claim("ocr", 1, true)[0], true) }, failed: 1, took: 1},
		"lease expired":      {end: func(p *process, job string) { p.claim("ocr", 1, true); p.expire(job, 2*time.Hour) }, failed: 1},
		"ACK timeout":        {end: func(p *process, job string) { p.claim("ocr", 1, false); p.expire(job, time.Minute) }, failed: 1},
		"withdrawn by pause": {end: func(p *process, job string) { p.ledger.Send(job, statemachine.Pause{}) }},
		"stalled": {end: func(p *process, job string) {
			p.claim("ocr", 1, true)
			p.ledger.Send(job, statemachine.Stall{StepID: "step-0", AttemptNo: 1})
		}},
		"cancelled": {end: func(p *process, job string) { p.ledger.Send(job, statemachine.Cancel{}) }},
		"late RESULT": {failed: 1, end: func(p *process, job string) {
			item := p.claim("ocr", 1, true)[0]
			p.expire(job, 2*time.Hour)
			p.ledger.Send(job, statemachine.Result{
				StepID: "step-0", Pair: statemachine.Pair{AttemptNo: 1, LeaseID: item.LeaseID}, Status: statemachine.ResultSucceeded,
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := alone(t)
				job := p.submit("ocr")
				c.end(p, job)
				ocr := p.service("ocr")
				if ocr.Attempts.Total != c.failed || ocr.Attempts.Minute.Failed > c.failed || ocr.Took.Count != c.took {
					t.Errorf("%+v", ocr)
				}
			})
		})
	}
}

// expire lets a deadline of the job pass.
func (p *process) expire(job string, after time.Duration) {
	time.Sleep(after)
	p.ledger.Send(job, statemachine.DeadlinePassed{})
}

func TestOldest_IsKnownInALongBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		began := time.Now()
		const jobs, apart = 1700, 3 * time.Second
		for range jobs {
			p.submit("ocr")
			time.Sleep(apart)
		}
		ocr := p.service("ocr")
		if ocr.Queued != jobs || !ocr.Oldest.Equal(began) {
			t.Errorf("%d are queued, the oldest since %s, want %s", ocr.Queued, ocr.Oldest, began)
		}
		work := func(most int) {
			t.Helper()
			for range most / 100 {
				if got := len(p.claim("ocr", 100, true)); got != 100 {
					t.Fatalf("claimed %d", got)
				}
			}
		}
		work(jobs - 600)
		if ocr, want := p.service("ocr"), began.Add((jobs-600)*apart); !ocr.Oldest.Equal(want) || !p.Report().Exact {
			t.Errorf("the oldest of the rest was queued at %s, want %s", ocr.Oldest, want)
		}
		work(600)
		if ocr = p.service("ocr"); ocr.Queued != 0 || !ocr.Oldest.IsZero() || ocr.Running != jobs {
			t.Errorf("%+v", ocr)
		}
		p.submit("ocr")
		if ocr = p.service("ocr"); !ocr.Oldest.Equal(time.Now().Truncate(time.Second)) {
			t.Errorf("the oldest was queued at %s, want %s", ocr.Oldest, time.Now())
		}
	})
}

func TestKinds_AreBounded(t *testing.T) {
	t.Parallel()
	p := alone(t)
	for n := range 120 {
		p.submit(fmt.Sprintf("service-%03d", n))
	}
	report := p.Report()
	if n := len(report.Services); n != 101 {
		t.Errorf("%d kinds are counted", n)
	}
	if other := p.service(search.Other.Service); other.Queued != 20 {
		t.Errorf("%d steps of other kinds are queued", other.Queued)
	}
	p.claim("service-119", 1, true)
	if other := p.service(search.Other.Service); other.Queued != 19 || other.Running != 1 {
		t.Errorf("%+v", other)
	}
	work := func(n int) ledger.WorkKind {
		return ledger.WorkKind{Service: fmt.Sprintf("service-%03d", n), StepType: "T"}
	}
	// The protocols take turns, so 50 kinds of each are counted separately.
	if services := p.ReportOf(protocols[1], work(0), work(119)).Services; len(services) != 50 || services[0].Queued != 1 {
		t.Errorf("%d kinds of one protocol are counted, the first is %+v", len(services), services[0])
	}
}

func TestKinds_AreCountedByProtocol(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		p.submit("ocr")
		time.Sleep(time.Minute)
		began := time.Now()
		p.submit("ocr")
		time.Sleep(time.Minute)
		p.complete(p.claim("ocr", 1, true)[0])
		expect := func(p *process, timed int) {
			t.Helper()
			ended, waits := p.ReportOf(protocols[1], ledger.WorkKind{Service: "new", StepType: "T"}).Services, p.ReportOf(protocols[0]).Services
			if len(ended) != 2 || ended[0].Service != "new" || ended[1].Attempts.Hour.Count != 1 || ended[1].Queued != 0 ||
				ended[1].Took.Count != timed || ended[1].Waited.P50 != time.Duration(timed)*2*time.Minute {
				t.Errorf("the protocol whose step ended: %+v", ended)
			}
			if len(waits) != 1 || waits[0].Attempts.Total != 0 || waits[0].Queued != 1 || !waits[0].Oldest.Equal(began) {
				t.Errorf("the protocol whose step waits: %+v", waits)
			}
			if all := p.service("ocr"); all.Attempts.Hour.Count != 1 || all.Queued != 1 {
				t.Errorf("all protocols: %+v", all)
			}
		}
		expect(p, 1)
		musttest.NoError(t, p.Close(t.Context(), true))
		expect(start(t, p.store, ""), 0)
	})
}

func TestWindows_CountPublishesStartsAndRefusals(t *testing.T) {
	t.Parallel()
	p := alone(t)
	p.held = true
	p.submit("ocr")
	p.held = false
	for range 3 {
		p.submit("ocr")
	}
	p.claim("ocr", 1, false)
	p.claim("ocr", 2, true)
	p.Refused()
	// The bus rejects one publish, and then a second one permanently.
	before := &statemachine.Aggregate{Outbox: &statemachine.Outbox{ID: "x"}}
	after := &statemachine.Aggregate{Outbox: &statemachine.Outbox{ID: "x", Failures: 1}}
	after.Job.UpdatedAt = time.Now()
	for _, to := range []statemachine.OutboxState{statemachine.OutboxPending, statemachine.OutboxFailedFinal} {
		p.Observe(before, after, []statemachine.Transition{{
			Object: statemachine.ObjectOutbox, ID: "x", From: string(statemachine.OutboxPending), To: string(to),
		}})
	}
	// A withdrawn row is no publish.
	p.Observe(before, before, []statemachine.Transition{{
		Object: statemachine.ObjectOutbox, ID: "x", From: string(statemachine.OutboxPending), To: string(statemachine.OutboxFailedFinal),
	}})
	expect := func(p *process) {
		t.Helper()
		report := p.Report()
		if published := report.Published.Hour; published.Count != 5 || published.Failed != 2 {
			t.Errorf("published: %+v", published)
		}
		if started, refused := report.Started.Hour, report.Refused.Hour; started.Count != 2 || refused.Count != 1 || refused.Failed != 1 {
			t.Errorf("started: %+v, refused: %+v", started, refused)
		}
	}
	expect(p)
	musttest.NoError(t, p.Close(t.Context(), true))
	expect(start(t, p.store, ""))
}

func TestByMinute_CountsTheEventsOfEachMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		for range 3 {
			p.submit("ocr")
		}
		time.Sleep(2 * time.Minute)
		p.fail(p.claim("ocr", 1, true)[0], false)
		p.submit("ocr")
		p.complete(p.claim("ocr", 1, true)[0])
		time.Sleep(time.Minute)
		expect := func(p *process) {
			t.Helper()
			ocr, report := p.service("ocr"), p.Report()
			all, failed := ocr.Attempts.ByMinute(5)
			accepted, _ := report.Accepted.ByMinute(5)
			ended, lost := report.Ended[statemachine.JobFailedFinal].ByMinute(2)
			got := [][]int{all, failed, accepted, ended, lost, ocr.QueuedByMinute(5)}
			want := [][]int{{0, 0, 0, 2, 0}, {0, 0, 0, 1, 0}, {0, 3, 0, 1, 0}, {1, 0}, {1, 0}, {0, 3, 3, 2, 2}}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
		expect(p)
		musttest.NoError(t, p.Close(t.Context(), true))
		again := start(t, p.store, "")
		expect(again)
		time.Sleep(62 * time.Minute)
		again.walk(nil)
		again.submit("ocr") // This drops what is older than the window.
		again.claim("ocr", 1, true)
		ocr := again.service("ocr")
		all, _ := ocr.Attempts.ByMinute(60)
		if diff := cmp.Diff(make([]int, 60), all); diff != "" || ocr.QueuedByMinute(60)[0] != 2 {
			t.Errorf("after an hour: %v, queued %v", all, ocr.QueuedByMinute(60))
		}
	})
}
