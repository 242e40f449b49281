package search

import (
	"cmp"
	"context"
	"errors"

	"github.com/lucius-project/lucius/pkg/ledger"
)

// Release lets the line go on past a job that blocks it, and returns the line; without a place if no job is
// left in it. A job that does not exist does not block either, so that the answer tells nothing of the jobs
// of other lines. The errors are [*apierror.Error]s.
func (s *Service) Release(ctx context.Context, r ledger.Release) (*ledger.LineView, error) {
	released := s.ledger.Release(ctx, r)
	if errors.Is(released, ledger.ErrJobNotFound) {
		released = ledger.ErrNotBlocking
	}
	if released != nil && !errors.Is(released, ledger.ErrNotBlocking) {
		return nil, ledger.Problem(released)
	}
	line, err := s.ledger.Line(ctx, r.LineID)
	if released == nil && errors.Is(err, ledger.ErrLineNotFound) {
		return s.emptied(ctx, &r)
	}
	return line, ledger.Problem(cmp.Or(err, released))
}

// emptied returns the line of a released job, in which no job is left.
func (s *Service) emptied(ctx context.Context, r *ledger.Release) (*ledger.LineView, error) {
	job, err := s.ledger.Job(ctx, r.JobID)
	if err != nil {
		return nil, ledger.Problem(err)
	}
	return &ledger.LineView{ID: r.LineID, TenantID: job.Job.TenantID, Key: job.Job.Order.Key}, nil
}
