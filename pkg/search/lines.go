package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// maxLines bounds the lines that are read for one page of a list.
const maxLines = 1000

// LineFilter selects lines. Its zero value selects those of all tenants.
type LineFilter struct {
	TenantID string
	// Blocked selects lines that a failed job blocks, and Moving the others. Without either, both are listed.
	Blocked, Moving bool
	// OrderKey selects the line of the tenant and that key, also if no job waits in it. It needs a TenantID.
	OrderKey string
}

// selects reports whether the state of the line is one that is listed.
func (f *LineFilter) selects(line *ledger.LineView) bool {
	return f.Blocked == f.Moving || f.Blocked == line.Blocked()
}

// Lines returns one page of the lines in which jobs wait or that a failed job blocks, in no particular
// order, and the position to continue after, empty at the end. A page with fewer lines than the limit is not
// the last one unless the position is empty: a page is searched for in 1,000 lines, and for 5 s. The errors
// are [*apierror.Error]s.
func (s *Service) Lines(ctx context.Context, f LineFilter, limit int, after string) ([]ledger.LineView, string, error) {
	shard, key, err := parseLinesPosition(after, s.ledger.Shards())
	if err != nil {
		return nil, "", err
	}
	if f.OrderKey != "" {
		found, err := s.lineOfKey(ctx, &f)
		return found, "", err
	}
	var found []ledger.LineView
	for begun, read := time.Now(), 0; shard < s.ledger.Shards(); {
		if len(found) == limit || read >= maxLines || time.Since(begun) >= searchTime {
			return found, fmt.Sprintf("%d/%s", shard, key), nil
		}
		page := limit - len(found)
		lines, next, err := s.ledger.Lines(ctx, f.TenantID, shard, page, key)
		if err != nil {
			return nil, "", ledger.Problem(err)
		}
		for i := range lines {
			if f.selects(&lines[i]) {
				found = append(found, lines[i])
			}
		}
		if key = next; key == "" {
			shard++
			read += len(lines)
		} else {
			read += page
		}
	}
	return found, "", nil
}

// lineOfKey returns the line of the filter's tenant and order key, if it is selected.
func (s *Service) lineOfKey(ctx context.Context, f *LineFilter) ([]ledger.LineView, error) {
	if f.TenantID == "" {
		return nil, apierror.Refused([]apierror.Violation{{Message: "parameter tenant_id is required to find a line by its order key"}})
	}
	line, err := s.ledger.Line(ctx, ledger.LineID(f.TenantID, f.OrderKey))
	switch {
	case errors.Is(err, ledger.ErrLineNotFound), err == nil && !f.selects(line):
		return nil, nil
	case err != nil:
		return nil, ledger.Problem(err)
	}
	return []ledger.LineView{*line}, nil
}

// parseLinesPosition returns the shard at which a page of lines begins, and the key after which.
func parseLinesPosition(text string, shards int) (shard int, key string, err error) {
	if text == "" {
		return 0, "", nil
	}
	number, key, _ := strings.Cut(text, "/")
	shard, err = strconv.Atoi(number)
	if err != nil || shard < 0 || shard >= shards || key != "" && !ledger.ValidLinesKey(key) {
		return 0, "", apierror.Refused([]apierror.Violation{{Message: "page_token is invalid"}})
	}
	return shard, key, nil
}

// LineJobs returns one page of the jobs of a line in their order, from that seq on, and the seq with which
// the next page begins, 0 if there is none. A large job may end a page early. The errors are
// [*apierror.Error]s, line_not_found if no job is in the line.
func (s *Service) LineJobs(ctx context.Context, id string, from int64, limit int) (found []Shown, next int64, err error) {
	size, firsts := 0, lineFirsts{}
	err = s.ledger.LineJobs(ctx, id, from, func(agg *statemachine.Aggregate) (bool, error) {
		if len(found) == limit || len(found) > 0 && size >= PageBytes(limit) {
			next = agg.Job.Place.Seq
			return false, nil
		}
		shown, err := s.waiting(ctx, agg, firsts)
		if err != nil {
			return false, err
		}
		found = append(found, shown)
		size += encodedSize(&shown)
		return true, nil
	})
	if err != nil {
		return nil, 0, ledger.Problem(err)
	}
	return found, next, nil
}

// A request cancels at most so many jobs of a line, and for so long.
const (
	maxCancelled = 1000
	cancelTime   = 10 * time.Second
)

// CancelLine cancels the jobs of a line that have not begun, the last first. It returns how many it
// cancelled, and whether more may wait, because there are more than 1,000 or it took 10 s. The errors are
// [*apierror.Error]s, line_not_found if no job is in the line.
func (s *Service) CancelLine(ctx context.Context, r ledger.CancelWaiting) (cancelled int, more bool, err error) {
	r.Limit, r.Until = maxCancelled, time.Now().Add(cancelTime)
	cancelled, more, err = s.ledger.CancelWaiting(ctx, r)
	return cancelled, more, ledger.Problem(err)
}

// Release lets the line go on past a job that blocks it, and returns the line; without a place if no job is
// left in it. It may be repeated. A job that does not exist does not block either, so that the answer tells
// nothing of the jobs of other lines. The errors are [*apierror.Error]s.
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
