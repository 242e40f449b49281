package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// replicas returns the outages of two replicas on one store.
func replicas(store tablestore.Store) (one, two *outbox.Outages) {
	const margin = 10 * time.Second
	return outbox.NewOutages(store, "luciusschedule", margin, nil), outbox.NewOutages(store, "luciusschedule", margin, nil)
}

// All replicas learn of an outage that one replica notices. It lasts until the margin after
// its last sign has passed.
func TestOutages_AreKnownToAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one, two := replicas(ledgertest.Atomic())
		begin := time.Now()
		ends := func() map[outbox.Part]time.Duration {
			t.Helper()
			read, err := two.Ends(t.Context())
			musttest.NoError(t, err)
			since := map[outbox.Part]time.Duration{}
			for part, end := range read {
				since[part] = end.Sub(begin)
			}
			return since
		}
		if got := ends(); len(got) != 0 {
			t.Errorf("before any: %v", got)
		}
		for range 30 {
			for _, part := range []outbox.Part{outbox.PartBus, outbox.PartReplies, "global-bus-p3"} {
				musttest.NoError(t, one.Note(t.Context(), outbox.PartOutage{Part: part}))
			}
			time.Sleep(time.Second)
		}
		for _, after := range []struct{ sleep, want time.Duration }{
			{0, 30 * time.Second}, {5 * time.Second, 35 * time.Second}, {time.Hour, 38 * time.Second},
		} {
			time.Sleep(after.sleep)
			want := map[outbox.Part]time.Duration{outbox.PartBus: after.want, outbox.PartReplies: after.want, "global-bus-p3": after.want}
			if diff := cmp.Diff(want, ends()); diff != "" {
				t.Errorf("after %s (-want +got):\n%s", after.sleep, diff)
			}
		}
	})
}

// A row that cannot be read hides no other, and keeps no sweeper from its work.
func TestOutages_SkipARowThatCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := ledgertest.Atomic()
		l := ledgertest.Publishing(t, ledger.Config{Store: store})
		var log strings.Builder
		outages := outbox.NewOutages(store, "luciusschedule", time.Second, slog.New(slog.NewTextHandler(&log, nil)))
		for _, topic := range []outbox.Part{"a", "b", "c"} {
			musttest.NoError(t, outages.Note(t.Context(), outbox.PartOutage{Part: topic}))
		}
		l.Put(tablestore.Key{Table: "luciusschedule", Partition: "circuits", Row: "b"}, tablestore.Properties{
			{Name: "part", Value: tablestore.String("b")}, {Name: "v", Value: tablestore.Int(99)}, // of a newer program
		})
		for range 3 {
			ends, err := outages.Ends(t.Context())
			musttest.NoError(t, err)
			if _, bad := ends["b"]; bad || len(ends) != 2 {
				t.Errorf("read %v", ends)
			}
		}
		if n := strings.Count(log.String(), "newer than this program"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, &log)
		}
		sweeper := background.NewSweeper(background.SweeperConfig{
			Ledger: l, Outages: func(ctx context.Context) (background.Outages, error) {
				ends, err := outages.Ends(ctx)
				return background.Outages{Topic: ends.Topic}, err
			},
		})
		l.Submit(ledgertest.Command("t", "a"))
		time.Sleep(time.Minute)
		if pass, err := sweeper.RunOnce(t.Context()); err != nil || pass.Read != 1 || pass.Failed != 0 {
			t.Errorf("%+v, %v", pass, err)
		}
	})
}

// An ongoing outage is written at intervals, and again at once after a store
// error.
func TestOutages_AreWrittenAtIntervals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(ledgertest.Atomic())
		one, _ := replicas(store)
		faults.Plan(storetest.Fault{Onwards: true})
		if err := one.Note(t.Context(), outbox.PartOutage{Part: outbox.PartBus}); !errors.Is(err, storetest.ErrInjected) {
			t.Errorf("a store that fails: %v", err)
		}
		if _, err := one.Ends(t.Context()); !errors.Is(err, storetest.ErrInjected) {
			t.Errorf("a store that fails: %v", err)
		}
		faults.Clear()
		musttest.NoError(t, one.Note(t.Context(), outbox.PartOutage{Part: outbox.PartBus}))
		faults.Plan(storetest.Fault{Onwards: true}) // No further call is made.
		if err := one.Note(t.Context(), outbox.PartOutage{Part: outbox.PartBus}); err != nil {
			t.Errorf("soon after: %v", err)
		}
	})
}

func TestOutages_NotePartsThatAreDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(ledgertest.Atomic())
		one, two := replicas(store)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		loop := background.Loop{Name: "outages", Pass: func(ctx context.Context) error {
			return one.Note(ctx, outbox.PartOutage{Part: "global-bus-p1"})
		}}
		go func() { done <- loop.Run(ctx) }()
		faults.Plan(storetest.Fault{Call: storetest.CommitCall})
		time.Sleep(time.Minute)
		ends, err := two.Ends(t.Context())
		if err != nil || !ends["global-bus-p1"].Equal(time.Now()) {
			t.Errorf("%v, %v", ends, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A topic is unreachable during its own outages and those of the whole bus; the
// later end counts.
func TestOutageEnds_Topic(t *testing.T) {
	t.Parallel()
	at := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	ends := outbox.OutageEnds{outbox.PartBus: at(2), "early": at(1), "late": at(3), outbox.PartReplies: at(9)}
	for topic, want := range map[string]time.Time{"early": at(2), "late": at(3), "never": at(2)} {
		if got := ends.Topic(topic); !got.Equal(want) {
			t.Errorf("%s: %s, want %s", topic, got, want)
		}
	}
	if got := (outbox.OutageEnds)(nil).Topic("any"); !got.IsZero() {
		t.Errorf("without any outage: %s", got)
	}
}

// Only an open circuit is a sign of an outage: a half-open one waits for a
// message to send, which may never come.
func TestOpenCircuits_AreOutages(t *testing.T) {
	t.Parallel()
	set := breaker.NewSet(breaker.Config{})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	fail := func(verdict breaker.Verdict) {
		for range 100 {
			set.Report(set.Allow("global-bus-p3", 1, now), breaker.Outcome{Verdict: verdict, Reason: "away"}, now)
		}
	}
	if got := outbox.OpenCircuits(set, now); len(got) != 0 {
		t.Errorf("before: %v", got)
	}
	fail(breaker.EntityFailed)
	want := []outbox.PartOutage{{Part: "global-bus-p3", Since: now, Until: set.Open(now)[0].Until, Reason: "away"}}
	if diff := cmp.Diff(want, outbox.OpenCircuits(set, now)); diff != "" {
		t.Errorf("a topic (-want +got):\n%s", diff)
	}
	if got := outbox.OpenCircuits(set, now.Add(time.Hour)); len(got) != 0 {
		t.Errorf("half open: %v", got)
	}
	now = now.Add(time.Hour)
	fail(breaker.BusFailed)
	if got := outbox.OpenCircuits(set, now); len(got) == 0 || got[0].Part != outbox.PartBus {
		t.Errorf("the whole bus: %v", got)
	}
}

// Any replica shows which circuit is open, until its relay tries again, and reads the store
// once a second at most.
func TestOutages_ShowOpenCircuits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, faults := storetest.Faulty(ledgertest.Atomic())
		one, two := replicas(store)
		begin := time.Now().UTC()
		note := func(part outbox.Part, until time.Duration) {
			t.Helper()
			musttest.NoError(t, one.Note(t.Context(), outbox.PartOutage{Part: part, Since: begin, Until: begin.Add(until), Reason: "away"}))
		}
		shown := func(topic string) string {
			t.Helper()
			circuit, err := two.Circuit(t.Context(), topic)
			musttest.NoError(t, err)
			if circuit == nil {
				return ""
			}
			return fmt.Sprintf("%s %s %s %s", circuit.Name, circuit.Reason, circuit.Since.Sub(begin), circuit.Until.Sub(begin))
		}
		note("p1", 3*time.Second)
		note(outbox.PartReplies, 3*time.Second)
		for topic, want := range map[string]string{"p1": "p1 away 0s 3s", "p2": ""} {
			if got := shown(topic); got != want {
				t.Errorf("%s: %q, want %q", topic, got, want)
			}
		}
		faults.Plan(storetest.Fault{Onwards: true}) // It is not read again so soon.
		if got := shown("p1"); got == "" {
			t.Error("soon after: p1 is not shown")
		}
		time.Sleep(time.Second)
		if _, err := two.Circuit(t.Context(), "p1"); !errors.Is(err, storetest.ErrInjected) {
			t.Errorf("a store that fails: %v", err)
		}
		faults.Clear()
		time.Sleep(2 * time.Second)
		if got := shown("p1"); got != "" {
			t.Errorf("while a relay tries: %q", got)
		}
		note(outbox.PartBus, time.Hour)
		time.Sleep(time.Second)
		if got := shown("p2"); got != "* away 0s 1h0m0s" {
			t.Errorf("of the whole bus: %q", got)
		}
		time.Sleep(10 * time.Second) // The replica that noted it is gone.
		if got := shown("p2"); got != "" {
			t.Errorf("without a sign: %q", got)
		}
	})
}
