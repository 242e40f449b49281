package pauses

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// State is what a pause does at present.
type State string

// The states.
const (
	Paused  State = "PAUSED"  // nothing passes
	Ramping State = "RAMPING" // more passes every second
	Resumed State = "RESUMED" // everything passes; the row is deleted, or will be
)

// DefaultRamp is how long a resumed scope ramps up unless the caller says otherwise.
const DefaultRamp = breaker.RampFor

// Pause is a pause by scope.
type Pause struct {
	statemachine.Scope

	State  State
	Reason string
	Actor  string
	// CreatedAt is when it was paused, ResumedAt since when it ramps up.
	CreatedAt time.Time
	ResumedAt time.Time
	// Until is when it resumes by itself; zero if only an operator ends it, and once one
	// has.
	Until time.Time
	// Ramp is how long it ramps up, or will after Until.
	Ramp time.Duration
}

// expired reports whether the pause should resume by itself.
func (p Pause) expired(now time.Time) bool {
	return p.State == Paused && !p.Until.IsZero() && !now.Before(p.Until)
}

// outlasts reports whether the pause is to end later than the other one.
func (p Pause) outlasts(other *Pause) bool {
	return !other.Until.IsZero() && (p.Until.IsZero() || p.Until.After(other.Until))
}

// at is the pause at that time: a ramp ends by itself.
func (p Pause) at(now time.Time) Pause {
	if p.State == Ramping && !now.Before(p.ResumedAt.Add(p.Ramp)) {
		p.State = Resumed
	}
	return p
}

// partition holds all pauses: there are never many.
const partition = "pauses"

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
	kind, value, _ := strings.Cut(scope.ID(), ":")
	// The id has escapes of its own, which would be escaped again and might not fit.
	value = cmp.Or(scope.TenantID, scope.ProtocolID, scope.Service, value)
	return tablestore.Key{Table: s.table, Partition: partition, Row: tablestore.Join(kind, value)}
}

// List returns all pauses, ramping ones included, by id. The error is the
// store's.
func (s *Service) List(ctx context.Context) ([]Pause, error) {
	rows, err := tablestore.ScanAll(ctx, s.store, tablestore.Query{Table: s.table, Partition: partition})
	if err != nil {
		return nil, fmt.Errorf("read the pauses: %w", err)
	}
	found := make([]Pause, len(rows))
	for i := range rows {
		if found[i], err = decode(&rows[i]); err != nil {
			return nil, err
		}
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
		if !fresh.outlasts(old) {
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
		if resumed = old != nil && old.expired(now); !resumed {
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
			found, err := decode(row)
			if err != nil {
				return nil, err
			}
			old = &found
		}
		next, err := decide(old)
		if err != nil {
			return nil, err
		}
		if next == old {
			if old != nil {
				updated = old.at(tablestore.Now())
			}
			return nil, nil
		}
		updated = next.at(tablestore.Now())
		return encode(next), nil
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
	pause, err := decode(&row)
	if err != nil || pause.at(tablestore.Now()).State != Resumed {
		return err
	}
	_, err = s.store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: key, ETag: row.ETag}})
	if err != nil && !errors.Is(err, tablestore.ErrConflict) {
		return fmt.Errorf("delete pause %s: %w", scope.ID(), err)
	}
	return nil
}

// encode makes a pause's row.
func encode(p *Pause) tablestore.Properties {
	properties := tablestore.Properties{
		{Name: "pause_id", Value: tablestore.String(p.ID())},
		{Name: "state", Value: tablestore.String(string(p.State))},
		{Name: "reason", Value: tablestore.String(p.Reason)},
		{Name: "actor", Value: tablestore.String(p.Actor)},
		{Name: "created_at", Value: tablestore.Time(p.CreatedAt)},
	}
	if p.State == Ramping {
		properties = append(properties, tablestore.Property{Name: "resumed_at", Value: tablestore.Time(p.ResumedAt)})
	}
	if !p.Until.IsZero() {
		properties = append(properties, tablestore.Property{Name: "until", Value: tablestore.Time(p.Until)})
	}
	if p.State == Ramping || !p.Until.IsZero() {
		properties = append(properties, tablestore.Property{Name: "ramp_ms", Value: tablestore.Int(p.Ramp.Milliseconds())})
	}
	return properties
}

// decode reads a pause's row.
func decode(row *tablestore.Row) (Pause, error) {
	p := row.Properties
	scope, err := statemachine.ParseScope(p.Get("pause_id").String())
	if err != nil {
		return Pause{}, fmt.Errorf("row %s: %w", row.Key, err)
	}
	return Pause{
		Scope: scope, State: State(p.Get("state").String()), Reason: p.Get("reason").String(),
		Actor: p.Get("actor").String(), CreatedAt: p.Get("created_at").Time(), ResumedAt: p.Get("resumed_at").Time(),
		Until: p.Get("until").Time(), Ramp: time.Duration(p.Get("ramp_ms").Int()) * time.Millisecond,
	}, nil
}
