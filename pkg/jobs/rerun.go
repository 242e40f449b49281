package jobs

import (
	"context"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Rerun is a request to repeat an ended job as a new one.
type Rerun struct {
	Control
	// FromStart repeats every step, not only those from the failed one on.
	FromStart bool
}

// Rerun creates a new job from one that ended FAILED_FINAL or CANCELLED. There is
// one for each job and starting point, so a double click gives the same job.
// The errors are [*problem.Error]s, illegal_transition for any other job.
func (s *Service) Rerun(ctx context.Context, r Rerun) (ledger.Accepted, error) {
	from := ledger.FromFailed
	if r.FromStart {
		from = ledger.FromStart
	}
	accepted, err := s.ledger.Rerun(ctx, ledger.Rerun{
		JobID: r.JobID, From: from, Limit: s.limit, Actor: r.Actor, RequestID: r.RequestID, Reason: r.Reason,
	})
	return accepted, ledger.Problem(err)
}
