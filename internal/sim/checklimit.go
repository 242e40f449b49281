package sim

import (
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/limits"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The limit of scenarios with one: so few starts that claims often wait for tokens. A lease of
// several tokens would wake several claims at once, and the Go scheduler would decide which of
// them takes which item.
const (
	limitCount  = 1
	limitWindow = 5 * time.Second
)

// limitScope is what is limited.
var limitScope = limits.Scope{Service: "svc1"}

// checkStarts compares the starts of the limited service with its limit. A start counts at the
// moment at which its process sent the write, whenever that was applied.
func (c *checker) checkStarts(who actor, j *job, moves []statemachine.ItemEvent) {
	if !c.w.scenario.limits {
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
