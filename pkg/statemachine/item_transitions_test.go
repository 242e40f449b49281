package statemachine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

type pair struct {
	from statemachine.ItemStatus
	op   statemachine.ItemOperation
}

// contract is the source's list of allowed transitions, written out by hand.
var itemContract = map[pair]statemachine.ItemStatus{
	{"", "enqueue"}:               "queued",
	{"queued", "claimNext"}:       "claimed",
	{"stalled", "claimNext"}:      "claimed",
	{"claimed", "start"}:          "running",
	{"claimed", "heartbeat"}:      "claimed",
	{"running", "heartbeat"}:      "running",
	{"running", "complete"}:       "succeeded",
	{"running", "fail"}:           "failed",
	{"claimed", "stall"}:          "stalled",
	{"running", "stall"}:          "stalled",
	{"stalled", "requeueStalled"}: "queued",
}

// events gives the type of the event that each operation records.
var itemEvents = map[statemachine.ItemOperation]statemachine.ItemEventType{
	"enqueue": "enqueued", "claimNext": "claimed", "start": "started", "heartbeat": "heartbeat",
	"complete": "succeeded", "fail": "failed", "stall": "stalled", "requeueStalled": "requeued",
}

func TestTheTableIsTheContract(t *testing.T) {
	t.Parallel()
	for _, from := range append(statemachine.ItemStatuses(), statemachine.StatusNone) {
		for _, op := range statemachine.ItemOperations() {
			want, allowed := itemContract[pair{from, op}]
			got, ok := statemachine.LookupItemTransition(op, from)
			if ok != allowed || got.To != want {
				t.Errorf("%s from %q leads to %q (%t), want %q (%t)", op, from, got.To, ok, want, allowed)
			}
			if ok && (got.Operation != op || got.From != from || got.Event != itemEvents[op]) {
				t.Errorf("%s from %q finds %+v", op, from, got)
			}
		}
	}
	if got := len(statemachine.ItemTransitions()); got != len(itemContract) {
		t.Errorf("%d transitions, want %d", got, len(itemContract))
	}
}

// The source: only the current owner may start, heartbeat, complete and fail; stall and
// requeueStalled need no owner.
func TestTheTableSaysWhoseMoveItIs(t *testing.T) {
	t.Parallel()
	movers := map[statemachine.ItemOperation]statemachine.Mover{
		"enqueue": "producer", "claimNext": "worker", "start": "owner", "heartbeat": "owner",
		"complete": "owner", "fail": "owner", "stall": "system", "requeueStalled": "system",
	}
	for _, transition := range statemachine.ItemTransitions() {
		if want := movers[transition.Operation]; transition.By != want {
			t.Errorf("%s is the move of %s, want %s", transition.Operation, transition.By, want)
		}
	}
}

func TestListsAreCopies(t *testing.T) {
	t.Parallel()
	statemachine.ItemTransitions()[0] = statemachine.ItemTransition{}
	statemachine.ItemStatuses()[0] = ""
	statemachine.ItemOperations()[0] = ""
	if statemachine.ItemTransitions()[0] == (statemachine.ItemTransition{}) || statemachine.ItemStatuses()[0] == "" || statemachine.ItemOperations()[0] == "" {
		t.Error("writing to a returned list changed the policy")
	}
}

func TestKindsOfStatuses(t *testing.T) {
	t.Parallel()
	for _, s := range append(statemachine.ItemStatuses(), statemachine.StatusNone) {
		if want := s == "succeeded" || s == "failed"; s.Terminal() != want {
			t.Errorf("%q.Terminal() = %t, want %t", s, !want, want)
		}
		if want := s == "claimed" || s == "running"; s.Held() != want {
			t.Errorf("%q.Held() = %t, want %t", s, !want, want)
		}
	}
}

// Every pair of a status and an operation: moved as the table says, with one
// event and one more rev, or refused.
func TestEveryStatusMeetsEveryOperation(t *testing.T) {
	t.Parallel()
	for _, from := range statemachine.ItemStatuses() {
		for _, op := range statemachine.ItemOperations() {
			t.Run(fmt.Sprintf("%s %s", from, op), func(t *testing.T) {
				t.Parallel()
				item := in(t, from)
				request := statemachine.ItemRequest{Actor: actorOf(op), ExpectedRev: item.Rev, ID: "fresh"}
				change, err := perform(op, item, request, itemT0.Add(itemLease))
				to, allowed := itemContract[pair{from, op}]
				if !allowed {
					wantRefused(t, change, err, statemachine.ErrIllegalTransition)
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				wantMove(t, item, change, op, to)
			})
		}
	}
}

func wantRefused(t *testing.T, change statemachine.ItemChange, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
	if diff := cmp.Diff(statemachine.ItemChange{}, change); diff != "" {
		t.Errorf("a refusal came with a change:\n%s", diff)
	}
}

// wantMove checks what holds for each accepted move.
func wantMove(t *testing.T, before statemachine.Item, change statemachine.ItemChange, op statemachine.ItemOperation, to statemachine.ItemStatus) {
	t.Helper()
	attempt := before.Attempt
	if op == statemachine.OpClaimNext {
		attempt++
	}
	now := itemT0.Add(itemLease)
	want := []statemachine.ItemEvent{{
		WorkID: before.WorkID, Rev: before.Rev + 1, Type: itemEvents[op], From: before.Status, To: to,
		At: now, Actor: actorOf(op), RequestID: "fresh", Attempt: attempt,
	}}
	if diff := cmp.Diff(want, change.Events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	item := change.Item
	if item.Status != to || item.Rev != before.Rev+1 || item.Attempt != attempt || change.Repeat {
		t.Errorf("moved to %s, rev %d, attempt %d, repeat %t", item.Status, item.Rev, item.Attempt, change.Repeat)
	}
	if !item.UpdatedAt.Equal(now) || !item.CreatedAt.Equal(itemT0) {
		t.Errorf("created at %s, updated at %s", item.CreatedAt, item.UpdatedAt)
	}
	if err := statemachine.ValidateItem(item); err != nil {
		t.Error(err)
	}
}

// Observers rely on the event types: no move may record any other.
func TestEventTypesAreCanonical(t *testing.T) {
	t.Parallel()
	vocabulary := []statemachine.ItemEventType{
		"enqueued", "claimed", "started", "heartbeat", "succeeded", "failed", "stalled", "requeued",
	}
	for _, transition := range statemachine.ItemTransitions() {
		if !slices.Contains(vocabulary, transition.Event) {
			t.Errorf("%s leaves the event %s behind", transition.Operation, transition.Event)
		}
	}
	if statemachine.ItemEventRemoved != "removed" {
		t.Errorf("a removal leaves the event %s behind", statemachine.ItemEventRemoved)
	}
}
