package lifecycle_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
)

// accepted is a request that was accepted; the model never forgets it.
type accepted struct {
	actor, id string
	op        lifecycle.Operation
}

// machine performs any operations in any order, and knows the expected outcome of each.
type machine struct {
	item lifecycle.Item
	log  []lifecycle.Event
	now  time.Time
	// known are all accepted requests.
	known []accepted
	// claimedAt is the rev of the latest claim.
	claimedAt int64
}

// draw makes a request that is mostly valid, so that items reach late statuses.
func (m *machine) draw(t *rapid.T) lifecycle.Request {
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
	return lifecycle.Request{Actor: actor, ExpectedRev: rev, ID: id}
}

// Step performs one operation.
func (m *machine) Step(t *rapid.T) {
	op := rapid.SampledFrom(lifecycle.Operations()[1:]).Draw(t, "operation")
	m.now = m.now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, lease, -time.Second}).Draw(t, "later"))
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
func (m *machine) refused(t *rapid.T, op lifecycle.Operation, request lifecycle.Request, err error) {
	transition, allowed := lifecycle.Lookup(op, m.item.Status)
	reason := map[error]bool{
		lifecycle.ErrInvalidRequest: request.Actor == "" || request.ID == "" || request.ExpectedRev < 1 ||
			slices.ContainsFunc(m.known, func(k accepted) bool {
				return k.actor == request.Actor && k.id == request.ID && k.op != op
			}),
		lifecycle.ErrNotOwner: (request.Actor != m.item.Owner || request.ExpectedRev < m.claimedAt) &&
			(!allowed || transition.By == lifecycle.MoverOwner),
		lifecycle.ErrRevConflict:       request.ExpectedRev != m.item.Rev,
		lifecycle.ErrIllegalTransition: !allowed,
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
func (m *machine) repeated(t *rapid.T, op lifecycle.Operation, request lifecycle.Request, change lifecycle.Change) {
	if !slices.Contains(m.known, accepted{request.Actor, request.ID, op}) {
		t.Fatalf("%s by %+v was never accepted", op, request)
	}
	if diff := cmp.Diff(lifecycle.Change{Item: m.item, Repeat: true}, change); diff != "" {
		t.Fatalf("a repeat changed something (-want +got):\n%s", diff)
	}
}

// moved checks what holds for each accepted move.
func (m *machine) moved(t *rapid.T, op lifecycle.Operation, request lifecycle.Request, change lifecycle.Change) {
	transition, allowed := lifecycle.Lookup(op, m.item.Status)
	next := change.Item
	attempt := m.item.Attempt
	if op == lifecycle.OpClaimNext {
		attempt++
	}
	switch {
	case !allowed || next.Status != transition.To:
		t.Fatalf("%s led from %s to %s", op, m.item.Status, next.Status)
	case transition.By == lifecycle.MoverOwner && request.Actor != m.item.Owner:
		t.Fatalf("%s by %q was accepted, the owner is %q", op, request.Actor, m.item.Owner)
	case request.ExpectedRev != m.item.Rev:
		t.Fatalf("%s at rev %d was accepted, the item is at %d", op, request.ExpectedRev, m.item.Rev)
	case next.Rev != m.item.Rev+1 || next.Attempt != attempt:
		t.Fatalf("%s led to rev %d and attempt %d from %d and %d", op, next.Rev, next.Attempt, m.item.Rev, m.item.Attempt)
	case len(change.Events) != 1:
		t.Fatalf("%s left %d events behind", op, len(change.Events))
	}
	m.item, m.log = next, append(m.log, change.Events...)
	m.known = append(m.known, accepted{request.Actor, request.ID, op})
	if op == lifecycle.OpClaimNext {
		m.claimedAt = next.Rev
	}
}

// check checks what always holds.
func (m *machine) check(t *rapid.T) {
	if err := lifecycle.Validate(m.item); err != nil {
		t.Fatal(err)
	}
	if err := lifecycle.ValidateHistory(m.item, m.log); err != nil {
		t.Fatal(err)
	}
	for _, known := range m.item.Requests {
		if !slices.Contains(m.known, accepted{known.Actor, known.RequestID, known.Operation}) {
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
		change, err := lifecycle.Enqueue(nil, "work-1", "relay", message(1), t0)
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{item: change.Item, log: change.Events, now: t0}
		t.Repeat(map[string]func(*rapid.T){"step": m.Step, "": m.check})
	})
}

// A terminal item never changes, whatever is requested.
func TestTerminalItemsNeverChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{now: t0}
		change, err := lifecycle.Enqueue(nil, "work-1", "relay", message(1), t0)
		end := rapid.SampledFrom([]lifecycle.Operation{lifecycle.OpComplete, lifecycle.OpFail}).Draw(t, "end")
		for _, op := range []lifecycle.Operation{lifecycle.OpClaimNext, lifecycle.OpStart, end} {
			if err != nil {
				t.Fatal(err)
			}
			m.item = change.Item
			request := by(anna, m.item)
			m.known = append(m.known, accepted{request.Actor, request.ID, op})
			change, err = perform(op, m.item, request, t0)
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
