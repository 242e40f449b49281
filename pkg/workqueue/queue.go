package workqueue

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"

	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Config is what a [Queue] is made of.
type Config struct {
	// Ledger holds the items with their jobs, and decides about every verb. Required.
	Ledger *ledger.Ledger
	// Store holds the memories of claims, in the ledger's queue table. Required.
	Store tablestore.Store
	// Mirror is what the ledger tells of ready hints. Required.
	Mirror *Mirror
	// Held says that the work is not to be handed out at present. Optional. It must
	// not block.
	Held func(hint *ledger.Hint) bool
	// HeldTenant says so of all work of a tenant, so that a paused backlog is not
	// read over and over. Optional. It must not block.
	HeldTenant func(tenantID string) bool
	// Random returns numbers in [0, 1), for where the walks over the shards of the ready
	// index and over old claims begin.
	// Optional. Defaults to math/rand/v2.
	Random func() float64
	// Logger is told of items that could not be handed out. Optional.
	Logger *slog.Logger
}

// Queue is the pull queue: the embedded bus. It is safe for concurrent use, by
// any number of processes on one store.
type Queue struct {
	*parts
	caller Caller
}

// parts is what all callers of one queue share.
type parts struct {
	ledger     *ledger.Ledger
	store      tablestore.Store
	table      string
	mirror     *Mirror
	firstShard int
	expiry     *expiry
	held       func(*ledger.Hint) bool
	heldTenant func(string) bool
	logger     *slog.Logger
}

// New returns a queue. The error names the field that is missing.
func New(cfg Config) (*Queue, error) {
	if cfg.Ledger == nil || cfg.Store == nil || cfg.Mirror == nil {
		return nil, errors.New("workqueue: Ledger, Store and Mirror are required")
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Held == nil {
		cfg.Held = func(*ledger.Hint) bool { return false }
	}
	if cfg.HeldTenant == nil {
		cfg.HeldTenant = func(string) bool { return false }
	}
	return &Queue{parts: &parts{
		ledger: cfg.Ledger, store: cfg.Store, table: cfg.Ledger.Tables().Queue, mirror: cfg.Mirror,
		firstShard: int(cfg.Random() * float64(cfg.Ledger.ReadyShards())), expiry: newExpiry(cfg.Random),
		held: cfg.Held, heldTenant: cfg.HeldTenant, logger: cfg.Logger,
	}}, nil
}

// As returns the queue as that caller sees it: claims give it only items that
// it may see, and for its verbs any other item is not there. It is the same
// queue; nothing is copied but the limits.
func (q *Queue) As(caller Caller) *Queue { return &Queue{parts: q.parts, caller: caller} }

// Publish is the bus's side of the pull queue towards a relay, and does nothing:
// the change that marks a row SENT is its publication.
//
// Source: Job lifecycle plan 02, Enqueue and Requeue.
func (q *Queue) Publish(_ context.Context, messages []ledger.Message) []error {
	return make([]error, len(messages))
}

// PublishedByMark reports true, see [Queue.Publish].
func (q *Queue) PublishedByMark() bool { return true }

// asProblem turns the queue's errors into what a caller is told.
func asProblem(err error) error {
	var invalid *lifecycle.RequestError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, lifecycle.ErrNotFound):
		return &problem.Error{Code: problem.WorkNotFound, Detail: "There is no such work item.", Err: err}
	case errors.As(err, &invalid):
		return &problem.Error{
			Code: problem.InvalidEnvelope, Err: err,
			Errors: []problem.Violation{{Pointer: "/" + invalid.Field, Message: invalid.Reason}},
		}
	case errors.Is(err, lifecycle.ErrNotOwner):
		return &problem.Error{Code: problem.NotOwner, Detail: "Another worker holds the item.", Err: err}
	case errors.Is(err, lifecycle.ErrRevConflict):
		return &problem.Error{Code: problem.RevConflict, Detail: err.Error(), Err: err}
	case errors.Is(err, lifecycle.ErrIllegalTransition):
		return &problem.Error{Code: problem.IllegalTransition, Detail: err.Error(), Err: err}
	}
	return ledger.Problem(err)
}
