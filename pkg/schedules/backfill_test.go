package schedules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

var nightly = schedules.Change{TenantID: "acme", Name: "nightly", Actor: "ops"}

// backfill asks for a backfill.
func (h *house) backfill(request schedules.BackfillRequest) *schedules.Backfill {
	h.t.Helper()
	b, _, err := h.ctl.Backfill(h.t.Context(), request)
	if err != nil {
		h.t.Fatal(err)
	}
	return b
}

// newestBackfill reads the newest backfill.
func (h *house) newestBackfill() schedules.Backfill {
	h.t.Helper()
	all, err := h.ctl.Backfills(h.t.Context(), "acme", "nightly")
	if err != nil || len(all) == 0 {
		h.t.Fatalf("backfills: %+v (%v)", all, err)
	}
	return all[0]
}

// counts are what a backfill has done.
type counts struct {
	Total, Fired, Left, Refused int
	Done                        bool
}

func (h *house) wantBackfill(want counts) {
	h.t.Helper()
	b := h.newestBackfill()
	if diff := cmp.Diff(want, counts{b.Total, b.Fired, b.Left, b.Refused, b.Done}); diff != "" {
		h.t.Errorf("backfill (-want +got):\n%s", diff)
	}
}

// missing makes a schedule that is due each minute, of which two occurrences have a job and the next 20 are missed, and
// returns the request of a backfill of all.
func (h *house) missing() schedules.BackfillRequest {
	h.t.Helper()
	def := minutely()
	def.CatchUp.Policy = schedules.CatchUpNone
	h.create(def)
	begin := time.Now()
	h.run(2 * time.Minute)
	time.Sleep(21*time.Minute + 30*time.Second - 90*time.Second)
	h.pass()
	return schedules.BackfillRequest{Change: nightly, From: begin.Add(time.Second), To: time.Now().Add(-61 * time.Second), Key: "k"}
}

// onEachBackfill runs the test on each store, with a request that leaves alone what has a job and with one that repeats it.
func onEachBackfill(t *testing.T, test func(t *testing.T, h *house, request schedules.BackfillRequest)) {
	t.Helper()
	for _, repeat := range []bool{false, true} {
		t.Run(fmt.Sprint("repeat ", repeat), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				request := h.missing()
				request.Repeat = repeat
				test(t, h, request)
			})
		})
	}
}

// A program keeps the columns of a newer one.
func TestBackfill_KeepsColumnsThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		request := h.missing()
		b := h.backfill(request)
		sc, err := h.ctl.Get(t.Context(), "acme", "nightly")
		if err != nil {
			t.Fatal(err)
		}
		rows := map[string]tablestore.Key{}
		for _, row := range []string{"HEAD", tablestore.Join("BACKFILL", b.ID)} {
			rows[row] = tablestore.Key{Table: "luciuscron", Partition: sc.ID, Row: row}
			found, err := h.jobs.Store.Get(t.Context(), rows[row])
			if err != nil {
				t.Fatal(err)
			}
			h.jobs.Put(rows[row], append(found.Properties, tablestore.Property{Name: "newer", Value: tablestore.Int(7)}))
		}
		h.run(time.Minute)
		h.wantBackfill(counts{Total: 20, Fired: 18, Left: 2, Done: true})
		if _, err := h.ctl.Pause(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		for row, key := range rows {
			if found, err := h.jobs.Store.Get(t.Context(), key); err != nil || found.Properties.Get("newer").Int() != 7 {
				t.Errorf("%s is %v (%v)", row, found.Properties, err)
			}
		}
	})
}

// The times of an interval whose start has a fraction of a second have it, too.
func TestBackfill_KeepsToFractionsOfASecond(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(_ *testing.T, h *house) {
		begin := time.Now()
		def := minutely()
		def.Every, def.StartAt, def.CatchUp.Policy = 2*time.Minute, begin.Add(700*time.Millisecond), schedules.CatchUpNone
		h.create(def)
		time.Sleep(11*time.Minute + 50*time.Second)
		h.pass()
		h.want(missed, missed, missed, missed, missed, missed)
		h.backfill(schedules.BackfillRequest{Change: nightly, From: begin.Add(2*time.Minute + time.Second), Key: "k"})
		h.run(5 * time.Second)
		h.wantBackfill(counts{Total: 4, Fired: 4, Done: true})
		h.want(missed, missed, fired, fired, fired, fired)
	})
}

func TestBackfill_FiresWhatHasNoJob(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		request := h.missing()
		first := h.backfill(request)
		if again, known, err := h.ctl.Backfill(t.Context(), request); err != nil || !known || again.ID != first.ID {
			t.Errorf("the same request: %+v, known %t (%v)", again, known, err)
		}
		h.run(5 * time.Second)
		h.wantBackfill(counts{Total: 20, Fired: 18, Left: 2, Done: true})
		var filled int
		for _, fire := range h.history() {
			if fire.BackfillID == first.ID && fire.Outcome == fired && fire.JobID != "" {
				filled++
			}
		}
		if filled != 18 {
			t.Errorf("the history has %d occurrences of the backfill", filled)
		}
		request.Key, request.Repeat = "again", true
		h.backfill(request)
		h.run(5 * time.Second)
		h.wantBackfill(counts{Total: 20, Fired: 20, Done: true})
	})
}

func TestBackfill_IsRefused(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		good := h.missing()
		h.backfill(good)
		for name, test := range map[string]struct {
			change func(r *schedules.BackfillRequest)
			want   string
		}{
			"without a key":         {func(r *schedules.BackfillRequest) { r.Key = "" }, "Idempotency-Key"},
			"another with the key":  {func(r *schedules.BackfillRequest) { r.Repeat = true }, schedules.ErrKeyReused.Error()},
			"beside another":        {func(r *schedules.BackfillRequest) { r.Key = "b" }, schedules.ErrBackfilling.Error()},
			"at another rev":        {func(r *schedules.BackfillRequest) { r.Key, r.Rev = "b", 99 }, schedules.ErrRevConflict.Error()},
			"of a missing schedule": {func(r *schedules.BackfillRequest) { r.Name = "none" }, schedules.ErrNotFound.Error()},
			"that is too fast":      {func(r *schedules.BackfillRequest) { r.Key, r.Rate = "b", 11 }, "/rate_per_second"},
			"that is too slow":      {func(r *schedules.BackfillRequest) { r.Key, r.Rate = "b", 0.001 }, "/rate_per_second"},
		} {
			request := good
			test.change(&request)
			if _, _, err := h.ctl.Backfill(t.Context(), request); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, want %q", name, err, test.want)
			}
		}
		h.run(5 * time.Second)
		for name, test := range map[string]struct {
			from, to time.Time
			want     string
		}{
			"no occurrence":    {good.From, good.From, "/from"},
			"the future":       {time.Now().Add(time.Hour), time.Now().Add(2 * time.Hour), "/from"},
			"from after to":    {good.To, good.From, "/to"},
			"between two":      {good.From.Add(time.Second / 2), good.From.Add(50 * time.Second), "/from"},
			"too many":         {time.Unix(0, 0), time.Time{}, "/to"},
			"before all times": {time.Unix(-1, 0), good.To, "/from"},
		} {
			request := good
			request.Key, request.From, request.To = "b", test.from, test.to
			var invalid *schedules.InvalidError
			if _, _, err := h.ctl.Backfill(t.Context(), request); !errors.As(err, &invalid) || invalid.Pointer != test.want {
				t.Errorf("%s: %v, want a fault at %q", name, err, test.want)
			}
		}
	})
}

func TestBackfill_KeepsItsRate(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]int{0: 1, 10: 1, 2.5: 6, 1: 17, 0.5: 34} { // seconds until the 18 are fired
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				request := h.missing()
				request.Rate = rate
				request.From = request.From.Add(2 * time.Minute)
				begin := time.Now()
				h.backfill(request)
				for !h.newestBackfill().Done && time.Since(begin) < time.Hour {
					h.pass()
					time.Sleep(100 * time.Millisecond)
				}
				b := h.newestBackfill()
				if took := b.EndedAt.Sub(begin).Round(time.Second); took != time.Duration(want)*time.Second || b.Fired != 18 {
					t.Errorf("%d were fired in %s, want 18 in %d s", b.Fired, took, want)
				}
			})
		})
	}
}

// A backfill of a schedule whose jobs do not overlap skips nothing, and cancels nothing.
func TestBackfill_WaitsForTheJobBefore(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		overlap        schedules.Overlap
		field, ordered string // of the command and of the protocol
	}{
		"skip":                     {schedules.OverlapSkip, "", ""},
		"queue":                    {schedules.OverlapQueue, "", ""},
		"cancel":                   {schedules.OverlapCancel, "", ""},
		"its own key":              {schedules.OverlapQueue, `"order_key":"k",`, ""},
		"its own key that cancels": {schedules.OverlapQueue, `"order_key":"k",`, "order: {mode: newest, on_running: cancel}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				h.protocol.Swap(registry(t, protocol+test.ordered))
				def := minutely()
				def.Overlap, def.Every = test.overlap, time.Hour
				def.Command = append([]byte("{"+test.field), def.Command[1:]...)
				h.create(def)
				h.backfill(schedules.BackfillRequest{Change: nightly, From: time.Now().Add(-150 * time.Minute), Key: "k"})
				for n := range 3 {
					h.run(20 * time.Second)
					fires := h.history()
					job := fires[len(fires)-1].JobID
					if b := h.newestBackfill(); b.Fired != n+1 || (b.Detail == "") != b.Done {
						t.Errorf("with %d jobs: %+v", n+1, b)
					}
					if state := h.jobs.Read(job).Job.State; state.Terminal() {
						t.Errorf("job %d is %s", n+1, state)
					}
					h.jobs.Apply(job, statemachine.Cancel{})
				}
				h.wantBackfill(counts{Total: 3, Fired: 3, Done: true})
			})
		})
	}
}

// What was due in a pause is missed by the time of the backfill, also if the schedule is not resumed. The rest of the pause is
// recorded once it is.
func TestBackfill_FiresWhatWasDueInAPause(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		since time.Duration
		done  counts
	}{
		"from its middle": {4 * time.Hour, counts{Total: 4, Fired: 4, Done: true}},
		"from before it":  {7 * time.Hour, counts{Total: 7, Fired: 6, Left: 1, Done: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				def := minutely()
				def.Every, def.CatchUp.Policy = time.Hour, schedules.CatchUpNone
				h.create(def)
				time.Sleep(2 * time.Hour)
				h.pass()
				h.want(missed, fired)
				if _, err := h.ctl.Pause(t.Context(), nightly); err != nil {
					t.Fatal(err)
				}
				time.Sleep(5*time.Hour + 30*time.Minute)
				now := time.Now()
				request := schedules.BackfillRequest{Change: nightly, From: now.Add(time.Minute), To: now.Add(time.Hour), Key: "none"}
				var invalid *schedules.InvalidError
				if _, _, err := h.ctl.Backfill(t.Context(), request); !errors.As(err, &invalid) {
					t.Errorf("of the future: %v", err)
				}
				h.want(missed, fired)
				request.From, request.Key = now.Add(-test.since), "k"
				lossy := &commits{Store: h.jobs.Store}
				lossy.lost.Store(true)
				if _, _, err := h.beside(lossy).ctl.Backfill(t.Context(), request); !errors.Is(err, tablestore.ErrUnavailable) {
					t.Errorf("a process that crashes: %v", err)
				}
				first := h.backfill(request)
				h.run(5 * time.Second)
				h.wantBackfill(test.done)
				if again, known, err := h.ctl.Backfill(t.Context(), request); err != nil || !known || again.ID != first.ID {
					t.Errorf("the same request: %+v, known %t (%v)", again, known, err)
				}
				time.Sleep(time.Hour)
				if sc, err := h.ctl.Resume(t.Context(), nightly); err != nil || sc.State != schedules.Active {
					t.Fatalf("resumed: %+v (%v)", sc, err)
				}
				var ranges []int
				for _, fire := range h.history() {
					if fire.Count > 0 {
						ranges = append(ranges, fire.Count)
					}
				}
				if !slices.Equal(ranges, []int{5, 1}) {
					t.Errorf("the history has ranges of %v occurrences, want 5 until the backfill and 1 after it", ranges)
				}
			})
		})
	}
}

// commits is a store that loses the commits of backfills, once they are to be lost.
type commits struct {
	tablestore.Store

	lost atomic.Bool
}

func (s *commits) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if s.lost.Load() && strings.HasPrefix(batch[0].Key.Row, "BACKFILL:") {
		return nil, tablestore.ErrUnavailable
	}
	return s.Store.Commit(ctx, batch)
}

// A process fires occurrences of a backfill, and crashes before it commits that.
func TestBackfill_CountsItsOwnAfterACrash(t *testing.T) {
	t.Parallel()
	onEachBackfill(t, func(t *testing.T, h *house, request schedules.BackfillRequest) {
		h.backfill(request)
		lossy := &commits{Store: h.jobs.Store}
		lossy.lost.Store(true)
		other := h.beside(lossy)
		_, _ = other.cron.RunOnce(t.Context())
		other.cron.Wait()
		if b := h.newestBackfill(); b.Fired != 0 || len(h.jobs.LiveJobs()) < 10 {
			t.Errorf("after the crash: %+v", b)
		}
		h.run(5 * time.Second)
		want := counts{Total: 20, Fired: 18, Left: 2, Done: true}
		if request.Repeat {
			want.Fired, want.Left = 20, 0
		}
		h.wantBackfill(want)
	})
}

func TestBackfill_IsCancelled(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		def := minutely()
		def.Overlap, def.Every = schedules.OverlapSkip, time.Hour
		sc := h.create(def)
		b := h.backfill(schedules.BackfillRequest{Change: nightly, From: time.Now().Add(-30*time.Hour + time.Second), Key: "k"})
		if _, err := h.ctl.CancelBackfill(t.Context(), "acme", "nightly", "none"); !errors.Is(err, schedules.ErrNoBackfill) {
			t.Errorf("cancel of a missing one: %v", err)
		}
		h.run(10 * time.Second)  // The second occurrence waits.
		begun := schedules.Fire{ // A process has crashed between its claim and its job.
			ScheduledFor: h.newestBackfill().Cursor.Add(time.Hour), Outcome: schedules.Claimed, JobID: "0197f0c2-0000-7000-8000-000000000000",
			DecidedAt: time.Now(), BackfillID: b.ID,
		}
		row := tablestore.Join("FIRE", tablestore.Pad(9_999_999_999_999-begun.ScheduledFor.UnixMilli(), 13))
		h.jobs.Put(tablestore.Key{Table: "luciuscron", Partition: sc.ID, Row: row}, tablestore.NewCodec[schedules.Fire]().Encode(&begun, nil))
		stopped, err := h.ctl.CancelBackfill(t.Context(), "acme", "nightly", b.ID)
		if err != nil || !stopped.Cancelled || stopped.Done {
			t.Errorf("cancelled: %+v (%v)", stopped, err)
		}
		h.run(5 * time.Second)
		h.wantBackfill(counts{Total: 30, Fired: 1, Done: true})
		h.want(fired, missed)
		again, err := h.ctl.CancelBackfill(t.Context(), "acme", "nightly", b.ID)
		if err != nil || !again.Done || again.EndedAt.IsZero() {
			t.Errorf("cancelled again: %+v (%v)", again, err)
		}
	})
}

// A process fires the first occurrence that has no job, and crashes before it marks it and moves on from those before, which had
// jobs. The cancellation must decide that one all the same: no later pass looks at it.
func TestBackfill_IsCancelledAfterACrash(t *testing.T) {
	t.Parallel()
	onEachBackfill(t, func(t *testing.T, h *house, request schedules.BackfillRequest) {
		b := h.backfill(request)
		lossy := &marks{Store: h.jobs.Store}
		other := h.beside(lossy)
		_, _ = other.cron.RunOnce(t.Context())
		other.cron.Wait()
		if !slices.Contains(h.outcomes(), schedules.Claimed) {
			t.Fatalf("nothing is claimed after the crash: %+v", h.history())
		}
		if _, err := h.ctl.CancelBackfill(t.Context(), "acme", "nightly", b.ID); err != nil {
			t.Fatal(err)
		}
		h.run(5 * time.Second)
		if b := h.newestBackfill(); !b.Done || b.Fired != 1 {
			t.Errorf("the cancelled backfill: %+v", b)
		}
		if slices.Contains(h.outcomes(), schedules.Claimed) {
			t.Errorf("an occurrence stays claimed: %+v", h.history())
		}
	})
}

// marks is a store that loses what is written of backfills and their occurrences, but for the claims.
type marks struct{ tablestore.Store }

func (s *marks) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if strings.HasPrefix(batch[0].Key.Row, "BACKFILL:") || batch[0].Verb == tablestore.Replace {
		return nil, tablestore.ErrUnavailable
	}
	return s.Store.Commit(ctx, batch)
}

// slowReads is a store of a process that stands still at its first read of a definition: by then it has read its backfill.
type slowReads struct {
	tablestore.Store

	once  sync.Once
	stand func()
}

func (s *slowReads) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if strings.HasPrefix(key.Row, "VERSION:") {
		s.once.Do(s.stand)
	}
	return s.Store.Get(ctx, key)
}

// A process that stands still until its backfill has ended claims nothing for it: no other process would decide such a claim if this
// one failed.
func TestBackfill_ClaimsNothingOnceItHasEnded(t *testing.T) {
	t.Parallel()
	onEachBackfill(t, func(t *testing.T, h *house, request schedules.BackfillRequest) {
		b := h.backfill(request)
		due, _, err := h.ctl.Due(t.Context(), "", 0, time.Now(), 1, "")
		if err != nil || len(due) != 1 {
			t.Fatalf("the backfill is not due: %v (%v)", due, err)
		}
		before := len(h.jobs.LiveJobs())
		other := h.beside(&slowReads{Store: h.jobs.Store, stand: func() {
			if _, err := h.ctl.CancelBackfill(t.Context(), "acme", "nightly", b.ID); err != nil {
				t.Error(err)
			}
			h.run(5 * time.Second)
			h.wantBackfill(counts{Total: 20, Done: true})
		}})
		_, err = other.ctl.Act(t.Context(), due[0])
		if !errors.Is(err, ledger.ErrClaimConflict) {
			t.Errorf("the slow process: %v", err)
		}
		if now := len(h.jobs.LiveJobs()); now != before {
			t.Errorf("%d jobs, %d before: the backfill had ended", now, before)
		}
		if slices.Contains(h.outcomes(), schedules.Claimed) {
			t.Errorf("an occurrence stays claimed: %+v", h.history())
		}
	})
}

// slowChange is a store of a process that stands still before its first change of a backfill: by then it has written the entry.
type slowChange struct {
	tablestore.Store

	stand   func()
	changes int // of backfills
}

func (s *slowChange) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if strings.HasPrefix(batch[0].Key.Row, "BACKFILL:") {
		if s.changes++; s.changes == 1 {
			s.stand()
		}
	}
	return s.Store.Commit(ctx, batch)
}

// A cancellation makes the entry due earlier. The passes of others must not take it for an old one: without it, the backfill would
// never end, and no other could begin.
func TestBackfill_EndsThoughAPassSeesItsCancellationEarly(t *testing.T) {
	t.Parallel()
	onEachBackfill(t, func(t *testing.T, h *house, request schedules.BackfillRequest) {
		request.Rate = 0.01
		b := h.backfill(request)
		h.run(2 * time.Second)
		other := h.beside(&slowChange{Store: h.jobs.Store, stand: func() { h.run(5 * time.Second) }})
		if _, err := other.ctl.CancelBackfill(t.Context(), "acme", "nightly", b.ID); err != nil {
			t.Fatal(err)
		}
		h.run(5 * time.Second)
		if b := h.newestBackfill(); !b.Done {
			t.Errorf("the cancelled backfill goes on: %+v", b)
		}
	})
}

// After the grace a pass makes the change of an early entry impossible, and deletes the entry. The cancellation then tries again.
func TestBackfill_OutrunsACancellationThatStandsStill(t *testing.T) {
	t.Parallel()
	onEachBackfill(t, func(t *testing.T, h *house, request schedules.BackfillRequest) {
		request.Rate = 0.01
		b := h.backfill(request)
		h.run(2 * time.Second)
		slow := &slowChange{Store: h.jobs.Store, stand: func() { time.Sleep(6 * time.Minute); h.pass() }}
		if _, err := h.beside(slow).ctl.CancelBackfill(t.Context(), "acme", "nightly", b.ID); err != nil || slow.changes != 2 {
			t.Errorf("cancelled with %d writes: %v", slow.changes, err)
		}
		h.run(5 * time.Second)
		due, _, err := h.ctl.Due(t.Context(), "", 0, time.Now().Add(time.Hour), 10, "")
		if err != nil || len(due) != 0 || !h.newestBackfill().Done {
			t.Errorf("the backfill ended with these entries: %v (%v)", due, err)
		}
	})
}

// A process that makes a cancellation impossible crashes after it wrote the entry of its own change, which is that of the backfill.
// The next pass must not take that for the entry of another change: nothing else leads to the backfill.
func TestBackfill_GoesOnAfterACrashOfAProcessThatOutrunsACancellation(t *testing.T) {
	t.Parallel()
	onEachBackfill(t, func(t *testing.T, h *house, request schedules.BackfillRequest) {
		request.Rate = 0.01
		b := h.backfill(request)
		h.run(2 * time.Second)
		crashing := &commits{Store: h.jobs.Store}
		crashing.lost.Store(true)
		other := h.beside(crashing)
		if _, err := other.ctl.CancelBackfill(t.Context(), "acme", "nightly", b.ID); err == nil {
			t.Fatal("the cancellation did not crash")
		}
		time.Sleep(10 * time.Minute)
		due := func() []ledger.Entry {
			entries, _, err := h.ctl.Due(t.Context(), "", 0, time.Now(), 10, "")
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(entries, func(e ledger.Entry) bool { return !strings.HasPrefix(e.Nonce, "b-") })
		}
		if _, err := other.ctl.Act(t.Context(), due()[0]); err == nil {
			t.Fatal("the other process did not crash")
		}
		entries := due() // That of the cancellation, and that of the backfill.
		if len(entries) != 2 {
			t.Fatalf("%d entries are due: %v", len(entries), entries)
		}
		if _, err := h.ctl.Act(t.Context(), entries[1]); err != nil {
			t.Fatal(err)
		}
		for range 50 {
			h.pass()
			time.Sleep(100 * time.Second)
		}
		if b := h.newestBackfill(); !b.Done || b.Cancelled {
			t.Errorf("the backfill does not go on: %+v", b)
		}
	})
}

func TestBackfill_KeepsTheVersionThatItBeganWith(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		request := h.missing()
		request.Rate = 1
		h.backfill(request)
		h.run(3 * time.Second)
		def := minutely()
		def.Every = 10 * time.Second
		if _, err := h.ctl.Edit(t.Context(), nightly, def); err != nil {
			t.Fatal(err)
		}
		h.run(30 * time.Second)
		h.wantBackfill(counts{Total: 20, Fired: 18, Left: 2, Done: true})
	})
}

// A refusal that a corrected definition mends is backfilled; one that it does not mend is counted, with its reason.
func TestBackfill_SaysWhyTheLastOneWasRefused(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		request := h.missing()
		h.protocol.Swap(registry(t, strings.Replace(protocol, "report.make", "report.other", 1)))
		h.backfill(request)
		h.run(5 * time.Second)
		h.wantBackfill(counts{Total: 20, Left: 2, Refused: 18, Done: true})
		if detail := h.newestBackfill().Detail; !strings.Contains(detail, "report.make") {
			t.Errorf("the detail is %q", detail)
		}
		h.protocol.Swap(registry(t, protocol))
		request.Key = "again"
		h.backfill(request)
		h.run(5 * time.Second)
		h.wantBackfill(counts{Total: 20, Left: 2, Fired: 18, Done: true})
	})
}

// The rows of the history are the claims of a backfill: without them it would fire occurrences twice.
func TestBackfill_KeepsTheHistoryThatItNeeds(t *testing.T) {
	t.Parallel()
	for rate, want := range map[float64]bool{0.01: true, 10: false} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
				h.create(minutely())
				old := time.Now().Add(-91 * 24 * time.Hour)
				h.backfill(schedules.BackfillRequest{Change: nightly, From: old, To: old.Add(2 * time.Hour), Rate: rate, Key: "k"})
				for range 4500 { // The history is trimmed once, after 64 changes.
					time.Sleep(time.Second)
					h.pass()
				}
				oldest := h.history()[0]
				if kept := oldest.ScheduledFor.Before(old.Add(time.Minute)); kept != want {
					t.Errorf("the oldest row is of %s, and the backfill from %s on", oldest.ScheduledFor, old)
				}
			})
		})
	}
}
