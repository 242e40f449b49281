package lifecycle_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
)

// moves has one allowed move for each operation that carries a request.
var moves = []pair{
	{"queued", "claimNext"}, {"stalled", "claimNext"}, {"claimed", "start"}, {"claimed", "heartbeat"},
	{"running", "heartbeat"}, {"running", "complete"}, {"running", "fail"}, {"claimed", "stall"},
	{"running", "stall"}, {"stalled", "requeueStalled"},
}

func forEveryMove(t *testing.T, check func(t *testing.T, item lifecycle.Item, op lifecycle.Operation)) {
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
	forEveryMove(t, func(t *testing.T, item lifecycle.Item, op lifecycle.Operation) {
		t.Helper()
		actor := "owner"
		if actorOf(op) == sweeper {
			actor = "actor"
		}
		for field, spoil := range map[string]func(*lifecycle.Request){
			actor:          func(r *lifecycle.Request) { r.Actor = "" },
			"request_id":   func(r *lifecycle.Request) { r.ID = "" },
			"expected_rev": func(r *lifecycle.Request) { r.ExpectedRev = 0 },
		} {
			request := by(actorOf(op), item)
			spoil(&request)
			_, err := perform(op, item, request, t0)
			wantField(t, err, field)
		}
	})
}

func TestArgumentsAreRequired(t *testing.T) {
	t.Parallel()
	none := time.Time{}
	claimed, running, stalled := in(t, "claimed"), in(t, "running"), in(t, "stalled")
	enqueue := func(workID, actor string, spoil func(*lifecycle.Message)) error {
		m := message(1)
		spoil(&m)
		_, err := lifecycle.Enqueue(nil, workID, actor, m, t0)
		return err
	}
	whole := func(*lifecycle.Message) {}
	errorOf := func(_ lifecycle.Change, err error) error { return err }
	for _, c := range []struct {
		field string
		err   error
	}{
		{"lease", errorOf(lifecycle.Claim(queued(t), by(anna, queued(t)), none, t0))},
		{"lease", errorOf(lifecycle.Start(claimed, by(anna, claimed), none, t0))},
		{"lease", errorOf(lifecycle.Heartbeat(claimed, by(anna, claimed), none, t0))},
		{"result", errorOf(lifecycle.Complete(running, by(anna, running), nil, t0))},
		{"result", errorOf(lifecycle.Complete(running, by(anna, running), json.RawMessage(`[]`), t0))},
		{"result", errorOf(lifecycle.Complete(running, by(anna, running), json.RawMessage(`{"a":`), t0))},
		{"error.code", errorOf(lifecycle.Fail(running, by(anna, running), lifecycle.Failure{Message: "no"}, t0))},
		{"attempt_no", errorOf(lifecycle.Requeue(stalled, by(sweeper, stalled), lifecycle.Directive{MessageID: "m", LeaseID: "l"}, t0))},
		{"work_id", enqueue("", "relay", whole)},
		{"actor", enqueue("w", "", whole)},
		{"dedupe_key", enqueue("w", "relay", func(m *lifecycle.Message) { m.DedupeKey = "" })},
		{"message_id", enqueue("w", "relay", func(m *lifecycle.Message) { m.MessageID = "" })},
		{"attempt_no", enqueue("w", "relay", func(m *lifecycle.Message) { m.AttemptNo = 0 })},
		{"lease_id", enqueue("w", "relay", func(m *lifecycle.Message) { m.LeaseID = "" })},
	} {
		wantField(t, c.err, c.field)
	}
}

func TestTheRevMustBeTheExpectedOne(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item lifecycle.Item, op lifecycle.Operation) {
		t.Helper()
		for _, rev := range []int64{item.Rev - 1, item.Rev + 1} {
			request := by(actorOf(op), item)
			if request.ExpectedRev = rev; rev == 0 {
				continue // a missing rev is another error
			}
			change, err := perform(op, item, request, t0)
			wantRefused(t, change, err, lifecycle.ErrRevConflict)
		}
	})
}

func TestOwnersMovesAreTheOwners(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item lifecycle.Item, op lifecycle.Operation) {
		t.Helper()
		change, err := perform(op, item, by(bert, item), t0)
		transition, _ := lifecycle.Lookup(op, item.Status)
		if transition.By == lifecycle.MoverOwner {
			wantRefused(t, change, err, lifecycle.ErrNotOwner)
			return
		}
		must(t)(change, err)
	})
}

// A worker that lost an item may claim it again while its earlier handler still runs. That
// handler's requests are not those of the claim by which the worker holds the item now.
func TestAnEarlierClaimOfTheOwnerOwnsNothing(t *testing.T) {
	t.Parallel()
	for op, reported := range map[lifecycle.Operation]lifecycle.Status{
		"start": "claimed", "heartbeat": "running", "complete": "running", "fail": "running",
	} {
		earlier := in(t, reported)
		item := must(t)(lifecycle.Stall(earlier, by(sweeper, earlier), t0))
		item = must(t)(lifecycle.Claim(item, by(anna, item), t0.Add(lease), t0))
		held := item.Rev
		if op != "start" {
			item = must(t)(lifecycle.Start(item, by(anna, item), t0.Add(lease), t0))
			item = must(t)(lifecycle.Heartbeat(item, by(anna, item), t0.Add(lease), t0))
		}
		change, err := perform(op, item, lifecycle.Request{Actor: anna, ExpectedRev: earlier.Rev, ID: "earlier"}, t0)
		wantRefused(t, change, err, lifecycle.ErrNotOwner)
		if op != "start" {
			change, err = perform(op, item, lifecycle.Request{Actor: anna, ExpectedRev: held, ID: "behind"}, t0)
			wantRefused(t, change, err, lifecycle.ErrRevConflict)
		}
		must(t)(perform(op, item, by(anna, item), t0))
	}
}

// If several refusals apply, the worker gets the one that ends its work.
func TestWhichRefusalComesFirst(t *testing.T) {
	t.Parallel()
	stale := func(actor string, item lifecycle.Item) lifecycle.Request {
		return lifecycle.Request{Actor: actor, ExpectedRev: item.Rev + 1, ID: "fresh"}
	}
	claimed, stalled := in(t, "claimed"), in(t, "stalled")
	_, err := lifecycle.Complete(claimed, stale(bert, claimed), result, t0)
	wantRefused(t, lifecycle.Change{}, err, lifecycle.ErrNotOwner)
	_, err = lifecycle.Complete(claimed, stale(anna, claimed), result, t0)
	wantRefused(t, lifecycle.Change{}, err, lifecycle.ErrRevConflict)
	_, err = lifecycle.Complete(claimed, by(anna, claimed), result, t0)
	wantRefused(t, lifecycle.Change{}, err, lifecycle.ErrIllegalTransition)
	_, err = lifecycle.Complete(stalled, lifecycle.Request{Actor: bert, ExpectedRev: stalled.Rev, ID: "fresh"}, result, t0)
	wantRefused(t, lifecycle.Change{}, err, lifecycle.ErrIllegalTransition)
}

func TestARepeatChangesNothing(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item lifecycle.Item, op lifecycle.Operation) {
		t.Helper()
		request := by(actorOf(op), item)
		after := must(t)(perform(op, item, request, t0))
		change, err := perform(op, after, request, t0.Add(time.Second))
		wantRepeat(t, after, change, err)
	})
}

// The worker of attempt 1 repeats its request after the item has moved on.
func TestCheckAnswersAsTheMoveDoes(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item lifecycle.Item, op lifecycle.Operation) {
		t.Helper()
		request := by(actorOf(op), item)
		if repeat, err := lifecycle.Check(item, op, request); repeat || err != nil {
			t.Errorf("of what is allowed: repeat %t, %v", repeat, err)
		}
		moved := must(t)(perform(op, item, request, t0))
		if repeat, err := lifecycle.Check(moved, op, request); !repeat || err != nil {
			t.Errorf("of a repeat: repeat %t, %v", repeat, err)
		}
		request.ID, request.ExpectedRev = "another", item.Rev+9
		_, want := perform(op, item, request, t0)
		if _, err := lifecycle.Check(item, op, request); err == nil || err.Error() != want.Error() {
			t.Errorf("of another rev: %v, want %v", err, want)
		}
	})
}

func TestARepeatIsKnownBeforeRevOwnerAndStatus(t *testing.T) {
	t.Parallel()
	claimed := in(t, "claimed")
	start := lifecycle.Request{Actor: anna, ExpectedRev: claimed.Rev, ID: "start"}
	item := must(t)(lifecycle.Start(claimed, start, t0.Add(lease), t0))
	for _, op := range []lifecycle.Operation{"heartbeat", "stall", "requeueStalled"} {
		item = must(t)(perform(op, item, by(actorOf(op), item), t0))
	}
	item = must(t)(lifecycle.Claim(item, by(bert, item), t0.Add(lease), t0))
	change, err := lifecycle.Start(item, start, t0.Add(lease), t0)
	wantRepeat(t, item, change, err)
}

func TestAnIDIsForOneOperation(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item lifecycle.Item, op lifecycle.Operation) {
		t.Helper()
		request := by(anna, in(t, "queued")) // the request that claimed the item
		request.ExpectedRev = item.Rev
		if item.Status == lifecycle.StatusQueued || op == lifecycle.OpClaimNext {
			return
		}
		change, err := perform(op, item, request, t0)
		wantField(t, err, "request_id")
		wantRefused(t, change, err, lifecycle.ErrInvalidRequest)
	})
}

func TestAnIDIsItsActorsOwn(t *testing.T) {
	t.Parallel()
	item := in(t, "claimed")
	annas := by(anna, queued(t))
	stalled := must(t)(lifecycle.Stall(item, by(sweeper, item), t0))
	berts := lifecycle.Request{Actor: bert, ExpectedRev: stalled.Rev, ID: annas.ID}
	change, err := lifecycle.Claim(stalled, berts, t0.Add(lease), t0)
	if item := must(t)(change, err); change.Repeat || item.Owner != bert {
		t.Errorf("repeat %t, owner %s, want a claim of bert's own", change.Repeat, item.Owner)
	}
}

func TestHeldUnder(t *testing.T) {
	t.Parallel()
	request := by(anna, queued(t))
	for _, status := range lifecycle.Statuses() {
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
	item = must(t)(lifecycle.Requeue(item, by(sweeper, item), directive(2), t0))
	item = must(t)(lifecycle.Claim(item, by(anna, item), t0.Add(lease), t0))
	if item.HeldUnder(anna, request.ID) {
		t.Error("held under the first claim, though it came back by a second one")
	}
}

// ids are the remembered request ids, oldest first.
func ids(item lifecycle.Item) (all []string) {
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
		{"short lease", time.Second, lifecycle.MinMemory},
	} {
		item := must(t)(lifecycle.Claim(queued(t), by(anna, queued(t)), t0.Add(c.lease), t0))
		want := lifecycle.Remembered{
			Actor: anna, RequestID: "anna-1", Operation: "claimNext", Rev: 2, Attempt: 1, ExpiresAt: t0.Add(c.want),
		}
		if diff := cmp.Diff([]lifecycle.Remembered{want}, item.Requests); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		stalled := must(t)(lifecycle.Stall(item, by(sweeper, item), t0))
		if got := stalled.Requests[1].ExpiresAt; !got.Equal(t0.Add(c.want)) {
			t.Errorf("%s: the stall that ended the lease is remembered until %s", c.name, got)
		}
	}
}

func TestExpiredRequestsAreDroppedWithTheNextOne(t *testing.T) {
	t.Parallel()
	item := in(t, "running") // anna-1 and anna-2, of attempt 1
	item = must(t)(lifecycle.Heartbeat(item, by(anna, item), t0.Add(time.Hour), t0))
	if diff := cmp.Diff([]string{"anna-1", "anna-2", "anna-3"}, ids(item)); diff != "" {
		t.Errorf("remembered (-want +got):\n%s", diff)
	}
	late := t0.Add(2 * time.Hour)
	item = must(t)(lifecycle.Heartbeat(item, by(anna, item), late.Add(time.Hour), late))
	if diff := cmp.Diff([]string{"anna-1", "anna-2", "anna-4"}, ids(item)); diff != "" {
		t.Errorf("the attempt goes on, so its claim and start are needed (-want +got):\n%s", diff)
	}
	item = must(t)(lifecycle.Stall(item, by(sweeper, item), late))
	item = must(t)(lifecycle.Claim(item, by(bert, item), late.Add(4*time.Hour), late.Add(3*time.Hour)))
	if diff := cmp.Diff([]string{"bert-6"}, ids(item)); diff != "" {
		t.Errorf("the next attempt needs none of them (-want +got):\n%s", diff)
	}
}

func TestMemoryIsBoundedAndForgetsHeartbeatsFirst(t *testing.T) {
	t.Parallel()
	item := in(t, "running")
	for range 2 * lifecycle.MaxRemembered {
		item = must(t)(lifecycle.Heartbeat(item, by(anna, item), t0.Add(lease), t0))
	}
	got := ids(item)
	if len(got) != lifecycle.MaxRemembered {
		t.Fatalf("%d remembered, want %d", len(got), lifecycle.MaxRemembered)
	}
	if got[0] != "anna-1" || got[1] != "anna-2" || got[len(got)-1] != fmt.Sprintf("anna-%d", item.Rev-1) {
		t.Errorf("remembered are %v", got)
	}
}

func TestMemoryIsBoundedWithoutHeartbeatsToo(t *testing.T) {
	t.Parallel()
	item := queued(t)
	for range lifecycle.MaxRemembered {
		item = must(t)(lifecycle.Claim(item, by(anna, item), t0.Add(lease), t0))
		item = must(t)(lifecycle.Stall(item, by(sweeper, item), t0))
	}
	got := ids(item)
	if len(got) != lifecycle.MaxRemembered || slices.Contains(got, "anna-1") {
		t.Errorf("%d remembered: %v", len(got), got)
	}
}

// Items are values: a queue may keep the item that it passed in.
func TestTheItemPassedInStaysAsItWas(t *testing.T) {
	t.Parallel()
	forEveryMove(t, func(t *testing.T, item lifecycle.Item, op lifecycle.Operation) {
		t.Helper()
		item.Requests = append(make([]lifecycle.Remembered, 0, 64), item.Requests...)
		before := item
		before.Requests = slices.Clone(item.Requests)
		must(t)(perform(op, item, by(actorOf(op), item), t0))
		spare := item.Requests[:cap(item.Requests)]
		if diff := cmp.Diff(before, item); diff != "" || spare[len(item.Requests)] != (lifecycle.Remembered{}) {
			t.Errorf("changed (-before +after):\n%s", diff)
		}
	})
}
