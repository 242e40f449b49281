package sim

import (
	"context"
	"errors"

	"github.com/lucius-project/lucius/pkg/audit"
)

// audit audits the final rows as "lucius audit" does, without the checker's knowledge of
// earlier rows. Overdue work is a violation, too.
func (w *world) audit() {
	if w.broken() {
		return
	}
	report, err := audit.Run(context.Background(), audit.Config{
		Store: w.store.(audit.Store),
		Options: audit.Options{
			Tables: tables, KeyTTL: w.scenario.retention, Retention: w.scenario.retention, Clocks: 1, // They have one clock.
		},
	})
	if errors.Is(err, audit.ErrNoSettings) && len(w.check.rows) == 0 {
		return // The faults kept every replica from opening the store.
	}
	if err != nil {
		w.defect("audit: %v", err)
		return
	}
	for _, finding := range report.Findings {
		// An accept failed between its claim and its job, and the client gave up. Another attempt takes the claim over,
		// also if a look at its line has abandoned the job in the meantime.
		j := w.check.jobs[finding.JobID]
		claims := finding.Invariant == audit.Accepted || finding.Invariant == audit.Key
		if claims && finding.Late && (j == nil || j.created == 0) {
			continue
		}
		w.check.violate("audit", "%s", finding)
	}
}
