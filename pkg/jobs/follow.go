package jobs

import (
	"context"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// followPage is about how many entries one look at a job returns. The follower keeps
// them in memory until they are sent, however slowly.
const followPage = 20

// Follow returns the job's history after entry index of revision rev, and whether the
// history is complete: the job has ended. Entries of one revision come together. The
// errors are [*problem.Error]s.
func (s *Service) Follow(ctx context.Context, jobID string, rev int64, index int) ([]ledger.HistoryEntry, bool, error) {
	// Read the job first: its history is then at least as new.
	agg, err := s.ledger.Job(ctx, jobID)
	if err != nil {
		return nil, false, ledger.Problem(err)
	}
	entries, next, err := s.ledger.History(ctx, jobID, max(rev-1, 0), followPage)
	if err != nil {
		return nil, false, ledger.Problem(err)
	}
	for len(entries) > 0 && (entries[0].Rev < rev || entries[0].Rev == rev && entries[0].Index <= index) {
		entries = entries[1:]
	}
	return entries, agg.Job.State.Terminal() && next == 0, nil
}
