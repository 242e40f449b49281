package limits

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Scope names the directives that share a limit or a closure.
type Scope = statemachine.StartScope

// covering returns the scopes of a directive, the narrowest first.
func covering(service, stepType, tenantID string) [4]Scope {
	return [4]Scope{
		{Service: service, StepType: stepType, TenantID: tenantID},
		{Service: service, TenantID: tenantID},
		{Service: service, StepType: stepType},
		{Service: service},
	}
}

// Limit is how many starts a scope may have in any window of time, how many of its attempts may run at
// once, or both.
type Limit struct {
	Scope

	Count  int           `column:"count"` // 0 limits no starts, as does a Window of 0
	Window time.Duration `column:"window_ms"`
	// MaxRunning bounds the attempts that run at once; 0 does not. An attempt runs from its claim on.
	MaxRunning int `column:"max_running"`

	Actor  string `column:"actor"` // of the last change, as Reason
	Reason string `column:"reason"`
	// CreatedAt tells a limit from one of the same scope that was deleted.
	CreatedAt time.Time `column:"created_at"`
	// At is when tokens were last leased, by the clock of the process that leased them.
	// Buckets are the tokens that count, at most 42 entries with ends in order.
	At      time.Time `column:"at"`
	Buckets []Bucket  `column:"buckets"`
}

// Closure holds back all starts of a scope for a time.
type Closure struct {
	Scope

	Until  time.Time `column:"until"`
	Actor  string    `column:"actor"` // of the last change, as Reason
	Reason string    `column:"reason"`
	// ClosedAt is since when it is closed without a break. OpenedAt is when an operator opened
	// it last: a RESULT from before does not close it again.
	ClosedAt time.Time `column:"closed_at"`
	OpenedAt time.Time `column:"opened_at"`
}

// partition holds all limits and closures: there are never many.
const partition = "limits"

// The kinds of rows.
const (
	kindLimit  = "limit"
	kindClosed = "closed"
)

var (
	limitCodec   = tablestore.NewCodec[Limit]()
	closureCodec = tablestore.NewCodec[Closure]()
)

// Service keeps the limits and closures. It is safe for concurrent use, by any number of
// processes on one store. Each request of it is one of the store.
type Service struct {
	store  tablestore.Store
	table  string
	random func() float64
}

// New returns the limits in the table. random returns numbers in [0, 1), for the delays after
// lost races; nil means math/rand/v2. It must be safe for concurrent use.
func New(store tablestore.Store, table string, random func() float64) *Service {
	return &Service{store: store, table: table, random: random}
}

func (s *Service) key(kind string, scope Scope) tablestore.Key {
	return tablestore.Key{
		Table: s.table, Partition: partition, Row: tablestore.Join(kind, scope.Service, scope.StepType, scope.TenantID),
	}
}

// rows are the stored limits and closures.
type rows struct {
	limits   []Limit
	closures []Closure
	etags    map[tablestore.Key]tablestore.ETag
	running  map[Scope][]ledger.RunRow // of the limits of what runs at once
}

// List returns all limits, and the closures that are not over, each in the order of their
// scopes. The error is the store's.
func (s *Service) List(ctx context.Context) ([]Limit, []Closure, error) {
	found, err := s.scan(ctx)
	if err != nil {
		return nil, nil, err
	}
	now := tablestore.Now()
	closed := make([]Closure, 0, len(found.closures))
	for _, one := range found.closures {
		if one.Until.After(now) {
			closed = append(closed, one)
		}
	}
	return found.limits, closed, nil
}

func (s *Service) scan(ctx context.Context) (found rows, err error) {
	all, err := tablestore.ScanAll(ctx, s.store, tablestore.Query{Table: s.table, Partition: partition})
	if err != nil {
		return rows{}, fmt.Errorf("read the limits: %w", err)
	}
	found.etags = make(map[tablestore.Key]tablestore.ETag, len(all))
	for i := range all {
		row := &all[i]
		found.etags[row.Key] = row.ETag
		if strings.HasPrefix(row.Key.Row, kindClosed+":") {
			var one Closure
			err = closureCodec.Decode(row, &one)
			found.closures = append(found.closures, one)
		} else {
			var one Limit
			err = limitCodec.Decode(row, &one)
			found.limits = append(found.limits, one)
		}
		if err != nil {
			return rows{}, fmt.Errorf("read the limits: %w", err)
		}
	}
	return found, nil
}

// Set makes the limit, or changes its numbers, actor and reason: what was granted and what runs go on
// to count. So a greater window is kept from one such window after the change on.
func (s *Service) Set(ctx context.Context, fresh Limit) (Limit, error) {
	fresh.Window = fresh.Window.Truncate(time.Millisecond)
	var set Limit
	err := tablestore.Update(ctx, s.store, s.key(kindLimit, fresh.Scope), s.random,
		func(row *tablestore.Row) (tablestore.Properties, error) {
			set = Limit{Scope: fresh.Scope, CreatedAt: tablestore.Now()}
			if row.ETag != "" {
				if err := limitCodec.Decode(row, &set); err != nil {
					return nil, err
				}
			}
			same := set.Count == fresh.Count && set.Window == fresh.Window && set.MaxRunning == fresh.MaxRunning &&
				set.Reason == fresh.Reason
			set.Count, set.Window, set.MaxRunning = fresh.Count, fresh.Window, fresh.MaxRunning
			if row.ETag != "" && same {
				return nil, nil
			}
			set.Actor, set.Reason = fresh.Actor, fresh.Reason
			return limitCodec.Encode(&set, row.Properties), nil
		})
	return set, err
}

// Delete removes the limit. It returns a not_found [*apierror.Error] if there is none.
func (s *Service) Delete(ctx context.Context, scope Scope) error {
	return tablestore.Retry(ctx, s.random, func() error {
		row, err := s.store.Get(ctx, s.key(kindLimit, scope))
		if errors.Is(err, tablestore.ErrNotFound) {
			return &apierror.Error{Code: apierror.NotFound, Detail: "There is no such limit."}
		}
		if err == nil {
			_, err = s.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: row.Key, ETag: row.ETag}})
		}
		if err != nil {
			return fmt.Errorf("delete limit %s: %w", scope.ID(), err)
		}
		return nil
	})
}

// Close closes the scope until that time, or leaves it closed for longer. answered is when the
// RESULT came that closes it, zero if an operator does: one from before it was last opened
// changes nothing.
func (s *Service) Close(ctx context.Context, fresh Closure, answered time.Time) (Closure, error) {
	return s.update(ctx, fresh.Scope, func(old *Closure) *Closure { return old.close(&fresh, answered) })
}

// close returns what the closure becomes; old itself if nothing changes, nil if there is none.
func (c *Closure) close(fresh *Closure, answered time.Time) *Closure {
	until := fresh.Until.UTC().Truncate(time.Millisecond)
	now := tablestore.Now()
	switch {
	case c != nil && !answered.IsZero() && !answered.After(c.OpenedAt):
		return c // The worker that answered had begun before the operator looked.
	case c != nil && !until.After(c.Until):
		return c
	}
	next := *fresh
	next.Until, next.ClosedAt = until, now
	if c != nil {
		next.OpenedAt = c.OpenedAt
		if c.Until.After(now) {
			next.ClosedAt = c.ClosedAt
		}
	}
	return &next
}

// Open ends the closure now. It returns a not_found [*apierror.Error] if the scope is not
// closed.
func (s *Service) Open(ctx context.Context, scope Scope, actor, reason string) (Closure, error) {
	var open bool
	closure, err := s.update(ctx, scope, func(old *Closure) *Closure {
		now := tablestore.Now()
		if open = old == nil || !old.Until.After(now); open {
			return old
		}
		next := *old
		next.Until, next.OpenedAt, next.Actor, next.Reason = now, now, actor, reason
		return &next
	})
	if err == nil && open {
		return Closure{}, &apierror.Error{Code: apierror.NotFound, Detail: "The scope is not closed."}
	}
	return closure, err
}

// update changes a closure under its version.
func (s *Service) update(ctx context.Context, scope Scope, decide func(old *Closure) *Closure) (Closure, error) {
	var updated Closure
	err := tablestore.Update(ctx, s.store, s.key(kindClosed, scope), s.random,
		func(row *tablestore.Row) (tablestore.Properties, error) {
			var old *Closure
			if row.ETag != "" {
				old = &Closure{}
				if err := closureCodec.Decode(row, old); err != nil {
					return nil, err
				}
			}
			next := decide(old)
			if next != nil {
				updated = *next
			}
			if next == old {
				return nil, nil
			}
			return closureCodec.Encode(next, row.Properties), nil
		})
	return updated, err
}

// forgetAfter is how long a closure is kept after its end: a RESULT from before may come as late.
const forgetAfter = time.Hour

// over reports whether the closure can be forgotten.
func (c *Closure) over(now time.Time) bool {
	return !c.Until.Add(forgetAfter).After(now) && !c.OpenedAt.Add(forgetAfter).After(now)
}

// forget deletes a closure that is over.
func (s *Service) forget(ctx context.Context, scope Scope, etag tablestore.ETag) error {
	_, err := s.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: s.key(kindClosed, scope), ETag: etag}})
	if err != nil && !errors.Is(err, tablestore.ErrConflict) {
		return fmt.Errorf("delete closure %s: %w", scope.ID(), err)
	}
	return nil
}

// get reads a limit.
func (s *Service) get(ctx context.Context, scope Scope) (limit Limit, etag tablestore.ETag, err error) {
	row, err := s.store.Get(ctx, s.key(kindLimit, scope))
	if err != nil {
		return Limit{}, "", fmt.Errorf("read limit %s: %w", scope.ID(), err)
	}
	return limit, row.ETag, limitCodec.Decode(&row, &limit)
}

// replace writes a limit under its version.
func (s *Service) replace(ctx context.Context, limit *Limit, etag tablestore.ETag) (tablestore.ETag, error) {
	key := s.key(kindLimit, limit.Scope)
	etags, err := s.store.Commit(ctx, tablestore.Batch{{
		Verb: tablestore.Replace, Key: key, ETag: etag, Properties: limitCodec.Encode(limit, nil),
	}})
	if err != nil {
		return "", fmt.Errorf("write limit %s: %w", limit.ID(), err)
	}
	return etags[0], nil
}
