package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// sameItem compares items but for what they remember.
var sameItem = cmpopts.IgnoreFields(lifecycle.Item{}, "Requests")

// expectItem fails unless the item read back is the one that was returned.
func (e *env) expectItem(t testing.TB, want lifecycle.Item) {
	t.Helper()
	if diff := cmp.Diff(want, e.get(t, want.WorkID), sameItem); diff != "" {
		t.Errorf("item read back (-want +got):\n%s", diff)
	}
}

// expectMove fails unless the item moved there, with a higher rev and that many
// more attempts.
func (e *env) expectMove(t testing.TB, before, after lifecycle.Item, to lifecycle.Status, attempts int) {
	t.Helper()
	if after.Status != to || after.Rev <= before.Rev || after.Attempt != before.Attempt+attempts {
		t.Errorf("moved from %s, rev %d, attempt %d to %s, rev %d, attempt %d; want %s and attempt %d",
			before.Status, before.Rev, before.Attempt, after.Status, after.Rev, after.Attempt, to, before.Attempt+attempts)
	}
}

// expectFree fails if someone holds the item.
func (e *env) expectFree(t testing.TB, item lifecycle.Item) {
	t.Helper()
	if item.Owner != "" || !item.LeaseExpiresAt.IsZero() {
		t.Errorf("%s item is held by %q until %s", item.Status, item.Owner, item.LeaseExpiresAt)
	}
}

// expectIDs fails unless these are the items, in whatever order.
func (e *env) expectIDs(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s %v, want %v", what, got, want)
	}
}

// expectTypes fails unless these are the item's events.
func (e *env) expectTypes(t testing.TB, workID string, want ...lifecycle.EventType) {
	t.Helper()
	var got []lifecycle.EventType
	for _, event := range e.events(t, workID) {
		got = append(got, event.Type)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events are %v, want %v", got, want)
	}
}

// expectLast fails unless the item's last event is of that type and rev, and
// returns it.
func (e *env) expectLast(t testing.TB, item lifecycle.Item, want lifecycle.EventType) lifecycle.Event {
	t.Helper()
	events := e.events(t, item.WorkID)
	if len(events) == 0 {
		t.Fatalf("%s has no events", item.WorkID)
	}
	last := events[len(events)-1]
	if last.Type != want || last.Rev != item.Rev {
		t.Errorf("last event is %s of rev %d, want %s of rev %d", last.Type, last.Rev, want, item.Rev)
	}
	return last
}

// untouched runs the attempt and fails if it changed the item or its history.
func (e *env) untouched(t testing.TB, workID, what string, attempt func()) {
	t.Helper()
	item, events := e.get(t, workID), e.events(t, workID)
	attempt()
	if diff := cmp.Diff(item, e.get(t, workID), sameItem); diff != "" {
		t.Errorf("%s changed the item (-before +after):\n%s", what, diff)
	}
	if diff := cmp.Diff(events, e.events(t, workID)); diff != "" {
		t.Errorf("%s changed the history (-before +after):\n%s", what, diff)
	}
}

// refused fails unless the request is refused for that reason and changes
// nothing.
func (e *env) refused(t testing.TB, op lifecycle.Operation, item lifecycle.Item, request lifecycle.Request, want error) {
	t.Helper()
	what := fmt.Sprintf("%s of a %s item", op, item.Status)
	e.untouched(t, item.WorkID, what, func() {
		if _, err := e.ask(t, op, item, request); !errors.Is(err, want) {
			t.Errorf("%s by %+v: error is %v, want %v", what, request, err, want)
		}
	})
}
