package schedules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// A process whose clock is ahead comes to an occurrence that no pass of the changed schedule comes to. If it claims it before the
// change, and has not accepted the command yet, the change decides it; after the change it claims nothing.
func TestSchedule_AChangeLeavesNoClaimOfAProcessWhoseClockIsAhead(t *testing.T) {
	t.Parallel()
	hourly := minutely()
	hourly.Every = time.Hour
	for verb, act := range map[string]func(h *house) error{
		"edit":   func(h *house) error { _, err := h.ctl.Edit(h.t.Context(), nightly, hourly); return err },
		"pause":  func(h *house) error { _, err := h.ctl.Pause(h.t.Context(), nightly); return err },
		"delete": func(h *house) error { return h.ctl.Delete(h.t.Context(), nightly) },
	} {
		wantRows := func(t *testing.T, h *house, sc *schedules.Schedule, want ...string) {
			t.Helper()
			query := tablestore.Query{Table: "luciuscron", Partition: sc.ID, From: "FIRE:", To: "FIRE;"}
			rows, err := tablestore.ScanAll(t.Context(), h.jobs.Store, query)
			var got []string
			for i := range rows {
				got = append(got, rows[i].Properties.Get("outcome").String())
			}
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("the occurrences are %q, want %q (%v)", got, want, err)
			}
		}
		t.Run("the claim comes before the "+verb, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				sc := h.create(minutely())
				time.Sleep(30 * time.Second)
				claim := schedules.Fire{
					ScheduledFor: sc.CreatedAt.Add(time.Minute), Outcome: schedules.Claimed, Version: 1,
					JobID: "0197f0c2-0000-7000-8000-000000000000", DecidedAt: time.Now(),
				}
				row := tablestore.Join("FIRE", tablestore.Pad(9_999_999_999_999-claim.ScheduledFor.UnixMilli(), 13))
				key := tablestore.Key{Table: "luciuscron", Partition: sc.ID, Row: row}
				h.jobs.Put(key, tablestore.NewCodec[schedules.Fire]().Encode(&claim, nil))
				if err := act(h); err != nil {
					t.Fatal(err)
				}
				wantRows(t, h, sc, "missed")
			})
		})
		t.Run("the claim comes after the "+verb, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				sc := h.create(minutely())
				time.Sleep(30 * time.Second)
				slow := &slowReads{Store: h.jobs.Store, stand: func() {
					if err := act(h); err != nil {
						t.Error(err)
					}
				}}
				fast := h.beside(slow)
				fast.open(schedules.Config{Store: slow, Now: func() time.Time { return tablestore.Now().Add(time.Minute) }})
				due, _, err := fast.ctl.Due(t.Context(), "", 0, time.Now(), 1, "")
				if err != nil || len(due) != 1 {
					t.Fatalf("due: %v (%v)", due, err)
				}
				if _, err = fast.ctl.Act(t.Context(), due[0]); !errors.Is(err, tablestore.ErrConflict) {
					t.Errorf("the process whose clock is ahead: %v", err)
				}
				wantRows(t, h, sc)
				if jobs := h.jobs.LiveJobs(); len(jobs) != 0 {
					t.Errorf("jobs after the %s: %v", verb, jobs)
				}
			})
		})
	}
}

func TestSchedule_ChangesDecideWhatIsDueFirst(t *testing.T) {
	t.Parallel()
	change := schedules.Change{TenantID: "acme", Name: "nightly", Actor: "ops"}
	for name, act := range map[string]func(h *house) error{
		"edit": func(h *house) error {
			def := minutely()
			def.Every = time.Hour
			_, err := h.ctl.Edit(h.t.Context(), change, def)
			return err
		},
		"pause": func(h *house) error {
			_, err := h.ctl.Pause(h.t.Context(), change)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				h.create(minutely())
				time.Sleep(time.Minute + time.Second)
				if err := act(h); err != nil {
					t.Fatal(err)
				}
				h.run(2 * time.Minute)
				h.want(fired)
				if version := h.history()[0].Version; version != 1 {
					t.Errorf("the occurrence was fired by version %d", version)
				}
			})
		})
	}
}

// A pause says nothing of what comes after it: a pause that fails then, or is resumed before, would have lost it.
func TestSchedule_APauseDecidesNothingThatIsNotDue(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(minutely())
		time.Sleep(57 * time.Second)
		if _, err := h.ctl.Pause(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		h.want()
		if _, err := h.ctl.Resume(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		h.run(4 * time.Second)
		h.want(fired)
		if _, err := h.ctl.Pause(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		h.run(3 * time.Minute)
		if _, err := h.ctl.Resume(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		h.run(time.Minute)
		h.want(fired, missed, fired)
		h.wantLosses() // An operator wanted it so.
	})
}

func TestDue_GoesPastBadRows(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(minutely())
		h.jobs.Put(tablestore.Key{Table: "luciusschedule", Partition: "cron", Row: "0000000000000:x"}, tablestore.Properties{})
		time.Sleep(time.Minute)
		due, _, err := h.ctl.Due(t.Context(), "", 0, time.Now(), 10, "")
		if len(due) != 1 || err == nil {
			t.Errorf("due: %v (%v)", due, err)
		}
	})
}

// A process that stands still after it read a schedule does not fire what comes due later: the schedule may have been paused by then.
func TestSchedule_FiresNothingThatCameDueAfterItWasRead(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(minutely())
		time.Sleep(time.Minute)
		due, _, err := h.ctl.Due(t.Context(), "", 0, time.Now(), 1, "")
		if err != nil || len(due) != 1 {
			t.Fatalf("due: %v (%v)", due, err)
		}
		slow := h.beside(&slowReads{Store: h.jobs.Store, stand: func() {
			if _, err := h.ctl.Pause(t.Context(), nightly); err != nil {
				t.Error(err)
			}
			time.Sleep(3 * time.Minute)
		}})
		if _, err := slow.ctl.Act(t.Context(), due[0]); !errors.Is(err, tablestore.ErrConflict) {
			t.Errorf("the slow process: %v", err)
		}
		if h.want(fired); len(h.jobs.LiveJobs()) != 1 {
			t.Errorf("%d jobs of a schedule that was paused after the first", len(h.jobs.LiveJobs()))
		}
	})
}

// A process may stand still before it reads its clock. No occurrence counts as decided because of that.
func TestSchedule_AChangeThatStandsStillLosesNothing(t *testing.T) {
	t.Parallel()
	for n := range 8 {
		t.Run(fmt.Sprint("at reading ", n), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				h.create(minutely())
				slow, readings := h.beside(h.jobs.Store), 0
				slow.open(schedules.Config{Store: h.jobs.Store, Now: func() time.Time {
					if readings++; readings == n+1 {
						time.Sleep(61 * time.Second)
					}
					return tablestore.Now()
				}})
				other := minutely()
				other.Every = time.Hour
				if sc, err := slow.ctl.Edit(t.Context(), nightly, other); err != nil {
					t.Error(err)
				} else if decided := len(h.history()); decided != int(sc.Last.Sub(sc.CreatedAt)/time.Minute) {
					t.Errorf("%d occurrences are in the history of a schedule that decided them from %s until %s", decided, sc.CreatedAt, sc.Last)
				}
			})
		})
	}
}

// An edit of a paused schedule keeps what was not fired before it in the history.
func TestSchedule_AnEditKeepsThePauseInTheHistory(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(minutely())
		time.Sleep(time.Second)
		if _, err := h.ctl.Pause(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		h.run(3 * time.Minute)
		def := minutely()
		def.Every = 30 * time.Second
		if _, err := h.ctl.Edit(t.Context(), nightly, def); err != nil {
			t.Fatal(err)
		}
		h.run(3 * time.Minute)
		if _, err := h.ctl.Resume(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		var counts []int
		for _, fire := range h.history() {
			counts = append(counts, fire.Count)
		}
		if slices.Sort(counts); !slices.Equal(counts, []int{3, 6}) {
			t.Errorf("the history has ranges of %v occurrences, want 3 of the first definition and 6 of the second", counts)
		}
	})
}

// lateHEAD is a store that does not answer one commit of a schedule, and applies it after the next read of HEAD.
type lateHEAD struct {
	tablestore.Store

	armed bool
	held  tablestore.Batch
	reads int
}

func (s *lateHEAD) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if batch[0].Key.Row == "HEAD" && s.armed {
		s.armed, s.held = false, batch
		return nil, tablestore.ErrUnknown
	}
	return s.Store.Commit(ctx, batch)
}

func (s *lateHEAD) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if key.Row == "HEAD" && s.held != nil {
		if s.reads++; s.reads == 2 {
			if _, err := s.Store.Commit(ctx, s.held); err != nil {
				return tablestore.Row{}, err
			}
			s.held = nil
		}
	}
	return s.Store.Get(ctx, key)
}

// A change whose answer is lost, and which lands after the service has looked for it, is done.
func TestSchedule_AChangeThatLandsLateIsDone(t *testing.T) {
	t.Parallel()
	for verb, act := range map[string]func(h *house) error{
		"pause":  func(h *house) error { _, err := h.ctl.Pause(h.t.Context(), nightly); return err },
		"delete": func(h *house) error { return h.ctl.Delete(h.t.Context(), nightly) },
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				h.create(minutely())
				store := &lateHEAD{Store: h.jobs.Store, armed: true}
				if err := act(h.beside(store)); err != nil || store.held != nil {
					t.Errorf("%v (%d reads)", err, store.reads)
				}
				if verb == "delete" { // Its name is free.
					h.create(minutely())
				}
			})
		})
	}
}

// A process that has not seen an edit refuses an occurrence by the old definition. The refusal is not recorded: the new definition
// decides.
func TestSchedule_RefusesNothingForAnEditThatItHasNotSeen(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		def := minutely()
		def.Overlap = schedules.OverlapSkip
		h.create(def)
		h.run(time.Minute + time.Second) // The job of the first occurrence goes on.
		time.Sleep(30 * time.Second)
		slow := &slowReads{Store: h.jobs.Store, stand: func() {
			def.Overlap = schedules.OverlapAllow
			if _, err := h.ctl.Edit(t.Context(), nightly, def); err != nil {
				t.Error(err)
			}
		}}
		fast := h.beside(slow)
		fast.open(schedules.Config{Store: slow, Now: func() time.Time { return tablestore.Now().Add(time.Minute) }})
		fast.pass()
		h.run(time.Minute)
		h.want(fired, fired)
	})
}

// What a change decides is recorded with it: an occurrence that is to be tried again still is, if the change fails.
func TestSchedule_AChangeThatFailsDecidesNothing(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{Limit: func(string) int { return 1 }}, func(t *testing.T, h *house) {
		def := minutely()
		def.Every = time.Hour
		h.create(def)
		first, _, err := h.ctl.Run(t.Context(), nightly, "k")
		if err != nil {
			t.Fatal(err)
		}
		h.run(time.Hour + time.Minute)
		failing := h.beside(losesHEAD{h.jobs.Store, tablestore.ErrUnavailable})
		if _, err := failing.ctl.Pause(t.Context(), nightly); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Fatalf("the pause: %v", err)
		}
		h.jobs.Apply(first.JobID, statemachine.Cancel{})
		h.run(2 * time.Minute)
		h.want(fired, fired)
	})
}

// failsOnce is a store on which the first commit of a schedule fails, and never lands.
type failsOnce struct {
	tablestore.Store

	err    error
	failed func()
}

func (s *failsOnce) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if failed := s.failed; batch[0].Key.Row == "HEAD" && failed != nil {
		s.failed = nil
		failed()
		return nil, s.err
	}
	return s.Store.Commit(ctx, batch)
}

// A create that fails gives the name back, also if it failed because the caller left.
func TestSchedule_ACreateThatFailsCanBeRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{tablestore.ErrUnavailable, tablestore.ErrUnknown} {
		t.Run(failure.Error(), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				ctx, leave := context.WithCancel(t.Context())
				failing := h.beside(&failsOnce{h.jobs.Store, failure, leave})
				if _, err := failing.ctl.Create(ctx, minutely(), "ops"); !errors.Is(err, failure) {
					t.Fatalf("the create: %v", err)
				}
				h.create(minutely())
				h.run(2 * time.Minute)
				h.want(fired, fired)
			})
		})
	}
}

// leavesName is a store on which the first commit of a name lands, though its answer is lost.
type leavesName struct {
	tablestore.Store

	leave func()
}

func (s *leavesName) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	leave := s.leave
	if batch[0].Key.Partition != "names" || leave == nil {
		return s.Store.Commit(ctx, batch)
	}
	s.leave = nil
	defer leave()
	_, err := s.Store.Commit(ctx, batch)
	return nil, errors.Join(tablestore.ErrUnknown, err)
}

// A create whose caller leaves while the name is written gives it back, too.
func TestSchedule_ACreateThatEndsAtItsNameCanBeRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		ctx, leave := context.WithCancel(t.Context())
		failing := h.beside(&leavesName{h.jobs.Store, leave})
		if _, err := failing.ctl.Create(ctx, minutely(), "ops"); !errors.Is(err, tablestore.ErrUnavailable) {
			t.Fatalf("the create: %v", err)
		}
		h.create(minutely())
	})
}

// meetsAnother is a store on which another change comes just before the first commit of a schedule.
type meetsAnother struct {
	tablestore.Store

	another func()
}

func (s *meetsAnother) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if another := s.another; batch[0].Key.Row == "HEAD" && another != nil {
		s.another = nil
		another()
	}
	return s.Store.Commit(ctx, batch)
}

// A change that expects no revision is made after another one that came at the same time. One that expects a revision is not.
func TestSchedule_AChangeAfterAnotherThatCameFirst(t *testing.T) {
	t.Parallel()
	hourly := minutely()
	hourly.Every = time.Hour
	type act func(h *house, change schedules.Change) error
	pause := func(h *house, change schedules.Change) error {
		_, err := h.ctl.Pause(h.t.Context(), change)
		return err
	}
	resume := func(h *house, change schedules.Change) error {
		_, err := h.ctl.Resume(h.t.Context(), change)
		return err
	}
	edit := func(h *house, change schedules.Change) error {
		_, err := h.ctl.Edit(h.t.Context(), change, hourly)
		return err
	}
	// race returns what the second got, and the schedule after it.
	race := func(h *house, paused bool, first, second act, expects bool) (now *schedules.Schedule, err error) {
		change := nightly
		before := h.create(minutely())
		if paused {
			if before, err = h.ctl.Pause(h.t.Context(), change); err != nil {
				h.t.Fatal(err)
			}
		}
		slow := h.beside(&meetsAnother{Store: h.jobs.Store, another: func() {
			if err := first(h, nightly); err != nil {
				h.t.Error(err)
			}
		}})
		if expects {
			change.Rev = before.Rev
		}
		err = second(slow, change)
		now, getErr := h.ctl.Get(h.t.Context(), "acme", "nightly")
		if getErr != nil {
			h.t.Fatal(getErr)
		}
		return now, err
	}
	for name, test := range map[string]struct {
		paused        bool // at the beginning
		first, second act
		rev           int64
		state         schedules.State
	}{
		"a pause after a pause":   {false, pause, pause, 2, schedules.Paused},
		"an edit after a pause":   {false, pause, edit, 3, schedules.Paused},
		"a pause after an edit":   {false, edit, pause, 3, schedules.Paused},
		"a resume after a resume": {true, resume, resume, 3, schedules.Active},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				now, err := race(h, test.paused, test.first, test.second, false)
				if err != nil || now.Rev != test.rev || now.State != test.state {
					t.Errorf("%v; the schedule is %s at rev %d, want %s at %d", err, now.State, now.Rev, test.state, test.rev)
				}
			})
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				if _, err := race(h, test.paused, test.first, test.second, true); !errors.Is(err, schedules.ErrRevConflict) {
					t.Errorf("with the revision before the first: %v", err)
				}
			})
		})
	}
}
