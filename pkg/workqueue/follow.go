package workqueue

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Follow makes the items of a job follow its change: what the ledger has
// decided, the queue shows. It reads nothing for a change that no item cares
// about. The end of a job brings all its items in line: nobody looks at it again
// who could find one that a lost write left behind.
func (s *Storage) Follow(ctx context.Context, before, after *statemachine.Aggregate) ([]tablestore.Batch, error) {
	if after.Job.State.Terminal() {
		return s.followEnd(ctx, after, "")
	}
	var batches []tablestore.Batch
	for i := range after.Steps {
		if !matters(before.Steps[i].State, after.Steps[i].State) {
			continue
		}
		more, err := s.followStep(ctx, after.Job.ID, &after.Steps[i])
		if err != nil {
			return nil, err
		}
		batches = append(batches, more...)
	}
	return batches, nil
}

// followEnd brings the items of a job that has ended in line, but for one that
// somebody else moves.
func (s *Storage) followEnd(ctx context.Context, after *statemachine.Aggregate, but string) ([]tablestore.Batch, error) {
	items, err := s.itemsUnder(ctx, after.Job.ID, rowItem)
	if err != nil {
		return nil, err
	}
	var batches []tablestore.Batch
	for _, item := range items {
		if item.item.WorkID == but {
			continue
		}
		more, err := s.followItem(item, &after.Steps[item.id.StepIndex])
		if err != nil {
			return nil, fmt.Errorf("follow job %s: %w", after.Job.ID, err)
		}
		batches = append(batches, more...)
	}
	return batches, nil
}

// matters reports whether items may have to follow a step's change of state.
func matters(before, after statemachine.StepState) bool {
	if before == after || before == statemachine.StepPending {
		return false
	}
	return after == statemachine.StepInProgress || after == statemachine.StepFailedRetry || after.Terminal()
}

// followStep brings the items of one step in line with it.
func (s *Storage) followStep(ctx context.Context, jobID string, step *statemachine.Step) ([]tablestore.Batch, error) {
	items, err := s.items(ctx, jobID, step.Index)
	if err != nil {
		return nil, err
	}
	var batches []tablestore.Batch
	for _, item := range items {
		more, err := s.followItem(item, step)
		if err != nil {
			return nil, fmt.Errorf("follow job %s: %w", jobID, err)
		}
		batches = append(batches, more...)
	}
	return batches, nil
}

// followItem is what one item has to do to show what its step is.
func (s *Storage) followItem(one *stored, step *statemachine.Step) ([]tablestore.Batch, error) {
	item := one.item
	if item.Status.Terminal() || item.AttemptNo > step.AttemptNo {
		return nil, nil // It has ended, or carries what the ledger decided later.
	}
	if item.AttemptNo < step.AttemptNo && !step.State.Terminal() {
		return s.followSuperseded(one)
	}
	var change lifecycle.Change
	var err error
	switch step.State {
	case statemachine.StepSucceeded:
		if item.Status != lifecycle.StatusRunning {
			return s.remove(one)
		}
		change, err = lifecycle.Complete(item, inOwnersName(&item), resultOf(step), now())
	case statemachine.StepFailedFinal, statemachine.StepCancelled:
		if item.Status != lifecycle.StatusRunning {
			return s.remove(one)
		}
		change, err = lifecycle.Fail(item, inOwnersName(&item), failureOf(step), now())
	case statemachine.StepFailedRetry:
		return s.followRetry(one, step)
	case statemachine.StepInProgress:
		if item.Status != lifecycle.StatusClaimed || item.AttemptNo != step.AttemptNo {
			return nil, nil
		}
		change, err = lifecycle.Start(item, inOwnersName(&item), step.LeaseExpiresAt, now())
	case statemachine.StepPending, statemachine.StepDispatching, statemachine.StepAwaitingAck:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.writes(one, change), nil
}

// followSuperseded takes an item of an older attempt from whoever shows as its
// owner: the next attempt's directive comes to a stalled item.
func (s *Storage) followSuperseded(one *stored) ([]tablestore.Batch, error) {
	switch one.item.Status {
	case lifecycle.StatusClaimed, lifecycle.StatusRunning:
		change, err := lifecycle.Stall(one.item, systemRequest(&one.item), now())
		if err != nil {
			return nil, err
		}
		return s.writes(one, change), nil
	case lifecycle.StatusQueued:
		return s.remove(one)
	case lifecycle.StatusNone, lifecycle.StatusStalled, lifecycle.StatusSucceeded, lifecycle.StatusFailed:
	}
	return nil, nil
}

// followRetry handles a step that waits for its next attempt: a RESULT ends
// the item for good, a deadline takes it from its worker, and one that nobody
// took is withdrawn.
func (s *Storage) followRetry(one *stored, step *statemachine.Step) ([]tablestore.Batch, error) {
	item := one.item
	reported := len(step.Attempts) > 0 && step.Attempts[len(step.Attempts)-1].Result == statemachine.ResultFailedRetry
	var change lifecycle.Change
	var err error
	switch {
	case item.Status == lifecycle.StatusStalled:
		return nil, nil
	case item.Status == lifecycle.StatusQueued:
		return s.remove(one)
	case reported && item.Status == lifecycle.StatusRunning:
		change, err = lifecycle.Fail(item, inOwnersName(&item), failureOf(step), now())
	default:
		change, err = lifecycle.Stall(item, systemRequest(&item), now())
	}
	if err != nil {
		return nil, err
	}
	return s.writes(one, change), nil
}

// remove drops an item from the queue.
func (s *Storage) remove(one *stored) ([]tablestore.Batch, error) {
	change, err := lifecycle.Remove(one.item, systemRequest(&one.item), now())
	if err != nil {
		return nil, err
	}
	return s.removal(one, change), nil
}

// systemRequest is a move that the ledger asks for.
func systemRequest(item *lifecycle.Item) lifecycle.Request {
	return lifecycle.Request{Actor: "ledger", ExpectedRev: item.Rev, ID: fmt.Sprint("ledger-", item.Rev)}
}

// inOwnersName is a move that the owner made by way of the ledger, such as by
// an HTTP callback.
func inOwnersName(item *lifecycle.Item) lifecycle.Request {
	request := systemRequest(item)
	request.Actor = item.Owner
	return request
}

// resultOf is the result of a step that succeeded.
func resultOf(step *statemachine.Step) json.RawMessage {
	return resultObject(step.OutputRef, step.ResultRef)
}

// resultObject is an item's result: its references, as they were sent.
func resultObject(outputRef, resultRef json.RawMessage) json.RawMessage {
	object := []byte{'{'}
	if len(outputRef) > 0 {
		object = append(append(object, `"output_ref":`...), outputRef...)
	}
	if len(resultRef) > 0 {
		if len(object) > 1 {
			object = append(object, ',')
		}
		object = append(append(object, `"result_ref":`...), resultRef...)
	}
	return append(object, '}')
}

// failureOf is the error of a step that failed or was cancelled.
func failureOf(step *statemachine.Step) lifecycle.Failure {
	failure := lifecycle.Failure{Code: step.LastErrorCode, Message: step.LastErrorMessage}
	if step.State == statemachine.StepCancelled || failure.Code == "" {
		failure.Code = statemachine.ErrorCancelled
	}
	return failure
}
