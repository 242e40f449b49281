package workqueue

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/admission"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Config configures a [Queue].
type Config struct {
	// Ledger holds the items with their jobs, and decides about every verb. Required.
	Ledger *ledger.Ledger
	// Store holds the memories of claims, in the ledger's queue table. Required.
	Store tablestore.Store
	// Mirror is the ready hints in memory, which the ledger updates. Required.
	Mirror *Mirror
	// Held reports whether a pause holds back such items. Optional. It must not
	// block.
	Held func(target statemachine.Target) bool
	// HeldTenant reports whether a pause holds back all work of a tenant, so that its
	// backlog is not read again and again. Optional. It must not block.
	HeldTenant func(tenantID string) bool
	// Limits holds back items whose service is limited or closed. Optional.
	Limits *admission.Gate
	// Closer is told what each throttled failure closes, once, after its commit. It must not
	// block. Optional.
	Closer func(ctx context.Context, c statemachine.Closure)
	// Random returns numbers in [0, 1), which choose the shard of the ready index and the
	// partition of old claims where this process starts. Optional. Defaults to
	// math/rand/v2.
	Random func() float64
	// Poll is how often waiting claims look for items that another process queued. Optional.
	// Defaults to a second.
	Poll time.Duration
	// Logger is told of items that could not be claimed. Optional.
	Logger *slog.Logger
}

// Queue is the pull queue: the embedded bus. It is safe for concurrent use, by any
// number of processes on one store. The errors of its verbs, of [Queue.Claim],
// [Queue.Get] and [Queue.Events] are [*apierror.Error]s.
type Queue struct {
	ledger     *ledger.Ledger
	store      tablestore.Store
	mirror     *Mirror
	pollers    *pollers
	firstShard int
	expiry     *expiry
	poll       time.Duration
	held       func(statemachine.Target) bool
	heldTenant func(string) bool
	limits     *admission.Gate
	closer     func(context.Context, statemachine.Closure)
	logger     *slog.Logger
	caller     Caller
}

// New returns a queue.
func New(cfg Config) *Queue {
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Held == nil {
		cfg.Held = func(statemachine.Target) bool { return false }
	}
	if cfg.HeldTenant == nil {
		cfg.HeldTenant = func(string) bool { return false }
	}
	if cfg.Closer == nil {
		cfg.Closer = func(context.Context, statemachine.Closure) {}
	}
	q := &Queue{
		ledger: cfg.Ledger, store: cfg.Store, mirror: cfg.Mirror, pollers: newPollers(),
		firstShard: int(cfg.Random() * float64(cfg.Ledger.ReadyShards())), expiry: &expiry{cursor: make(chan expiredCursor, 1)},
		poll: cmp.Or(cfg.Poll, pollInterval), held: cfg.Held, heldTenant: cfg.HeldTenant, limits: cfg.Limits,
		closer: cfg.Closer, logger: cfg.Logger,
	}
	q.expiry.cursor <- expiredCursor{walked: time.Now(), part: int(cfg.Random() * memoryParts)}
	q.mirror.connect(cfg.Store)
	q.limits.Wake(q.mirror.granted)
	return q
}

// Caller names the tenants and services whose items a caller may see. An empty list means
// all. See [Queue.As].
type Caller struct {
	Tenants  []string
	Services []string
}

// As returns the same queue, limited to what the caller may see: claims return no
// other items, and to its verbs other items do not exist.
func (q *Queue) As(caller Caller) *Queue {
	limited := *q
	limited.caller = caller
	return &limited
}

// sees reports whether the caller may see the items of that tenant and service.
func (c *Caller) sees(tenant, service string) bool {
	return listed(c.Tenants, tenant) && listed(c.Services, service)
}

// listed reports whether the list is empty or has the value.
func listed(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }

// Publish lets a relay treat the pull queue as a bus. It does nothing: the change
// that marks a row SENT is its publication.
//
// Source: Job lifecycle plan 02, Enqueue and Requeue.
func (q *Queue) Publish(_ context.Context, messages []ledger.Message) []error {
	return make([]error, len(messages))
}

// PublishedByMark reports true, see [Queue.Publish].
func (q *Queue) PublishedByMark() bool { return true }

// asProblem translates the queue's errors for the caller.
func asProblem(err error) error {
	var invalid *statemachine.ItemRequestError
	var behind *statemachine.RevError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, statemachine.ErrNoItem):
		return &apierror.Error{Code: apierror.WorkNotFound, Detail: "There is no such work item.", Err: err}
	case errors.As(err, &invalid):
		return &apierror.Error{
			Code: apierror.InvalidEnvelope, Err: err,
			Errors: []apierror.Violation{{Pointer: "/" + invalid.Field, Message: invalid.Reason}},
		}
	case errors.Is(err, statemachine.ErrNotOwner):
		return &apierror.Error{Code: apierror.NotOwner, Detail: "The item is held by another worker, or by another claim.", Err: err}
	case errors.As(err, &behind): // The caller may know the rev: an item of another owner is ErrNotOwner.
		return &apierror.Error{Code: apierror.RevConflict, Detail: err.Error(), CurrentRev: behind.Rev, Err: err}
	case errors.Is(err, statemachine.ErrIllegalTransition):
		return &apierror.Error{Code: apierror.IllegalTransition, Detail: err.Error(), Err: err}
	}
	return ledger.Problem(err)
}
