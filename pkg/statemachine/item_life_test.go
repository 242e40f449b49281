package statemachine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// life is a job that gets any events, in any order, from the queue, callbacks, the relay
// and operators.
type itemLife struct {
	*itemJob
	// asked are all requests that were carried out.
	asked []followRequest
	// seen counts the moves, to show that the lives reach all of them.
	seen map[statemachine.ItemEventType]int
}

// request is a verb of an item that was carried out.
type followRequest struct {
	workID string
	verb   itemVerb
}

// TestFollow_AnyLifeKeepsTheRules applies random events to a job. After every change, the
// checks of [job.check] hold: the open item and those that have ended are valid, and so are
// their histories; at most one is open, none once the job has ended; rev rises exactly with
// moves; the status is the table's; and each move is the lifecycle's.
func TestFollow_AnyLifeKeepsTheRules(t *testing.T) {
	t.Parallel()
	seen := map[statemachine.ItemEventType]int{}
	rapid.Check(t, func(r *rapid.T) {
		l := &itemLife{itemJob: itemDraft(r), seen: seen}
		for i := range l.agg.Steps { // Lives that do not end early.
			p := &l.agg.Steps[i].Policy
			p.Ack, p.Execution = slices.Repeat(p.Ack, 5), slices.Repeat(p.Execution, 5)
		}
		l.deploy(r)
		l.applied(statemachine.Accept{})
		r.Repeat(map[string]func(*rapid.T){
			"verb": l.verb, "another verb": l.verb, "a third verb": l.verb, "repeat": l.repeat, "callback": l.callback,
			"relay": l.relay, "deadline": l.deadline, "control": l.control, "deploy": l.deploy,
		})
	})
	for _, event := range []statemachine.ItemEventType{
		statemachine.ItemEventEnqueued, statemachine.ItemEventClaimed, statemachine.ItemEventStarted, statemachine.ItemEventHeartbeat,
		statemachine.ItemEventSucceeded, statemachine.ItemEventFailed, statemachine.ItemEventStalled, statemachine.ItemEventRequeued,
		statemachine.ItemEventRemoved,
	} {
		if seen[event] == 0 && !testing.Short() { // A short run need not see each.
			t.Errorf("no item was ever %s", event)
		}
	}
}

// tell applies an event that does not come from the queue.
func (l *itemLife) tell(event statemachine.Event) {
	l.count(l.applyEvent(event, statemachine.ItemAsk{}).Outcome == statemachine.Applied)
}

// count counts the moves of a change.
func (l *itemLife) count(applied bool) {
	if !applied {
		return
	}
	for _, e := range l.last.Events {
		l.seen[e.Type]++
	}
}

// verb performs a verb on the open item, mostly one that its status allows, as its owner.
func (l *itemLife) verb(r *rapid.T) {
	if l.open == nil {
		r.Skip("no item is open")
	}
	item := l.item()
	owner := item.Owner
	if owner == "" || itemRarely(r, true, false) {
		owner = rapid.SampledFrom([]string{followAnna, followBert, "ledger", "relay"}).Draw(r, "worker")
	}
	verbs := map[statemachine.ItemStatus][]itemVerb{
		statemachine.StatusQueued:  {claimItem(owner), claimAndStartItem(owner), claimItemFor(owner, time.Hour)},
		statemachine.StatusClaimed: {beginItem(owner), beginItem(owner), beatItem(owner), stallItem()},
		statemachine.StatusRunning: {
			beatItem(owner), beatItem(owner), stallItem(), stallItem(), failItem(owner, statemachine.ResultFailedRetry),
			itemRarely(r, failItem(owner, statemachine.ResultFailedFinal), completeItem(owner)),
		},
		statemachine.StatusStalled: {requeueItem()},
	}
	allowed := verbs[item.Status]
	v := rapid.SampledFrom(append(slices.Clone(allowed), verbs[statemachine.StatusQueued][0], beatItem(owner), requeueItem())).Draw(r, "verb")
	if rapid.IntRange(0, 3).Draw(r, "id") == 0 { // In the form that the ledger uses.
		v.requestID = fmt.Sprint("ledger-", item.Rev+rapid.Int64Range(0, 2).Draw(r, "rev"))
	}
	l.ask(r, v)
}

// ask performs the verb. A refusal must have one of the lifecycle's errors.
func (l *itemLife) ask(r *rapid.T, v itemVerb) {
	item := l.item()
	done, err := l.request(v)
	l.count(done)
	if done && v.requestID != "" {
		l.asked = append(l.asked, followRequest{item.WorkID, v})
	}
	if _, allowed := statemachine.LookupItemTransition(v.operation, item.Status); err != nil && allowed &&
		!errors.Is(err, statemachine.ErrNotOwner) && !errors.Is(err, statemachine.ErrInvalidRequest) {
		r.Fatalf("%s of an item that is %s was refused: %v", v.operation, item.Status, err)
	}
}

// repeat sends a request again. If the item remembers it, nothing happens.
func (l *itemLife) repeat(r *rapid.T) {
	if l.open == nil || len(l.asked) == 0 {
		r.Skip("nothing was asked of an open item")
	}
	known := rapid.SampledFrom(l.asked).Draw(r, "request")
	remembered := slices.ContainsFunc(l.open.Requests, func(one statemachine.Remembered) bool {
		return one.Actor == known.verb.actor && one.RequestID == known.verb.requestID && one.Operation == known.verb.operation
	})
	if known.workID != l.open.WorkID || !remembered {
		r.Skip("the item does not remember it")
	}
	if done, err := l.request(known.verb); done || err != nil {
		r.Fatalf("the repeat of %s was carried out: %t, %v", known.verb.operation, done, err)
	}
}

// callback reports with the current pair, bypassing the queue. A worker has the pair of an
// unclaimed attempt only if it got it outside of the queue.
func (l *itemLife) callback(r *rapid.T) {
	_, queued := l.agg.Queued()
	if l.agg.Job.State.Terminal() || queued && !itemRarely(r, true, false) {
		r.Skip("no worker has the pair")
	}
	l.tell(rapid.SampledFrom([]statemachine.Event{
		l.ack(), l.heartbeat(), l.heartbeat(), l.result(statemachine.ResultFailedRetry),
		itemRarely(r, l.result(statemachine.ResultFailedFinal), l.result(statemachine.ResultSucceeded)),
	}).Draw(r, "report"))
}

// relay takes a row, marks one of its own bus, or rejects it.
func (l *itemLife) relay(r *rapid.T) {
	row := l.agg.Outbox
	if row.State != statemachine.OutboxPending {
		r.Skip("no row is pending")
	}
	l.now = maxItemTime(l.now, row.DueAt)
	if row.Bus != l.bus || row.Rejected {
		l.tell(statemachine.DispatchClaimed{OutboxID: row.ID})
		return
	}
	if itemRarely(r, true, false) {
		l.tell(statemachine.PublishRejected{OutboxID: row.ID, AttemptNo: row.AttemptNo, Reason: "malformed"})
		return
	}
	l.tell(l.mark())
}

// rarely returns the first value rarely, mostly the second.
func itemRarely[T any](r *rapid.T, one, other T) T {
	if rapid.IntRange(0, 14).Draw(r, "rarely") == 7 {
		return one
	}
	return other
}

func maxItemTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// deadline lets time pass, and runs the sweeper's event on the job.
func (l *itemLife) deadline(r *rapid.T) {
	l.later(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, 20 * time.Minute}).Draw(r, "later"))
	event := statemachine.DeadlinePassed{}
	if rapid.IntRange(0, 3).Draw(r, "outage") == 0 {
		event.Outage = l.now
	}
	l.tell(event)
}

// control applies an operator's request to the job.
func (l *itemLife) control(r *rapid.T) {
	events := []statemachine.Event{
		statemachine.Pause{}, statemachine.Pause{}, statemachine.Resume{}, statemachine.Resume{}, statemachine.Resume{},
		statemachine.Retry{}, statemachine.Stall{StepID: l.step().ID, AttemptNo: l.step().AttemptNo},
	}
	l.tell(itemRarely[statemachine.Event](r, statemachine.Cancel{}, rapid.SampledFrom(events).Draw(r, "control")))
}

// deploy changes the process that applies the next events.
func (l *itemLife) deploy(r *rapid.T) {
	l.held = rapid.IntRange(0, 2).Draw(r, "held") == 0
	l.bus = rapid.SampledFrom([]statemachine.Bus{
		statemachine.BusQueue, statemachine.BusQueue, statemachine.BusQueue, statemachine.BusServiceBus,
	}).Draw(r, "bus")
}
