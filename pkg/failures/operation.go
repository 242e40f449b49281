package failures

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// State is the state of an [Operation].
type State string

// The states of an operation.
const (
	Running   State = "RUNNING"
	Done      State = "DONE"      // every job was tried
	Cancelled State = "CANCELLED" // it was stopped before

	// drafted is that of a row which stands for items without a HEAD.
	drafted State = "DRAFT"
)

// Counts is what became of an operation's jobs.
type Counts struct {
	Rerun   int // have a rerun, a new one or one that was there already
	Skipped int // cannot be rerun
	Failed  int // could not be rerun for another reason
}

// Done is how many were tried.
func (c *Counts) Done() int { return c.Rerun + c.Skipped + c.Failed }

// add counts an outcome.
func (c *Counts) add(outcome Outcome) {
	switch outcome {
	case Rerun, Repeated:
		c.Rerun++
	case Skipped:
		c.Skipped++
	case Failed:
		c.Failed++
	case Waiting:
	}
}

// Operation reruns many jobs.
type Operation struct {
	ID    string
	State State
	From  ledger.RerunFrom
	// Matched is how many jobs it is for.
	Matched int
	Counts
	// TenantID is whose jobs it is for, empty where they may be of several tenants.
	TenantID      string
	RatePerSecond float64
	Reason        string
	Actor         string
	CreatedAt     time.Time
	UpdatedAt     time.Time

	digest string // of the request
	named  bool   // the request named the jobs
	set    string // which items are its own

	// owner is the runner that works on it, until then; empty for none.
	owner      string
	leaseUntil time.Time

	loaded tablestore.Properties
}

// operations holds a HEAD for each operation, and drafts: there are never many.
const operations = "retries"

func (s *Service) headKey(id string) tablestore.Key {
	return tablestore.Key{Table: s.cfg.Table, Partition: operations, Row: tablestore.Escape(id)}
}

// encode makes an operation's HEAD.
func (o *Operation) encode() tablestore.Properties {
	return over(
		o.loaded,
		tablestore.Property{Name: "v", Value: tablestore.Int(1)},
		tablestore.Property{Name: "retry_id", Value: tablestore.String(o.ID)},
		tablestore.Property{Name: "state", Value: tablestore.String(string(o.State))},
		tablestore.Property{Name: "from", Value: tablestore.String(string(o.From))},
		tablestore.Property{Name: "matched", Value: tablestore.Int(int64(o.Matched))},
		tablestore.Property{Name: "rerun", Value: tablestore.Int(int64(o.Rerun))},
		tablestore.Property{Name: "skipped", Value: tablestore.Int(int64(o.Skipped))},
		tablestore.Property{Name: "failed", Value: tablestore.Int(int64(o.Failed))},
		tablestore.Property{Name: "rate", Value: tablestore.String(strconv.FormatFloat(o.RatePerSecond, 'g', -1, 64))},
		tablestore.Property{Name: "tenant_id", Value: tablestore.String(o.TenantID)},
		tablestore.Property{Name: "reason", Value: tablestore.String(o.Reason)},
		tablestore.Property{Name: "actor", Value: tablestore.String(o.Actor)},
		tablestore.Property{Name: "created_at", Value: tablestore.Time(o.CreatedAt)},
		tablestore.Property{Name: "updated_at", Value: tablestore.Time(o.UpdatedAt)},
		tablestore.Property{Name: "digest", Value: tablestore.String(o.digest)},
		tablestore.Property{Name: "named", Value: tablestore.Bool(o.named)},
		tablestore.Property{Name: "item_set", Value: tablestore.String(o.set)},
		tablestore.Property{Name: "owner", Value: tablestore.String(o.owner)},
		tablestore.Property{Name: "lease_until", Value: tablestore.Time(o.leaseUntil)},
	)
}

// decode reads a HEAD or a draft.
func decode(row *tablestore.Row) (Operation, error) {
	p := row.Properties
	rate, err := strconv.ParseFloat(p.Get("rate").String(), 64)
	if err != nil {
		return Operation{}, fmt.Errorf("row %s: rate: %w", row.Key, err)
	}
	return Operation{
		ID: p.Get("retry_id").String(), State: State(p.Get("state").String()),
		From: ledger.RerunFrom(p.Get("from").String()), Matched: int(p.Get("matched").Int()),
		Counts: Counts{
			Rerun: int(p.Get("rerun").Int()), Skipped: int(p.Get("skipped").Int()), Failed: int(p.Get("failed").Int()),
		},
		RatePerSecond: rate, TenantID: p.Get("tenant_id").String(), Reason: p.Get("reason").String(), Actor: p.Get("actor").String(),
		CreatedAt: p.Get("created_at").Time(), UpdatedAt: p.Get("updated_at").Time(),
		digest: p.Get("digest").String(), named: p.Get("named").Bool(), set: p.Get("item_set").String(),
		owner: p.Get("owner").String(), leaseUntil: p.Get("lease_until").Time(), loaded: p,
	}, nil
}

// over returns the properties of a row that was loaded, with others written
// over them, so that what a newer version has put there stays.
func over(loaded tablestore.Properties, own ...tablestore.Property) tablestore.Properties {
	rest := slices.DeleteFunc(slices.Clone(loaded), func(old tablestore.Property) bool {
		return slices.ContainsFunc(own, func(p tablestore.Property) bool { return p.Name == old.Name })
	})
	return append(rest, own...)
}

// errNoOperation is returned for an id that names no operation.
var errNoOperation = problem.Newf(problem.NotFound, "There is no such retry operation.")

// read returns the operation and its version. It returns [errNoOperation].
func (s *Service) read(ctx context.Context, id string) (Operation, tablestore.ETag, error) {
	row, err := s.cfg.Store.Get(ctx, s.headKey(id))
	if errors.Is(err, tablestore.ErrNotFound) {
		return Operation{}, "", errNoOperation
	}
	if err != nil {
		return Operation{}, "", fmt.Errorf("read retry operation %s: %w", id, err)
	}
	op, err := decode(&row)
	return op, row.ETag, err
}

// maxTries bounds how often a change is decided again after a lost race.
const maxTries = 10

// move changes an operation under its version. change reports whether it
// changed anything.
func (s *Service) move(ctx context.Context, id string, change func(op *Operation) (bool, error)) (Operation, error) {
	for range maxTries {
		op, tag, err := s.read(ctx, id)
		if err != nil {
			return Operation{}, err
		}
		if changed, err := change(&op); err != nil || !changed {
			return op, err
		}
		_, err = s.cfg.Store.Commit(ctx, tablestore.Batch{{
			Verb: tablestore.Replace, Key: s.headKey(id), ETag: tag, Properties: op.encode(),
		}})
		if err == nil {
			return op, nil
		}
		if _, conflict := tablestore.IsConflict(err); !conflict {
			return Operation{}, fmt.Errorf("change retry operation %s: %w", id, err)
		}
	}
	return Operation{}, fmt.Errorf("change retry operation %s: lost %d races: %w", id, maxTries, tablestore.ErrUnavailable)
}

// Cancel stops an operation: what was rerun goes on, and nothing more is rerun
// but what is under way at this moment. One that is over stays as it is. The
// errors are [*problem.Error]s, not_found where there is no such operation.
func (s *Service) Cancel(ctx context.Context, id string) (Operation, error) {
	op, err := s.move(ctx, id, func(op *Operation) (bool, error) {
		if op.State != Running {
			return false, nil
		}
		op.State, op.UpdatedAt = Cancelled, now()
		return true, nil
	})
	return op, ledger.Problem(err)
}

// now is the time of one change, in the milliseconds that are stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
