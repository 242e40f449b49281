package queuetest

import (
	"slices"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

type (
	asks   = func(statemachine.ItemOperation, *statemachine.Item, *statemachine.ItemRequest)
	writes = func(statemachine.ItemOperation, statemachine.Item, *statemachine.ItemChange)
)

// on spoils the answers to the operation, but not to its repeats.
func on(op statemachine.ItemOperation, spoil func(before statemachine.Item, change *statemachine.ItemChange)) writes {
	return func(asked statemachine.ItemOperation, before statemachine.Item, change *statemachine.ItemChange) {
		if asked == op && !change.Repeat {
			spoil(before, change)
		}
	}
}

// edit spoils the item after the operation.
func edit(op statemachine.ItemOperation, spoil func(*statemachine.Item)) writes {
	return on(op, func(_ statemachine.Item, change *statemachine.ItemChange) { spoil(&change.Item) })
}

// lastEvent spoils the last event of each move.
func lastEvent(spoil func(*statemachine.ItemEvent)) writes {
	return func(_ statemachine.ItemOperation, _ statemachine.Item, change *statemachine.ItemChange) {
		if n := len(change.Events); n > 0 {
			spoil(&change.Events[n-1])
		}
	}
}

// pretend shows the policy an item of the given status in a status from which the operation
// is allowed.
func pretend(op statemachine.ItemOperation, met, shown statemachine.ItemStatus) asks {
	return func(asked statemachine.ItemOperation, seen *statemachine.Item, request *statemachine.ItemRequest) {
		if asked == op && seen.Status == met {
			seen.Status, seen.Owner = shown, request.Actor
		}
	}
}

// ownersOp is one of the operations of the owner.
func ownersOp(op statemachine.ItemOperation) bool { return slices.Contains(ownersMoves, op) }

// anyOwner treats any actor as the owner.
func anyOwner(op statemachine.ItemOperation, seen *statemachine.Item, request *statemachine.ItemRequest) {
	if ownersOp(op) && seen.Owner != "" && request.Actor != "" {
		seen.Owner = request.Actor
	}
}

// anyRev accepts any expected rev.
func anyRev(_ statemachine.ItemOperation, seen *statemachine.Item, request *statemachine.ItemRequest) {
	if request.ExpectedRev > 0 {
		request.ExpectedRev = seen.Rev
	}
}

// forget hides remembered requests.
func forget(when func(statemachine.Remembered) bool) asks {
	return func(_ statemachine.ItemOperation, seen *statemachine.Item, _ *statemachine.ItemRequest) {
		seen.Requests = slices.DeleteFunc(slices.Clone(seen.Requests), when)
	}
}

// anyOperation makes each request a repeat of any other with its id.
func anyOperation(op statemachine.ItemOperation, seen *statemachine.Item, request *statemachine.ItemRequest) {
	seen.Requests = slices.Clone(seen.Requests)
	for n := range seen.Requests {
		if seen.Requests[n].RequestID == request.ID {
			seen.Requests[n].Operation = op
		}
	}
}

// anyActor treats any actor that knows a request id as the actor that used it.
func anyActor(_ statemachine.ItemOperation, seen *statemachine.Item, request *statemachine.ItemRequest) {
	for _, known := range seen.Requests {
		if known.RequestID == request.ID {
			request.Actor = known.Actor
		}
	}
}

// needsOwner lets only the sweeper and the owner stall an item.
func needsOwner(op statemachine.ItemOperation, seen *statemachine.Item, request *statemachine.ItemRequest) {
	if op == statemachine.OpStall && request.Actor != sweeper && request.Actor != seen.Owner {
		request.ExpectedRev = -1
	}
}

// mutants are broken queues, each with the check that must catch it. Other checks may catch
// it too.
var mutants = []struct {
	name   string
	broken flaws
	caught string
}{
	// Counting.
	{"attempt incremented on start", flaws{writes: edit("start", func(i *statemachine.Item) { i.Attempt++ })}, "start/makes a claimed item run"},
	{"attempt incremented on enqueue", flaws{writes: edit("enqueue", func(i *statemachine.Item) { i.Attempt++ })}, "enqueue/makes a queued item"},
	{"attempt not incremented on claim", flaws{writes: edit("claimNext", func(i *statemachine.Item) { i.Attempt-- })}, "claim/gives a queued item to its owner under a lease"},
	{"attempt reset on requeue", flaws{writes: edit("requeueStalled", func(i *statemachine.Item) { i.Attempt = 0 })}, "requeue/offers a stalled item again with the next directive"},
	{"attempt reset by the second claim", flaws{writes: edit("claimNext", func(i *statemachine.Item) { i.Attempt = 1 })}, "requeue/the next claim is the next attempt"},
	{"attempt not incremented on reclaim", flaws{reclaims: true, writes: on("claimNext", func(before statemachine.Item, c *statemachine.ItemChange) {
		if before.Status == "stalled" {
			c.Item.Attempt--
		}
	})}, "claim/of a stalled item is a reclaim or does not happen"},
	{"rev bumped on repeat", flaws{writes: func(_ statemachine.ItemOperation, _ statemachine.Item, c *statemachine.ItemChange) {
		if c.Repeat {
			c.Item.Rev++
		}
	}}, "repeats/succeed and change nothing"},
	{"rev kept on heartbeat", flaws{writes: edit("heartbeat", func(i *statemachine.Item) { i.Rev-- })}, "heartbeat/extends the lease of a claimed and of a running item"},

	// Guards.
	{"owner not checked", flaws{asks: anyOwner}, "requests/of an owner's move come from the owner"},
	{"first owner let in after a requeue", flaws{asks: anyOwner}, "requeue/shuts the first owner out"},
	{"rev not checked", flaws{asks: anyRev}, "requests/expect the present rev"},
	{"incomplete requests accepted", flaws{asks: func(_ statemachine.ItemOperation, seen *statemachine.Item, r *statemachine.ItemRequest) {
		if r.Actor == "" || r.ID == "" || r.ExpectedRev == 0 {
			r.Actor, r.ID, r.ExpectedRev = anna, "made up", seen.Rev
		}
	}}, "requests/are complete"},
	{"system must own what it stalls", flaws{asks: needsOwner}, "requests/of the system need no owner"},
	{"terminal rewritten", flaws{asks: pretend("fail", "succeeded", "running")}, "end/a terminal item never changes"},
	{"start of a queued item", flaws{asks: pretend("start", "queued", "claimed")}, "transitions/all others are refused in each status"},
	{"heartbeat of a stalled item", flaws{asks: pretend("heartbeat", "stalled", "running")}, "stall/ends what the owner may do"},
	{"no stall of a claimed item", flaws{asks: pretend("stall", "claimed", "queued")}, "transitions/the allowed ones are accepted from each status"},
	{"requeue with the old directive", flaws{asks: func(op statemachine.ItemOperation, seen *statemachine.Item, _ *statemachine.ItemRequest) {
		if op == "requeueStalled" {
			seen.AttemptNo, seen.MessageID, seen.LeaseID = 0, "", ""
		}
	}}, "requeue/never hands a pair out twice"},

	// What each status must hold.
	{"lease kept on stall", flaws{writes: on("stall", func(before statemachine.Item, c *statemachine.ItemChange) {
		c.Item.LeaseExpiresAt = before.LeaseExpiresAt
	})}, "stall/takes a claimed or running item from its owner"},
	{"owner kept on stall", flaws{writes: on("stall", func(before statemachine.Item, c *statemachine.ItemChange) {
		c.Item.Owner = before.Owner
	})}, "stall/takes a claimed or running item from its owner"},
	{"owner kept on complete", flaws{writes: on("complete", func(before statemachine.Item, c *statemachine.ItemChange) {
		c.Item.Owner = before.Owner
	})}, "end/complete keeps the result and clears owner and lease"},
	{"lease kept on fail", flaws{writes: on("fail", func(before statemachine.Item, c *statemachine.ItemChange) {
		c.Item.LeaseExpiresAt = before.LeaseExpiresAt
	})}, "end/fail keeps the error and clears owner and lease"},
	{"result lost", flaws{writes: edit("complete", func(i *statemachine.Item) { i.Result = []byte(`{}`) })}, "end/complete keeps the result and clears owner and lease"},
	{"error lost", flaws{writes: edit("fail", func(i *statemachine.Item) { i.Error = &statemachine.ItemFailure{Code: "failed"} })}, "end/fail keeps the error and clears owner and lease"},
	{"lease not extended", flaws{writes: on("heartbeat", func(before statemachine.Item, c *statemachine.ItemChange) {
		c.Item.LeaseExpiresAt = before.LeaseExpiresAt
	})}, "heartbeat/extends the lease of a claimed and of a running item"},
	{"lease shorter than asked for", flaws{writes: edit("claimNext", func(i *statemachine.Item) {
		i.LeaseExpiresAt = i.LeaseExpiresAt.Add(-time.Minute)
	})}, "claim/gives a queued item to its owner under a lease"},
	{"directive kept on requeue", flaws{writes: on("requeueStalled", func(before statemachine.Item, c *statemachine.ItemChange) {
		c.Item.MessageID, c.Item.AttemptNo, c.Item.LeaseID = before.MessageID, before.AttemptNo, before.LeaseID
	})}, "requeue/offers a stalled item again with the next directive"},

	// Enqueueing.
	{"duplicates on enqueue", flaws{coversNothing: true}, "enqueue/a duplicate returns the existing item in any status"},
	{"duplicates on racing enqueues", flaws{coversNothing: true}, "races/one message enqueued many times at once is one item"},
	{"duplicates after a requeue", flaws{coversKeyOnly: true}, "enqueue/the message of a requeue is a duplicate, and so is the one before"},
	{"duplicate makes the item queued again", flaws{writes: func(op statemachine.ItemOperation, _ statemachine.Item, c *statemachine.ItemChange) {
		if op == "enqueue" && c.Repeat {
			c.Item.Status, c.Item.Owner, c.Item.LeaseExpiresAt = "queued", "", time.Time{}
		}
	}}, "enqueue/a duplicate returns the existing item in any status"},
	{"one item for all", flaws{writes: edit("enqueue", func(i *statemachine.Item) { i.WorkID = "work-1" })}, "enqueue/other messages are other items"},
	{"unknown items invented", flaws{inventsItems: true}, "enqueue/an unknown id is not found"},

	// Claims.
	{"items invented for a claim", flaws{inventsItems: true}, "claim/of nothing returns nothing"},
	{"claim of a running item", flaws{
		claimsStatuses: []statemachine.ItemStatus{"running"}, asks: pretend("claimNext", "running", "queued"),
	}, "claim/never takes an item that is held or has ended"},
	{"claim of an ended item", flaws{
		claimsStatuses: []statemachine.ItemStatus{"failed"}, asks: pretend("claimNext", "failed", "queued"),
	}, "claim/never takes an item that is held or has ended"},
	{"claim of an item whose lease has expired", flaws{
		claimsStatuses: []statemachine.ItemStatus{"claimed"}, asks: pretend("claimNext", "claimed", "queued"),
	}, "claim/leaves an item to its owner until it is stalled"},
	{"claim of a stalled item", flaws{claimsStatuses: []statemachine.ItemStatus{"stalled"}}, "claim/of a stalled item is a reclaim or does not happen"},
	{"claim of more than asked for", flaws{ignoresMax: true}, "claim/takes no more than it asks for, and all in the end"},
	{"claim of any service", flaws{ignoresServices: true}, "claim/is narrowed by service and step type"},
	{"claim of any step type", flaws{ignoresStepTypes: true}, "claim/is narrowed by service and step type"},
	{"requeued items never claimed", flaws{hidesRequeued: true}, "requeue/the next claim is the next attempt"},
	{"partial claims accepted", flaws{takesPartialClaims: true, asks: func(op statemachine.ItemOperation, _ *statemachine.Item, r *statemachine.ItemRequest) {
		if op == "claimNext" && (r.Actor == "" || r.ID == "") {
			r.Actor, r.ID = "nobody", "none"
		}
	}}, "claim/names its owner and its request"},
	{"claim of what is not there", flaws{writes: edit("claimNext", func(i *statemachine.Item) { i.WorkID += "-copy" })}, "claim/gives a queued item to its owner under a lease"},
	{"claim and start in one event", flaws{writes: on("claimNext", func(_ statemachine.Item, c *statemachine.ItemChange) {
		if len(c.Events) == 2 {
			c.Events = c.Events[1:]
		}
	})}, "claim/can start in the same step"},

	// Repeated claims.
	{"claims forgotten", flaws{forgetsClaims: true}, "claim repeat/answers as the first did"},
	{"claims forgotten before the lease ends", flaws{impatience: time.Minute}, "claim repeat/is known for as long as the lease"},
	{"empty claims remembered", flaws{remembersNothing: true}, "claim repeat/of an empty claim is a claim"},
	{"claims shared by owners", flaws{sharesClaims: true}, "claim repeat/is for the same owner only"},
	{"repeat answers with superseded items", flaws{answersStale: true}, "claim repeat/leaves out what the owner no longer holds by it"},
	{"repeat answers with items of a later claim", flaws{answersByStatus: true}, "claim repeat/leaves out what the owner no longer holds by it"},

	// Repeats.
	{"requests forgotten", flaws{asks: forget(func(statemachine.Remembered) bool { return true })}, "repeats/succeed and change nothing"},
	{"requests forgotten before the lease ends", flaws{impatience: time.Minute}, "repeats/are known for as long as the lease"},
	{"only the last request remembered", flaws{writes: func(_ statemachine.ItemOperation, _ statemachine.Item, c *statemachine.ItemChange) {
		if n := len(c.Item.Requests); n > 1 {
			c.Item.Requests = c.Item.Requests[n-1:]
		}
	}}, "repeats/succeed after the item went on"},
	{"ids good for any operation", flaws{asks: anyOperation}, "repeats/are of the same operation"},
	{"ids good for any actor", flaws{asks: anyActor}, "repeats/are by the same actor"},

	// History.
	{"heartbeats without events", flaws{writes: on("heartbeat", func(_ statemachine.Item, c *statemachine.ItemChange) { c.Events = nil })}, "events/tell the whole story in canonical words"},
	{"events in other words", flaws{writes: lastEvent(func(e *statemachine.ItemEvent) {
		if e.Type == "started" {
			e.Type = "running"
		}
	})}, "events/tell the whole story in canonical words"},
	{"events without their request", flaws{writes: lastEvent(func(e *statemachine.ItemEvent) { e.RequestID = "" })}, "events/of a claim name its owner and its request"},
	{"events by the queue itself", flaws{writes: lastEvent(func(e *statemachine.ItemEvent) { e.Actor = "queue" })}, "events/say who, when, from where and by which request"},
	{"events at another time", flaws{writes: lastEvent(func(e *statemachine.ItemEvent) { e.At = e.At.Add(-time.Hour) })}, "events/say who, when, from where and by which request"},
	{"items enqueued at another time", flaws{writes: edit("enqueue", func(i *statemachine.Item) {
		i.CreatedAt = i.CreatedAt.Add(time.Hour)
	})}, "enqueue/makes a queued item"},

	// Races.
	{"check, then act", flaws{unlocksInClaim: true, asks: pretend("claimNext", "claimed", "queued")}, "races/an item is handed to one of racing claims"},
	{"last write wins", flaws{asks: func(op statemachine.ItemOperation, seen *statemachine.Item, r *statemachine.ItemRequest) {
		if anyRev(op, seen, r); seen.Status.Terminal() || seen.Status == "stalled" {
			seen.Status, seen.Owner = "running", r.Actor
		}
	}}, "races/one of racing moves from one rev is accepted"},
	{"each copy of a request counted", flaws{asks: func(op statemachine.ItemOperation, seen *statemachine.Item, r *statemachine.ItemRequest) {
		anyRev(op, seen, r)
		forget(func(statemachine.Remembered) bool { return true })(op, seen, r)
	}}, "races/one request sent many times at once is one move"},
}

// catchers returns the checks that fail on the queue.
func catchers(t *testing.T, broken flaws) (names []string) {
	t.Helper()
	for _, c := range checks() {
		if _, failed := fails(t, c, newMemQueue(broken).harness()); failed {
			names = append(names, c.name)
		}
	}
	return names
}

func TestTheSuiteCatchesEveryMutant(t *testing.T) {
	t.Parallel()
	catches := make(map[string]bool)
	for _, m := range mutants {
		by := catchers(t, m.broken)
		if !slices.Contains(by, m.caught) {
			t.Errorf("%s: caught by %q, not by %q", m.name, by, m.caught)
		}
		for _, name := range by {
			catches[name] = true
		}
	}
	for _, c := range checks() {
		if !catches[c.name] {
			t.Errorf("%q catches no mutant: what does it prove?", c.name)
		}
	}
}
