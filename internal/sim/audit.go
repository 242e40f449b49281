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
	// An accept failed between its claim and its job, and the client gave up. Another attempt takes the claim over, with the lists
	// that name the job, also if a look at its line has abandoned the job in the meantime.
	claimed := map[string]bool{}
	for _, finding := range report.Findings {
		j := w.check.jobs[finding.JobID]
		claims := finding.Invariant == audit.Accepted || finding.Invariant == audit.Key
		claimed[finding.JobID] = claimed[finding.JobID] || claims && finding.Late && (j == nil || j.created == 0)
	}
	for _, finding := range report.Findings {
		ofClaim := finding.Invariant == audit.Accepted || finding.Invariant == audit.Key || finding.Invariant == audit.Listed
		if ofClaim && finding.Late && claimed[finding.JobID] {
			continue
		}
		w.check.violate("audit", "%s", finding)
	}
}
