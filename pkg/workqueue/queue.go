package workqueue

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Ledger is what the queue needs of the ledger.
type Ledger interface {
	Job(ctx context.Context, jobID string) (*statemachine.Aggregate, error)
	Change(ctx context.Context, jobID string, event statemachine.Event, opts ...ledger.Option) (ledger.Result, error)
	History(ctx context.Context, jobID string, after int64, limit int) ([]ledger.HistoryEntry, int64, error)
}

// Config is what a [Queue] is made of.
type Config struct {
	// Storage holds the items. It must be the Follower of the Ledger. Required.
	Storage *Storage
	// Ledger decides about every claim and report. Required.
	Ledger Ledger
	// MirrorLimit is the most ready items that are kept in memory; the others
	// are found by a scan. Optional. Defaults to 10,000.
	MirrorLimit int
	// Held says that no work of the tenant is to be handed out at present.
	// Optional. It must not block.
	Held func(tenantID string) bool
	// Random returns numbers in [0, 1), for where the walk over old claims begins.
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
	storage   *Storage
	ledger    Ledger
	callbacks *callbacks.Service
	ready     *ready
	turns     *turns
	tidy      *tidy
	logger    *slog.Logger
	held      func(tenantID string) bool

	mu        sync.Mutex
	refilled  map[string]time.Time
	cataloged map[kind]bool
}

// New returns a queue. The error names the field that is missing.
func New(cfg Config) (*Queue, error) {
	if cfg.Storage == nil || cfg.Ledger == nil {
		return nil, errors.New("workqueue: Storage and Ledger are required")
	}
	if cfg.MirrorLimit == 0 {
		cfg.MirrorLimit = 10_000
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Held == nil {
		cfg.Held = func(string) bool { return false }
	}
	return &Queue{parts: &parts{
		storage: cfg.Storage, ledger: cfg.Ledger, callbacks: callbacks.New(cfg.Ledger),
		ready: newReady(cfg.MirrorLimit), turns: newTurns(), tidy: newTidy(cfg.Random), logger: cfg.Logger,
		held:      cfg.Held,
		cataloged: map[kind]bool{}, refilled: map[string]time.Time{},
	}}, nil
}

// As returns the queue as that caller sees it: claims give it only items that
// it may see, and for its verbs any other item is not there. It is the same
// queue; nothing is copied but the limits.
func (q *Queue) As(caller Caller) *Queue { return &Queue{parts: q.parts, caller: caller} }

// Ready is the number of items that this process knows to be ready, by service.
func (q *Queue) Ready() map[string]int { return q.ready.size() }

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
