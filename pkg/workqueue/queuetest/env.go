package queuetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The actors of the checks.
const (
	anna    = "anna"
	bert    = "bert"
	sweeper = "sweeper"
)

// claimLease is the lease of the checks' claims. It is longer than a request is
// remembered at least, so that the lease decides.
const claimLease = 2 * statemachine.MinMemory

var (
	result  = json.RawMessage(`{"result_ref":{"uri":"s3://bucket/out.json"}}`)
	failure = statemachine.ItemFailure{Code: "corrupt_pdf", Message: "Page 3 can not be read."}
)

// env holds the queue under test and what the check has made.
type env struct {
	Harness
	made  []string // the items that the check enqueued
	drawn int      // counts the unique texts
}

// unique returns a text that this check has not used yet.
func (e *env) unique(prefix string) string {
	e.drawn++
	return fmt.Sprintf("%s-%d", prefix, e.drawn)
}

// message makes a message for a new service, so that a claim can ask for this message only.
func (e *env) message(t testing.TB) statemachine.ItemMessage {
	t.Helper()
	return e.messageFor(t, e.unique("service"), "OCR")
}

func (e *env) messageFor(t testing.TB, service, stepType string) statemachine.ItemMessage {
	t.Helper()
	job := e.unique("job")
	message := statemachine.ItemMessage{
		ItemDirective: statemachine.ItemDirective{MessageID: job + ".0/1", AttemptNo: 1, LeaseID: e.unique("lease")},
		DedupeKey:     job + ".0/1", JobID: job, StepID: "ocr", TenantID: "tenant_a", Service: service, StepType: stepType,
	}
	if e.Message != nil {
		message = e.Message(t, message)
	}
	return message
}

// enqueue puts the message into the queue, which must accept it.
func (e *env) enqueue(t testing.TB, message statemachine.ItemMessage) statemachine.Item {
	t.Helper()
	item, err := e.Queue.Enqueue(t.Context(), message)
	if err != nil {
		t.Fatalf("enqueue: %v", err)
	}
	e.made = append(e.made, item.WorkID)
	return item
}

// request is the actor's request for the item as it is, with a new id.
func (e *env) request(actor string, item statemachine.Item) statemachine.ItemRequest {
	return statemachine.ItemRequest{Actor: actor, ExpectedRev: item.Rev, ID: e.unique("request")}
}

// claimOf returns a claim of that item only, with a new id.
func (e *env) claimOf(item statemachine.Item, owner string) Claim {
	return Claim{
		Owner: owner, Filter: Filter{Services: []string{item.Service}}, Max: 10, Lease: claimLease,
		RequestID: e.unique("claim"),
	}
}

// claim makes the claim, which must not be refused.
func (e *env) claim(t testing.TB, claim Claim) []statemachine.Item {
	t.Helper()
	items, err := e.Queue.ClaimNext(t.Context(), claim)
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	return items
}

// claimItem claims that item, which must be there to be claimed.
func (e *env) claimItem(t testing.TB, item statemachine.Item, owner string) statemachine.Item {
	t.Helper()
	items := e.claim(t, e.claimOf(item, owner))
	if len(items) != 1 || items[0].WorkID != item.WorkID {
		t.Fatalf("claim returned %v, want %s", workIDs(items), item.WorkID)
	}
	return items[0]
}

// ask asks for an operation on one item.
func (e *env) ask(
	t testing.TB, op statemachine.ItemOperation, item statemachine.Item, request statemachine.ItemRequest,
) (statemachine.Item, error) {
	t.Helper()
	ctx, id := t.Context(), item.WorkID
	switch op {
	case statemachine.OpStart:
		return e.Queue.Start(ctx, id, request)
	case statemachine.OpHeartbeat:
		return e.Queue.Heartbeat(ctx, id, request)
	case statemachine.OpComplete:
		return e.Queue.Complete(ctx, id, request, result)
	case statemachine.OpFail:
		return e.Queue.Fail(ctx, id, request, failure)
	case statemachine.OpStall:
		return e.Queue.Stall(ctx, id, request)
	case statemachine.OpRequeueStalled:
		return e.Queue.Requeue(ctx, id, request, e.next(t, item))
	default:
		t.Fatalf("%s is not asked for an item", op)
		return statemachine.Item{}, nil
	}
}

// next is a directive for the attempt after the item's.
func (e *env) next(t testing.TB, item statemachine.Item) statemachine.ItemDirective {
	t.Helper()
	if e.Redispatch != nil && item.Status == statemachine.StatusStalled {
		return e.Redispatch(t, item)
	}
	return statemachine.ItemDirective{
		MessageID: fmt.Sprintf("%s.0/%d", item.JobID, item.AttemptNo+1),
		AttemptNo: item.AttemptNo + 1, LeaseID: e.unique("lease"),
	}
}

// must performs the operation as an actor that is allowed to, and fails if it is refused.
func (e *env) must(t testing.TB, op statemachine.ItemOperation, item statemachine.Item) statemachine.Item {
	t.Helper()
	after, err := e.ask(t, op, item, e.request(actorOf(op, item), item))
	if err != nil {
		t.Fatalf("%s of a %s item: %v", op, item.Status, err)
	}
	return after
}

// actorOf returns an actor that may perform the operation.
func actorOf(op statemachine.ItemOperation, item statemachine.Item) string {
	switch {
	case op == statemachine.OpStall || op == statemachine.OpRequeueStalled:
		return sweeper
	case item.Owner != "":
		return item.Owner
	default:
		return anna
	}
}

// in makes an item in that status; its owner is or was anna.
func (e *env) in(t testing.TB, status statemachine.ItemStatus) statemachine.Item {
	t.Helper()
	item := e.enqueue(t, e.message(t))
	if status == statemachine.StatusQueued {
		return item
	}
	item = e.claimItem(t, item, anna)
	if status == statemachine.StatusClaimed {
		return item
	}
	item = e.must(t, statemachine.OpStart, item)
	switch status {
	case statemachine.StatusSucceeded:
		return e.must(t, statemachine.OpComplete, item)
	case statemachine.StatusFailed:
		return e.must(t, statemachine.OpFail, item)
	case statemachine.StatusStalled:
		return e.must(t, statemachine.OpStall, item)
	default:
		return item
	}
}

// get returns an item that must be there.
func (e *env) get(t testing.TB, workID string) statemachine.Item {
	t.Helper()
	item, err := e.Queue.Get(t.Context(), workID)
	if err != nil {
		t.Fatalf("get %s: %v", workID, err)
	}
	return item
}

// events returns the history of an item that must be there.
func (e *env) events(t testing.TB, workID string) []statemachine.ItemEvent {
	t.Helper()
	events, err := e.Queue.Events(t.Context(), workID)
	if err != nil {
		t.Fatalf("events of %s: %v", workID, err)
	}
	return events
}

// now returns the queue's time at the coarsest resolution that a queue may store.
func (e *env) now() time.Time { return e.Now().Truncate(time.Millisecond) }

func workIDs(items []statemachine.Item) []string {
	ids := make([]string, len(items))
	for n := range items {
		ids[n] = items[n].WorkID
	}
	return ids
}

// sameItem compares items except for the requests that they remember.
var sameItem = cmpopts.IgnoreFields(statemachine.Item{}, "Requests")

// expectItem fails unless the item read back is the one that was returned.
func (e *env) expectItem(t testing.TB, want statemachine.Item) {
	t.Helper()
	if diff := cmp.Diff(want, e.get(t, want.WorkID), sameItem); diff != "" {
		t.Errorf("item read back (-want +got):\n%s", diff)
	}
}

// expectMove fails unless the item moved there, with a higher rev and that many
// more attempts.
func (e *env) expectMove(t testing.TB, before, after statemachine.Item, to statemachine.ItemStatus, attempts int) {
	t.Helper()
	if after.Status != to || after.Rev <= before.Rev || after.Attempt != before.Attempt+attempts {
		t.Errorf("moved from %s, rev %d, attempt %d to %s, rev %d, attempt %d; want %s and attempt %d",
			before.Status, before.Rev, before.Attempt, after.Status, after.Rev, after.Attempt, to, before.Attempt+attempts)
	}
}

// expectFree fails if a worker holds the item.
func (e *env) expectFree(t testing.TB, item statemachine.Item) {
	t.Helper()
	if item.Owner != "" || !item.LeaseExpiresAt.IsZero() {
		t.Errorf("%s item is held by %q until %s", item.Status, item.Owner, item.LeaseExpiresAt)
	}
}

// expectIDs fails unless these are the items, in any order.
func (e *env) expectIDs(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s %v, want %v", what, got, want)
	}
}

// expectTypes fails unless these are the item's events.
func (e *env) expectTypes(t testing.TB, workID string, want ...statemachine.ItemEventType) {
	t.Helper()
	var got []statemachine.ItemEventType
	for _, event := range e.events(t, workID) {
		got = append(got, event.Type)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events are %v, want %v", got, want)
	}
}

// expectLast fails unless the item's last event is of that type and rev, and
// returns it.
func (e *env) expectLast(t testing.TB, item statemachine.Item, want statemachine.ItemEventType) statemachine.ItemEvent {
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

// refused fails unless the request is refused with that error and changes nothing.
func (e *env) refused(t testing.TB, op statemachine.ItemOperation, item statemachine.Item, request statemachine.ItemRequest, want error) {
	t.Helper()
	what := fmt.Sprintf("%s of a %s item", op, item.Status)
	e.untouched(t, item.WorkID, what, func() {
		if _, err := e.ask(t, op, item, request); !errors.Is(err, want) {
			t.Errorf("%s by %+v: error is %v, want %v", what, request, err, want)
		}
	})
}
