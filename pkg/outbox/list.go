package outbox

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// Row is an outbox row of a live job, with whose it is.
type Row struct {
	statemachine.Outbox
	JobID    string
	TenantID string
}

// ListFilter narrows a list of rows; each field that is set does.
type ListFilter struct {
	State    statemachine.OutboxState
	TenantID string
	Lane     *int
}

// maxExamined bounds the jobs that are read for one page of rows.
const maxExamined = 2000

// List returns one page of the rows of the active attempts of live jobs, in no
// particular order, and what to continue after, empty at the end. A page may be
// short of the limit and still not be the last. Where the filter names a tenant, only
// its jobs are read, and the place names no others. The errors are [*problem.Error]s.
func (o *Operator) List(ctx context.Context, f ListFilter, limit int, after string) ([]Row, string, error) {
	shard, from, err := parsePlace(after)
	if err != nil {
		return nil, "", err
	}
	var rows []Row
	for examined := 0; shard < o.ledger.Shards(); {
		// Whole pages are read, so that none is cut short by the limit.
		page := min(limit-len(rows), maxExamined-examined)
		if page <= 0 {
			return rows, place(shard, from), nil
		}
		jobs, next, err := o.ledger.LiveJobs(ctx, f.TenantID, shard, page, from)
		if err != nil {
			return nil, "", ledger.Problem(err)
		}
		for _, agg := range jobs {
			if agg.Outbox != nil && f.matches(agg) {
				rows = append(rows, Row{Outbox: *agg.Outbox, JobID: agg.Job.ID, TenantID: agg.Job.TenantID})
			}
		}
		examined += page
		if from = next; from == "" {
			shard++
		}
	}
	return rows, "", nil
}

// matches reports whether the job's active row fits.
func (f *ListFilter) matches(agg *statemachine.Aggregate) bool {
	return (f.State == "" || agg.Outbox.State == f.State) &&
		(f.TenantID == "" || agg.Job.TenantID == f.TenantID) &&
		(f.Lane == nil || agg.Outbox.Routing.Lane == *f.Lane)
}

// place is where a list goes on.
func place(shard int, from string) string { return strconv.Itoa(shard) + "/" + from }

// parsePlace reads a place.
func parsePlace(text string) (shard int, from string, err error) {
	if text == "" {
		return 0, "", nil
	}
	number, from, ok := strings.Cut(text, "/")
	shard, err = strconv.Atoi(number)
	if err != nil || !ok || shard < 0 {
		return 0, "", &problem.Error{
			Code: problem.InvalidEnvelope, Err: fmt.Errorf("place %q", text),
			Errors: []problem.Violation{{Message: "page_token is invalid"}},
		}
	}
	return shard, from, nil
}
