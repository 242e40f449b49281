package statemachine_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// moves has one allowed move for each operation that carries a request.
var moves = []pair{
	{"queued", "claimNext"}, {"stalled", "claimNext"}, {"claimed", "start"}, {"claimed", "heartbeat"},
	{"running", "heartbeat"}, {"running", "complete"}, {"running", "fail"}, {"claimed", "stall"},
	{"running", "stall"}, {"stalled", "requeueStalled"},
}

func forEveryMove(t *testing.T, check func(t *testing.T, item statemachine.Item, op statemachine.ItemOperation)) {
	t.Helper()
	for _, move := range moves {
		t.Run(fmt.Sprintf("%s %s", move.from, move.op), func(t *testing.T) {
			t.Parallel()
			check(t, in(t, move.from), move.op)
		})
	}
}

func TestAWholeRequestIsRequired(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item statemachine.Item, op statemachine.ItemOperation) {
		t.Helper()
		actor := "owner"
		if actorOf(op) == sweeper {
			actor = "actor"
		}
		for field, spoil := range map[string]func(*statemachine.ItemRequest){
			actor:          func(r *statemachine.ItemRequest) { r.Actor = "" },
			"request_id":   func(r *statemachine.ItemRequest) { r.ID = "" },
			"expected_rev": func(r *statemachine.ItemRequest) { r.ExpectedRev = 0 },
		} {
			request := by(actorOf(op), item)
			spoil(&request)
			_, err := perform(op, item, request, itemT0)
			wantField(t, err, field)
		}
	})
}

func TestArgumentsAreRequired(t *testing.T) {
	t.Parallel()
	none := time.Time{}
	claimed, running, stalled := in(t, "claimed"), in(t, "running"), in(t, "stalled")
	enqueue := func(workID, actor string, spoil func(*statemachine.ItemMessage)) error {
		m := itemMessage(1)
		spoil(&m)
		_, err := statemachine.EnqueueItem(nil, workID, actor, m, itemT0)
		return err
	}
	whole := func(*statemachine.ItemMessage) {}
	errorOf := func(_ statemachine.ItemChange, err error) error { return err }
	for _, c := range []struct {
		field string
		err   error
	}{
		{"lease", errorOf(statemachine.ClaimItem(queuedItem(t), by(anna, queuedItem(t)), none, itemT0))},
		{"lease", errorOf(statemachine.StartItem(claimed, by(anna, claimed), none, itemT0))},
		{"lease", errorOf(statemachine.HeartbeatItem(claimed, by(anna, claimed), none, itemT0))},
		{"result", errorOf(statemachine.CompleteItem(running, by(anna, running), nil, itemT0))},
		{"result", errorOf(statemachine.CompleteItem(running, by(anna, running), json.RawMessage(`[]`), itemT0))},
		{"result", errorOf(statemachine.CompleteItem(running, by(anna, running), json.RawMessage(`{"a":`), itemT0))},
		{"error.code", errorOf(statemachine.FailItem(running, by(anna, running), statemachine.ItemFailure{Message: "no"}, itemT0))},
		{"attempt_no", errorOf(statemachine.RequeueItem(stalled, by(sweeper, stalled), statemachine.ItemDirective{MessageID: "m", LeaseID: "l"}, itemT0))},
		{"work_id", enqueue("", "relay", whole)},
		{"actor", enqueue("w", "", whole)},
		{"dedupe_key", enqueue("w", "relay", func(m *statemachine.ItemMessage) { m.DedupeKey = "" })},
		{"message_id", enqueue("w", "relay", func(m *statemachine.ItemMessage) { m.MessageID = "" })},
		{"attempt_no", enqueue("w", "relay", func(m *statemachine.ItemMessage) { m.AttemptNo = 0 })},
		{"lease_id", enqueue("w", "relay", func(m *statemachine.ItemMessage) { m.LeaseID = "" })},
	} {
		wantField(t, c.err, c.field)
	}
}

func TestTheRevMustBeTheExpectedOne(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item statemachine.Item, op statemachine.ItemOperation) {
		t.Helper()
		for _, rev := range []int64{item.Rev - 1, item.Rev + 1} {
			request := by(actorOf(op), item)
			if request.ExpectedRev = rev; rev == 0 {
				continue // a missing rev is another error
			}
			change, err := perform(op, item, request, itemT0)
			wantRefused(t, change, err, statemachine.ErrRevConflict)
		}
	})
}

func TestOwnersMovesAreTheOwners(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item statemachine.Item, op statemachine.ItemOperation) {
		t.Helper()
		change, err := perform(op, item, by(bert, item), itemT0)
		transition, _ := statemachine.LookupItemTransition(op, item.Status)
		if transition.By == statemachine.MoverOwner {
			wantRefused(t, change, err, statemachine.ErrNotOwner)
			return
		}
		itemMust(t)(change, err)
	})
}

// A worker that lost an item may claim it again while its earlier handler still runs. That
// handler's requests are not those of the claim by which the worker holds the item now.
func TestAnEarlierClaimOfTheOwnerOwnsNothing(t *testing.T) {
	t.Parallel()
	for op, reported := range map[statemachine.ItemOperation]statemachine.ItemStatus{
		"start": "claimed", "heartbeat": "running", "complete": "running", "fail": "running",
	} {
		earlier := in(t, reported)
		item := itemMust(t)(statemachine.StallItem(earlier, by(sweeper, earlier), itemT0))
		item = itemMust(t)(statemachine.ClaimItem(item, by(anna, item), itemT0.Add(itemLease), itemT0))
		held := item.Rev
		if op != "start" {
			item = itemMust(t)(statemachine.StartItem(item, by(anna, item), itemT0.Add(itemLease), itemT0))
			item = itemMust(t)(statemachine.HeartbeatItem(item, by(anna, item), itemT0.Add(itemLease), itemT0))
		}
		change, err := perform(op, item, statemachine.ItemRequest{Actor: anna, ExpectedRev: earlier.Rev, ID: "earlier"}, itemT0)
		wantRefused(t, change, err, statemachine.ErrNotOwner)
		if op != "start" {
			change, err = perform(op, item, statemachine.ItemRequest{Actor: anna, ExpectedRev: held, ID: "behind"}, itemT0)
			wantRefused(t, change, err, statemachine.ErrRevConflict)
		}
		itemMust(t)(perform(op, item, by(anna, item), itemT0))
	}
}

// If several refusals apply, the worker gets the one that ends its work.
func TestWhichRefusalComesFirst(t *testing.T) {
	t.Parallel()
	stale := func(actor string, item statemachine.Item) statemachine.ItemRequest {
		return statemachine.ItemRequest{Actor: actor, ExpectedRev: item.Rev + 1, ID: "fresh"}
	}
	claimed, stalled := in(t, "claimed"), in(t, "stalled")
	_, err := statemachine.CompleteItem(claimed, stale(bert, claimed), itemResult, itemT0)
	wantRefused(t, statemachine.ItemChange{}, err, statemachine.ErrNotOwner)
	_, err = statemachine.CompleteItem(claimed, stale(anna, claimed), itemResult, itemT0)
	wantRefused(t, statemachine.ItemChange{}, err, statemachine.ErrRevConflict)
	_, err = statemachine.CompleteItem(claimed, by(anna, claimed), itemResult, itemT0)
	wantRefused(t, statemachine.ItemChange{}, err, statemachine.ErrIllegalTransition)
	_, err = statemachine.CompleteItem(stalled, statemachine.ItemRequest{Actor: bert, ExpectedRev: stalled.Rev, ID: "fresh"}, itemResult, itemT0)
	wantRefused(t, statemachine.ItemChange{}, err, statemachine.ErrIllegalTransition)
}

func TestARepeatChangesNothing(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item statemachine.Item, op statemachine.ItemOperation) {
		t.Helper()
		request := by(actorOf(op), item)
		after := itemMust(t)(perform(op, item, request, itemT0))
		change, err := perform(op, after, request, itemT0.Add(time.Second))
		wantRepeat(t, after, change, err)
	})
}

// The worker of attempt 1 repeats its request after the item has moved on.
func TestCheckAnswersAsTheMoveDoes(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item statemachine.Item, op statemachine.ItemOperation) {
		t.Helper()
		request := by(actorOf(op), item)
		if repeat, err := statemachine.CheckItem(item, op, request); repeat || err != nil {
			t.Errorf("of what is allowed: repeat %t, %v", repeat, err)
		}
		moved := itemMust(t)(perform(op, item, request, itemT0))
		if repeat, err := statemachine.CheckItem(moved, op, request); !repeat || err != nil {
			t.Errorf("of a repeat: repeat %t, %v", repeat, err)
		}
		request.ID, request.ExpectedRev = "another", item.Rev+9
		_, want := perform(op, item, request, itemT0)
		if _, err := statemachine.CheckItem(item, op, request); err == nil || err.Error() != want.Error() {
			t.Errorf("of another rev: %v, want %v", err, want)
		}
	})
}

func TestARepeatIsKnownBeforeRevOwnerAndStatus(t *testing.T) {
	t.Parallel()
	claimed := in(t, "claimed")
	start := statemachine.ItemRequest{Actor: anna, ExpectedRev: claimed.Rev, ID: "start"}
	item := itemMust(t)(statemachine.StartItem(claimed, start, itemT0.Add(itemLease), itemT0))
	for _, op := range []statemachine.ItemOperation{"heartbeat", "stall", "requeueStalled"} {
		item = itemMust(t)(perform(op, item, by(actorOf(op), item), itemT0))
	}
	item = itemMust(t)(statemachine.ClaimItem(item, by(bert, item), itemT0.Add(itemLease), itemT0))
	change, err := statemachine.StartItem(item, start, itemT0.Add(itemLease), itemT0)
	wantRepeat(t, item, change, err)
}

func TestAnIDIsForOneOperation(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item statemachine.Item, op statemachine.ItemOperation) {
		t.Helper()
		request := by(anna, in(t, "queued")) // the request that claimed the item
		request.ExpectedRev = item.Rev
		if item.Status == statemachine.StatusQueued || op == statemachine.OpClaimNext {
			return
		}
		change, err := perform(op, item, request, itemT0)
		wantField(t, err, "request_id")
		wantRefused(t, change, err, statemachine.ErrInvalidRequest)
	})
}

func TestAnIDIsItsActorsOwn(t *testing.T) {
	t.Parallel()
	item := in(t, "claimed")
	annas := by(anna, queuedItem(t))
	stalled := itemMust(t)(statemachine.StallItem(item, by(sweeper, item), itemT0))
	berts := statemachine.ItemRequest{Actor: bert, ExpectedRev: stalled.Rev, ID: annas.ID}
	change, err := statemachine.ClaimItem(stalled, berts, itemT0.Add(itemLease), itemT0)
	if item := itemMust(t)(change, err); change.Repeat || item.Owner != bert {
		t.Errorf("repeat %t, owner %s, want a claim of bert's own", change.Repeat, item.Owner)
	}
}

func TestHeldUnder(t *testing.T) {
	t.Parallel()
	request := by(anna, queuedItem(t))
	for _, status := range statemachine.ItemStatuses() {
		item := in(t, status)
		if got := item.HeldUnder(anna, request.ID); got != status.Held() {
			t.Errorf("%s: HeldUnder = %t", status, got)
		}
	}
	running := in(t, "running")
	if running.HeldUnder(bert, request.ID) || running.HeldUnder(anna, "other") {
		t.Error("held by another owner, or under an unknown request")
	}
	if start := by(anna, in(t, "claimed")); running.HeldUnder(anna, start.ID) {
		t.Error("held under a request that was no claim")
	}
	item := in(t, "stalled")
	item = itemMust(t)(statemachine.RequeueItem(item, by(sweeper, item), itemDirective(2), itemT0))
	item = itemMust(t)(statemachine.ClaimItem(item, by(anna, item), itemT0.Add(itemLease), itemT0))
	if item.HeldUnder(anna, request.ID) {
		t.Error("held under the first claim, though it came back by a second one")
	}
}

// ids are the remembered request ids, oldest first.
func ids(item statemachine.Item) (all []string) {
	for _, known := range item.Requests {
		all = append(all, known.RequestID)
	}
	return all
}

func TestARequestIsRememberedForTheLeaseAndTheMinimum(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		lease, want time.Duration
	}{
		{"long lease", time.Hour, time.Hour},
		{"short lease", time.Second, statemachine.MinMemory},
	} {
		item := itemMust(t)(statemachine.ClaimItem(queuedItem(t), by(anna, queuedItem(t)), itemT0.Add(c.lease), itemT0))
		want := statemachine.Remembered{
			Actor: anna, RequestID: "anna-1", Operation: "claimNext", Rev: 2, Attempt: 1, ExpiresAt: itemT0.Add(c.want),
		}
		if diff := cmp.Diff([]statemachine.Remembered{want}, item.Requests); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		stalled := itemMust(t)(statemachine.StallItem(item, by(sweeper, item), itemT0))
		if got := stalled.Requests[1].ExpiresAt; !got.Equal(itemT0.Add(c.want)) {
			t.Errorf("%s: the stall that ended the lease is remembered until %s", c.name, got)
		}
	}
}

func TestExpiredRequestsAreDroppedWithTheNextOne(t *testing.T) {
	t.Parallel()
	item := in(t, "running") // anna-1 and anna-2, of attempt 1
	item = itemMust(t)(statemachine.HeartbeatItem(item, by(anna, item), itemT0.Add(time.Hour), itemT0))
	if diff := cmp.Diff([]string{"anna-1", "anna-2", "anna-3"}, ids(item)); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	late := itemT0.Add(2 * time.Hour)
	item = itemMust(t)(statemachine.HeartbeatItem(item, by(anna, item), late.Add(time.Hour), late))
	if diff := cmp.Diff([]string{"anna-1", "anna-2", "anna-4"}, ids(item)); diff != "" {
		t.Errorf("the attempt goes on, so its claim and start are needed (-want +got):\n%s", diff)
	}
	item = itemMust(t)(statemachine.StallItem(item, by(sweeper, item), late))
	item = itemMust(t)(statemachine.ClaimItem(item, by(bert, item), late.Add(4*time.Hour), late.Add(3*time.Hour)))
	if diff := cmp.Diff([]string{"bert-6"}, ids(item)); diff != "" {
		t.Errorf("the next attempt needs none of them (-want +got):\n%s", diff)
	}
}

func TestMemoryIsBoundedAndForgetsHeartbeatsFirst(t *testing.T) {
	t.Parallel()
	item := in(t, "running")
	for range 2 * statemachine.MaxRemembered {
		item = itemMust(t)(statemachine.HeartbeatItem(item, by(anna, item), itemT0.Add(itemLease), itemT0))
	}
	got := ids(item)
	if len(got) != statemachine.MaxRemembered {
		t.Fatalf("%d remembered, want %d", len(got), statemachine.MaxRemembered)
	}
	if got[0] != "anna-1" || got[1] != "anna-2" || got[len(got)-1] != fmt.Sprintf("anna-%d", item.Rev-1) {
		t.Errorf("remembered are %v", got)
	}
}

func TestMemoryIsBoundedWithoutHeartbeatsToo(t *testing.T) {
	t.Parallel()
	item := queuedItem(t)
	for range statemachine.MaxRemembered {
		item = itemMust(t)(statemachine.ClaimItem(item, by(anna, item), itemT0.Add(itemLease), itemT0))
		item = itemMust(t)(statemachine.StallItem(item, by(sweeper, item), itemT0))
	}
	got := ids(item)
	if len(got) != statemachine.MaxRemembered || slices.Contains(got, "anna-1") {
		t.Errorf("%d remembered: %v", len(got), got)
	}
}

// Items are values: a queue may keep the item that it passed in.
func TestTheItemPassedInStaysAsItWas(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item statemachine.Item, op statemachine.ItemOperation) {
		t.Helper()
		item.Requests = append(make([]statemachine.Remembered, 0, 64), item.Requests...)
		before := item
		before.Requests = slices.Clone(item.Requests)
		itemMust(t)(perform(op, item, by(actorOf(op), item), itemT0))
		spare := item.Requests[:cap(item.Requests)]
		if diff := cmp.Diff(before, item); diff != "" || spare[len(item.Requests)] != (statemachine.Remembered{}) {
			t.Errorf("changed (-before +after):\n%s", diff)
		}
	})
}
