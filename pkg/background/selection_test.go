package background_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// paused adds a PAUSED job.
func (w *world) paused(tenant, stepType string) string {
	id := w.accept(tenant, stepType)
	w.Apply(id, statemachine.Pause{})
	return id
}

// state returns the job's state.
func (w *world) state(jobID string) statemachine.JobState { return w.Read(jobID).Job.State }

// selected returns the jobs that the request selects, sorted. It checks that a preview
// selects the same.
func selected(t *testing.T, s *background.Operations, r background.BulkRequest) []string {
	t.Helper()
	r.All, r.Reason = true, "why"
	preview, err := s.Preview(t.Context(), r)
	musttest.NoError(t, err)
	op := create(t, s, "", r)
	all := ids(get(t, s, op.ID))
	var sample []string
	for _, agg := range preview.Sample {
		sample = append(sample, agg.Job.ID)
	}
	if slices.Sort(all); op.Matched != len(all) || preview.Matched != len(all) || op.Truncated || preview.Truncated {
		t.Errorf("%+v: %+v and %+v", r, op, preview)
	}
	if slices.Sort(sample); !slices.Equal(sample, all) {
		t.Errorf("%+v: the preview shows %v of %v", r, sample, all)
	}
	return all
}

func TestCreate_SelectsLiveJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, ledgertest.Split())
		w.fail("a", "broken")
		old := w.accept("a", "OCR")
		time.Sleep(time.Hour)
		noon := time.Now()
		ocr, nlp := w.accept("a", "OCR"), w.accept("b", "NLP")
		paused := w.paused("a", "OCR")
		const cancel, pause, resume = background.KindCancel, background.KindPause, background.KindResume
		for name, test := range map[string]struct {
			kind   background.Kind
			filter search.Filter
			want   []string
		}{
			"cancel all":             {cancel, search.Filter{}, []string{old, ocr, nlp, paused}},
			"pause all":              {pause, search.Filter{}, []string{old, ocr, nlp}},
			"resume all":             {resume, search.Filter{}, []string{paused}},
			"of a tenant":            {cancel, search.Filter{TenantID: "b"}, []string{nlp}},
			"of a state":             {cancel, search.Filter{State: statemachine.JobPaused}, []string{paused}},
			"of failed jobs":         {cancel, search.Filter{State: statemachine.JobFailedFinal}, nil},
			"of a state it has":      {resume, search.Filter{State: statemachine.JobDispatching}, nil},
			"of a request type":      {pause, search.Filter{RequestType: "type.NLP"}, []string{nlp}},
			"of a step type":         {pause, search.Filter{StepType: "NLP"}, []string{nlp}},
			"of a service":           {cancel, search.Filter{Service: "s", TenantID: "b"}, []string{nlp}},
			"of another service":     {cancel, search.Filter{Service: "q"}, nil},
			"with an error":          {cancel, search.Filter{ErrorCode: "broken"}, nil},
			"accepted before":        {cancel, search.Filter{CreatedBefore: noon}, []string{old}},
			"accepted since, and so": {pause, search.Filter{CreatedAfter: noon, TenantID: "a"}, []string{ocr}},
		} {
			slices.Sort(test.want)
			if diff := cmp.Diff(test.want, selected(t, w.Operations, background.BulkRequest{Kind: test.kind, Filter: test.filter})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

func TestCreate_SelectsJobsByDocumentAndTags(t *testing.T) {
	t.Parallel()
	for _, store := range []tablestore.Store{ledgertest.Atomic(), ledgertest.Split()} {
		w := open(t, store)
		accept := func(tenant, doc string, tags statemachine.Tags) string {
			cmd := ledgertest.Command(tenant, uuid.NewString(), ledgertest.Step("one", "OCR", "s"))
			cmd.Job.DocID, cmd.Job.Tags = doc, tags
			return w.Submit(cmd)
		}
		fail := func(id string) string {
			w.end(statemachine.ResultFailedFinal, "broken")
			return id
		}
		failed, other := fail(accept("a", "d", "env=prod\npart=1")), fail(accept("a", "e", "env=prod"))
		fail(accept("b", "d", "env=prod"))
		live, paused := accept("a", "d", "env=prod"), accept("a", "e", "env=prod\npart=1")
		w.Apply(paused, statemachine.Pause{})
		accept("b", "d", "env=prod\npart=1")
		const retry, cancel, pause, resume = background.KindRetry, background.KindCancel, background.KindPause, background.KindResume
		for _, test := range []struct {
			kind   background.Kind
			filter search.Filter
			want   []string
		}{
			{retry, search.Filter{TenantID: "a", DocID: "d"}, []string{failed}},
			{retry, search.Filter{TenantID: "a", Tags: "env=prod"}, []string{failed, other}},
			{retry, search.Filter{TenantID: "a", Tags: "env=prod\npart=1"}, []string{failed}},
			{retry, search.Filter{TenantID: "a", Tags: "env=test"}, nil},
			{cancel, search.Filter{TenantID: "a", DocID: "d"}, []string{live}},
			{cancel, search.Filter{TenantID: "a", Tags: "env=prod"}, []string{live, paused}},
			{cancel, search.Filter{TenantID: "a", Tags: "env=prod", State: statemachine.JobPaused}, []string{paused}},
			{pause, search.Filter{TenantID: "a", Tags: "env=prod"}, []string{live}},
			{pause, search.Filter{TenantID: "a", DocID: "d", Tags: "part=1"}, nil},
			{resume, search.Filter{TenantID: "a", Tags: "part=1", DocID: "e"}, []string{paused}},
			{resume, search.Filter{TenantID: "a", Tags: "part=1", Service: "q"}, nil},
		} {
			slices.Sort(test.want)
			if diff := cmp.Diff(test.want, selected(t, w.Operations, background.BulkRequest{Kind: test.kind, Filter: test.filter})); diff != "" {
				t.Errorf("%s %+v (-want +got):\n%s", test.kind, test.filter, diff)
			}
		}
		_, err := w.Preview(t.Context(), background.BulkRequest{Kind: pause, Filter: search.Filter{Tags: "env=prod"}})
		want := &apierror.Error{Code: apierror.InvalidEnvelope, Errors: []apierror.Violation{
			{Pointer: "/tenant_id", Message: "is required to find jobs by document or tag"},
		}}
		if diff := cmp.Diff(want, apierror.From(err)); diff != "" {
			t.Errorf("of all tenants (-want +got):\n%s", diff)
		}
	}
}

// The ended jobs of a document are those of its own list, of any age: the cost does not depend on
// other jobs. A tag may be common, so the failed jobs with it are found among the failed jobs.
func TestCreate_SelectsTheEndedJobsOfADocument(t *testing.T) {
	t.Parallel()
	for _, store := range []tablestore.Store{ledgertest.Atomic(), ledgertest.Split()} {
		synctest.Test(t, func(t *testing.T) {
			store, counter := storetest.Counting(store)
			w := open(t, store)
			end := func(doc string, state statemachine.JobState) string {
				cmd := ledgertest.Command("t", uuid.NewString(), ledgertest.Step("one", "OCR", "s"))
				cmd.Job.DocID, cmd.Job.Tags = doc, "env=prod"
				id := w.Submit(cmd)
				switch state {
				case statemachine.JobCancelled:
					w.Apply(id, statemachine.Cancel{})
				case statemachine.JobSucceeded:
					w.end(statemachine.ResultSucceeded, "")
				default:
					w.end(statemachine.ResultFailedFinal, "broken")
				}
				return id
			}
			states := []statemachine.JobState{statemachine.JobFailedFinal, statemachine.JobCancelled, statemachine.JobSucceeded}
			want := map[statemachine.JobState][]string{}
			for range 2 {
				for _, state := range states {
					want[state] = append(want[state], end("d", state))
					w.RerunOf(end("d", state), ledger.FromStart) // It is left out, and so is the cancelled rerun that has another one.
				}
				cancelled := w.RerunOf(end("d", statemachine.JobFailedFinal), ledger.FromStart)
				w.Apply(cancelled, statemachine.Cancel{})
				w.RerunOf(cancelled, ledger.FromStart)
				time.Sleep(120 * 24 * time.Hour)
			}
			for _, state := range states {
				slices.Sort(want[state])
				var costs []int64
				for range 2 {
					for range 20 {
						end("e", state)
					}
					counter.Reset()
					request := background.BulkRequest{Filter: search.Filter{TenantID: "t", DocID: "d", State: state}}
					if state == statemachine.JobSucceeded {
						request.Filter.CreatedBefore = time.Now()
					}
					if got := selected(t, w.Operations, request); !slices.Equal(got, want[state]) {
						t.Errorf("%s: %v, want %v", state, got, want[state])
					}
					costs = append(costs, counter.Counts().RowsRead)
				}
				if costs[0] != costs[1] {
					t.Errorf("%s: with 20 and 40 jobs of another document it reads %v rows", state, costs)
				}
			}
			var costs []int64
			for range 2 {
				w.succeed(10)
				for range 20 {
					end("f", statemachine.JobSucceeded)
				}
				counter.Reset()
				request := background.BulkRequest{Filter: search.Filter{TenantID: "t", Tags: "env=prod"}}
				if preview, err := w.Preview(t.Context(), request); err != nil || preview.Matched != 40 {
					t.Errorf("with the tag: %+v, %v", preview, err)
				}
				costs = append(costs, counter.Counts().RowsRead)
			}
			if costs[0] != costs[1] {
				t.Errorf("with 20 and 40 more jobs that have the tag it reads %v rows", costs)
			}
		})
	}
}

func TestPreview_CountsAllAndShowsTen(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Split())
	for i := range 12 {
		w.fail("t", fmt.Sprint("x", i%2))
		w.accept("t", "NLP")
	}
	done := w.paused("t", "NLP")
	rows := len(scan(t, w.Store))
	for kind, want := range map[background.Kind]int{background.KindRetry: 12, background.KindPause: 12, background.KindCancel: 13, background.KindResume: 1} {
		preview, err := w.Preview(t.Context(), background.BulkRequest{Kind: kind, All: true, Limit: 3, Reason: "why"})
		if err != nil || preview.Matched != want || len(preview.Sample) != min(want, 10) {
			t.Errorf("%s: %d matched, %d shown, %v", kind, preview.Matched, len(preview.Sample), err)
		}
	}
	if now := len(scan(t, w.Store)); now != rows {
		t.Errorf("previews made %d operations", now-rows)
	}
	named, err := w.Preview(t.Context(), background.BulkRequest{Kind: background.KindPause, JobIDs: []string{"gone", done, w.accept("t", "OCR")}})
	if err != nil || named.Matched != 1 || len(named.Sample) != 1 {
		t.Errorf("of named jobs: %+v, %v", named, err)
	}
	_, err = w.Preview(t.Context(), background.BulkRequest{Kind: background.KindPause})
	if told, ok := errors.AsType[*apierror.Error](err); !ok || told.Code != apierror.InvalidEnvelope {
		t.Errorf("of nothing: %v", err)
	}
}

func TestCreate_ReportsTruncation(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Split())
	for range 3 {
		w.fail("t", "x")
		w.accept("t", "OCR")
	}
	for _, kind := range []background.Kind{background.KindRetry, background.KindPause} {
		for limit, truncated := range map[int]bool{2: true, 3: false, 0: false} {
			op := create(t, w.Operations, "", background.BulkRequest{Kind: kind, Limit: limit})
			if op.Truncated != truncated || get(t, w.Operations, op.ID).Truncated != truncated {
				t.Errorf("%s of %d: %+v", kind, limit, op)
			}
		}
	}
	jobs := newSketch(0)
	jobs.fail("many", 2000, "x")
	preview, err := serve(t, &endless{sketch: jobs}, w.Store).Preview(t.Context(), background.BulkRequest{Filter: search.Filter{TenantID: "many"}})
	if err != nil || !preview.Truncated || preview.Matched > 100_000 || preview.Matched < 98_000 {
		t.Errorf("%d matched, truncated %t, %v", preview.Matched, preview.Truncated, err)
	}
}

// flood is a fake ledger whose live jobs never end.
type flood struct {
	*sketch
	shown int
}

func (f *flood) Shards() int { return 1 }

func (f *flood) Live(_ context.Context, _ string, _, limit int, _ string) ([]string, string, error) {
	f.shown += limit
	return slices.Repeat([]string{"gone"}, limit), "more", nil
}

func TestPreview_ReadsABoundedNumberOfLiveJobs(t *testing.T) {
	t.Parallel()
	jobs := &flood{sketch: newSketch(0)}
	preview, err := serve(t, jobs, ledgertest.Split()).Preview(t.Context(), background.BulkRequest{Kind: background.KindPause, All: true})
	if err != nil || !preview.Truncated || jobs.shown > 21_000 {
		t.Errorf("%+v after %d jobs, %v", preview, jobs.shown, err)
	}
}

// reading is a ledger that counts the jobs that are read.
type reading struct {
	*ledger.Ledger
	jobs atomic.Int64
}

func (r *reading) Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error) {
	r.jobs.Add(1)
	return r.Ledger.Job(ctx, jobID)
}

// On a store that lists live jobs, an operation reads only those that may match. So those that do not match
// cannot use up the bound of what it examines, with each repeat again.
func TestCreate_ReadsOnlyListedJobsThatMayMatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := ledgertest.Publishing(t, ledger.Config{Store: ledgertest.Atomic(), Shards: 2, Shared: true})
		counted := &reading{Ledger: l.Ledger}
		w := &world{l, serve(t, counted, l.Store)}
		var want []string
		for n := range 60 {
			w.accept(fmt.Sprint("tenant", n%7), "OCR")
		}
		for n := range 3 {
			time.Sleep(time.Second)
			want = append(want, w.accept(fmt.Sprint("tenant", n%2), "NLP"))
		}
		time.Sleep(time.Second)
		noon := time.Now()
		want = append(want, w.accept("tenant3", "NLP"))
		paused := w.paused("tenant0", "NLP")
		for name, test := range map[string]struct {
			kind   background.Kind
			filter search.Filter
			want   []string
		}{
			"of a step type":       {background.KindPause, search.Filter{StepType: "NLP"}, want},
			"of a tenant":          {background.KindPause, search.Filter{StepType: "NLP", TenantID: "tenant3"}, want[3:]},
			"of another":           {background.KindPause, search.Filter{StepType: "NLP", TenantID: "tenant5"}, nil},
			"accepted before":      {background.KindPause, search.Filter{StepType: "NLP", CreatedBefore: noon}, want[:3]},
			"accepted since":       {background.KindPause, search.Filter{StepType: "NLP", CreatedAfter: noon}, want[3:]},
			"with an error":        {background.KindPause, search.Filter{ErrorCode: "broken"}, nil},
			"in another state":     {background.KindResume, search.Filter{}, []string{paused}},
			"in no state it lists": {background.KindResume, search.Filter{State: statemachine.JobQueued}, nil},
		} {
			counted.jobs.Store(0)
			test.want = slices.Sorted(slices.Values(test.want))
			got := selected(t, w.Operations, background.BulkRequest{Kind: test.kind, Filter: test.filter})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
			// A preview, which reads its sample from what it found, and an operation; those older than CreatedAfter by a day are listed.
			if n, most := counted.jobs.Load(), 2*int64(len(test.want)); n > most && test.filter.CreatedAfter.IsZero() {
				t.Errorf("%s: %d jobs are read, want %d", name, n, most)
			}
		}
	})
}

// The cost of a preview depends on the number of failures or live jobs, not on the number of
// jobs that ended otherwise.
func TestPreview_ReadsNoJobsThatSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, counter := storetest.Counting(ledgertest.Split())
		w := open(t, store)
		w.fail("t", "broken")
		w.accept("t", "OCR")
		for _, kind := range []background.Kind{background.KindRetry, background.KindPause} {
			var costs []storetest.Counts
			for _, finished := range []int{10, 90} {
				w.succeed(finished)
				counter.Reset()
				if preview, err := w.Preview(t.Context(), background.BulkRequest{Kind: kind, All: true}); err != nil || preview.Matched != 1 {
					t.Fatalf("%+v, %v", preview, err)
				}
				costs = append(costs, counter.Counts())
			}
			if costs[0] != costs[1] || costs[0].RowsRead == 0 {
				t.Errorf("%s, with 10 and 100 more jobs that succeeded: %+v", kind, costs)
			}
		}
	})
}

func TestBulk_ControlsLiveJobs(t *testing.T) {
	t.Parallel()
	for kind, test := range map[background.Kind]struct {
		state    statemachine.JobState // of a job after the operation
		repeated statemachine.Event    // brings a job into that state before the operation
	}{
		background.KindCancel: {statemachine.JobCancelled, statemachine.Cancel{}},
		background.KindPause:  {statemachine.JobPaused, statemachine.Pause{}},
		background.KindResume: {statemachine.JobDispatching, statemachine.Resume{}},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := open(t, ledgertest.Split())
			job := func() string {
				if kind == background.KindResume {
					return w.paused("t", "OCR")
				}
				return w.accept("t", "OCR")
			}
			changed, repeated, ended := job(), job(), w.fail("t", "x")
			w.Send(repeated, test.repeated)
			op, err := w.Create(ledger.WithCaller(t.Context(), "ops-1"), "", background.BulkRequest{
				Kind: kind, JobIDs: []string{changed, repeated, ended, "gone"}, Reason: "a storm", Actor: "operator",
			})
			musttest.NoError(t, err)
			runOnce(t, runner(t, w.Operations, func(c *background.BulkConfig) {
				c.Observe = func(k background.Kind, _ background.ItemOutcome) {
					if k != kind {
						t.Errorf("an outcome of a %s was observed", k)
					}
				}
			}))
			page := get(t, w.Operations, op.ID)
			var got []background.ItemOutcome
			for _, item := range page.Items {
				got = append(got, item.Outcome)
			}
			want := []background.ItemOutcome{background.ItemApplied, background.ItemRepeated, background.ItemSkipped, background.ItemSkipped}
			if diff := cmp.Diff(want, got); diff != "" || page.State != background.OperationDone || page.Items[2].Detail == "" {
				t.Errorf("%+v (-want +got):\n%s", page, diff)
			}
			if got := w.state(changed); got != test.state {
				t.Errorf("the job is %s, want %s", got, test.state)
			}
			history := w.Past(changed)
			if last := history[len(history)-1]; last.RequestID != op.ID || last.Caller != "ops-1" || last.Actor != "operator" {
				t.Errorf("history %+v", last)
			}
		})
	}
}

// A job that no longer matches when its turn comes is left alone.
func TestBulk_ChecksALiveJobAgainstTheFilter(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Split())
	id := w.paused("t", "OCR")
	op := create(t, w.Operations, "", background.BulkRequest{
		Kind: background.KindCancel, Filter: search.Filter{State: statemachine.JobPaused}, Reason: "stale",
	})
	w.Send(id, statemachine.Resume{})
	runOnce(t, runner(t, w.Operations))
	want := []background.Item{{JobID: id, Outcome: background.ItemSkipped, Detail: "The job no longer matches: it is DISPATCHING."}}
	if diff := cmp.Diff(want, get(t, w.Operations, op.ID).Items); diff != "" || w.state(id) != statemachine.JobDispatching {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A process crashes after it has paused a job but before it has stored the outcome. Then a
// user resumes the job. The runner that takes over does not pause it again.
func TestBulk_ATakeoverPausesNoJobAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mem := ledgertest.Split()
		store, faults := storetest.Faulty(mem)
		w := open(t, mem)
		id := w.accept("t", "OCR")
		op := create(t, w.Operations, "", background.BulkRequest{Kind: background.KindPause})
		var once sync.Once
		l := &telling{Ledger: w.Ledger.Ledger, changed: func() { once.Do(func() { faults.Plan(crash) }) }}
		runOnce(t, runner(t, serve(t, l, store)))
		if got := w.state(id); got != statemachine.JobPaused {
			t.Fatalf("the job is %s", got)
		}
		w.Send(id, statemachine.Resume{})
		time.Sleep(time.Minute)
		runOnce(t, runner(t, w.Operations))
		page := get(t, w.Operations, op.ID)
		if got := w.state(id); got != statemachine.JobDispatching || page.Items[0].Outcome != background.ItemApplied {
			t.Errorf("the job is %s after %+v", got, page)
		}
	})
}

// A runner stands still before it pauses a job, until its lease has ended. By then another runner has paused the job, and a user has
// resumed it. The first does not pause it again.
func TestBulk_ARunnerThatStandsStillPausesNoJobAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := ledgertest.Split()
		w := open(t, store)
		id := w.accept("t", "OCR")
		op := create(t, w.Operations, "", background.BulkRequest{Kind: background.KindPause})
		var once sync.Once
		stand := func() {
			once.Do(func() {
				time.Sleep(time.Minute)
				runOnce(t, runner(t, w.Operations))
				if got := w.state(id); got != statemachine.JobPaused {
					t.Errorf("the job is %s", got)
				}
				w.Send(id, statemachine.Resume{})
			})
		}
		runOnce(t, runner(t, serve(t, &slowLedger{Ledger: w.Ledger.Ledger, stand: stand}, store)))
		page := get(t, w.Operations, op.ID)
		if got := w.state(id); got != statemachine.JobDispatching || page.Items[0].Outcome != background.ItemApplied {
			t.Errorf("the job is %s after %+v", got, page)
		}
	})
}

// slowLedger is a ledger that calls a function before each change of a job.
type slowLedger struct {
	*ledger.Ledger
	stand func()
}

func (l *slowLedger) Change(ctx context.Context, jobID string, event statemachine.Event, o ...ledger.Option) (ledger.Result, error) {
	l.stand()
	return l.Ledger.Change(ctx, jobID, event, o...)
}

// telling is a ledger that calls a function after each change of a job.
type telling struct {
	*ledger.Ledger
	changed func()
}

func (l *telling) Change(ctx context.Context, jobID string, event statemachine.Event, o ...ledger.Option) (ledger.Result, error) {
	defer l.changed()
	return l.Ledger.Change(ctx, jobID, event, o...)
}

func TestList_NewestFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := open(t, ledgertest.Split())
		var want []string
		for i := range 5 {
			kind := []background.Kind{background.KindRetry, background.KindPause}[i%2]
			op := create(t, w.Operations, fmt.Sprint("key", i), background.BulkRequest{
				Kind: kind, Filter: search.Filter{TenantID: fmt.Sprint("t", i%3)}, Reason: "why",
			})
			want = append([]string{op.ID}, want...)
			time.Sleep(time.Minute)
		}
		list := func(kind background.Kind, tenant string) (all []string) {
			for after := ""; ; {
				page, next, err := w.List(t.Context(), kind, tenant, 2, after)
				if err != nil || len(page) > 2 {
					t.Fatal(page, err)
				}
				for i := range page {
					all = append(all, page[i].ID)
				}
				if after = next; after == "" {
					return all
				}
			}
		}
		for name, test := range map[string]struct {
			kind   background.Kind
			tenant string
			want   []string
		}{
			"all": {"", "", want}, "of a kind": {background.KindPause, "", []string{want[1], want[3]}},
			"of a tenant": {"", "t0", []string{want[1], want[4]}}, "of both": {background.KindRetry, "t0", []string{want[4]}},
		} {
			if diff := cmp.Diff(test.want, list(test.kind, test.tenant)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

// blind is a ledger whose live jobs cannot be listed.
type blind struct{ *ledger.Ledger }

func (blind) Live(context.Context, string, int, int, string) ([]string, string, error) {
	return nil, "", errors.New("listed")
}

// If the traits of the live jobs are known, only jobs that may match are read.
func TestPreview_ReadsOnlyLiveJobsThatMayMatch(t *testing.T) {
	t.Parallel()
	w := open(t, ledgertest.Split())
	known := map[string]search.Traits{}
	for _, kind := range []string{"OCR", "OCR", "EMBED"} {
		id := w.accept("t", kind)
		known[id] = search.TraitsOf(w.Read(id))
	}
	s := background.NewOperations(background.OperationsConfig{
		Ledger: blind{w.Ledger.Ledger}, Commands: newSketch(0), Store: w.Store, Table: table,
		Live: func(wanted func(*search.Traits) bool) (parts iter.Seq[[]string], all bool) {
			var ids []string
			for id, traits := range known {
				if wanted(&traits) {
					ids = append(ids, id)
				}
			}
			return slices.Values([][]string{ids}), true
		},
	})
	for kind, want := range map[background.Kind]int{background.KindPause: 2, background.KindResume: 0} {
		preview, err := s.Preview(t.Context(), background.BulkRequest{Kind: kind, Filter: search.Filter{StepType: "OCR"}})
		if err != nil || preview.Matched != want {
			t.Errorf("%s: %d jobs, %v", kind, preview.Matched, err)
		}
	}
}

// endless is an index that never ends.
type endless struct{ *sketch }

func (e *endless) Index(ctx context.Context, q ledger.IndexQuery) ([]ledger.IndexEntry, bool, error) {
	q.After = ""
	entries, _, err := e.sketch.Index(ctx, q)
	return entries, true, err
}

// If the accept of a rerun crashes between its index row and its commit, a retry selects the job
// again.
func TestCreate_SelectsAJobWhoseRerunWasLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(ledgertest.Split())
		w := open(t, store)
		failed := w.fail("t", "broken")
		time.Sleep(time.Hour)
		faults.Plan(storetest.Fault{Call: storetest.CommitCall, Table: "luciusledger", Onwards: true})
		if _, err := w.Rerun(t.Context(), ledger.Rerun{JobID: failed, From: ledger.FromFailed}); err == nil {
			t.Fatal("the accept was not lost")
		}
		faults.Clear()
		op := create(t, w.Operations, "", background.BulkRequest{})
		runOnce(t, runner(t, w.Operations))
		if page := get(t, w.Operations, op.ID); page.Applied != 1 || page.Items[0].JobID != failed {
			t.Errorf("the retry: %+v", page)
		}
		if again := create(t, w.Operations, "", background.BulkRequest{}); again.Matched != 0 {
			t.Errorf("after the rerun %d jobs match, want none", again.Matched)
		}
	})
}
