package schedules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/schedules"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// losses returns what the tenant lost in the last day, a line for each schedule.
func (h *house) losses(tenant string) []string {
	h.t.Helper()
	lines := []string{}
	for after, more := "", true; more; more = after != "" {
		var found []schedules.Losses
		var err error
		if found, after, err = h.ctl.Losses(h.t.Context(), tenant, after, 1); err != nil {
			h.t.Fatal(err)
		}
		for i := range found {
			one := &found[i]
			lines = append(lines, fmt.Sprintf("%s: %d missed, %d refused, %d in a row over %s, %s: %s", one.Name, one.Missed, one.Refused,
				one.FailuresInRow, one.LastFor.Sub(one.Since), one.Outcome, one.Detail))
		}
	}
	return lines
}

func (h *house) wantLosses(want ...string) {
	h.t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), h.losses("acme")); diff != "" {
		h.t.Errorf("losses (-want +got):\n%s", diff)
	}
}

// listed returns how many rows the list of losses has.
func (h *house) listed() int {
	h.t.Helper()
	rows, err := tablestore.ScanAll(h.t.Context(), h.jobs.Store, tablestore.Query{Table: h.jobs.Tables().Cron, Partition: "lost"})
	if err != nil {
		h.t.Fatal(err)
	}
	return len(rows)
}

// removeProtocols leaves the process without a protocol for the commands.
func (h *house) removeProtocols() {
	h.t.Helper()
	other := strings.ReplaceAll(protocol, "report", "invoice")
	registry, err := commands.LoadProtocolsFS(fstest.MapFS{"invoice.yaml": {Data: []byte(other)}})
	if err != nil {
		h.t.Fatal(err)
	}
	h.protocol.Swap(registry)
}

// counts counts the schedules by state, page by page.
func (h *house) counts() map[string]int {
	h.t.Helper()
	all := map[string]int{}
	for after, more := "", true; more; more = after != "" {
		var page map[string]int
		var err error
		if page, after, err = h.ctl.Count(h.t.Context(), 1, after); err != nil {
			h.t.Fatal(err)
		}
		for state, n := range page {
			all[state] += n
		}
	}
	return all
}

// hourly is due each hour, and nothing is caught up.
func hourly() schedules.Definition {
	def := minutely()
	def.Every, def.CatchUp.Policy = time.Hour, schedules.CatchUpNone
	return def
}

func TestLosses_AreListedForADay(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(hourly())
		time.Sleep(time.Hour)
		h.pass()
		h.wantLosses()
		if h.listed() != 0 {
			t.Error("a schedule that lost nothing is listed")
		}
		time.Sleep(2*time.Hour + 5*time.Minute)
		h.pass()
		const two = "nightly: 2 missed, 0 refused, %d in a row over 1h0m0s, missed: was not fired in time"
		h.wantLosses(fmt.Sprintf(two, 2))
		if other := h.losses("acm"); len(other) > 0 {
			t.Errorf("another tenant lost %q", other)
		}
		if all := h.losses(""); len(all) != 1 {
			t.Errorf("all tenants lost %q", all)
		}
		time.Sleep(55 * time.Minute)
		h.pass()
		h.wantLosses(fmt.Sprintf(two, 0)) // A later one was fired.
		for range 25 {
			h.counts()
			time.Sleep(time.Hour)
			h.pass()
		}
		h.wantLosses()
		if h.counts(); h.listed() != 0 {
			t.Error("a schedule that lost nothing for a day is still listed")
		}
	})
}

func TestLosses_CountRefusalsAndWhatIsInOneRow(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(minutely())
		h.removeProtocols()
		time.Sleep(8*time.Hour + 30*time.Second)
		h.pass()
		fires := h.history()
		at := slices.IndexFunc(fires, func(f schedules.Fire) bool { return !f.From.IsZero() })
		if at < 0 || fires[at].Count != 470 {
			t.Errorf("the row of many has the count %+v", fires[0])
		}
		// The newest is fired in time, and refused.
		lost := h.losses("acme")
		if len(lost) != 1 {
			t.Fatalf("lost %q", lost)
		}
		var missed, refused, row int
		if n, err := fmt.Sscanf(lost[0], "nightly: %d missed, %d refused, %d in a row", &missed, &refused, &row); n != 3 {
			t.Fatal(lost, err)
		}
		if missed != 479 || refused != 1 || row != 480 {
			t.Errorf("lost %q, want 479 missed and 1 refused", lost)
		}
	})
}

func TestLosses_OfADeletedScheduleAreForgotten(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		h.create(hourly())
		time.Sleep(70 * time.Minute)
		h.pass()
		h.wantLosses("nightly: 1 missed, 0 refused, 1 in a row over 0s, missed: was not fired in time")
		rows, err := tablestore.ScanAll(t.Context(), h.jobs.Store, tablestore.Query{Table: h.jobs.Tables().Cron, Partition: "lost"})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.ctl.Delete(t.Context(), schedules.Change{TenantID: "acme", Name: "nightly"}); err != nil {
			t.Fatal(err)
		}
		h.wantLosses()
		// A slow process lists it once more.
		if _, err := h.jobs.Store.Commit(t.Context(), tablestore.Batch{
			{Verb: tablestore.Put, Key: rows[0].Key, Properties: rows[0].Properties},
		}); err != nil {
			t.Fatal(err)
		}
		h.counts()
		h.wantLosses()
	})
}

func TestCount_IsByState(t *testing.T) {
	t.Parallel()
	onEachStore(t, ledger.Config{}, func(t *testing.T, h *house) {
		for tenant, names := range map[string][]string{"acme": {"a", "b", "nightly"}, "acme2": {"a"}, "z": {"gone"}} {
			for _, name := range names {
				def := minutely()
				def.TenantID, def.Name = tenant, name
				h.create(def)
			}
		}
		if _, err := h.ctl.Pause(t.Context(), schedules.Change{TenantID: "acme", Name: "b"}); err != nil {
			t.Fatal(err)
		}
		if err := h.ctl.Delete(t.Context(), schedules.Change{TenantID: "z", Name: "gone"}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]int{"active": 3, "paused": 1}, h.counts()); diff != "" {
			t.Errorf("counts (-want +got):\n%s", diff)
		}
		names := []string{}
		for after, more := "", true; more; more = after != "" {
			var page []schedules.Schedule
			var err error
			if page, after, err = h.ctl.List(t.Context(), "acme", "", after, 1); err != nil {
				t.Fatal(err)
			}
			for i := range page {
				names = append(names, page[i].TenantID+"/"+page[i].Name)
			}
		}
		if diff := cmp.Diff([]string{"acme/a", "acme/b", "acme/nightly"}, names); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
	})
}
