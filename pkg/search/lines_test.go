package search_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/ledger/ledgertest"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
)

// ordered is a command of a line of the tenant.
func ordered(key, name string) ledger.Command {
	cmd := ledgertest.Command("t", name)
	cmd.Job.Order = statemachine.Order{Key: key, Mode: statemachine.OrderFIFO, Blocks: true}
	return cmd
}

func TestShow_SaysWhatIsBeforeAJobInItsLine(t *testing.T) {
	t.Parallel()
	l := ledgertest.Open(t, ledger.Config{})
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
	a, b := l.Submit(ordered("k", "a")), l.Submit(ordered("k", "b"))
	expect := func(reason statemachine.Reason, blocker, detail string) {
		t.Helper()
		alone, listed := shows(t, l, s, b)
		if alone.Reason != reason || alone.BlockedBy.ID != blocker || !strings.Contains(alone.Detail, detail) {
			t.Errorf("it waits for %+v, want %s", alone, reason)
		}
		if listed != alone {
			t.Errorf("in the list it waits for %+v, alone for %+v", listed, alone)
		}
	}
	expect(statemachine.ReasonBehind, a, "the first is job "+a)
	l.Apply(a, ledgertest.Ended(l.MessageOf(a), statemachine.ResultFailedFinal, "bad_scan"))
	expect(statemachine.ReasonLineBlocked, a, "rerun or release that job")
	for reason, want := range map[statemachine.Reason]int{
		statemachine.ReasonLineBlocked: 1, statemachine.ReasonBehind: 0, statemachine.ReasonScheduled: 0,
	} {
		found, _, err := s.List(t.Context(), search.Filter{Waiting: []statemachine.Reason{reason}}, 10, "")
		if err != nil || len(found) != want {
			t.Errorf("%d jobs wait for %s, %v; want %d", len(found), reason, err, want)
		}
	}
}

// A page that finds few lines looks for more in every shard, and is the last one then.
func TestLines_OfAFewAreOnePage(t *testing.T) {
	t.Parallel()
	l := ledgertest.Open(t, ledger.Config{Shards: 64})
	s := search.New(l.Ledger, &search.Ended{}, search.Surroundings{})
	for _, name := range []string{"a", "b", "c"} {
		l.Submit(ordered("key of "+name, name))
		l.Submit(ordered("key of "+name, name+"2"))
	}
	found, next, err := s.Lines(t.Context(), search.LineFilter{Moving: true}, 1000, "")
	musttest.NoError(t, err)
	if len(found) != 3 || next != "" {
		t.Errorf("%d lines are on the page, and the next begins at %q", len(found), next)
	}
}

// A page of a list reads each line once.
func TestList_ReadsALineOnce(t *testing.T) {
	t.Parallel()
	l, reads := ledgertest.Split(), 0
	line := ledger.LineID("t", "k")
	store := storetest.Hooked(l, func(ctx context.Context, r *storetest.Request, do func(context.Context) error) error {
		if r.Call != storetest.CommitCall && strings.Contains(r.Key().Partition, line) {
			reads++
		}
		return do(ctx)
	})
	opened := ledgertest.Open(t, ledger.Config{Store: store})
	for _, name := range []string{"a", "b", "c", "d"} {
		opened.Submit(ordered("k", name))
	}
	reads = 0
	s := search.New(opened.Ledger, &search.Ended{}, search.Surroundings{})
	found, _, err := s.List(t.Context(), search.Filter{}, 10, "")
	musttest.NoError(t, err)
	if len(found) != 4 || reads != 1 {
		t.Errorf("%d jobs are listed with %d reads of their line", len(found), reads)
	}
	reads = 0
	lines, _, err := s.Lines(t.Context(), search.LineFilter{}, 10, "")
	musttest.NoError(t, err)
	if len(lines) != 1 || reads != 1 {
		t.Errorf("%d lines are listed with %d reads", len(lines), reads)
	}
}

// Jobs in QUEUED wait for their date or for their line, and are counted apart.
func TestCounts_CountsJobsOfLinesApartFromThoseWithADate(t *testing.T) {
	t.Parallel()
	p := alone(t)
	for _, name := range []string{"a", "b", "c"} {
		p.ledger.Submit(ordered("k", name))
	}
	dated := ordered("other", "d")
	dated.Job.NotBefore = time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	p.ledger.Submit(dated)
	if r := p.Report(); r.Parked != 1 || r.InLine != 2 || r.Jobs[statemachine.JobQueued] != 3 {
		t.Errorf("%d wait for their date and %d for their line, of %v", r.Parked, r.InLine, r.Jobs)
	}
	s := search.New(p.ledger.Ledger, &search.Ended{}, search.Surroundings{Live: p.Live})
	for reason, want := range map[statemachine.Reason]int{
		statemachine.ReasonScheduled: 1, statemachine.ReasonBehind: 2, statemachine.ReasonStarting: 0, statemachine.ReasonLineBlocked: 0,
	} {
		found, _, err := s.List(t.Context(), search.Filter{Waiting: []statemachine.Reason{reason}}, 10, "")
		musttest.NoError(t, err)
		if len(found) != want {
			t.Errorf("%d jobs wait for %s, want %d", len(found), reason, want)
		}
	}
}
