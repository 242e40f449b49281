package workitem_test

import (
	"slices"
	"testing"

	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/statemachine/lifecycle"
	"github.com/lucius-project/lucius/pkg/statemachine/workitem"
)

// facts are the input of the table: a step, its outbox row, the record of its attempt (nil
// if there is none), and how the step came to its state.
type facts struct {
	step   *statemachine.Step
	row    statemachine.Outbox // its State is empty if there was none
	record *workitem.Record
	how    cause
	past   bool // a report came for the attempt while it was unclaimed
}

func (f *facts) open() bool    { return f.record != nil && f.record.Open() }
func (f *facts) unowned() bool { return f.open() && f.record.Owner == "" }
func (f *facts) owned() bool   { return f.open() && f.record.Owner != "" }
func (f *facts) ended() bool   { return f.record != nil && !f.record.Open() && !f.record.Removed }
func (f *facts) gone() bool    { return f.record == nil || f.record.Removed }
func (f *facts) sent() bool    { return f.row.State == statemachine.OutboxSent }

func (f *facts) in(states ...statemachine.StepState) bool {
	return slices.Contains(states, f.step.State)
}

func (f *facts) byResult() bool {
	_, ok := f.how.by.(statemachine.Result)
	return ok
}

func (f *facts) byDeadlineOrOperator() bool {
	switch f.how.by.(type) {
	case statemachine.DeadlinePassed, statemachine.Stall:
		return true
	}
	return false
}

func (f *facts) byPause() bool {
	_, ok := f.how.by.(statemachine.Pause)
	return ok
}

// row is a row of the table; the first that matches counts.
type row struct {
	name   string
	fits   func(*facts) bool
	status func(*facts) lifecycle.Status
	// reach are event sequences that lead to the row.
	reach map[string]func(*job)
}

func always(status lifecycle.Status) func(*facts) lifecycle.Status {
	return func(*facts) lifecycle.Status { return status }
}

// ofResult returns the status of a held item after a RESULT.
func ofResult(f *facts) lifecycle.Status {
	if f.step.State == statemachine.StepSucceeded {
		return lifecycle.StatusSucceeded
	}
	return lifecycle.StatusFailed
}

// table gives the status that workers see of each step.
func table() []row {
	return []row{
		{
			name:   "an attempt on Service Bus has no item",
			fits:   func(f *facts) bool { return f.row.Bus == statemachine.BusServiceBus && f.record == nil },
			status: always(lifecycle.StatusNone),
			reach: map[string]func(*job){
				"queued, then the bus was changed": func(j *job) {
					j.on(statemachine.BusServiceBus).applied(statemachine.DeadlinePassed{})
				},
				"stalled, then dispatched on another bus": func(j *job) {
					j.does(claim(anna)).expire().on(statemachine.BusServiceBus).expire()
				},
				"stalled, its held row taken by another bus": func(j *job) {
					j.does(claim(anna), stall()).holding(true).does(requeue()).on(statemachine.BusServiceBus).applied(statemachine.DispatchClaimed{})
				},
				"running there": func(j *job) {
					j.on(statemachine.BusServiceBus).applied(statemachine.DeadlinePassed{})
					j.applied(j.mark(), j.ack())
				},
			},
		},
		{
			name:   "a report on an unclaimed attempt has removed its item",
			fits:   func(f *facts) bool { return f.past && f.gone() },
			status: always(lifecycle.StatusNone),
			reach: map[string]func(*job){
				"an ACK":                           func(j *job) { j.applied(j.ack()) },
				"an ACK, and the end of the lease": func(j *job) { j.applied(j.ack()).expire() },
				"a retryable failure":              func(j *job) { j.applied(j.result(statemachine.ResultFailedRetry)) },
			},
		},
		{
			name: "PENDING, or DISPATCHING",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepPending, statemachine.StepDispatching) && f.row.State != statemachine.OutboxSent && !f.open()
			},
			status: always(lifecycle.StatusNone),
			reach: map[string]func(*job){
				"held back at the next step": func(j *job) { j.holding(true).does(claimAndStart(anna), complete(anna)) },
				"held back after a failure": func(j *job) {
					j.does(claimAndStart(anna), fail(anna, statemachine.ResultFailedRetry)).holding(true).expire()
				},
				"held back after a pause": func(j *job) {
					j.applied(statemachine.Pause{}).holding(true).applied(statemachine.Resume{})
				},
			},
		},
		{
			name: "DISPATCHING, the requeue of a stalled item held back",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepDispatching) && f.row.State == statemachine.OutboxPending && f.unowned()
			},
			status: always(lifecycle.StatusStalled),
			reach: map[string]func(*job){
				"by an operator":   func(j *job) { j.does(claim(anna), stall()).holding(true).does(requeue()) },
				"by the sweeper":   func(j *job) { j.does(claim(anna)).expire().holding(true).expire() },
				"by a job's retry": func(j *job) { j.does(claim(anna)).expire().holding(true).applied(statemachine.Retry{}) },
				"taken up by a relay": func(j *job) {
					j.does(claim(anna)).expire().holding(true).expire().later(1).applied(statemachine.DispatchClaimed{})
				},
			},
		},
		{
			name: "AWAITING_ACK, no lease",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepAwaitingAck) && f.step.LeaseExpiresAt.IsZero() && f.sent() && f.unowned() && f.record.ReadyRev > 0
			},
			status: always(lifecycle.StatusQueued),
			reach: map[string]func(*job){
				"accepted":         func(*job) {},
				"the next step":    func(j *job) { j.does(claimAndStart(anna), complete(anna)) },
				"the retry is due": func(j *job) { j.does(claimAndStart(anna), fail(anna, statemachine.ResultFailedRetry)).expire() },
				"requeued":         func(j *job) { j.does(claim(anna), stall(), requeue()) },
				"resumed":          func(j *job) { j.applied(statemachine.Pause{}, statemachine.Resume{}) },
				"marked":           func(j *job) { j.does(claim(anna), stall()).holding(true).does(requeue()).applied(j.mark()) },
			},
		},
		{
			name: "AWAITING_ACK, lease",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepAwaitingAck) && !f.step.LeaseExpiresAt.IsZero() && f.sent() && f.owned()
			},
			status: always(lifecycle.StatusClaimed),
			reach: map[string]func(*job){
				"claimed":            func(j *job) { j.does(claim(anna)) },
				"extended":           func(j *job) { j.does(claim(anna), beat(anna)) },
				"the job is pausing": func(j *job) { j.does(claim(anna)).applied(statemachine.Pause{}) },
				"the job is to end":  func(j *job) { j.does(claim(anna)).applied(statemachine.Cancel{}) },
				"the bus was changed": func(j *job) {
					j.does(claim(anna)).on(statemachine.BusServiceBus).applied(statemachine.DeadlinePassed{})
				},
			},
		},
		{
			name:   "IN_PROGRESS",
			fits:   func(f *facts) bool { return f.in(statemachine.StepInProgress) && f.sent() && f.owned() },
			status: always(lifecycle.StatusRunning),
			reach: map[string]func(*job){
				"started":                 func(j *job) { j.does(claim(anna), begin(anna)) },
				"claimed with start":      func(j *job) { j.does(claimAndStart(anna)) },
				"ACKed by callback":       func(j *job) { j.does(claim(anna)).applied(j.ack()) },
				"a callback as the start": func(j *job) { j.does(claim(anna)).applied(j.heartbeat()) },
			},
		},
		{
			name: "FAILED_RETRY by deadline or operator",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepFailedRetry) && f.byDeadlineOrOperator() && f.sent() && f.unowned()
			},
			status: always(lifecycle.StatusStalled),
			reach: map[string]func(*job){
				"no ACK in time":   func(j *job) { j.does(claim(anna)).expire() },
				"the lease ended":  func(j *job) { j.does(claimAndStart(anna)).expire() },
				"by an operator":   func(j *job) { j.does(claim(anna), stall()) },
				"and then a pause": func(j *job) { j.does(claim(anna), stall()).applied(statemachine.Pause{}) },
				"and a late failure": func(j *job) {
					j.does(claimAndStart(anna)).expire().applied(j.result(statemachine.ResultFailedRetry))
				},
			},
		},
		{
			name: "FAILED_RETRY by RESULT",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepFailedRetry) && f.byResult() && f.sent() && f.ended()
			},
			status: always(lifecycle.StatusFailed),
			reach: map[string]func(*job){
				"by the queue":  func(j *job) { j.does(claimAndStart(anna), fail(anna, statemachine.ResultFailedRetry)) },
				"by a callback": func(j *job) { j.does(claimAndStart(anna)).applied(j.result(statemachine.ResultFailedRetry)) },
			},
		},
		{
			name: "FAILED_RETRY by withdrawal",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepFailedRetry) && f.byPause() && f.row.State != statemachine.OutboxPending && f.gone()
			},
			status: always(lifecycle.StatusNone),
			reach: map[string]func(*job){
				"while queued":    func(j *job) { j.applied(statemachine.Pause{}) },
				"while held back": func(j *job) { j.holding(true).does(claimAndStart(anna), complete(anna)).applied(statemachine.Pause{}) },
				"while a requeue was held back": func(j *job) {
					j.does(claim(anna), stall()).holding(true).does(requeue()).applied(statemachine.Pause{})
				},
			},
		},
		{
			name: "SUCCEEDED, FAILED_FINAL by RESULT while held",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepSucceeded, statemachine.StepFailedFinal) && f.byResult() && f.how.held && f.sent() && f.ended()
			},
			status: ofResult,
			reach: map[string]func(*job){
				"a success":                  func(j *job) { lastStep(j).does(claimAndStart(anna), complete(anna)) },
				"a success while cancelling": func(j *job) { j.does(claimAndStart(anna)).applied(statemachine.Cancel{}).does(complete(anna)) },
				"a final failure":            func(j *job) { j.does(claimAndStart(anna), fail(anna, statemachine.ResultFailedFinal)) },
				"the last retryable failure": func(j *job) {
					j.agg.Steps[0].Policy.Execution = nil
					j.does(claimAndStart(anna), fail(anna, statemachine.ResultFailedRetry))
				},
				"a callback on a claimed item": func(j *job) { lastStep(j).does(claim(anna)).applied(j.result(statemachine.ResultSucceeded)) },
			},
		},
		{
			name: "CANCELLED by a retryable fail, or after one",
			fits: func(f *facts) bool {
				return f.in(statemachine.StepCancelled) && f.sent() && f.ended() &&
					f.step.Result(f.record.AttemptNo) == statemachine.ResultFailedRetry
			},
			status: always(lifecycle.StatusFailed),
			reach: map[string]func(*job){
				"by the queue": func(j *job) {
					j.does(claimAndStart(anna)).applied(statemachine.Cancel{}).does(fail(anna, statemachine.ResultFailedRetry))
				},
				"by a callback": func(j *job) {
					j.does(claimAndStart(anna)).applied(statemachine.Cancel{}, j.result(statemachine.ResultFailedRetry))
				},
				"while the retry waits": func(j *job) {
					j.does(claimAndStart(anna), fail(anna, statemachine.ResultFailedRetry)).applied(statemachine.Cancel{})
				},
			},
		},
		{
			name: "terminal by deadline or operator's stall",
			fits: func(f *facts) bool {
				return f.step.State.Terminal() && f.byDeadlineOrOperator() && f.sent() && f.how.held &&
					f.record != nil && f.record.Removed && f.record.Ended == lifecycle.StatusStalled
			},
			status: always(lifecycle.StatusNone),
			reach: map[string]func(*job){
				"the budget of ACKs is spent": func(j *job) {
					j.agg.Steps[0].Policy.Ack = nil
					j.does(claim(anna)).expire()
				},
				"the budget of runs is spent": func(j *job) {
					j.agg.Steps[0].Policy.Execution = nil
					j.does(claimAndStart(anna)).expire()
				},
				"the deadline while cancelling": func(j *job) { j.does(claim(anna)).applied(statemachine.Cancel{}).expire() },
				"a stall while cancelling":      func(j *job) { j.does(claimAndStart(anna)).applied(statemachine.Cancel{}).does(stall()) },
			},
		},
		{
			name:   "terminal by late RESULT, or cancelled while queued or stalled",
			fits:   func(f *facts) bool { return f.step.State.Terminal() && !f.how.held && f.gone() },
			status: always(lifecycle.StatusNone),
			reach: map[string]func(*job){
				"a late success": func(j *job) {
					lastStep(j).does(claimAndStart(anna)).expire().applied(j.result(statemachine.ResultSucceeded))
				},
				"a late final failure":   func(j *job) { j.does(claimAndStart(anna)).expire().applied(j.result(statemachine.ResultFailedFinal)) },
				"cancelled while queued": func(j *job) { j.applied(statemachine.Cancel{}) },
				"cancelled while stalled": func(j *job) {
					j.does(claim(anna)).expire().applied(statemachine.Cancel{})
				},
				"cancelled while a requeue was held back": func(j *job) {
					j.does(claim(anna), stall()).holding(true).does(requeue()).applied(statemachine.Cancel{})
				},
				"a publish that failed for good": func(j *job) {
					j.does(claim(anna), stall()).holding(true).does(requeue())
					j.applied(statemachine.PublishRejected{OutboxID: j.agg.Outbox.ID, AttemptNo: 2, Permanent: true, Reason: "too large"})
				},
			},
		},
	}
}

// lastStep advances the job to its last step, queued.
func lastStep(j *job) *job { return j.does(claimAndStart(anna), complete(anna)) }

// standing returns the first row of the table that matches a step, and its status; the name
// is empty if none matches.
func (j *job) standing(agg *statemachine.Aggregate, i int) (name string, status lifecycle.Status) {
	step := &agg.Steps[i]
	f := &facts{
		step: step, row: j.known.rows[i], record: j.record(agg, i), how: j.known.how[i], past: j.known.unclaimed[attempt(step)],
	}
	for _, row := range j.table {
		if row.fits(f) {
			return row.name, row.status(f)
		}
	}
	return "", lifecycle.StatusNone
}

// TestView_TheStatusOfEachStep visits every row of the table. After each change on the way
// it checks the status and all other rules.
func TestView_TheStatusOfEachStep(t *testing.T) {
	t.Parallel()
	for _, row := range table() {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for name, reach := range row.reach {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					j := newJob(t)
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
