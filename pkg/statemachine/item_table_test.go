package statemachine_test

import (
	"slices"
	"testing"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// facts are the input of the table: a step, its outbox row, the record of its attempt (nil
// if there is none), and how the step came to its state.
type itemFacts struct {
	step   *statemachine.Step
	row    statemachine.Outbox // its State is empty if there was none
	record *statemachine.ItemRecord
	how    itemCause
	past   bool // a report came for the attempt while it was unclaimed
}

func (f *itemFacts) open() bool    { return f.record != nil && f.record.Open() }
func (f *itemFacts) unowned() bool { return f.open() && f.record.Owner == "" }
func (f *itemFacts) owned() bool   { return f.open() && f.record.Owner != "" }
func (f *itemFacts) ended() bool   { return f.record != nil && !f.record.Open() && !f.record.Removed }
func (f *itemFacts) gone() bool    { return f.record == nil || f.record.Removed }
func (f *itemFacts) sent() bool    { return f.row.State == statemachine.OutboxSent }

func (f *itemFacts) in(states ...statemachine.StepState) bool {
	return slices.Contains(states, f.step.State)
}

func (f *itemFacts) byResult() bool {
	_, ok := f.how.by.(statemachine.Result)
	return ok
}

func (f *itemFacts) byDeadlineOrOperator() bool {
	switch f.how.by.(type) {
	case statemachine.DeadlinePassed, statemachine.Stall:
		return true
	}
	return false
}

func (f *itemFacts) byPause() bool {
	_, ok := f.how.by.(statemachine.Pause)
	return ok
}

// row is a row of the table; the first that matches counts.
type itemRow struct {
	name   string
	fits   func(*itemFacts) bool
	status func(*itemFacts) statemachine.ItemStatus
	// reach are event sequences that lead to the row.
	reach map[string]func(*itemJob)
}

func itemAlways(status statemachine.ItemStatus) func(*itemFacts) statemachine.ItemStatus {
	return func(*itemFacts) statemachine.ItemStatus { return status }
}

// ofResult returns the status of a held item after a RESULT.
func ofItemResult(f *itemFacts) statemachine.ItemStatus {
	if f.step.State == statemachine.StepSucceeded {
		return statemachine.StatusSucceeded
	}
	return statemachine.StatusFailed
}

// table gives the status that workers see of each step.
func itemTable() []itemRow {
	return []itemRow{
		{
			name:   "an attempt on Service Bus has no item",
			fits:   func(f *itemFacts) bool { return f.row.Bus == statemachine.BusServiceBus && f.record == nil },
			status: itemAlways(statemachine.StatusNone),
			reach: map[string]func(*itemJob){
				"queued, then the bus was changed": func(j *itemJob) {
					j.on(statemachine.BusServiceBus).applied(statemachine.DeadlinePassed{})
				},
				"stalled, then dispatched on another bus": func(j *itemJob) {
					j.does(claimItem(followAnna)).expire().on(statemachine.BusServiceBus).expire()
				},
				"stalled, its held row taken by another bus": func(j *itemJob) {
					j.does(claimItem(followAnna), stallItem()).holding(true).does(requeueItem()).on(statemachine.BusServiceBus).applied(statemachine.DispatchClaimed{})
				},
				"running there": func(j *itemJob) {
					j.on(statemachine.BusServiceBus).applied(statemachine.DeadlinePassed{})
					j.applied(j.mark(), j.ack())
				},
			},
		},
		{
			name:   "a report on an unclaimed attempt has removed its item",
			fits:   func(f *itemFacts) bool { return f.past && f.gone() },
			status: itemAlways(statemachine.StatusNone),
			reach: map[string]func(*itemJob){
				"an ACK":                           func(j *itemJob) { j.applied(j.ack()) },
				"an ACK, and the end of the lease": func(j *itemJob) { j.applied(j.ack()).expire() },
				"a retryable failure":              func(j *itemJob) { j.applied(j.result(statemachine.ResultFailedRetry)) },
			},
		},
		{
			name: "PENDING, or DISPATCHING",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepPending, statemachine.StepDispatching) && f.row.State != statemachine.OutboxSent && !f.open()
			},
			status: itemAlways(statemachine.StatusNone),
			reach: map[string]func(*itemJob){
				"held back at the next step": func(j *itemJob) { j.holding(true).does(claimAndStartItem(followAnna), completeItem(followAnna)) },
				"held back after a failure": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna), failItem(followAnna, statemachine.ResultFailedRetry)).holding(true).expire()
				},
				"held back after a pause": func(j *itemJob) {
					j.applied(statemachine.Pause{}).holding(true).applied(statemachine.Resume{})
				},
			},
		},
		{
			name: "DISPATCHING, the requeue of a stalled item held back",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepDispatching) && f.row.State == statemachine.OutboxPending && f.unowned()
			},
			status: itemAlways(statemachine.StatusStalled),
			reach: map[string]func(*itemJob){
				"by an operator":   func(j *itemJob) { j.does(claimItem(followAnna), stallItem()).holding(true).does(requeueItem()) },
				"by the sweeper":   func(j *itemJob) { j.does(claimItem(followAnna)).expire().holding(true).expire() },
				"by a job's retry": func(j *itemJob) { j.does(claimItem(followAnna)).expire().holding(true).applied(statemachine.Retry{}) },
				"taken up by a relay": func(j *itemJob) {
					j.does(claimItem(followAnna)).expire().holding(true).expire().later(1).applied(statemachine.DispatchClaimed{})
				},
			},
		},
		{
			name: "AWAITING_ACK, no lease",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepAwaitingAck) && f.step.LeaseExpiresAt.IsZero() && f.sent() && f.unowned() && f.record.ReadyRev > 0
			},
			status: itemAlways(statemachine.StatusQueued),
			reach: map[string]func(*itemJob){
				"accepted":      func(*itemJob) {},
				"the next step": func(j *itemJob) { j.does(claimAndStartItem(followAnna), completeItem(followAnna)) },
				"the retry is due": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna), failItem(followAnna, statemachine.ResultFailedRetry)).expire()
				},
				"requeued": func(j *itemJob) { j.does(claimItem(followAnna), stallItem(), requeueItem()) },
				"resumed":  func(j *itemJob) { j.applied(statemachine.Pause{}, statemachine.Resume{}) },
				"marked": func(j *itemJob) {
					j.does(claimItem(followAnna), stallItem()).holding(true).does(requeueItem()).applied(j.mark())
				},
			},
		},
		{
			name: "AWAITING_ACK, lease",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepAwaitingAck) && !f.step.LeaseExpiresAt.IsZero() && f.sent() && f.owned()
			},
			status: itemAlways(statemachine.StatusClaimed),
			reach: map[string]func(*itemJob){
				"claimed":            func(j *itemJob) { j.does(claimItem(followAnna)) },
				"extended":           func(j *itemJob) { j.does(claimItem(followAnna), beatItem(followAnna)) },
				"the job is pausing": func(j *itemJob) { j.does(claimItem(followAnna)).applied(statemachine.Pause{}) },
				"the job is to end":  func(j *itemJob) { j.does(claimItem(followAnna)).applied(statemachine.Cancel{}) },
				"the bus was changed": func(j *itemJob) {
					j.does(claimItem(followAnna)).on(statemachine.BusServiceBus).applied(statemachine.DeadlinePassed{})
				},
			},
		},
		{
			name:   "IN_PROGRESS",
			fits:   func(f *itemFacts) bool { return f.in(statemachine.StepInProgress) && f.sent() && f.owned() },
			status: itemAlways(statemachine.StatusRunning),
			reach: map[string]func(*itemJob){
				"started":                 func(j *itemJob) { j.does(claimItem(followAnna), beginItem(followAnna)) },
				"claimed with start":      func(j *itemJob) { j.does(claimAndStartItem(followAnna)) },
				"ACKed by callback":       func(j *itemJob) { j.does(claimItem(followAnna)).applied(j.ack()) },
				"a callback as the start": func(j *itemJob) { j.does(claimItem(followAnna)).applied(j.heartbeat()) },
			},
		},
		{
			name: "FAILED_RETRY by deadline or operator",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepFailedRetry) && f.byDeadlineOrOperator() && f.sent() && f.unowned()
			},
			status: itemAlways(statemachine.StatusStalled),
			reach: map[string]func(*itemJob){
				"no ACK in time":   func(j *itemJob) { j.does(claimItem(followAnna)).expire() },
				"the lease ended":  func(j *itemJob) { j.does(claimAndStartItem(followAnna)).expire() },
				"by an operator":   func(j *itemJob) { j.does(claimItem(followAnna), stallItem()) },
				"and then a pause": func(j *itemJob) { j.does(claimItem(followAnna), stallItem()).applied(statemachine.Pause{}) },
				"and a late failure": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna)).expire().applied(j.result(statemachine.ResultFailedRetry))
				},
			},
		},
		{
			name: "FAILED_RETRY by RESULT",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepFailedRetry) && f.byResult() && f.sent() && f.ended()
			},
			status: itemAlways(statemachine.StatusFailed),
			reach: map[string]func(*itemJob){
				"by the queue": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna), failItem(followAnna, statemachine.ResultFailedRetry))
				},
				"by a callback": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna)).applied(j.result(statemachine.ResultFailedRetry))
				},
			},
		},
		{
			name: "FAILED_RETRY by withdrawal",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepFailedRetry) && f.byPause() && f.row.State != statemachine.OutboxPending && f.gone()
			},
			status: itemAlways(statemachine.StatusNone),
			reach: map[string]func(*itemJob){
				"while queued": func(j *itemJob) { j.applied(statemachine.Pause{}) },
				"while held back": func(j *itemJob) {
					j.holding(true).does(claimAndStartItem(followAnna), completeItem(followAnna)).applied(statemachine.Pause{})
				},
				"while a requeue was held back": func(j *itemJob) {
					j.does(claimItem(followAnna), stallItem()).holding(true).does(requeueItem()).applied(statemachine.Pause{})
				},
			},
		},
		{
			name: "SUCCEEDED, FAILED_FINAL by RESULT while held",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepSucceeded, statemachine.StepFailedFinal) && f.byResult() && f.how.held && f.sent() && f.ended()
			},
			status: ofItemResult,
			reach: map[string]func(*itemJob){
				"a success": func(j *itemJob) { lastItemStep(j).does(claimAndStartItem(followAnna), completeItem(followAnna)) },
				"a success while cancelling": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna)).applied(statemachine.Cancel{}).does(completeItem(followAnna))
				},
				"a final failure": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna), failItem(followAnna, statemachine.ResultFailedFinal))
				},
				"the last retryable failure": func(j *itemJob) {
					j.agg.Steps[0].Policy.Execution = nil
					j.does(claimAndStartItem(followAnna), failItem(followAnna, statemachine.ResultFailedRetry))
				},
				"a callback on a claimed item": func(j *itemJob) {
					lastItemStep(j).does(claimItem(followAnna)).applied(j.result(statemachine.ResultSucceeded))
				},
			},
		},
		{
			name: "CANCELLED by a retryable fail, or after one",
			fits: func(f *itemFacts) bool {
				return f.in(statemachine.StepCancelled) && f.sent() && f.ended() &&
					f.step.Result(f.record.AttemptNo) == statemachine.ResultFailedRetry
			},
			status: itemAlways(statemachine.StatusFailed),
			reach: map[string]func(*itemJob){
				"by the queue": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna)).applied(statemachine.Cancel{}).does(failItem(followAnna, statemachine.ResultFailedRetry))
				},
				"by a callback": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna)).applied(statemachine.Cancel{}, j.result(statemachine.ResultFailedRetry))
				},
				"while the retry waits": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna), failItem(followAnna, statemachine.ResultFailedRetry)).applied(statemachine.Cancel{})
				},
			},
		},
		{
			name: "terminal by deadline or operator's stall",
			fits: func(f *itemFacts) bool {
				return f.step.State.Terminal() && f.byDeadlineOrOperator() && f.sent() && f.how.held &&
					f.record != nil && f.record.Removed && f.record.Ended == statemachine.StatusStalled
			},
			status: itemAlways(statemachine.StatusNone),
			reach: map[string]func(*itemJob){
				"the budget of ACKs is spent": func(j *itemJob) {
					j.agg.Steps[0].Policy.Ack = nil
					j.does(claimItem(followAnna)).expire()
				},
				"the budget of runs is spent": func(j *itemJob) {
					j.agg.Steps[0].Policy.Execution = nil
					j.does(claimAndStartItem(followAnna)).expire()
				},
				"the deadline while cancelling": func(j *itemJob) { j.does(claimItem(followAnna)).applied(statemachine.Cancel{}).expire() },
				"a stall while cancelling": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna)).applied(statemachine.Cancel{}).does(stallItem())
				},
			},
		},
		{
			name:   "terminal by late RESULT, or cancelled while queued or stalled",
			fits:   func(f *itemFacts) bool { return f.step.State.Terminal() && !f.how.held && f.gone() },
			status: itemAlways(statemachine.StatusNone),
			reach: map[string]func(*itemJob){
				"a late success": func(j *itemJob) {
					lastItemStep(j).does(claimAndStartItem(followAnna)).expire().applied(j.result(statemachine.ResultSucceeded))
				},
				"a late final failure": func(j *itemJob) {
					j.does(claimAndStartItem(followAnna)).expire().applied(j.result(statemachine.ResultFailedFinal))
				},
				"cancelled while queued": func(j *itemJob) { j.applied(statemachine.Cancel{}) },
				"cancelled while stalled": func(j *itemJob) {
					j.does(claimItem(followAnna)).expire().applied(statemachine.Cancel{})
				},
				"cancelled while a requeue was held back": func(j *itemJob) {
					j.does(claimItem(followAnna), stallItem()).holding(true).does(requeueItem()).applied(statemachine.Cancel{})
				},
				"a publish that failed for good": func(j *itemJob) {
					j.does(claimItem(followAnna), stallItem()).holding(true).does(requeueItem())
					j.applied(statemachine.PublishRejected{OutboxID: j.agg.Outbox.ID, AttemptNo: 2, Permanent: true, Reason: "too large"})
				},
			},
		},
	}
}

// lastStep advances the job to its last step, queued.
func lastItemStep(j *itemJob) *itemJob {
	return j.does(claimAndStartItem(followAnna), completeItem(followAnna))
}

// standing returns the first row of the table that matches a step, and its status; the name
// is empty if none matches.
func (j *itemJob) standing(agg *statemachine.Aggregate, i int) (name string, status statemachine.ItemStatus) {
	step := &agg.Steps[i]
	f := &itemFacts{
		step: step, row: j.known.rows[i], record: j.record(agg, i), how: j.known.how[i], past: j.known.unclaimed[itemAttempt(step)],
	}
	for _, row := range j.table {
		if row.fits(f) {
			return row.name, row.status(f)
		}
	}
	return "", statemachine.StatusNone
}

// TestView_TheStatusOfEachStep visits every row of the table. After each change on the way
// it checks the status and all other rules.
func TestView_TheStatusOfEachStep(t *testing.T) {
	t.Parallel()
	for _, row := range itemTable() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for name, reach := range row.reach {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					j := newItemJob(t)
					reach(j)
					i := j.step().Index
					if j.agg.Job.State.Terminal() {
						i = j.agg.Job.CurrentStepIndex
					}
					if got, _ := j.standing(&j.agg, i); got != row.name {
						t.Errorf("the row that fits is %q", got)
					}
				})
			}
		})
	}
}
