package schedules_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const protocol = `
protocol_id: report
request_types: [report.make]
steps:
  - step_id: make
    step_type: MAKE
    service: maker
`

// house is one process with its schedules.
type house struct {
	t        *testing.T
	ctl      *schedules.Service
	cron     *background.Cron
	jobs     *ledgertest.Ledger
	commands *commands.Service
	protocol *commands.ProtocolHolder
	told     *told
}

// open returns a process on the store.
func open(t *testing.T, store tablestore.Store, cfg ledger.Config) *house {
	t.Helper()
	cfg.Store = store
	h := &house{t: t, jobs: ledgertest.Open(t, cfg), told: &told{times: map[time.Time]int{}}}
	h.protocol = commands.NewProtocolHolder(registry(t, protocol))
	router, err := routing.New(routing.Config{Lanes: 2, TopicPrefix: "topic"})
	if err != nil {
		t.Fatal(err)
	}
	if h.commands, err = commands.New(commands.Config{
		Ledger: h.jobs.Ledger, Protocols: h.protocol, Router: router, Defaults: ledgertest.Policy(),
	}); err != nil {
		t.Fatal(err)
	}
	return h.beside(h.jobs.Store)
}

// registry returns the registry of one protocol.
func registry(t *testing.T, text string) *commands.Protocols {
	t.Helper()
	one, err := commands.LoadProtocolsFS(fstest.MapFS{"report.yaml": {Data: []byte(text)}})
	if err != nil {
		t.Fatal(err)
	}
	return one
}

// beside returns a process with the same jobs, whose schedules use that store.
func (h *house) beside(store tablestore.Store) *house {
	h.t.Helper()
	other := &house{t: h.t, jobs: h.jobs, commands: h.commands, protocol: h.protocol, told: h.told}
	other.serve(store, "")
	return other
}

// skewed returns a process with the same jobs, whose clock is that much ahead.
func (h *house) skewed(ahead time.Duration) *house {
	h.t.Helper()
	other := h.beside(h.jobs.Store)
	other.open(schedules.Config{Store: h.jobs.Store, Now: func() time.Time { return tablestore.Now().Add(ahead) }})
	return other
}

// build makes the process one of that build.
func (h *house) build(name string) { h.serve(h.jobs.Store, name) }

// serve opens the schedules of the store.
func (h *house) serve(store tablestore.Store, build string) {
	h.t.Helper()
	h.open(schedules.Config{Store: store, Build: build})
}

func (h *house) open(cfg schedules.Config) {
	h.t.Helper()
	cfg.Commands, cfg.Ledger, cfg.Observe = h.commands, h.jobs.Ledger, h.told.observe
	h.ctl = schedules.New(cfg)
	h.cron = background.NewCron(background.CronConfig{Schedules: h.ctl})
}

// told counts how often each occurrence was told of.
type told struct {
	mu    sync.Mutex
	times map[time.Time]int
}

func (t *told) observe(fire *schedules.Fire, _ time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.times[fire.ScheduledFor]++
}

// wantToldOnce fails unless each occurrence of the history was told of once, and no other.
func (h *house) wantToldOnce() {
	h.t.Helper()
	h.told.mu.Lock()
	defer h.told.mu.Unlock()
	want := map[time.Time]int{}
	for _, fire := range h.history() {
		want[fire.ScheduledFor] = 1
	}
	if diff := cmp.Diff(want, h.told.times); diff != "" {
		h.t.Errorf("occurrences told of (-want +got):\n%s", diff)
	}
}

// minutely is a schedule that is due each minute.
func minutely() schedules.Definition {
	return schedules.Definition{
		TenantID: "acme", Name: "nightly", Spec: calendar.Spec{Every: time.Minute},
		Overlap: schedules.OverlapAllow, CatchUp: schedules.CatchUp{Policy: schedules.CatchUpLast, Window: time.Hour},
		Command: []byte(`{"request_type":"report.make","schema_version":"1","payload":{"for":"${scheduled_for}"},` +
			`"input_ref":{"uri":"s3://in/${scheduled_date}"},"output_ref":{"uri":"s3://out"}}`),
	}
}

func (h *house) create(def schedules.Definition) *schedules.Schedule {
	h.t.Helper()
	sc, err := h.ctl.Create(h.t.Context(), def, "ops")
	if err != nil {
		h.t.Fatal(err)
	}
	return sc
}

// pass fires what is due now.
func (h *house) pass() {
	h.t.Helper()
	if _, err := h.cron.RunOnce(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	h.cron.Wait()
}

// run lets time go by, with a pass each second.
func (h *house) run(d time.Duration) {
	h.t.Helper()
	for range int(d / time.Second) {
		time.Sleep(time.Second)
		h.pass()
	}
}

// history returns the outcomes, oldest first.
func (h *house) history() []schedules.Fire {
	h.t.Helper()
	fires, _, err := h.ctl.Fires(h.t.Context(), "acme", "nightly", "", 1000)
	if err != nil {
		h.t.Fatal(err)
	}
	slices.Reverse(fires)
	return fires
}

func (h *house) outcomes() (all []schedules.Outcome) {
	for _, fire := range h.history() {
		all = append(all, fire.Outcome)
	}
	return all
}

func (h *house) want(outcomes ...schedules.Outcome) {
	h.t.Helper()
	if diff := cmp.Diff(outcomes, h.outcomes()); diff != "" {
		h.t.Errorf("outcomes (-want +got):\n%s", diff)
	}
}

// onEachStore runs the test on virtual time, on a store that is atomic and on one that is not.
func onEachStore(t *testing.T, cfg ledger.Config, test func(t *testing.T, h *house)) {
	t.Helper()
	for name, store := range map[string]func() tablestore.Store{"atomic": ledgertest.Atomic, "split": ledgertest.Split} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { test(t, open(t, store(), cfg)) })
		})
	}
}

const (
	fired   = schedules.Fired
	skipped = schedules.Skipped
	missed  = schedules.Missed
)

func TestSchedule_FiresEachOccurrenceOnce(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		sc := h.create(minutely())
		h.run(3 * time.Minute)
		h.want(fired, fired, fired)
		for i, fire := range h.history() {
			job := h.jobs.Read(fire.JobID).Job
			if job.Occurrence != (statemachine.Occurrence{ScheduleID: sc.ID, Version: 1, For: fire.ScheduledFor}) {
				t.Errorf("job %d is of %+v", i, job.Occurrence)
			}
			if want := `{"uri":"s3://in/2000-01-01"}`; string(job.InputRef) != want {
				t.Errorf("input_ref is %s, want %s", job.InputRef, want)
			}
			payload, err := h.jobs.Payload(t.Context(), job.ID)
			if want := `{"for":"` + fire.ScheduledFor.Format(time.RFC3339) + `"}`; err != nil || string(payload) != want {
				t.Errorf("payload is %s, want %s (%v)", payload, want, err)
			}
		}
		now, err := h.ctl.Get(t.Context(), "acme", "nightly")
		if err != nil || now.State != schedules.Active || !now.Upcoming.Equal(now.Last.Add(time.Minute)) || now.LastFire == nil {
			t.Errorf("schedule is %+v (%v)", now, err)
		}
	})
}

// The clock of one of three processes is ten minutes wrong: it may fire ahead of the time, but no occurrence is fired twice, and none is
// lost. A server on a shared store would not even pass: it acts on no deadlines while its clock differs by more than its tolerance.
func TestSchedule_BearsAClockThatIsWrong(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]time.Duration{"ahead": 10 * time.Minute, "behind": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				def := minutely()
				def.CatchUp.Policy = schedules.CatchUpAll
				sc := h.create(def)
				replicas := []*house{h, h.beside(h.jobs.Store), h.skewed(wrong)}
				for range 30*60 + 5 {
					time.Sleep(time.Second)
					var passes sync.WaitGroup
					for _, replica := range replicas {
						passes.Go(replica.pass)
					}
					passes.Wait()
				}
				due := time.Now().Add(max(0, wrong)).Sub(sc.CreatedAt) / time.Minute
				all := h.history()
				for i, fire := range all {
					if at := all[0].ScheduledFor.Add(time.Duration(i) * time.Minute); fire.Outcome != fired || !fire.ScheduledFor.Equal(at) {
						t.Fatalf("occurrence %d, of %s, is %+v", i, at, fire)
					}
				}
				if jobs := len(h.jobs.LiveJobs()); len(all) != int(due) || jobs != len(all) {
					t.Errorf("%d occurrences with %d jobs, %d were due", len(all), jobs, due)
				}
				h.wantToldOnce()
			})
		})
	}
}

func TestSchedule_AfterADowntimeFollowsItsPolicy(t *testing.T) {
	t.Parallel()
	for policy, want := range map[schedules.CatchUpPolicy][]schedules.Outcome{
		schedules.CatchUpNone: {missed, missed, missed, missed, missed},
		schedules.CatchUpLast: {missed, missed, missed, missed, fired},
		schedules.CatchUpAll:  {fired, fired, fired, fired, fired},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(_ *testing.T, h *house) {
				def := minutely()
				def.CatchUp.Policy, def.Every = policy, 2*time.Minute
				h.create(def)
				time.Sleep(11*time.Minute + 30*time.Second)
				h.pass()
				h.want(want...)
			})
		})
	}
}

// An occurrence is on time when its jitter is over, however long that is.
func TestSchedule_JitterIsNoLateness(t *testing.T) {
	t.Parallel()
	for _, policy := range []schedules.CatchUpPolicy{schedules.CatchUpNone, schedules.CatchUpLast, schedules.CatchUpAll} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(_ *testing.T, h *house) {
				def := minutely()
				def.Every, def.Jitter, def.CatchUp = time.Hour, 30*time.Minute, schedules.CatchUp{Policy: policy, Window: time.Minute}
				h.create(def)
				h.run(3*time.Hour + 30*time.Minute)
				h.want(fired, fired, fired)
			})
		})
	}
}

func TestSchedule_RecordsALongDowntimeInOneRow(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(minutely())
		time.Sleep(30*24*time.Hour + 30*time.Second)
		h.run(10 * time.Second)
		fires := h.history()
		if len(fires) != 11 || fires[0].From.IsZero() || fires[10].Outcome != fired {
			t.Errorf("history is %+v", fires)
		}
	})
}

func TestSchedule_OverlapIsALine(t *testing.T) {
	t.Parallel()
	for overlap, want := range map[schedules.Overlap][]schedules.Outcome{
		schedules.OverlapSkip:   {fired, skipped, skipped, skipped},
		schedules.OverlapQueue:  {fired, fired, missed}, // The fourth is still tried.
		schedules.OverlapCancel: {fired, fired, fired, fired},
		schedules.OverlapAllow:  {fired, fired, fired, fired},
	} {
		t.Run(string(overlap), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(_ *testing.T, h *house) {
				def := minutely()
				def.Overlap = overlap
				h.create(def)
				h.run(4*time.Minute + 59*time.Second)
				h.want(want...)
			})
		})
	}
}

// A protocol that gets an order key takes the commands out of the line of the schedule. An overlap that only that
// line has is then refused for each occurrence, as a new definition is, and not ignored.
func TestSchedule_RefusesAnOverlapThatTheProtocolTakesAway(t *testing.T) {
	t.Parallel()
	for overlap, want := range map[schedules.Overlap]schedules.Outcome{
		schedules.OverlapSkip: schedules.Refused, schedules.OverlapCancel: schedules.Refused,
		schedules.OverlapQueue: fired, schedules.OverlapAllow: fired,
	} {
		t.Run(string(overlap), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				def := minutely()
				def.Overlap = overlap
				h.create(def)
				h.protocol.Swap(registry(t, protocol+"order: {key: /for}\n"))
				h.run(time.Minute + time.Second)
				h.want(want)
				bad := want == schedules.Refused
				if fire := h.history()[0]; (fire.Code == string(apierror.ScheduleInvalid)) != bad || (fire.JobID == "") != bad {
					t.Errorf("history is %+v", fire)
				}
				if _, err := h.ctl.Edit(t.Context(), nightly, def); (err != nil) != bad {
					t.Errorf("edit: %v", err)
				}
			})
		})
	}
}

func TestSchedule_TriesAgainWhileTheTenantIsAtItsLimit(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{Limit: func(string) int { return 1 }}, func(t *testing.T, h *house) {
		def := minutely()
		def.Every = time.Hour
		h.create(def)
		first, _, err := h.ctl.Run(t.Context(), schedules.Change{TenantID: "acme", Name: "nightly"}, "k")
		if err != nil {
			t.Fatal(err)
		}
		h.run(time.Hour + 5*time.Minute)
		h.want(fired)
		h.jobs.Apply(first.JobID, statemachine.Cancel{})
		h.run(time.Minute + time.Second)
		h.want(fired, fired)
		h.run(time.Hour + 6*time.Minute)
		h.want(fired, fired, missed)
	})
}

// losesHEAD is a store on which each commit of a schedule fails. It is done nevertheless if the error is that its outcome is unknown.
type losesHEAD struct {
	tablestore.Store

	err error
}

func (s losesHEAD) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if batch[0].Key.Row != "HEAD" {
		return s.Store.Commit(ctx, batch)
	}
	if errors.Is(s.err, tablestore.ErrUnknown) {
		if _, err := s.Store.Commit(ctx, batch); err != nil {
			return nil, err
		}
	}
	return nil, s.err
}

// losing is a process on the same store, whose clock is that much ahead. Its commits of schedules fail.
func (h *house) losing(err error, ahead time.Duration) *background.Cron {
	h.t.Helper()
	ctl := schedules.New(schedules.Config{
		Store: losesHEAD{h.jobs.Store, err}, Commands: h.commands, Ledger: h.jobs.Ledger, Observe: h.told.observe,
		Now: func() time.Time { return tablestore.Now().Add(ahead) },
	})
	cron := background.NewCron(background.CronConfig{Schedules: ctl})
	return cron
}

// An occurrence that a process decides without committing HEAD is told of by the process that commits HEAD with it.
func TestSchedule_TellsOfEachOccurrenceOnce(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]error{
		"the first process crashes":         tablestore.ErrUnavailable,
		"another was faster":                tablestore.ErrConflict,
		"the answer to its commit was lost": tablestore.ErrUnknown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				h.create(minutely())
				time.Sleep(time.Minute)
				first := h.losing(lost, 0)
				_, _ = first.RunOnce(t.Context()) // It fails after the job was accepted.
				first.Wait()
				h.run(2 * time.Minute)
				h.want(fired, fired, fired)
				h.wantToldOnce()
			})
		})
	}
}

// A process whose clock is three seconds ahead fires an occurrence, but does not commit HEAD. Then the schedule is changed to
// one without that occurrence, so that no pass comes by it again.
func TestSchedule_AnEditDecidesWhatAFastClockFired(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]error{"it crashes": tablestore.ErrUnavailable, "another was faster": tablestore.ErrConflict} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				h.create(minutely())
				fast := h.losing(lost, 3*time.Second)
				time.Sleep(58 * time.Second)
				_, _ = fast.RunOnce(t.Context()) // It fails after the job was accepted.
				fast.Wait()
				h.want(schedules.Claimed)

				def := minutely()
				def.Every = 7 * time.Minute
				if _, err := h.ctl.Edit(t.Context(), schedules.Change{TenantID: "acme", Name: "nightly", Actor: "ops"}, def); err != nil {
					t.Fatal(err)
				}
				h.run(2 * time.Minute)
				h.want(fired)
				h.wantToldOnce()
			})
		})
	}
}

// An edit can be repeated: the definition that a schedule has is no change, in whatever way its command is written.
func TestSchedule_AnEqualDefinitionIsNoChange(t *testing.T) {
	t.Parallel()
	change := schedules.Change{TenantID: "acme", Name: "nightly", Actor: "ops"}
	other := minutely()
	other.Jitter = 10 * time.Second
	spelled, otherwise := minutely(), minutely()
	spelled.Command = append([]byte("{ \t"), spelled.Command[1:]...)
	spelled.CatchUp.Window, otherwise.CatchUp.Window = 0, 2*time.Hour
	renamed := minutely()
	renamed.Command = bytes.Replace(renamed.Command, []byte("s3://out"), []byte("s3://other"), 1)
	for name, test := range map[string]struct {
		def     schedules.Definition
		changes bool
	}{
		"the same":                           {minutely(), false},
		"the same, with a default, indented": {spelled, false},
		"another jitter":                     {other, true},
		"another window":                     {otherwise, true},
		"another command":                    {renamed, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				before := h.create(minutely())
				for range 2 {
					after, err := h.ctl.Edit(t.Context(), change, test.def)
					want := before.Version
					if test.changes {
						want++
					}
					if err != nil || after.Version != want || after.Rev != int64(want) {
						t.Errorf("after the edit: version %d, rev %d, want %d (%v)", after.Version, after.Rev, want, err)
					}
				}
				at := change
				at.Rev = 7
				if _, err := h.ctl.Edit(t.Context(), at, test.def); !errors.Is(err, schedules.ErrRevConflict) {
					t.Errorf("an edit of another rev: %v", err)
				}
			})
		})
	}
}

func TestSchedule_NameIsFreeAfterTheDelete(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		first := h.create(minutely())
		if _, err := h.ctl.Create(t.Context(), minutely(), ""); !errors.Is(err, schedules.ErrExists) {
			t.Errorf("a second create: %v", err)
		}
		change := schedules.Change{TenantID: "acme", Name: "nightly", Rev: first.Rev + 1}
		if err := h.ctl.Delete(t.Context(), change); !errors.Is(err, schedules.ErrRevConflict) {
			t.Errorf("delete at another rev: %v", err)
		}
		change.Rev = first.Rev
		if err := h.ctl.Delete(t.Context(), change); err != nil {
			t.Fatal(err)
		}
		if _, err := h.ctl.Get(t.Context(), "acme", "nightly"); !errors.Is(err, schedules.ErrNotFound) {
			t.Errorf("get after the delete: %v", err)
		}
		second := h.create(minutely())
		if second.ID == first.ID {
			t.Error("the second schedule has the id of the first")
		}
		h.run(time.Minute)
		h.want(fired)
		if all, next, err := h.ctl.List(t.Context(), "acme", schedules.Active, "", 10); err != nil || len(all) != 1 || next != "" {
			t.Errorf("list is %+v, %q (%v)", all, next, err)
		}
	})
}

func TestSchedule_RunIsRepeatable(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(minutely())
		change := schedules.Change{TenantID: "acme", Name: "nightly", Actor: "ops"}
		first, replayed, err := h.ctl.Run(t.Context(), change, "k")
		if err != nil || replayed || first.Outcome != fired || first.JobID == "" {
			t.Fatalf("first run: %+v, replayed %t (%v)", first, replayed, err)
		}
		time.Sleep(time.Second)
		again, replayed, err := h.ctl.Run(t.Context(), change, "k")
		if err != nil || !replayed || again.JobID != first.JobID {
			t.Errorf("second run: %+v, replayed %t (%v)", again, replayed, err)
		}
	})
}
