package statemachine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// accepted is a request that was accepted; the model never forgets it.
type itemAccepted struct {
	actor, id string
	op        statemachine.ItemOperation
}

// machine performs any operations in any order, and knows the expected outcome of each.
type itemMachine struct {
	item statemachine.Item
	log  []statemachine.ItemEvent
	now  time.Time
	// known are all accepted requests.
	known []itemAccepted
	// claimedAt is the rev of the latest claim.
	claimedAt int64
}

// draw makes a request that is mostly valid, so that items reach late statuses.
func (m *itemMachine) draw(t *rapid.T) statemachine.ItemRequest {
	actor := rapid.SampledFrom([]string{anna, anna, bert, sweeper, ""}).Draw(t, "actor")
	if m.item.Owner != "" && rapid.IntRange(0, 3).Draw(t, "as its owner") > 0 {
		actor = m.item.Owner
	}
	rev := m.item.Rev + rapid.SampledFrom([]int64{0, 0, 0, 0, 1, -1}).Draw(t, "off by")
	id := fmt.Sprint("fresh-", len(m.log))
	switch rapid.IntRange(0, 5).Draw(t, "id") {
	case 0:
		id = ""
	case 1:
		if len(m.known) > 0 {
			old := m.known[len(m.known)-1-rapid.IntRange(0, min(len(m.known), 4)-1).Draw(t, "from the latest")]
			if id = old.id; rapid.Bool().Draw(t, "same actor") {
				actor = old.actor
			}
		}
	}
	return statemachine.ItemRequest{Actor: actor, ExpectedRev: rev, ID: id}
}

// Step performs one operation.
func (m *itemMachine) Step(t *rapid.T) {
	op := rapid.SampledFrom(statemachine.ItemOperations()[1:]).Draw(t, "operation")
	m.now = m.now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, itemLease, -time.Second}).Draw(t, "later"))
	request := m.draw(t)
	before := m.item
	before.Requests = slices.Clone(m.item.Requests)

	change, err := perform(op, m.item, request, m.now)

	if diff := cmp.Diff(before, m.item); diff != "" {
		t.Fatalf("%s wrote to the item passed in:\n%s", op, diff)
	}
	switch {
	case err != nil:
		m.refused(t, op, request, err)
	case change.Repeat:
		m.repeated(t, op, request, change)
	default:
		m.moved(t, op, request, change)
	}
}

// refused checks that there is a reason for the refusal.
func (m *itemMachine) refused(t *rapid.T, op statemachine.ItemOperation, request statemachine.ItemRequest, err error) {
	transition, allowed := statemachine.LookupItemTransition(op, m.item.Status)
	reason := map[error]bool{
		statemachine.ErrInvalidRequest: request.Actor == "" || request.ID == "" || request.ExpectedRev < 1 ||
			slices.ContainsFunc(m.known, func(k itemAccepted) bool {
				return k.actor == request.Actor && k.id == request.ID && k.op != op
			}),
		statemachine.ErrNotOwner: (request.Actor != m.item.Owner || request.ExpectedRev < m.claimedAt) &&
			(!allowed || transition.By == statemachine.MoverOwner),
		statemachine.ErrRevConflict:       request.ExpectedRev != m.item.Rev,
		statemachine.ErrIllegalTransition: !allowed,
	}
	for sentinel, holds := range reason {
		if errors.Is(err, sentinel) {
			if !holds {
				t.Fatalf("%s of %+v by %+v refused without reason: %v", op, m.item, request, err)
			}
			return
		}
	}
	t.Fatalf("%s failed with an error of no kind: %v", op, err)
}

// repeated checks that the request was accepted before and changed nothing.
func (m *itemMachine) repeated(t *rapid.T, op statemachine.ItemOperation, request statemachine.ItemRequest, change statemachine.ItemChange) {
	if !slices.Contains(m.known, itemAccepted{request.Actor, request.ID, op}) {
		t.Fatalf("%s by %+v was never accepted", op, request)
	}
	if diff := cmp.Diff(statemachine.ItemChange{Item: m.item, Repeat: true}, change); diff != "" {
		t.Fatalf("a repeat changed something (-want +got):\n%s", diff)
	}
}

// moved checks what holds for each accepted move.
func (m *itemMachine) moved(t *rapid.T, op statemachine.ItemOperation, request statemachine.ItemRequest, change statemachine.ItemChange) {
	transition, allowed := statemachine.LookupItemTransition(op, m.item.Status)
	next := change.Item
	attempt := m.item.Attempt
	if op == statemachine.OpClaimNext {
		attempt++
	}
	switch {
	case !allowed || next.Status != transition.To:
		t.Fatalf("%s led from %s to %s", op, m.item.Status, next.Status)
	case transition.By == statemachine.MoverOwner && request.Actor != m.item.Owner:
		t.Fatalf("%s by %q was accepted, the owner is %q", op, request.Actor, m.item.Owner)
	case request.ExpectedRev != m.item.Rev:
		t.Fatalf("%s at rev %d was accepted, the item is at %d", op, request.ExpectedRev, m.item.Rev)
	case next.Rev != m.item.Rev+1 || next.Attempt != attempt:
		t.Fatalf("%s led to rev %d and attempt %d from %d and %d", op, next.Rev, next.Attempt, m.item.Rev, m.item.Attempt)
	case len(change.Events) != 1:
		t.Fatalf("%s left %d events behind", op, len(change.Events))
	}
	m.item, m.log = next, append(m.log, change.Events...)
	m.known = append(m.known, itemAccepted{request.Actor, request.ID, op})
	if op == statemachine.OpClaimNext {
		m.claimedAt = next.Rev
	}
}

// check checks what always holds.
func (m *itemMachine) check(t *rapid.T) {
	if err := statemachine.ValidateItem(m.item); err != nil {
		t.Fatal(err)
	}
	if err := statemachine.ValidateItemHistory(m.item, m.log); err != nil {
		t.Fatal(err)
	}
	for _, known := range m.item.Requests {
		if !slices.Contains(m.known, itemAccepted{known.Actor, known.RequestID, known.Operation}) {
			t.Fatalf("remembers %+v, which was never accepted", known)
		}
	}
	if len(m.known) > 0 && len(m.item.Requests) == 0 {
		t.Fatal("forgot the latest request")
	}
}

func TestInvariantsHoldUnderAnySequenceOfRequests(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		change, err := statemachine.EnqueueItem(nil, "work-1", "relay", itemMessage(1), itemT0)
		if err != nil {
			t.Fatal(err)
		}
		m := &itemMachine{item: change.Item, log: change.Events, now: itemT0}
		t.Repeat(map[string]func(*rapid.T){"step": m.Step, "": m.check})
	})
}

// A terminal item never changes, whatever is requested.
func TestTerminalItemsNeverChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &itemMachine{now: itemT0}
		change, err := statemachine.EnqueueItem(nil, "work-1", "relay", itemMessage(1), itemT0)
		end := rapid.SampledFrom([]statemachine.ItemOperation{statemachine.OpComplete, statemachine.OpFail}).Draw(t, "end")
		for _, op := range []statemachine.ItemOperation{statemachine.OpClaimNext, statemachine.OpStart, end} {
			if err != nil {
				t.Fatal(err)
			}
			m.item = change.Item
			request := by(anna, m.item)
			m.known = append(m.known, itemAccepted{request.Actor, request.ID, op})
			change, err = perform(op, m.item, request, itemT0)
		}
		m.item = change.Item
		ended := m.item
		for range 5 {
			m.Step(t)
		}
		if diff := cmp.Diff(ended, m.item); diff != "" || err != nil {
			t.Fatalf("changed after its end (%v):\n%s", err, diff)
		}
	})
}
