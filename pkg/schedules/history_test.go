package schedules_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Runs of one millisecond are in no order of time.
func TestSchedule_PagesOfTheHistoryLeaveOutNothing(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(minutely())
		h.run(2 * time.Minute) // The last occurrence and the runs have the same time.
		for i := range 4 {
			if _, _, err := h.ctl.Run(t.Context(), nightly, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		whole := h.history()
		for limit := 1; limit <= 7; limit++ {
			var paged []schedules.Fire
			for token, more := "", true; more; more = token != "" {
				page, next, err := h.ctl.Fires(t.Context(), "acme", "nightly", token, limit)
				if err != nil || len(page) > limit {
					t.Fatalf("%d entries, want at most %d (%v)", len(page), limit, err)
				}
				paged, token = append(paged, page...), next
			}
			slices.Reverse(paged)
			if diff := cmp.Diff(whole, paged); len(whole) != 6 || diff != "" {
				t.Errorf("%d entries, pages of %d (-want +got):\n%s", len(whole), limit, diff)
			}
		}
		var invalid *schedules.InvalidError
		for _, token := range []string{"123", "HEAD", "VERSION:1", "FIRE", "%"} {
			if _, _, err := h.ctl.Fires(t.Context(), "acme", "nightly", token, 1); !errors.As(err, &invalid) {
				t.Errorf("token %q: %v", token, err)
			}
		}
	})
}

func TestSchedule_TrimsOldRuns(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		sc := h.create(minutely())
		if _, err := h.ctl.Pause(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		codec := tablestore.NewCodec[schedules.Fire]()
		put := func(n int, at time.Time) {
			for i := range n {
				at := at.Add(time.Duration(i) * time.Second).UTC()
				fire := schedules.Fire{ScheduledFor: at, DecidedAt: at, Outcome: fired, JobID: "j"}
				row := tablestore.Join("RUN", tablestore.Pad(9_999_999_999_999-at.UnixMilli(), 13), fmt.Sprint(i))
				h.jobs.Put(tablestore.Key{Table: "luciuscron", Partition: sc.ID, Row: row}, codec.Encode(&fire, nil))
			}
		}
		now := time.Now()
		put(10, now.Add(-91*24*time.Hour))
		put(500, now.Add(-48*time.Hour))
		put(900, now.Add(-time.Hour))
		for i := range 300 { // One in 64 trims.
			if _, _, err := h.ctl.Run(t.Context(), nightly, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		fires, _, err := h.ctl.Fires(t.Context(), "acme", "nightly", "", 3000)
		if err != nil || len(fires) < 1200 || fires[len(fires)-1].ScheduledFor.Before(now.Add(-24*time.Hour)) {
			t.Errorf("%d are left, the oldest of %s (%v)", len(fires), fires[len(fires)-1].ScheduledFor, err)
		}
	})
}

func TestSchedule_PurgeOfAJobLeavesItsOccurrenceDecided(t *testing.T) {
	t.Parallel()
	cfg := ledger.Config{Retention: time.Minute, KeyTTL: time.Minute}
	onEachStore(t, cfg, func(t *testing.T, h *house) {
		def := minutely()
		def.Every = time.Hour
		h.create(def)
		h.run(time.Hour)
		job := h.history()[0].JobID
		h.jobs.Apply(job, statemachine.Cancel{})
		time.Sleep(10 * time.Minute)
		for _, result := range h.jobs.Purge(t.Context(), h.jobs.Entries(ledger.Retention, time.Now())) {
			if result.Err != nil || result.Outcome != ledger.PurgeDone {
				t.Fatalf("purge: %+v", result)
			}
		}
		if all := h.history(); len(all) != 1 || !all[0].JobPurged || all[0].Outcome != fired || all[0].JobID != job {
			t.Errorf("the history is %+v", all)
		}
	})
}

func TestSchedule_TrimKeepsWhatIsNotDecided(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		sc := h.create(minutely())
		const ahead = 1100 // more than the history keeps
		begin := time.Now().Add(24 * time.Hour)
		codec := tablestore.NewCodec[schedules.Fire]()
		for i := range ahead {
			fire := schedules.Fire{ScheduledFor: begin.Add(time.Duration(i) * time.Minute).UTC(), Outcome: missed}
			h.jobs.Put(tablestore.Key{
				Table: "luciuscron", Partition: sc.ID,
				Row: tablestore.Join("FIRE", tablestore.Pad(9_999_999_999_999-fire.ScheduledFor.UnixMilli(), 13)),
			}, codec.Encode(&fire, nil))
		}
		for range 70 {
			time.Sleep(time.Minute)
			h.pass()
		}
		fires, _, err := h.ctl.Fires(t.Context(), "acme", "nightly", "", 2*ahead)
		if err != nil {
			t.Fatal(err)
		}
		undecided := slices.DeleteFunc(slices.Clone(fires), func(f schedules.Fire) bool {
			return f.ScheduledFor.Before(begin)
		})
		if len(undecided) != ahead || len(fires) >= ahead+70 {
			t.Errorf("%d rows are left, %d of them not decided; want %d of these, and fewer than 70 others", len(fires), len(undecided), ahead)
		}
	})
}

// A row that cannot be read keeps no other deleted schedule, and a deletion that failed deletes nothing early.
func TestSchedule_PurgesEachDeletedOneAtItsTime(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		list := func(id string) {
			row := tablestore.Pad(time.Now().UnixMilli(), 13) + ":" + id
			h.jobs.Put(tablestore.Key{Table: "luciuscron", Partition: "deleted", Row: row},
				tablestore.Properties{{Name: "schedule_id", Value: tablestore.String(id)}})
		}
		sc := h.create(minutely())
		h.jobs.Put(tablestore.Key{Table: "luciuscron", Partition: "bad", Row: "HEAD"},
			tablestore.Properties{{Name: "v", Value: tablestore.Int(99)}})
		list("bad")
		list(sc.ID) // as a deletion that fails does
		time.Sleep(80 * 24 * time.Hour)
		if err := h.ctl.Delete(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		left := func() int {
			_, _, err := h.ctl.Count(t.Context(), 100, "")
			if err == nil {
				t.Error("the row that cannot be read is not reported")
			}
			all, err := tablestore.ScanAll(t.Context(), h.jobs.Store, tablestore.Query{Table: "luciuscron", Partition: sc.ID})
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		time.Sleep(11 * 24 * time.Hour)
		if left() == 0 {
			t.Error("nothing is left after eleven days")
		}
		time.Sleep(80 * 24 * time.Hour)
		if rows := left(); rows != 0 {
			t.Errorf("%d rows are left", rows)
		}
	})
}

// What a deleted schedule has is kept for as long as the history, and deleted then.
func TestSchedule_NothingIsLeftOfADeletedOne(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		sc := h.create(minutely())
		h.run(2 * time.Minute)
		if _, _, err := h.ctl.Run(t.Context(), nightly, "k"); err != nil {
			t.Fatal(err)
		}
		h.backfill(schedules.BackfillRequest{Change: nightly, From: sc.CreatedAt, Repeat: true, Key: "k"})
		h.run(5 * time.Second)
		if err := h.ctl.Delete(t.Context(), nightly); err != nil {
			t.Fatal(err)
		}
		failing := h.beside(&failsOnce{h.jobs.Store, tablestore.ErrUnknown, func() {}}) // It leaves a HEAD that is deleted.
		if _, err := failing.ctl.Create(t.Context(), minutely(), "ops"); !errors.Is(err, tablestore.ErrUnknown) {
			t.Fatalf("a create that fails: %v", err)
		}
		left := func() (rows int) {
			all, err := tablestore.ScanAll(t.Context(), h.jobs.Store, tablestore.Query{Table: "luciuscron", Partition: sc.ID})
			if err != nil {
				t.Fatal(err)
			}
			listed, err := tablestore.ScanAll(t.Context(), h.jobs.Store, tablestore.Query{Table: "luciuscron", Partition: "deleted"})
			if err != nil {
				t.Fatal(err)
			}
			return len(all) + len(listed)
		}
		before := left()
		time.Sleep(90*24*time.Hour - time.Minute)
		h.pass()
		if h.counts(); left() != before {
			t.Errorf("%d rows are left of %d before the time", left(), before)
		}
		time.Sleep(time.Hour)
		h.pass()
		if h.counts(); left() != 0 {
			t.Errorf("%d rows are left of %d", left(), before)
		}
		second := h.create(minutely())
		h.run(time.Minute)
		if all := h.history(); second.ID == sc.ID || len(all) != 1 || all[0].Outcome != fired {
			t.Errorf("the history of the next schedule of the name is %+v", all)
		}
	})
}
