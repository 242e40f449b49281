package search_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// same checks that the report agrees with the rows.
func same(t *testing.T, p *process, when string) {
	t.Helper()
	if diff := cmp.Diff(p.truth(), p.reported()); diff != "" {
		t.Fatalf("%s (-rows +report):\n%s", when, diff)
	}
	if known, ok := p.known(); ok {
		live := map[string]search.Traits{}
		for _, job := range p.live() {
			live[job.Job.ID] = search.TraitsOf(job)
		}
		if diff := cmp.Diff(live, known); diff != "" {
			t.Fatalf("%s (-live +known):\n%s", when, diff)
		}
		truth := p.truth()
		for _, service := range services {
			want := truth.Queued[service] + truth.Dispatching[service]
			if got, known := p.Waiting(statemachine.Scope{Kind: "service", Value: service}); !known || got != want {
				t.Fatalf("%s: %d directives for %s wait, want %d", when, got, service, want)
			}
		}
	}
}

// known returns the traits of the live jobs that the process knows, and whether it knows all.
func (p *process) known() (traits map[string]search.Traits, all bool) {
	traits = map[string]search.Traits{}
	kinds := map[search.Traits]bool{}
	_, all = p.Live(func(t *search.Traits) bool { kinds[*t] = true; return true })
	for kind := range kinds {
		parts, _ := p.Live(func(t *search.Traits) bool { return *t == kind })
		for ids := range parts {
			for _, id := range ids {
				traits[id] = kind
			}
		}
	}
	return traits, all
}

// After a walk, the process knows exactly the live jobs, until it may have missed a commit. It
// knows none if several processes share the store.
func TestLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &history{p: alone(t), rng: rand.New(rand.NewPCG(1, 1))}
		for range 100 {
			h.step()
		}
		p := start(t, h.p.store, "")
		if _, all := p.known(); all {
			t.Error("a process that has just started knows all live jobs")
		}
		p.serial = 1000
		h.p = p
		var late []func()
		p.late = &late
		p.walk(func() { h.step() }) // The walk gets jobs that have ended in the meantime.
		for i := range late {
			late[len(late)-1-i]() // The commits of a job may be observed in any order.
		}
		p.late = nil
		same(t, p, "after the walk")
		p.walk(nil)
		same(t, p, "after another walk")
		known, all := p.known()
		if !all || len(known) != len(p.live()) || len(known) == 0 {
			t.Errorf("%d of %d jobs are known, all %t", len(known), len(p.live()), all)
		}
		p.Unsure()
		if _, all := p.known(); all {
			t.Error("after a commit with an unknown outcome, all live jobs are known")
		}
		if !p.Begin() {
			t.Error("the next walk is not fast")
		}
		p.walk(nil)
		if _, all := p.known(); !all {
			t.Error("after that walk, not all live jobs are known")
		}

		shared := start(t, ledgertest.Split(), "a")
		shared.submit("ocr")
		shared.walk(nil)
		parts, all := shared.Live(func(*search.Traits) bool { return true })
		if ids := slices.Concat(slices.Collect(parts)...); all || len(ids) > 0 {
			t.Errorf("in a shared store, %v are known, all %t", ids, all)
		}
	})
}

// history accepts and changes jobs at random.
type history struct {
	p    *process
	rng  *rand.Rand
	jobs []string
	held []statemachine.Item
}

var services = []string{"ocr", "embed"}

// step attempts one change, which may be refused.
func (h *history) step() string {
	p := h.p
	pick := func() string {
		if len(h.jobs) == 0 {
			h.jobs = append(h.jobs, p.submit(services...))
		}
		return h.jobs[h.rng.IntN(len(h.jobs))]
	}
	take := func() (item statemachine.Item, ok bool) {
		if len(h.held) == 0 {
			return item, false
		}
		i := h.rng.IntN(len(h.held))
		item = h.held[i]
		h.held = append(h.held[:i], h.held[i+1:]...)
		now, err := p.queue.Get(p.t.Context(), item.WorkID)
		if err != nil || now.Item.Owner != "worker" {
			return item, false
		}
		return now.Item, now.Item.Status == statemachine.StatusRunning || now.Item.Status == statemachine.StatusClaimed
	}
	switch what := h.rng.IntN(12); what {
	case 0, 1, 2:
		p.held = h.rng.IntN(4) == 0
		h.jobs = append(h.jobs, p.submit(services[:1+h.rng.IntN(2)]...))
		p.held = false
	case 3, 4, 5:
		h.held = append(h.held, p.claim(services[h.rng.IntN(2)], 1+h.rng.IntN(3), h.rng.IntN(2) == 0)...)
	case 6:
		if item, ok := take(); ok && item.Status == statemachine.StatusRunning {
			p.complete(item)
		}
	case 7:
		if item, ok := take(); ok && item.Status == statemachine.StatusRunning {
			if end := h.rng.IntN(3); end == 2 {
				p.throttled(item)
			} else {
				p.fail(item, end == 1)
			}
		}
	case 8:
		p.ledger.Send(pick(), statemachine.Pause{})
	case 9:
		p.ledger.Send(pick(), statemachine.Resume{})
	case 10:
		p.ledger.Send(pick(), statemachine.Cancel{})
	case 11:
		job := pick()
		time.Sleep(time.Duration(h.rng.IntN(40)) * time.Second)
		p.ledger.Send(job, statemachine.DeadlinePassed{})
	}
	return fmt.Sprintf("after step of %d jobs", len(h.jobs))
}

func TestCounts_AreTrueAfterEveryChange(t *testing.T) {
	t.Parallel()
	for seed := range histories {
		synctest.Test(t, func(t *testing.T) {
			h := &history{p: alone(t), rng: rand.New(rand.NewPCG(seed, 1))}
			for range 200 {
				same(t, h.p, h.step())
			}
			if report := h.p.Report(); !report.Exact || !report.AsOf.Equal(time.Now().Truncate(time.Millisecond)) {
				t.Errorf("exact %v as of %s", report.Exact, report.AsOf)
			}
		})
	}
}

// What a pause holds back waits neither for its publish nor for a worker: it counts as held, by the
// first pause that covers it.
func TestReport_TellsWhatAPauseHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		for range 3 {
			p.submit("ocr")
		}
		p.submit("index")
		time.Sleep(time.Minute)
		p.held = true
		p.submit("ocr")
		figures := func(service string) string {
			report := p.Report()
			s := report.Services[slices.IndexFunc(report.Services, func(s search.ServiceCounts) bool { return s.Service == service })]
			return fmt.Sprintf("%d dispatching, %d queued (oldest %v, lately %d), %d held by %v",
				s.Dispatching, s.Queued, !s.Oldest.IsZero(), s.QueuedByMinute(1), s.Held, s.HeldBy)
		}
		tenant, ocr := statemachine.Scope{Kind: "tenant", Value: "tenant"}, statemachine.Scope{Kind: "service", Value: "ocr"}
		for _, step := range []struct {
			paused     []statemachine.Scope
			ocr, index string
		}{
			{nil, "1 dispatching, 3 queued (oldest true, lately [3]), 0 held by map[]", "0 dispatching, 1 queued (oldest true, lately [1]), 0 held by map[]"},
			{
				[]statemachine.Scope{ocr},
				"0 dispatching, 0 queued (oldest false, lately [3]), 4 held by map[service:ocr:4]",
				"0 dispatching, 1 queued (oldest true, lately [1]), 0 held by map[]",
			},
			{
				[]statemachine.Scope{ocr, tenant},
				"0 dispatching, 0 queued (oldest false, lately [3]), 4 held by map[service:ocr:4]",
				"0 dispatching, 0 queued (oldest false, lately [1]), 1 held by map[tenant:tenant:1]",
			},
			{[]statemachine.Scope{{}}, "0 dispatching, 0 queued (oldest false, lately [3]), 4 held by map[all:4]", "0 dispatching, 0 queued (oldest false, lately [1]), 1 held by map[all:1]"},
		} {
			p.paused = step.paused
			if got := figures("ocr"); got != step.ocr {
				t.Errorf("%v: ocr has %s, want %s", step.paused, got, step.ocr)
			}
			if got := figures("index"); got != step.index {
				t.Errorf("%v: index has %s, want %s", step.paused, got, step.index)
			}
		}
	})
}

// Of the errors of retried steps, the report names the most frequent one.
func TestReport_NamesTheErrorOfTheMostSteps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		top := func() (string, int) {
			report := p.Report()
			s := report.Services[slices.IndexFunc(report.Services, func(s search.ServiceCounts) bool { return s.Service == "ocr" })]
			return s.Error, s.Errors
		}
		for range 5 {
			p.submit("ocr")
		}
		items := p.claim("ocr", 5, true)
		for i, step := range []struct {
			code      string
			retryable bool
			top       string
			steps     int
		}{
			{"a_rare", true, "a_rare", 1},
			{"z_frequent", true, "a_rare", 1}, // Of equal numbers the first code in order counts.
			{"z_frequent", true, "z_frequent", 2},
			{"a_rare", false, "z_frequent", 2}, // Its job ends, so the step is not retried.
			{"z_frequent", true, "z_frequent", 3},
		} {
			if code, n := top(); i == 0 && (code != "" || n != 0) {
				t.Errorf("before any error it is %q of %d", code, n)
			}
			p.failWith(items[i], step.retryable, step.code)
			if code, n := top(); code != step.top || n != step.steps {
				t.Errorf("after error %d, %s, it is %q of %d, want %q of %d", i, step.code, code, n, step.top, step.steps)
			}
		}
	})
}

// After a crash, a walk counts the live jobs exactly, whatever happens to them during the
// walk, and however late the process observes a commit.
func TestRecount_IsExactWhileJobsChange(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			h := &history{p: alone(t), rng: rand.New(rand.NewPCG(seed, 2))}
			for range 100 {
				h.step()
			}
			musttest.NoError(t, h.p.RunOnce(t.Context()))
			for range 20 { // A crash loses these.
				h.step()
			}
			h.p = start(t, h.p.store, "")
			if h.p.Report().Exact {
				t.Error("after a crash, the counts claim to be exact")
			}
			h.p.serial = 1000
			var late []func()
			h.p.late = &late
			h.p.walk(func() {
				h.step()
				for len(late) > 0 && h.rng.IntN(3) > 0 {
					late[0]()
					late = late[1:]
				}
			})
			for _, tell := range late { // The walk has counted some of these changes.
				tell()
			}
			h.p.late = nil
			same(t, h.p, "after the walk")
			if !h.p.Report().Exact {
				t.Error("after the walk, the counts do not claim to be exact")
			}
			for range 20 {
				same(t, h.p, h.step())
			}
			h.p.walk(nil)
			for range 20 {
				same(t, h.p, h.step())
			}
		})
	}
}

// An orderly stop keeps all counts but the durations of the hour. The numbers of jobs are those of the
// stop until the first walk.
func TestRestart_KeepsTheCountsAfterAnOrderlyStop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		for range 5 {
			p.submit("ocr")
		}
		time.Sleep(time.Second)
		for _, item := range p.claim("ocr", 2, true) {
			p.complete(item)
		}
		time.Sleep(5 * time.Minute)
		before := p.Report()
		musttest.NoError(t, p.Close(t.Context(), true))
		stopped := tablestore.Now()
		p = start(t, p.store, "")
		after := p.Report()
		if after.Exact || !after.AsOf.Equal(stopped) {
			t.Errorf("before the walk the counts are as of %s, want %s, exact %t", after.AsOf, stopped, after.Exact)
		}
		p.walk(nil)
		after = p.Report()
		for _, report := range []*search.CountsReport{before, after} {
			for i := range report.Services {
				of := &report.Services[i] // A restart forgets the workers and the durations of the hour.
				of.Workers, of.Took, of.Waited = nil, search.Percentiles{}, search.Percentiles{}
			}
		}
		if diff := cmp.Diff(before, after, cmpopts.IgnoreUnexported(search.Rates{}, search.ServiceCounts{})); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
		if ocr := p.service("ocr"); !after.Exact || ocr.Queued != 3 || ocr.Attempts.Hour.Count != 2 || ocr.Oldest.IsZero() {
			t.Errorf("exact %v, %+v", after.Exact, ocr)
		}
		same(t, p, "after the restart")
		musttest.NoError(t, p.RunOnce(t.Context()))
		crashed := tablestore.Now()
		p = start(t, p.store, "")
		time.Sleep(time.Minute)
		p.serial = 1000
		p.submit("ocr")
		musttest.NoError(t, p.RunOnce(t.Context()))
		if report := p.Report(); report.Exact || p.service("ocr").Queued != 3 || !report.AsOf.Equal(crashed) {
			t.Errorf("after a crash: %+v", report)
		}
		p.walk(nil)
		same(t, p, "after a crash and a walk")
	})
}

// A crash loses the events since the sheet was stored. The next process knows since when no
// event is missing; an orderly stop loses none.
func TestRestart_SaysSinceWhenNoEventIsMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		began := p.Report().Since
		complete := func(after string, accepted int, since time.Time) {
			t.Helper()
			report := p.Report()
			if got := int(report.Accepted.Total); got != accepted || !report.Since.Equal(began) || !report.Complete.Equal(since) {
				t.Errorf("after %s %d jobs were accepted since %s, with none missing since %s; want %d, %s, %s",
					after, got, report.Since, report.Complete, accepted, began, since)
			}
		}
		p.submit("ocr")
		complete("the start", 1, began)
		time.Sleep(time.Minute)
		musttest.NoError(t, p.Close(t.Context(), true))
		p = start(t, p.store, "")
		complete("an orderly stop", 1, began)

		musttest.NoError(t, p.RunOnce(t.Context()))
		p.serial = 100
		p.submit("ocr") // The crash loses it.
		time.Sleep(time.Minute)
		restart := tablestore.Now()
		p = start(t, p.store, "")
		complete("a crash", 1, restart)
		p.walk(nil)
		if report := p.Report(); !report.Exact || p.service("ocr").Queued != 2 {
			t.Errorf("%d are queued, exact %t", p.service("ocr").Queued, report.Exact)
		}
		complete("the walk after a crash", 1, restart)
		time.Sleep(time.Minute)
		musttest.NoError(t, p.Close(t.Context(), true))
		p = start(t, p.store, "")
		complete("an orderly stop after a crash", 1, restart)

		time.Sleep(time.Minute)
		p.Unsure()
		complete("a commit with an unknown outcome", 1, tablestore.Now())
		time.Sleep(time.Minute)
		restart = tablestore.Now()
		musttest.NoError(t, p.Close(t.Context(), false)) // Requests were still under way.
		p = start(t, p.store, "")
		complete("a stop in the midst of changes", 1, restart)
	})
}

// Replicas learn from a sheet that is no longer stored that its process has crashed.
func TestReplicas_KnowSinceWhenNoEventIsMissing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := ledgertest.Split()
		a, b, c := start(t, store, "a"), start(t, store, "b"), start(t, store, "c")
		began := a.Report().Since
		for _, p := range []*process{a, b, c} {
			p.submit("ocr")
			musttest.NoError(t, p.RunOnce(t.Context()))
		}
		musttest.NoError(t, b.Close(t.Context(), true))
		stored := tablestore.Now()
		c.submit("ocr") // c crashes before it stores this.
		for range 18 {
			time.Sleep(10 * time.Minute)
			musttest.NoError(t, a.RunOnce(t.Context()))
			want := began
			if tablestore.Now().Sub(stored) > 31*time.Minute {
				want = stored.Add(30 * time.Second)
			}
			if got := a.Report().Complete; !got.Equal(want) {
				t.Errorf("after %s no event is missing since %s, want %s", tablestore.Now().Sub(stored), got, want)
			}
		}
		row := tablestore.Key{Table: a.ledger.Tables().Queue, Partition: "counts", Row: "c"}
		if _, err := store.Get(t.Context(), row); !errors.Is(err, tablestore.ErrNotFound) {
			t.Errorf("the row of c: %v", err)
		}
	})
}

// The next walk counts a commit whose outcome the process never learned.
func TestUnsure_MakesTheNextWalkCountAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := alone(t)
		var lost []func()
		p.submit("ocr")
		p.late = &lost
		p.submit("ocr")
		p.late = nil
		same := func(want int, exact bool) {
			t.Helper()
			if report := p.Report(); report.Exact != exact || p.service("ocr").Queued != want {
				t.Errorf("%d are queued, exact %t", p.service("ocr").Queued, report.Exact)
			}
		}
		p.Unsure()
		unsure := time.Now()
		time.Sleep(time.Minute)
		same(1, false)
		if at := p.Report().AsOf; !at.Equal(unsure) {
			t.Errorf("as of %s, want %s", at, unsure)
		}
		if !p.Begin() {
			t.Error("the walk is not fast")
		}
		p.Unsure() // Again, so that this walk may miss a commit.
		for _, job := range p.live() {
			p.Walked(job)
		}
		p.End()
		same(2, false)
		p.walk(nil)
		same(2, true)
		if p.Begin() {
			t.Error("the walk is fast although the counts are exact")
		}
	})
}

// A fast walk may use all its time while nothing is committed, or if a reader waits for its
// end.
func TestSpare(t *testing.T) {
	t.Parallel()
	p := start(t, ledgertest.Atomic(), "")
	p.submit("ocr")
	want := func(want bool, when string) {
		t.Helper()
		if p.Spare() != want {
			t.Errorf("%s the walk may use all its time: %t", when, !want)
		}
	}
	want(false, "after a commit")
	want(true, "without one")
	p.submit("ocr")
	if _, known := p.known(); known {
		t.Error("all live jobs are known before a walk")
	}
	want(true, "with a reader that waits")
	p.submit("ocr")
	want(true, "with a reader that still waits")
	p.walk(nil)
	p.submit("ocr")
	want(false, "after the walk and a commit")
}

// The ledger calls Observe with every commit.
func TestObserve_DoesNotAllocate(t *testing.T) { //nolint:paralleltest // It counts all allocations of the process.
	p := start(t, ledgertest.Atomic(), "")
	p.walk(nil)
	p.walk(nil)
	job := p.submit("ocr")
	before, err := p.ledger.Job(t.Context(), job)
	musttest.NoError(t, err)
	p.claim("ocr", 1, true)
	after, err := p.ledger.Job(t.Context(), job)
	musttest.NoError(t, err)
	history, _, err := p.ledger.History(t.Context(), job, 1, 10)
	musttest.NoError(t, err)
	forth := []statemachine.Transition{history[0].Transition, history[1].Transition}
	if got := testing.AllocsPerRun(1000, func() {
		p.Observe(before, after, forth)
		p.Observe(after, before, forth)
	}); got >= 1 {
		t.Errorf("%g allocations", got)
	}
}

// The events of the replicas add up. The numbers of jobs are those of the last walk of any of
// them: one process may claim what another has queued.
func TestReplicas_AddUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := ledgertest.Split()
		a, b := start(t, store, "a"), start(t, store, "b")
		exchange := func() {
			t.Helper()
			for _, p := range []*process{a, b, a} {
				musttest.NoError(t, p.RunOnce(t.Context()))
			}
		}
		for range 10 {
			a.submit("ocr")
		}
		time.Sleep(2 * time.Second)
		items := b.claim("ocr", 4, true)
		b.complete(items[0])
		b.fail(items[1], false)
		exchange()
		if report := a.Report(); report.Jobs[statemachine.JobDispatching] != 0 || !report.AsOf.Equal(report.Since) {
			t.Errorf("before a walk: %+v", report)
		}
		walked := tablestore.Now()
		b.walk(func() { time.Sleep(time.Millisecond) })
		exchange()
		for _, p := range []*process{a, b} {
			same(t, p, p.name)
			report, ocr := p.Report(), p.service("ocr")
			if report.Exact || report.Accepted.Total != 10 || report.Ended[statemachine.JobSucceeded].Total != 1 || !report.AsOf.Equal(walked) ||
				ocr.Attempts.Hour.Count != 2 || ocr.Attempts.Hour.Failed != 1 || len(ocr.Workers) != 1 || ocr.Workers[0].Owner != "worker" {
				t.Errorf("%s: %+v", p.name, report)
			}
			if got := ocr.QueuedByMinute(2); !slices.Equal(got, []int{6}) { // Counting began in this minute.
				t.Errorf("%s: queued by minute: %v", p.name, got)
			}
			if got, want := p.EndRate(ocrKind), ocr.Attempts.Minute.PerSecond(); got != want || got == 0 || p.EndRate(search.Other) != 0 {
				t.Errorf("%s: %g attempts end per second, want %g", p.name, got, want)
			}
		}
		if took := [2]int{a.service("ocr").Took.Count, b.service("ocr").Took.Count}; took != [2]int{0, 2} {
			t.Errorf("the replicas know the durations of %v attempts, want those that they saw end", took)
		}
		if at, ok := a.queue.LastPoll(search.Other, "tenant"); ok {
			t.Errorf("b knows of a poll for another service at %s", at)
		}
		if at, ok := a.queue.LastPoll(ocrKind, "tenant"); !ok {
			t.Errorf("no worker is known to have polled since %s", at)
		}

		b.complete(items[2]) // b crashes before it stores this.
		b = start(t, store, "b2")
		exchange()
		if got := a.service("ocr").Running; got != 2 {
			t.Errorf("%d are running", got)
		}
		time.Sleep(time.Second)
		a.walk(nil)
		exchange()
		for _, p := range []*process{a, b} {
			same(t, p, p.name+" after a walk")
			if ocr := p.service("ocr"); ocr.Queued != 6 || ocr.Oldest.IsZero() {
				t.Errorf("%s: %+v", p.name, ocr)
			}
		}
	})
}
