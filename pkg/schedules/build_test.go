package schedules_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// An old build has computed the next occurrence by other rules of the time zone: half an hour too late. A newer build finds that
// out when the entry is due, and fires in time; one that is not newer leaves it.
func TestSchedule_ANewerBuildComputesTheNextOccurrenceAgain(t *testing.T) {
	t.Parallel()
	for build, want := range map[string][]schedules.Outcome{"go1.0025": nil, "go1.0026": nil, "go1.0027": {fired}} {
		t.Run(build, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := open(t, ledgertest.Atomic(), ledger.Config{})
				h.build("go1.0026")
				def := hourly()
				def.Spec = calendar.Spec{Cron: "0 * * * *", TimeZone: "Europe/Berlin"}
				sc := h.create(def)
				key := tablestore.Key{Table: h.jobs.Tables().Cron, Partition: sc.ID, Row: "HEAD"}
				row, err := h.jobs.Store.Get(t.Context(), key)
				if err != nil {
					t.Fatal(err)
				}
				late := slices.Clone(row.Properties)
				for i := range late {
					if late[i].Name == "next" {
						late[i].Value = tablestore.Time(late[i].Value.Time().Add(30 * time.Minute))
					}
				}
				if _, err := h.jobs.Store.Commit(t.Context(), tablestore.Batch{
					{Verb: tablestore.Replace, Key: key, ETag: row.ETag, Properties: late},
				}); err != nil {
					t.Fatal(err)
				}
				h.build(build)
				time.Sleep(time.Until(sc.Upcoming))
				h.pass()
				h.want(want...)
			})
		})
	}
}

// A build that is older may compute an occurrence after a newer one did, and that is computed again.
func TestSchedule_TheBuildIsTheOneThatComputedTheNextOccurrence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := open(t, ledgertest.Atomic(), ledger.Config{})
		h.build("2")
		sc := h.create(minutely())
		h.build("1")
		h.run(time.Minute)
		row, err := h.jobs.Store.Get(t.Context(), tablestore.Key{Table: h.jobs.Tables().Cron, Partition: sc.ID, Row: "HEAD"})
		if err != nil || row.Properties.Get("build").String() != "1" {
			t.Errorf("the build is %q (%v), want 1", row.Properties.Get("build").String(), err)
		}
	})
}
