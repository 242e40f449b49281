package background_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// ward is a fake ledger of two shards with one page of findings each.
type ward struct {
	findings [2][]ledger.Finding
	err      error
	pending  time.Time // since when a row is pending; zero if there is none
	gone     error     // why the row's job cannot be read
	hints    []int     // the hints on each page of the ready index
	repaired int       // how many hints of the first page are repaired
	bad      error     // why the ready index cannot be read
	lines    [2][]ledger.LineView
	noLines  error // why the lines of the first shard cannot be read
}

// roll are schedules by page; a page whose number is broken cannot be read.
type roll struct {
	pages  []map[string]int
	broken map[string]error
}

func (r *roll) Count(_ context.Context, _ int, after string) (map[string]int, string, error) {
	n := len(after)
	if err := r.broken[after]; err != nil {
		return nil, "", err
	}
	if n+1 == len(r.pages) {
		return r.pages[n], "", nil
	}
	return r.pages[n], after + "+", nil
}

func (w *ward) Shards() int { return 2 }

func (w *ward) Exclusive() bool { return true }

func (w *ward) Inspect(_ context.Context, shard, _ int, from string) ([]ledger.Finding, string, error) {
	if w.err != nil {
		return w.findings[shard], "", w.err
	}
	if from == "" && shard == 0 {
		return nil, "more", nil
	}
	return w.findings[shard], "", nil
}

func (w *ward) InspectReady(context.Context, *ledger.ReadyWalk, int) (seen, repaired int, ended bool, err error) {
	if len(w.hints) == 0 {
		return 0, 0, w.bad == nil, w.bad
	}
	seen, repaired = w.hints[0], w.repaired
	w.hints = w.hints[1:]
	w.repaired = 0
	return seen, repaired, len(w.hints) == 0, w.bad
}

func (w *ward) Lines(_ context.Context, _ string, shard, _ int, after string) ([]ledger.LineView, string, error) {
	if shard == 0 && w.noLines != nil {
		return nil, "", w.noLines
	}
	if after == "" && len(w.lines[shard]) > 1 { // the first page has one line
		return w.lines[shard][:1], "more", nil
	}
	return w.lines[shard][min(1, len(w.lines[shard])/2):], "", nil
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

// round makes passes until the end of a round.
func round(t *testing.T, c *background.Reconciler) {
	t.Helper()
	untilEnd(t, c.RunOnce)
}

// untilEnd makes passes until there is no more to do.
func untilEnd(t *testing.T, once func(context.Context) (background.Pass, error)) {
	t.Helper()
	for range 10 {
		if pass, err := once(t.Context()); err != nil {
			t.Fatal(err)
		} else if !pass.More {
			return
		}
	}
	t.Fatal("the walk does not end")
}

// job returns a live job.
func job(id string) *statemachine.Aggregate {
	return &statemachine.Aggregate{Job: statemachine.Job{ID: id, State: statemachine.JobInProgress}}
}

func TestReconciler_ReportsARound(t *testing.T) {
	t.Parallel()
	w := &ward{findings: [2][]ledger.Finding{
		{{JobID: "fine", Job: job("fine")}, {JobID: "stuck", Job: job("stuck"), Stuck: "no entry"}},
		{{JobID: "repaired", Repaired: "slot"}, {JobID: "waits", Job: job("waits")}},
	}, hints: []int{3, 2}, repaired: 1}
	c := background.NewReconciler(background.ReconcilerConfig{Ledger: w})
	round(t, c)
	report := c.Report()
	if report.Checked != 4 || report.Repaired != 2 || len(report.Stuck) != 1 || report.Stuck[0].JobID != "stuck" ||
		report.Stuck[0].Reason != "no entry" || report.RoundEnded.IsZero() {
		t.Errorf("%+v", report)
	}
	w.findings = [2][]ledger.Finding{}
	round(t, c)
	if report = c.Report(); len(report.Stuck) != 0 || report.Checked != 0 || report.Repaired != 2 {
		t.Errorf("after the repair: %+v", report)
	}
}

// The schedules are counted after the lines. The count ends even if a row of them cannot be read.
func TestReconciler_CountsSchedules(t *testing.T) {
	t.Parallel()
	r := &roll{pages: []map[string]int{{"active": 2}, {"active": 1, "paused": 1}}, broken: map[string]error{}}
	c := background.NewReconciler(background.ReconcilerConfig{Ledger: &ward{}, Schedules: r})
	for _, test := range []struct {
		broken error // the second page
		want   map[string]int
	}{
		{nil, map[string]int{"active": 3, "paused": 1}},
		{errors.New("bad key"), map[string]int{"active": 2}},
		{nil, map[string]int{"active": 3, "paused": 1}},
	} {
		r.broken["+"] = test.broken
		untilEnd(t, c.CountOnce)
		if got := c.Report().Schedules; !maps.Equal(got, test.want) {
			t.Errorf("second page %v: %v, want %v", test.broken, got, test.want)
		}
	}
	r.broken[""] = tablestore.ErrUnavailable
	var err error
	for range 10 {
		if _, err = c.CountOnce(t.Context()); err != nil {
			break
		}
	}
	if !errors.Is(err, tablestore.ErrUnavailable) {
		t.Errorf("without the store: %v", err)
	}
	r.broken[""] = nil
	untilEnd(t, c.CountOnce) // The page is repeated.
	if got := c.Report().Schedules["active"]; got != 3 {
		t.Errorf("%d are active after the outage, want 3", got)
	}
}

// A count of the lines ends even if a row of the list cannot be read.
func TestReconciler_CountsLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 27, 12, 0, 0, 0, time.UTC)
	line := func(state statemachine.JobState, ended time.Time) ledger.LineView {
		return ledger.LineView{First: &statemachine.FirstPlace{Job: &statemachine.Job{
			State: state, CompletedAt: ended, Order: statemachine.Order{Key: "doc", Blocks: true},
		}}}
	}
	moving, failed := line(statemachine.JobInProgress, time.Time{}), line(statemachine.JobFailedFinal, at.Add(time.Hour))
	w := &ward{lines: [2][]ledger.LineView{
		{moving, failed}, {moving, line(statemachine.JobFailedFinal, at), moving}},
	}
	c := background.NewReconciler(background.ReconcilerConfig{Ledger: w})
	for name, test := range map[string]struct {
		err  error
		want background.LineCounts
	}{
		"all are read":    {nil, background.LineCounts{Moving: 3, Blocked: 2, BlockedSince: at}},
		"a row is broken": {errors.New("bad key"), background.LineCounts{Moving: 2, Blocked: 1, BlockedSince: at}},
	} {
		w.noLines = test.err
		untilEnd(t, c.CountOnce)
		if got := c.Report().Lines; got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
	w.noLines = tablestore.ErrUnavailable
	if pass, err := c.CountOnce(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) || !pass.More {
		t.Errorf("without the store: %+v, %v", pass, err)
	}
}

// A line is counted while a round over many jobs goes on.
func TestReconciler_CountsLinesWithoutARound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		jobs := &crowd{}
		jobs.lines[1] = []ledger.LineView{{First: &statemachine.FirstPlace{Job: &statemachine.Job{
			State: statemachine.JobFailedFinal, CompletedAt: time.Now(), Order: statemachine.Order{Key: "doc", Blocks: true},
		}}}}
		c := background.NewReconciler(background.ReconcilerConfig{Ledger: jobs, Page: 10})
		pass, err := c.RunOnce(t.Context())
		musttest.NoError(t, err)
		untilEnd(t, c.CountOnce)
		report := c.Report()
		if !pass.More || report.Lines.Blocked != 1 || report.Counted.IsZero() || !report.RoundEnded.IsZero() {
			t.Errorf("the round goes on %t; %+v", pass.More, report)
		}
		time.Sleep(time.Minute)
		jobs.lines[1] = nil
		run(t, c.CountLoop(), 90*time.Second)
		if got := c.Report(); got.Lines.Blocked != 0 || time.Since(got.Counted) > time.Minute+5*time.Second {
			t.Errorf("%v after the release: %+v", time.Since(report.Counted), got)
		}
	})
}

// counting records the calls of a walk.
type counting struct {
	calls []string
	fast  bool
}

func (c *counting) Begin() bool {
	c.calls = append(c.calls, "begin")
	return c.fast
}

func (c *counting) Spare() bool { return false }

func (c *counting) Walked(job *statemachine.Aggregate) { c.calls = append(c.calls, job.Job.ID) }

func (c *counting) End() { c.calls = append(c.calls, "end") }

// The counts get each live job between the beginning and the end of the walk, which is fast
// if they ask for it.
func TestReconciler_DrivesTheCounts(t *testing.T) {
	t.Parallel()
	for fast, passes := range map[bool]int{false: 3, true: 1} {
		w := &ward{findings: [2][]ledger.Finding{
			{{JobID: "one", Job: job("one")}, {JobID: "gone"}}, {{JobID: "two", Job: job("two")}},
		}}
		counts := &counting{fast: fast}
		c := background.NewReconciler(background.ReconcilerConfig{Ledger: w, Counts: counts})
		took := 0
		for took < 10 && !slices.Contains(counts.calls, "end") {
			took++
			if _, err := c.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{"begin", "one", "two", "end"}; !slices.Equal(counts.calls, want) || took != passes {
			t.Errorf("fast %t: the counts got %q in %d passes, want %q in %d", fast, counts.calls, took, want, passes)
		}
		round(t, c)
		round(t, c)
		if n := len(counts.calls); n < 8 || n > 12 {
			t.Errorf("after two more rounds the counts got %q", counts.calls)
		}
	}
}

// crowd is a fake ledger with ten pages of live jobs, or of ready hints, each of which takes
// 100 ms to read.
type crowd struct {
	ward

	hinted bool
	pages  int
}

func (c *crowd) Inspect(_ context.Context, _, limit int, _ string) ([]ledger.Finding, string, error) {
	if c.hinted {
		return nil, "", nil
	}
	if c.page() {
		return make([]ledger.Finding, limit), "", nil
	}
	return make([]ledger.Finding, limit), "more", nil
}

func (c *crowd) InspectReady(_ context.Context, _ *ledger.ReadyWalk, limit int) (seen, repaired int, ended bool, err error) {
	return limit, 0, c.page(), nil
}

// page waits for the time of one page, and reports whether it is the last.
func (c *crowd) page() bool {
	time.Sleep(100 * time.Millisecond)
	c.pages++
	return c.pages%10 == 0
}

// idle are counts whose walk may take all of its time.
type idle struct{ counting }

func (*idle) Spare() bool { return true }

// A fast pass checks a thousand jobs or hints, and more if the process is otherwise idle, in
// which case the walk of the ready index ends in the second pass.
func TestReconciler_AFastPassChecksManyPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, hinted := range []bool{false, true} {
			for want, counts := range map[int]background.LiveCounts{
				400: &counting{}, 1200: &counting{fast: true}, 3600: &idle{counting{fast: true}},
			} {
				c := background.NewReconciler(background.ReconcilerConfig{Ledger: &crowd{hinted: hinted}, Counts: counts, Page: 400})
				var pass background.Pass
				var err error
				for n := 0; n < 3 && err == nil && pass.Done == 0; n++ { // Empty shards of live jobs take a pass each.
					pass, err = c.RunOnce(t.Context())
				}
				if err != nil || pass.Done != want || !pass.More {
					t.Errorf("%T, hints %t: a pass checks %d, want %d, more %t: %v", counts, hinted, pass.Done, want, pass.More, err)
				}
				if pass, err = c.RunOnce(t.Context()); hinted && want == 3600 && (err != nil || pass.Done != 400 || pass.More) {
					t.Errorf("the round ends with %+v, %v", pass, err)
				}
			}
		}
	})
}

func TestReconciler_RepeatsAPageAfterAnError(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	w := &ward{err: tablestore.ErrUnavailable}
	c := background.NewReconciler(background.ReconcilerConfig{Ledger: w})
	if pass, err := c.RunOnce(t.Context()); !errors.Is(err, tablestore.ErrUnavailable) || !pass.More {
		t.Errorf("%+v, %v", pass, err)
	}
	w.err = nil
	round(t, c)
	w.hints, w.bad = []int{1, 1}, away // A page of the ready index holds a row that cannot be read.
	for range 3 {
		_, _ = c.RunOnce(t.Context())
	}
	pass, err := c.RunOnce(t.Context())
	if !errors.Is(err, away) || pass.Done != 1 {
		t.Errorf("%+v, %v", pass, err)
	}
	if pass, err = c.RunOnce(t.Context()); !errors.Is(err, away) || pass.More {
		t.Errorf("at the end of the ready index: %+v, %v", pass, err)
	}
}

// A job whose rows cannot be read ends no round: the other jobs are inspected and counted, and the ready index is
// walked.
func TestReconciler_PassesAJobThatCannotBeRead(t *testing.T) {
	t.Parallel()
	store := memstore.New(memstore.Options{})
	l := ledgertest.Open(t, ledger.Config{Store: store, Shards: 1})
	w := &world{Ledger: l}
	for range 5 {
		w.accept("tenant", "OCR")
	}
	live := l.LiveJobs()
	key := tablestore.Key{Table: "luciusledger", Partition: live[1], Row: "JOB"}
	l.Put(key, slices.DeleteFunc(slices.Clone(l.Row(key).Properties), func(p tablestore.Property) bool { return p.Name == "state" }))
	counts := &counting{}
	c := background.NewReconciler(background.ReconcilerConfig{Ledger: l, Counts: counts, Page: 2})
	failed := 0
	for range 20 {
		pass, err := c.RunOnce(t.Context())
		if err != nil {
			failed++
		}
		if !pass.More {
			break
		}
	}
	if report := c.Report(); report.RoundEnded.IsZero() || report.Checked != 4 || failed == 0 {
		t.Errorf("%d passes failed; %+v", failed, report)
	}
	if want := []string{"begin", live[0], live[2], live[3], live[4], "end"}; !slices.Equal(counts.calls, want) {
		t.Errorf("the counts got %q, want %q", counts.calls, want)
	}
}

// A job for which the store is never available ends no round either.
func TestReconciler_PassesAJobThatTheStoreRefuses(t *testing.T) {
	t.Parallel()
	var bad string
	store := storetest.Hooked(memstore.New(memstore.Options{}), func(ctx context.Context, r *storetest.Request,
		do func(context.Context) error,
	) error {
		if bad != "" && r.Key().Partition == bad {
			return tablestore.ErrUnavailable
		}
		return do(ctx)
	})
	l := ledgertest.Open(t, ledger.Config{Store: store, Shards: 1})
	w := &world{Ledger: l}
	for range 5 {
		w.accept("tenant", "OCR")
	}
	live := l.LiveJobs()
	bad = live[1]
	counts := &counting{}
	c := background.NewReconciler(background.ReconcilerConfig{Ledger: l, Counts: counts, Page: 3})
	for range 20 {
		if pass, _ := c.RunOnce(t.Context()); !pass.More {
			break
		}
	}
	if report := c.Report(); report.RoundEnded.IsZero() || report.Checked != 4 {
		t.Errorf("%+v", report)
	}
	counted := slices.DeleteFunc(counts.calls, func(call string) bool { return call == "begin" })
	if want := []string{live[0], live[2], live[3], live[4], "end"}; !slices.Equal(counted, want) {
		t.Errorf("the counts got %q, want %q", counted, want)
	}
}

// A pass during an outage leaves its page to the next one, so that each job is counted once.
func TestReconciler_CountsAJobOnceAfterAnOutage(t *testing.T) {
	t.Parallel()
	for _, outage := range []error{tablestore.ErrUnavailable, tablestore.ErrUnknown} {
		counts := &counting{}
		w := &ward{err: outage, findings: [2][]ledger.Finding{{{JobID: "one", Job: job("one")}}}}
		c := background.NewReconciler(background.ReconcilerConfig{Ledger: w, Counts: counts})
		if pass, err := c.RunOnce(t.Context()); !errors.Is(err, outage) || !pass.More {
			t.Errorf("%v: %+v, %v", outage, pass, err)
		}
		w.err = nil
		round(t, c)
		if got := len(slices.DeleteFunc(counts.calls, func(call string) bool { return call != "one" })); got != 1 {
			t.Errorf("%v: the job is counted %d times", outage, got)
		}
	}
}

func TestReconciler_ReportsTheAgeOfTheOldestRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := background.NewReconciler(background.ReconcilerConfig{Ledger: &ward{pending: time.Now()}}) // The row is always due now.
		run(t, c.AgeLoop(), 90*time.Second)
		if c.Report().OldestPending < 85*time.Second {
			t.Errorf("%+v", c.Report())
		}
	})
}

func TestReconciler_RepairsDespiteABadRowOfTheCatalog(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.published()
	b.ledger.Put(tablestore.Key{Table: "luciusqueue", Partition: "catalog", Row: "a:b:urgent"}, tablestore.Properties{})
	c := background.NewReconciler(background.ReconcilerConfig{Ledger: b.ledger.Ledger})
	for repaired := range 2 {
		failed := 0
		for more := true; more; {
			pass, err := c.RunOnce(t.Context())
			if more = pass.More; err != nil {
				failed++
			}
			if failed > 1 {
				t.Fatalf("round %d does not end: %v", repaired+1, err)
			}
		}
		if c.Report().Repaired != repaired {
			t.Errorf("round %d repaired %d", repaired+1, c.Report().Repaired)
		}
		for _, e := range b.ledger.Entries(ledger.Timer, time.Now().Add(time.Hour)) {
			b.ledger.Discard(tablestore.Key{
				Table: "luciusschedule", Partition: "shard:" + tablestore.Pad(e.Shard, 3),
				Row: tablestore.Join("timer", tablestore.Pad(e.Due.UnixMilli(), 13), id, e.Nonce),
			})
		}
	}
}

func TestReconciler_ReadsTheAgeOfTheOldestRowPastBadRows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.accept("h")
		b.damage(ledger.Dispatch)
		time.Sleep(time.Minute)
		b.pass(t) // The row is left to the schedule.
		time.Sleep(59 * time.Minute)
		c := background.NewReconciler(background.ReconcilerConfig{Ledger: b.ledger.Ledger})
		if err := c.ReadAge(t.Context()); err != nil || c.Report().OldestPending != time.Hour {
			t.Errorf("%+v, %v", c.Report(), err)
		}
	})
}

func TestReconciler_SkipsAPendingRowWithoutAJob(t *testing.T) {
	t.Parallel()
	w := &ward{pending: time.Now().Add(-time.Hour), gone: ledger.ErrJobNotFound}
	c := background.NewReconciler(background.ReconcilerConfig{Ledger: w})
	if err := c.ReadAge(t.Context()); err != nil || c.Report().OldestPending != 0 {
		t.Errorf("%+v, %v", c.Report(), err)
	}
	w.gone = errors.New("the row is malformed")
	if err := c.ReadAge(t.Context()); err != nil {
		t.Errorf("a job that cannot be read: %v", err)
	}
	w.gone = tablestore.ErrUnavailable
	if err := c.ReadAge(t.Context()); !errors.Is(err, w.gone) {
		t.Errorf("an unavailable ledger: %v", err)
	}
}

// The cost of a pass does not depend on the number of live jobs, and is lower on an exclusive
// store, whose reads cost this process CPU time.
func TestCost_OfAReconcilerPass(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		split bool
		jobs  int64
	}{{false, 50}, {true, 200}} {
		store, counter := storetest.Counting(memstore.New(memstore.Options{Split: test.split}))
		l := ledgertest.Open(t, ledger.Config{Store: store, Shards: 1})
		w := &world{Ledger: l}
		for range 210 {
			w.accept("tenant", "OCR")
		}
		reconciler := background.NewReconciler(background.ReconcilerConfig{Ledger: l})
		counter.Reset()
		if pass, err := reconciler.RunOnce(t.Context()); err != nil || int64(pass.Done) != test.jobs || !pass.More {
			t.Error(pass, err)
		}
		got := counter.Counts()
		// One scan reads a page of slots; each job takes a scan of its rows and a read of its
		// ready hint, and on a split store one of its schedule entry.
		gets := test.jobs
		if test.split {
			gets *= 2
		}
		if got.Scans != 1+test.jobs || got.Gets != gets || got.Commits != 0 {
			t.Errorf("a pass over %d jobs cost %+v", test.jobs, got)
		}
	}
}
