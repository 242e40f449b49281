package statemachine_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// story returns an item that was stalled once and then completed, with its history.
func itemStory(t testing.TB) (statemachine.Item, []statemachine.ItemEvent) {
	t.Helper()
	change, err := statemachine.EnqueueItem(nil, "work-1", "relay", itemMessage(1), itemT0)
	item, log := itemMust(t)(change, err), change.Events
	for _, op := range []statemachine.ItemOperation{
		"claimNext", "start", "heartbeat", "stall", "requeueStalled", "claimNext", "heartbeat", "start", "complete",
	} {
		change, err = perform(op, item, by(actorOf(op), item), itemT0)
		item, log = itemMust(t)(change, err), append(log, change.Events...)
	}
	return item, log
}

func TestAHistoryOfAllowedMovesIsValid(t *testing.T) {
	t.Parallel()
	item, log := itemStory(t)
	if err := statemachine.ValidateItemHistory(item, log); err != nil {
		t.Error(err)
	}
	removal, err := statemachine.RemoveItem(item, by(sweeper, item), itemT0)
	if err != nil {
		t.Fatal(err)
	}
	if err := statemachine.ValidateItemHistory(removal.Item, append(log, removal.Events...)); err != nil {
		t.Errorf("with its removal: %v", err)
	}
}

func TestValidateHistoryNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	type events = []statemachine.ItemEvent
	spoil := func(n int, change func(*statemachine.ItemEvent)) func(*statemachine.Item, *events) {
		return func(_ *statemachine.Item, log *events) { change(&(*log)[n]) }
	}
	for name, c := range map[string]struct {
		spoil func(*statemachine.Item, *events)
		want  []string
	}{
		"none at all":        {func(_ *statemachine.Item, log *events) { *log = nil }, []string{"rev", "status", "attempt"}},
		"of another item":    {spoil(0, func(e *statemachine.ItemEvent) { e.WorkID = "work-2" }), []string{"events[0]", "events[1]"}},
		"a rev twice":        {spoil(3, func(e *statemachine.ItemEvent) { e.Rev = 3 }), []string{"events[3]", "events[4]"}},
		"an event lost":      {func(_ *statemachine.Item, log *events) { *log = slices.Delete(*log, 3, 4) }, []string{"events[3]"}},
		"last event lost":    {func(_ *statemachine.Item, log *events) { *log = (*log)[:9] }, []string{"rev", "status"}},
		"no enqueue":         {func(_ *statemachine.Item, log *events) { *log = (*log)[1:] }, []string{"events[0]", "events[0]"}},
		"an unknown type":    {spoil(2, func(e *statemachine.ItemEvent) { e.Type = "running" }), []string{"events[2]"}},
		"a move not allowed": {spoil(9, func(e *statemachine.ItemEvent) { e.To = "queued" }), []string{"events[9]", "status"}},
		"no time":            {spoil(2, func(e *statemachine.ItemEvent) { e.At = time.Time{} }), []string{"events[2]"}},
		"no actor":           {spoil(2, func(e *statemachine.ItemEvent) { e.Actor = "" }), []string{"events[2]"}},
		"no request":         {spoil(2, func(e *statemachine.ItemEvent) { e.RequestID = "" }), []string{"events[2]"}},
		"attempt on a start": {spoil(2, func(e *statemachine.ItemEvent) { e.Attempt++ }), []string{"events[2]", "events[3]"}},
		"item's attempt":     {func(i *statemachine.Item, _ *events) { i.Attempt++ }, []string{"attempt"}},
		"item's status":      {func(i *statemachine.Item, _ *events) { i.Status = "failed" }, []string{"status"}},
		"item's rev":         {func(i *statemachine.Item, _ *events) { i.Rev++ }, []string{"rev"}},
		"terminal rewritten": {
			func(i *statemachine.Item, log *events) {
				again := (*log)[9]
				again.Rev, again.From = 11, "succeeded"
				*log, i.Rev = append(*log, again), 11
			},
			[]string{"events[10]"},
		},
		"removal of a running item": {
			func(i *statemachine.Item, log *events) {
				*log = append((*log)[:9], statemachine.ItemEvent{
					WorkID: "work-1", Rev: 10, Type: "removed", From: "running", At: itemT0, Actor: sweeper, RequestID: "r", Attempt: 2,
				})
				i.Rev, i.Status = 9, "running"
			},
			[]string{"events[9]"},
		},
		"removal of nothing": {
			func(i *statemachine.Item, log *events) {
				*log = events{{WorkID: "work-1", Rev: 1, Type: "removed", At: itemT0, Actor: sweeper, RequestID: "r"}}
				i.Rev, i.Attempt, i.Status = 0, 0, ""
			},
			[]string{"events[0]"},
		},
		"life after a removal": {
			func(_ *statemachine.Item, log *events) {
				last := (*log)[9]
				removed := statemachine.ItemEvent{
					WorkID: "work-1", Rev: 11, Type: "removed", From: "succeeded", At: itemT0, Actor: sweeper, RequestID: "r", Attempt: 2,
				}
				last.Rev = 12
				*log = append(*log, removed, last)
			},
			[]string{"events[10]", "events[11]", "rev"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			item, log := itemStory(t)
			c.spoil(&item, &log)
			got := violated(t, statemachine.ValidateItemHistory(item, log))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s\n%v", diff, statemachine.ValidateItemHistory(item, log))
			}
		})
	}
}
