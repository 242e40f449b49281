package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/statemachine"
)

// judgeItems checks the work items of a job by themselves and against its steps: at
// most one is open, it fits its step, and each attempt that was sent by the pull queue
// has one item, which carries it or carried it before a requeue.
func (j *judge) judgeItems() {
	var open []string
	for i := range j.Items {
		item := &j.Items[i]
		if item.Open {
			open = append(open, item.WorkID)
		}
		j.judgeItem(item)
	}
	if len(open) > 1 {
		j.violate(Queue, "work items %s are open at once", strings.Join(open, ", "))
	}
	for k := range j.Outbox {
		o := &j.Outbox[k]
		if o.Bus != busQueue || o.State != "SENT" {
			continue
		}
		var carry []string
		for i := range j.Items {
			if item := &j.Items[i]; item.Step == o.Step && item.First <= o.Attempt && o.Attempt <= item.Attempt {
				carry = append(carry, item.WorkID)
			}
		}
		if len(carry) != 1 {
			j.violate(Queue, "outbox row %s was sent by the pull queue, and its attempt %d is that of %d work items: %s",
				o.ID, o.Attempt, len(carry), strings.Join(carry, ", "))
		}
	}
	if s := j.active(); s != nil && len(open) == 0 && (s.State == "AWAITING_ACK" || s.State == "IN_PROGRESS") {
		if row := j.outboxRow(s.OutboxID); row != nil && row.Bus == busQueue {
			j.violate(Queue, "step %s is %s by the pull queue, and no work item is open", s.ID, s.State)
		}
	}
}

// judgeItem checks one work item and its step.
func (j *judge) judgeItem(i *ItemRow) {
	s := j.step(i.Step)
	switch name := attempt(i.Step, i.First); {
	case s == nil:
		j.violate(Queue, "work item %s is of step %d, which is missing", i.WorkID, i.Step)
		return
	case !strings.HasSuffix(i.Key, "ITEM:"+name), i.WorkID != fmt.Sprintf("%s.%d.%d", j.JobID, i.Step, i.First),
		!strings.HasPrefix(i.DedupeKey, i.WorkID+"/"), i.Attempt < i.First:
		j.violate(Queue, "row %s says that it is work item %s at attempt %d, under the key %s", i.Key, i.WorkID, i.Attempt, i.DedupeKey)
	case i.Open && (i.Ended != "" || i.Removed):
		j.violate(Queue, "work item %s is open and ended as %q (removed: %t)", i.WorkID, i.Ended, i.Removed)
	}
	item := j.Item(i)
	switch active := j.active(); {
	case i.Open && active == nil:
		j.violate(Queue, "it has ended, and its work item %s is open", i.WorkID)
		return
	case i.Open && (active != s || item.Status == statemachine.StatusNone):
		row := j.outboxRow(s.OutboxID)
		if row == nil {
			row = &OutboxRow{}
		}
		j.violate(Queue, "work item %s at attempt %d, owner %q, does not fit step %s, which is %s at attempt %d, deadline %s, "+
			"its outbox row %s on bus %s", i.WorkID, i.Attempt, i.Owner, s.ID, s.State, s.Attempt, stamp(s.Expires), row.State, row.Bus)
		return
	case i.Open && (s.WorkID != i.WorkID || s.Owner != i.Owner):
		j.violate(Queue, "step %s shows work item %q of owner %q; open is %q of %q", s.ID, s.WorkID, s.Owner, i.WorkID, i.Owner)
	case !i.Open:
		j.judgeEnded(i, s, &item)
	}
	if err := statemachine.ValidateItem(item); err != nil {
		j.violate(Queue, "%v", err)
	}
	if !slices.ContainsFunc(j.Outbox, func(o OutboxRow) bool {
		return o.Message() == i.Message && o.Step == i.Step && o.Attempt == i.Attempt && o.State == "SENT" && o.Bus == busQueue
	}) {
		j.violate(Queue, "work item %s carries message %s for attempt %d, which was not sent", i.WorkID, i.Message, i.Attempt)
	}
}

// judgeSlots checks that only held items name run slots, and that each slot exists and names the item.
func (j *judge) judgeSlots() {
	for n := range j.Items {
		i := &j.Items[n]
		if status := j.Item(i).Status; len(i.Slots) > 0 && !status.Held() {
			j.violate(Queue, "work item %s is %s and names run slots %v", i.WorkID, status, i.Slots)
			continue
		}
		for k, key := range i.slotKeys(j.o) {
			c := columns(j.outside[key])
			if c.text("work_id") != i.WorkID || c.int("attempt_no") != i.Attempt {
				j.violate(Queue, "work item %s names run slot %d %s, whose row is of %q, attempt %d",
					i.WorkID, i.Slots[k].No, i.Slots[k].Limit, c.text("work_id"), c.int("attempt_no"))
			}
		}
	}
}

// judgeEnded checks that a closed item ended as its worker reported, or was removed
// while no worker held it.
func (j *judge) judgeEnded(i *ItemRow, s *StepRow, item *statemachine.Item) {
	reported := s.Remembers(i.Attempt)
	fits := false
	switch item.Status {
	case statemachine.StatusSucceeded:
		fits = !i.Removed && (reported.No == 0 || reported.Result == "SUCCEEDED")
	case statemachine.StatusFailed:
		fits = !i.Removed && (reported.No == 0 || strings.HasPrefix(reported.Result, "FAILED_"))
	case statemachine.StatusQueued, statemachine.StatusStalled:
		fits = i.Removed
	case statemachine.StatusNone, statemachine.StatusClaimed, statemachine.StatusRunning:
	}
	if !fits {
		j.violate(Queue, "work item %s ended as %q (removed: %t), and the RESULT of its attempt is %q",
			i.WorkID, i.Ended, i.Removed, reported.Result)
	}
}

// offer is what the journal says of the ready hint of a work item.
type offer struct {
	rev   int64 // of the change that made the hint valid
	since time.Time
	class string
}

// judgeOffers returns the last offer of each work item by the journal: by the change that queued it,
// or since by one of the job's class. It checks that the last of those left the class of the job.
func (j *judge) judgeOffers() map[string]offer {
	offers, queued, class, known := map[string]offer{}, map[string]bool{}, j.Job.Class, false
	classOf := func(name string) string { return strings.TrimSuffix(name, statemachine.ClassNormal.String()) }
	for _, c := range j.changes { // The first change of the class tells which one the job was accepted with.
		for _, m := range c.moves {
			if from, _, ok := strings.Cut(m.Detail, " to "); ok && m.Type == statemachine.EventJobPrioritized && !known {
				class, known = classOf(from), true
			}
		}
	}
	for _, c := range j.changes {
		for _, m := range c.moves {
			if m.Type != statemachine.EventJobPrioritized {
				continue
			}
			_, to, _ := strings.Cut(m.Detail, " to ")
			class = classOf(to)
			for workID := range queued {
				offers[workID] = offer{c.rev, offers[workID].since, class}
			}
		}
		for _, e := range c.items {
			if delete(queued, e.WorkID); e.To == statemachine.StatusQueued {
				queued[e.WorkID] = true
				offers[e.WorkID] = offer{c.rev, c.at, class}
			}
		}
	}
	if class != j.Job.Class {
		j.violate(Queue, "its class is %q, and its history ends with %q", j.Job.Class, class)
	}
	return offers
}

// judgeMoves checks the history of each work item: its moves in the journal and its
// heartbeats together have no gap, and lead to its present status. Its ready hint
// names the revision of its last offer, and the class that the job had then.
func (j *judge) judgeMoves() {
	if int64(len(j.changes)) != j.Job.Rev {
		return // judgeJournal has reported the gap.
	}
	moves := map[string][]statemachine.ItemEvent{}
	for _, e := range j.beats {
		moves[e.WorkID] = append(moves[e.WorkID], e)
	}
	for _, c := range j.changes {
		for _, e := range c.items {
			moves[e.WorkID] = append(moves[e.WorkID], e)
		}
	}
	offers := j.judgeOffers()
	for i := range j.Items {
		row := &j.Items[i]
		events := moves[row.WorkID]
		delete(moves, row.WorkID)
		item := j.Item(row)
		if item.Status == statemachine.StatusNone {
			continue // judgeItem has reported it.
		}
		slices.SortStableFunc(events, func(a, b statemachine.ItemEvent) int { return int(a.Rev - b.Rev) })
		if err := statemachine.ValidateItemHistory(item, events); err != nil {
			j.violate(Queue, "its history: %v", err)
		}
		if n := len(events); n > 0 && row.Removed != (events[n-1].Type == statemachine.ItemEventRemoved) {
			j.violate(Queue, "work item %s (removed: %t) was %s last", row.WorkID, row.Removed, events[n-1].Type)
		}
		if o := offers[row.WorkID]; o.rev != row.ReadyRev || !o.since.Equal(row.ReadySince) || o.class != row.ReadyClass {
			j.violate(Queue, "work item %s is ready since %s by rev %d in class %q, and was offered at %s by rev %d in class %q",
				row.WorkID, stamp(row.ReadySince), row.ReadyRev, row.ReadyClass, stamp(o.since), o.rev, o.class)
		}
	}
	for _, workID := range slices.Sorted(maps.Keys(moves)) {
		j.violate(Queue, "work item %s has a history and is missing", workID)
	}
}
