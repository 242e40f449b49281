package lifecycle_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
)

const (
	anna    = "anna"
	bert    = "bert"
	sweeper = "sweeper"
	lease   = 15 * time.Minute
)

var (
	t0     = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)
	result = json.RawMessage(`{"result_ref":{"uri":"s3://bucket/out.json"}}`)
)

func directive(attemptNo int) lifecycle.Directive {
	return lifecycle.Directive{
		MessageID: fmt.Sprintf("job-1.0/%d", attemptNo),
		AttemptNo: attemptNo,
		LeaseID:   fmt.Sprintf("lease-%d", attemptNo),
	}
}

func message(attemptNo int) lifecycle.Message {
	d := directive(attemptNo)
	return lifecycle.Message{
		Directive: d, DedupeKey: d.MessageID,
		JobID: "job-1", StepID: "ocr", TenantID: "tenant_a", Service: "ocr", StepType: "OCR",
	}
}

// by returns the actor's request for the item at its current rev, with a new id.
func by(actor string, item lifecycle.Item) lifecycle.Request {
	return lifecycle.Request{Actor: actor, ExpectedRev: item.Rev, ID: fmt.Sprintf("%s-%d", actor, item.Rev)}
}

// perform performs the operation with valid arguments.
func perform(op lifecycle.Operation, item lifecycle.Item, request lifecycle.Request, now time.Time) (lifecycle.Change, error) {
	switch op {
	case lifecycle.OpEnqueue:
		return lifecycle.Enqueue(&item, item.WorkID, request.Actor, message(item.AttemptNo+1), now)
	case lifecycle.OpClaimNext:
		return lifecycle.Claim(item, request, now.Add(lease), now)
	case lifecycle.OpStart:
		return lifecycle.Start(item, request, now.Add(lease), now)
	case lifecycle.OpHeartbeat:
		return lifecycle.Heartbeat(item, request, now.Add(lease), now)
	case lifecycle.OpComplete:
		return lifecycle.Complete(item, request, result, now)
	case lifecycle.OpFail:
		return lifecycle.Fail(item, request, lifecycle.Failure{Code: "corrupt_pdf", Message: "Page 3."}, now)
	case lifecycle.OpStall:
		return lifecycle.Stall(item, request, now)
	case lifecycle.OpRequeueStalled:
		return lifecycle.Requeue(item, request, directive(item.AttemptNo+1), now)
	}
	panic("no such operation: " + op)
}

// actorOf returns an actor that may perform the operation if anna owns the item.
func actorOf(op lifecycle.Operation) string {
	switch op {
	case lifecycle.OpStall, lifecycle.OpRequeueStalled, lifecycle.OpEnqueue:
		return sweeper
	default:
		return anna
	}
}

// must fails the test unless the change was accepted and left a valid item.
func must(t testing.TB) func(lifecycle.Change, error) lifecycle.Item {
	t.Helper()
	return func(change lifecycle.Change, err error) lifecycle.Item {
		t.Helper()
		if err == nil {
			err = lifecycle.Validate(change.Item)
		}
		if err != nil {
			t.Fatal(err)
		}
		return change.Item
	}
}

// queued returns an item that was just enqueued.
func queued(t testing.TB) lifecycle.Item {
	t.Helper()
	return must(t)(lifecycle.Enqueue(nil, "work-1", "relay", message(1), t0))
}

// walk lists the operations that lead to each status.
var walk = map[lifecycle.Status][]lifecycle.Operation{
	lifecycle.StatusQueued:    {},
	lifecycle.StatusClaimed:   {lifecycle.OpClaimNext},
	lifecycle.StatusRunning:   {lifecycle.OpClaimNext, lifecycle.OpStart},
	lifecycle.StatusSucceeded: {lifecycle.OpClaimNext, lifecycle.OpStart, lifecycle.OpComplete},
	lifecycle.StatusFailed:    {lifecycle.OpClaimNext, lifecycle.OpStart, lifecycle.OpFail},
	lifecycle.StatusStalled:   {lifecycle.OpClaimNext, lifecycle.OpStart, lifecycle.OpStall},
}

// in returns an item in that status; its owner is or was anna.
func in(t testing.TB, status lifecycle.Status) lifecycle.Item {
	t.Helper()
	item := queued(t)
	for _, op := range walk[status] {
		item = must(t)(perform(op, item, by(actorOf(op), item), t0))
	}
	if item.Status != status {
		t.Fatalf("walked to %s, want %s", item.Status, status)
	}
	return item
}

// wantField fails the test unless the error names that field of the request.
func wantField(t testing.TB, err error, field string) {
	t.Helper()
	var request *lifecycle.RequestError
	if !errors.As(err, &request) || !errors.Is(err, lifecycle.ErrInvalidRequest) {
		t.Errorf("error is %v, want ErrInvalidRequest", err)
		return
	}
	if request.Field != field {
		t.Errorf("error names %s, want %s: %v", request.Field, field, err)
	}
}

// wantRepeat fails the test unless the change is a repeat that changes nothing.
func wantRepeat(t testing.TB, item lifecycle.Item, change lifecycle.Change, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("repeat refused: %v", err)
		return
	}
	if diff := cmp.Diff(lifecycle.Change{Item: item, Repeat: true}, change); diff != "" {
		t.Errorf("repeat (-want +got):\n%s", diff)
	}
}
