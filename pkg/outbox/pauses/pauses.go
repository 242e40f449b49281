package pauses

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// Pause is a pause by scope.
type Pause = statemachine.ScopePause

// The states of a pause.
const (
	Paused  = statemachine.ScopePaused
	Ramping = statemachine.ScopeRamping
	Resumed = statemachine.ScopeResumed
)

// DefaultRamp is how long a resumed scope ramps up unless the caller says otherwise.
const DefaultRamp = breaker.RampFor

// expired reports whether the pause should resume by itself.
func expired(p *Pause, now time.Time) bool {
	return p.State == Paused && !p.Until.IsZero() && !now.Before(p.Until)
}

// outlasts reports whether the pause is to end later than the other one.
func outlasts(p, other *Pause) bool {
	return !other.Until.IsZero() && (p.Until.IsZero() || p.Until.After(other.Until))
}

// partition holds all pauses: there are never many.
const partition = "pauses"

var codec = tablestore.NewCodec[Pause](tablestore.FormatAs("pause_id", statemachine.Scope.ID, statemachine.ParseScope))

// Service keeps the pauses. It is safe for concurrent use, by any number of
// processes on one store.
type Service struct {
	store  tablestore.Store
	table  string
	random func() float64
}

// New returns the pauses in the table. random returns numbers in [0, 1), for the delays
// after lost races; nil means math/rand/v2. It must be safe for concurrent use.
func New(store tablestore.Store, table string, random func() float64) *Service {
	return &Service{store: store, table: table, random: random}
}

func (s *Service) key(scope statemachine.Scope) tablestore.Key {
	return tablestore.Key{Table: s.table, Partition: partition, Row: tablestore.Join(cmp.Or(scope.Kind, scope.ID()), scope.Value)}
}

// List returns all pauses, ramping ones included, by id. The error is the
// store's.
func (s *Service) List(ctx context.Context) ([]Pause, error) {
	found, err := codec.ScanAll(ctx, s.store, tablestore.Query{Table: s.table, Partition: partition})
	if err != nil {
		return nil, fmt.Errorf("read the pauses: %w", err)
	}
	return found, nil
}

// Create pauses the scope. Of two pauses of one scope the one that ends later counts, so
// that no operator cuts short the pause of another: a scope that is paused for as long
// already is left unchanged. A scope that ramps up is paused again.
//
// The pause names its scope, reason and actor, and optionally its Until and the Ramp after
// that.
func (s *Service) Create(ctx context.Context, fresh Pause) (Pause, error) {
	fresh.State, fresh.CreatedAt, fresh.ResumedAt = Paused, tablestore.Now(), time.Time{}
	fresh.Until = fresh.Until.UTC().Truncate(time.Millisecond)
	return s.update(ctx, fresh.Scope, func(old *Pause) (*Pause, error) {
		if old == nil || old.State != Paused {
			return &fresh, nil
		}
		if !outlasts(&fresh, old) {
			return old, nil
		}
		longer := fresh
		longer.CreatedAt = old.CreatedAt
		return &longer, nil
	})
}

// Resume lets the scope ramp up within that time, or at once if it is 0. It
// returns a not_found [*apierror.Error] for a scope that is not paused.
func (s *Service) Resume(ctx context.Context, scope statemachine.Scope, ramp time.Duration) (Pause, error) {
	return s.update(ctx, scope, func(old *Pause) (*Pause, error) {
		if old == nil {
			return nil, &apierror.Error{Code: apierror.NotFound, Detail: "There is no such pause."}
		}
		if old.State == Ramping {
			return old, nil
		}
		next := *old
		next.State, next.ResumedAt, next.Ramp, next.Until = Ramping, tablestore.Now(), ramp, time.Time{}
		return &next, nil
	})
}

// expire resumes a pause whose time is over. It returns nil if there is no such pause any
// more: another process was first, or an operator.
func (s *Service) expire(ctx context.Context, scope statemachine.Scope) (*Pause, error) {
	var resumed bool
	pause, err := s.update(ctx, scope, func(old *Pause) (*Pause, error) {
		now := tablestore.Now()
		if resumed = old != nil && expired(old, now); !resumed {
			return old, nil
		}
		next := *old
		next.State, next.ResumedAt = Ramping, now
		return &next, nil
	})
	if err != nil || !resumed {
		return nil, err
	}
	return &pause, nil
}

// update changes a pause under its version. decide returns the pause to store, or the
// old one to change nothing.
func (s *Service) update(ctx context.Context, scope statemachine.Scope, decide func(old *Pause) (*Pause, error)) (Pause, error) {
	var updated Pause
	err := tablestore.Update(ctx, s.store, s.key(scope), s.random, func(row *tablestore.Row) (tablestore.Properties, error) {
		var old *Pause
		if row.ETag != "" {
			old = &Pause{}
			if err := codec.Decode(row, old); err != nil {
				return nil, err
			}
		}
		next, err := decide(old)
		if err != nil {
			return nil, err
		}
		if next == old {
			if old != nil {
				updated = old.At(tablestore.Now())
			}
			return nil, nil
		}
		updated = next.At(tablestore.Now())
		return codec.Encode(next, row.Properties), nil
	})
	return updated, err
}

// forget removes the row of a ramp that is over.
func (s *Service) forget(ctx context.Context, scope statemachine.Scope) error {
	key := s.key(scope)
	row, err := s.store.Get(ctx, key)
	if errors.Is(err, tablestore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read pause %s: %w", scope.ID(), err)
	}
	var pause Pause
	if err := codec.Decode(&row, &pause); err != nil || pause.At(tablestore.Now()).State != Resumed {
		return err
	}
	_, err = s.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: row.ETag}})
	if err != nil && !errors.Is(err, tablestore.ErrConflict) {
		return fmt.Errorf("delete pause %s: %w", scope.ID(), err)
	}
	return nil
}
