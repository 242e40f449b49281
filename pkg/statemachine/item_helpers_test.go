package statemachine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

const (
	anna      = "anna"
	bert      = "bert"
	sweeper   = "sweeper"
	itemLease = 15 * time.Minute
)

var (
	itemT0     = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	itemResult = json.RawMessage(`{"result_ref":{"uri":"s3://bucket/out.json"}}`)
)

func itemDirective(attemptNo int) statemachine.ItemDirective {
	return statemachine.ItemDirective{
		MessageID: fmt.Sprintf("job-1.0/%d", attemptNo),
		AttemptNo: attemptNo,
		LeaseID:   fmt.Sprintf("lease-%d", attemptNo),
	}
}

func itemMessage(attemptNo int) statemachine.ItemMessage {
	d := itemDirective(attemptNo)
	return statemachine.ItemMessage{
		ItemDirective: d, DedupeKey: d.MessageID,
		JobID: "job-1", StepID: "ocr", TenantID: "tenant_a", Service: "ocr", StepType: "OCR",
	}
}

// by returns the actor's request for the item at its current rev, with a new id.
func by(actor string, item statemachine.Item) statemachine.ItemRequest {
	return statemachine.ItemRequest{Actor: actor, ExpectedRev: item.Rev, ID: fmt.Sprintf("%s-%d", actor, item.Rev)}
}

// perform performs the operation with valid arguments.
func perform(op statemachine.ItemOperation, item statemachine.Item, request statemachine.ItemRequest, now time.Time) (statemachine.ItemChange, error) {
	switch op {
	case statemachine.OpEnqueue:
		return statemachine.EnqueueItem(&item, item.WorkID, request.Actor, itemMessage(item.AttemptNo+1), now)
	case statemachine.OpClaimNext:
		return statemachine.ClaimItem(item, request, now.Add(itemLease), now)
	case statemachine.OpStart:
		return statemachine.StartItem(item, request, now.Add(itemLease), now)
	case statemachine.OpHeartbeat:
		return statemachine.HeartbeatItem(item, request, now.Add(itemLease), now)
	case statemachine.OpComplete:
		return statemachine.CompleteItem(item, request, itemResult, now)
	case statemachine.OpFail:
		return statemachine.FailItem(item, request, statemachine.ItemFailure{Code: "corrupt_pdf", Message: "Page 3."}, now)
	case statemachine.OpStall:
		return statemachine.StallItem(item, request, now)
	case statemachine.OpRequeueStalled:
		return statemachine.RequeueItem(item, request, itemDirective(item.AttemptNo+1), now)
	}
	panic("no such operation: " + op)
}

// actorOf returns an actor that may perform the operation if anna owns the item.
func actorOf(op statemachine.ItemOperation) string {
	switch op {
	case statemachine.OpStall, statemachine.OpRequeueStalled, statemachine.OpEnqueue:
		return sweeper
	default:
		return anna
	}
}

// must fails the test unless the change was accepted and left a valid item.
func itemMust(t testing.TB) func(statemachine.ItemChange, error) statemachine.Item {
	t.Helper()
	return func(change statemachine.ItemChange, err error) statemachine.Item {
		t.Helper()
		if err == nil {
			err = statemachine.ValidateItem(change.Item)
		}
		if err != nil {
			t.Fatal(err)
		}
		return change.Item
	}
}

// queued returns an item that was just enqueued.
func queuedItem(t testing.TB) statemachine.Item {
	t.Helper()
	return itemMust(t)(statemachine.EnqueueItem(nil, "work-1", "relay", itemMessage(1), itemT0))
}

// walk lists the operations that lead to each status.
var walkItem = map[statemachine.ItemStatus][]statemachine.ItemOperation{
	statemachine.StatusQueued:    {},
	statemachine.StatusClaimed:   {statemachine.OpClaimNext},
	statemachine.StatusRunning:   {statemachine.OpClaimNext, statemachine.OpStart},
	statemachine.StatusSucceeded: {statemachine.OpClaimNext, statemachine.OpStart, statemachine.OpComplete},
	statemachine.StatusFailed:    {statemachine.OpClaimNext, statemachine.OpStart, statemachine.OpFail},
	statemachine.StatusStalled:   {statemachine.OpClaimNext, statemachine.OpStart, statemachine.OpStall},
}

// in returns an item in that status; its owner is or was anna.
func in(t testing.TB, status statemachine.ItemStatus) statemachine.Item {
	t.Helper()
	item := queuedItem(t)
	for _, op := range walkItem[status] {
		item = itemMust(t)(perform(op, item, by(actorOf(op), item), itemT0))
	}
	if item.Status != status {
		t.Fatalf("walked to %s, want %s", item.Status, status)
	}
	return item
}

// wantField fails the test unless the error names that field of the request.
func wantField(t testing.TB, err error, field string) {
	t.Helper()
	var request *statemachine.ItemRequestError
	if !errors.As(err, &request) || !errors.Is(err, statemachine.ErrInvalidRequest) {
		t.Errorf("error is %v, want ErrInvalidRequest", err)
		return
	}
	if request.Field != field {
		t.Errorf("error names %s, want %s: %v", request.Field, field, err)
	}
}

// wantRepeat fails the test unless the change is a repeat that changes nothing.
func wantRepeat(t testing.TB, item statemachine.Item, change statemachine.ItemChange, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("repeat refused: %v", err)
		return
	}
	if diff := cmp.Diff(statemachine.ItemChange{Item: item, Repeat: true}, change); diff != "" {
		t.Errorf("repeat (-want +got):\n%s", diff)
	}
}
