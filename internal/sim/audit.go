package sim

import (
	"context"

	"github.com/lucius-project/lucius/pkg/audit"
)

// audit holds what is stored in the end against the invariants, as "lucius audit"
// does: by its rows alone, without what was seen on the way there. By now nothing
// may be overdue either.
func (w *world) audit() {
	if w.broken() {
		return
	}
	report, err := audit.Run(context.Background(), audit.Config{
		Store: w.store.(audit.Store),
		Options: audit.Options{
			Tables: tables, KeyTTL: w.scenario.retention, Retention: w.scenario.retention,
		},
	})
	if err != nil {
		w.defect("audit: %v", err)
		return
	}
	for _, finding := range report.Findings {
		w.check.violate("audit", "%s", finding)
	}
}
