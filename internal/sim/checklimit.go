package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// The limit of scenarios with one: so few starts that claims often wait for tokens. A lease of
// several tokens would wake several claims at once, and the Go scheduler would decide which of
// them takes which item.
const (
	limitCount  = 1
	limitWindow = 5 * time.Second
)

// limit is the limit of a scenario with one: of starts, of what runs at once, or of both.
func (w *world) limit() admission.Limit {
	one := admission.Limit{Scope: limitScope, Count: limitCount, Window: limitWindow, MaxRunning: w.scenario.running}
	if one.MaxRunning > 0 && !w.scenario.shared {
		one.Count, one.Window = 0, 0
	}
	return one
}

// limitScope is what is limited.
var limitScope = admission.Scope{Service: "svc1"}

// checkStarts compares the starts of the limited service with its limit. A start counts at the
// moment at which its process sent the write, whenever that was applied.
func (c *checker) checkStarts(who actor, j *job, moves []statemachine.ItemEvent) {
	if !c.w.scenario.limits {
		return
	}
	c.checkRunning(j, moves)
	if c.w.limit().Count == 0 {
		return
	}
	for _, e := range moves {
		id, err := ledger.ParseOutboxID(e.WorkID)
		if err != nil || e.Type != statemachine.ItemEventClaimed || id.StepIndex >= len(j.steps) ||
			j.steps[id.StepIndex].Service != limitScope.Service {
			continue
		}
		at, _ := slices.BinarySearchFunc(c.starts, who.sent, time.Time.Compare)
		c.starts = slices.Insert(c.starts, at, who.sent)
		for i := max(at-limitCount, 0); i+limitCount < len(c.starts); i++ {
			if within := c.starts[i+limitCount].Sub(c.starts[i]); within < limitWindow {
				c.violate("limit", "%s is start %d of service %s within %s, at most %d are allowed in %s",
					e.WorkID, limitCount+1, limitScope.Service, within, limitCount, limitWindow)
				return
			}
		}
	}
}

// checkRunning counts the attempts of the limited service that run: from the claim of an item to the end
// of its hold, in the order in which the store applied both.
func (c *checker) checkRunning(j *job, moves []statemachine.ItemEvent) {
	most := c.w.scenario.running
	for _, e := range moves {
		id, err := ledger.ParseOutboxID(e.WorkID)
		if err != nil || most == 0 || id.StepIndex >= len(j.steps) || j.steps[id.StepIndex].Service != limitScope.Service {
			continue
		}
		if !e.To.Held() {
			delete(c.running, e.WorkID)
			continue
		}
		if c.running[e.WorkID] = true; len(c.running) > most {
			c.violate("limit", "%s is attempt %d of service %s that runs at once, at most %d may: %v",
				e.WorkID, len(c.running), limitScope.Service, most, slices.Sorted(maps.Keys(c.running)))
		}
		c.checkRunSlot(e.WorkID)
	}
}

// runPartition holds the taken run slots of the limit.
const runPartition = "limit:svc1::"

// checkRunSlot checks that a run slot is taken for an attempt that runs.
func (c *checker) checkRunSlot(workID string) {
	for no := range c.w.scenario.running {
		row := c.rows[tablestore.Key{Table: tableQueue, Partition: runPartition, Row: "run:" + tablestore.Pad(int64(no), 7)}]
		if row.Get("work_id").String() == workID {
			return
		}
	}
	if c.running[workID] {
		c.violate("limit", "a worker holds %s, and no run slot is taken for it", workID)
	}
}
