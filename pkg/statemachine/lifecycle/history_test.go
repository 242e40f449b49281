package lifecycle_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
)

// story returns an item that was stalled once and then completed, with its history.
func story(t testing.TB) (lifecycle.Item, []lifecycle.Event) {
	t.Helper()
	change, err := lifecycle.Enqueue(nil, "work-1", "relay", message(1), t0)
	item, log := must(t)(change, err), change.Events
	for _, op := range []lifecycle.Operation{
		"claimNext", "start", "heartbeat", "stall", "requeueStalled", "claimNext", "heartbeat", "start", "complete",
	} {
		change, err = perform(op, item, by(actorOf(op), item), t0)
		item, log = must(t)(change, err), append(log, change.Events...)
	}
	return item, log
}

func TestAHistoryOfAllowedMovesIsValid(t *testing.T) {
	t.Parallel()
	item, log := story(t)
	if err := lifecycle.ValidateHistory(item, log); err != nil {
		t.Error(err)
	}
	removal, err := lifecycle.Remove(item, by(sweeper, item), t0)
	if err != nil {
		t.Fatal(err)
	}
	if err := lifecycle.ValidateHistory(removal.Item, append(log, removal.Events...)); err != nil {
		t.Errorf("with its removal: %v", err)
	}
}

func TestValidateHistoryNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	type events = []lifecycle.Event
	spoil := func(n int, change func(*lifecycle.Event)) func(*lifecycle.Item, *events) {
		return func(_ *lifecycle.Item, log *events) { change(&(*log)[n]) }
	}
	for name, c := range map[string]struct {
		spoil func(*lifecycle.Item, *events)
		want  []string
	}{
		"none at all":        {func(_ *lifecycle.Item, log *events) { *log = nil }, []string{"rev", "status", "attempt"}},
		"of another item":    {spoil(0, func(e *lifecycle.Event) { e.WorkID = "work-2" }), []string{"events[0]", "events[1]"}},
		"a rev twice":        {spoil(3, func(e *lifecycle.Event) { e.Rev = 3 }), []string{"events[3]", "events[4]"}},
		"an event lost":      {func(_ *lifecycle.Item, log *events) { *log = slices.Delete(*log, 3, 4) }, []string{"events[3]"}},
		"last event lost":    {func(_ *lifecycle.Item, log *events) { *log = (*log)[:9] }, []string{"rev", "status"}},
		"no enqueue":         {func(_ *lifecycle.Item, log *events) { *log = (*log)[1:] }, []string{"events[0]", "events[0]"}},
		"an unknown type":    {spoil(2, func(e *lifecycle.Event) { e.Type = "running" }), []string{"events[2]"}},
		"a move not allowed": {spoil(9, func(e *lifecycle.Event) { e.To = "queued" }), []string{"events[9]", "status"}},
		"no time":            {spoil(2, func(e *lifecycle.Event) { e.At = time.Time{} }), []string{"events[2]"}},
		"no actor":           {spoil(2, func(e *lifecycle.Event) { e.Actor = "" }), []string{"events[2]"}},
		"no request":         {spoil(2, func(e *lifecycle.Event) { e.RequestID = "" }), []string{"events[2]"}},
		"attempt on a start": {spoil(2, func(e *lifecycle.Event) { e.Attempt++ }), []string{"events[2]", "events[3]"}},
		"item's attempt":     {func(i *lifecycle.Item, _ *events) { i.Attempt++ }, []string{"attempt"}},
		"item's status":      {func(i *lifecycle.Item, _ *events) { i.Status = "failed" }, []string{"status"}},
		"item's rev":         {func(i *lifecycle.Item, _ *events) { i.Rev++ }, []string{"rev"}},
		"terminal rewritten": {
			func(i *lifecycle.Item, log *events) {
				again := (*log)[9]
				again.Rev, again.From = 11, "succeeded"
				*log, i.Rev = append(*log, again), 11
			},
			[]string{"events[10]"},
		},
		"removal of a running item": {
			func(i *lifecycle.Item, log *events) {
				*log = append((*log)[:9], lifecycle.Event{
					WorkID: "work-1", Rev: 10, Type: "removed", From: "running", At: t0, Actor: sweeper, RequestID: "r", Attempt: 2,
				})
				i.Rev, i.Status = 9, "running"
			},
			[]string{"events[9]"},
		},
		"removal of nothing": {
			func(i *lifecycle.Item, log *events) {
				*log = events{{WorkID: "work-1", Rev: 1, Type: "removed", At: t0, Actor: sweeper, RequestID: "r"}}
				i.Rev, i.Attempt, i.Status = 0, 0, ""
			},
			[]string{"events[0]"},
		},
		"life after a removal": {
			func(_ *lifecycle.Item, log *events) {
				last := (*log)[9]
				removed := lifecycle.Event{
					WorkID: "work-1", Rev: 11, Type: "removed", From: "succeeded", At: t0, Actor: sweeper, RequestID: "r", Attempt: 2,
				}
				last.Rev = 12
				*log = append(*log, removed, last)
			},
			[]string{"events[10]", "events[11]", "rev"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			item, log := story(t)
			c.spoil(&item, &log)
			got := violated(t, lifecycle.ValidateHistory(item, log))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s\n%v", diff, lifecycle.ValidateHistory(item, log))
			}
		})
	}
}
