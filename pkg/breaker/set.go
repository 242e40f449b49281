package breaker

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Bus is the name of the circuit above all entities. It is not a legal entity
// name.
const Bus = "*"

// Set holds the circuits of one bus: its own, and one for each entity. It is
// safe for concurrent use. An entity's circuit is made at its first use and
// kept.
type Set struct {
	settings Settings // of the entities

	mu       sync.Mutex
	bus      circuit
	entities map[string]*circuit
}

// NewSet returns a set with all circuits closed, or the error of
// [Config.Validate].
func NewSet(cfg Config) (*Set, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("circuit breaker config: %w", err)
	}
	bus := cfg.Bus.withDefaults()
	return &Set{
		settings: cfg.Entity.withDefaults(),
		bus:      circuit{settings: &bus},
		entities: make(map[string]*circuit),
	}, nil
}

// Allow asks to publish n rows to the entity, and grants as many as both the
// entity and the bus have room for. The caller must not publish the others. The
// entity must not be Bus, which is always asked as well.
func (s *Set) Allow(entity string, n int, now time.Time) Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.advance(entity, now)
	inBus, inEntity := s.bus.room(n), e.room(n)
	grant := Grant{Entity: entity, N: max(0, min(inBus, inEntity)), bus: s.bus.epoch, entity: e.epoch}
	if grant.N > 0 {
		s.bus.take(grant.N, now)
		e.take(grant.N, now)
	}
	if inBus < n {
		grant.RetryAt = s.bus.retryAt()
	}
	if inEntity < n && e.retryAt().After(grant.RetryAt) {
		grant.RetryAt = e.retryAt()
	}
	return grant
}

// Report records the outcome of one row of the grant. A circuit that has
// changed its state since the grant ignores it.
func (s *Set) Report(grant Grant, outcome Outcome, now time.Time) {
	if grant.N == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.advance(grant.Entity, now)
	if grant.bus == s.bus.epoch {
		reportToBus(&s.bus, outcome, now)
	}
	if grant.entity == e.epoch {
		reportToEntity(e, outcome, now)
	}
}

func reportToBus(bus *circuit, outcome Outcome, now time.Time) {
	switch outcome.Verdict {
	case Answered, EntityFailed:
		bus.succeed(now)
	case BusFailed:
		bus.fail(outcome.Reason, now)
	default:
		bus.forgo(now)
	}
}

func reportToEntity(entity *circuit, outcome Outcome, now time.Time) {
	switch outcome.Verdict {
	case Answered:
		entity.succeed(now)
	case EntityFailed:
		entity.fail(outcome.Reason, now)
	default:
		entity.forgo(now)
	}
}

// State returns the state that applies to publishing to the entity: its own, or
// that of the bus if the bus admits less. For Bus it is the bus's own.
func (s *Set) State(entity string, now time.Time) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bus.advance(now)
	if e, ok := s.entities[entity]; ok {
		e.advance(now)
		return max(s.bus.state, e.state)
	}
	return s.bus.state
}

// Open lists the circuits that are not closed, the bus first, then the entities
// by name. It is empty if all circuits are closed.
func (s *Set) Open(now time.Time) []Circuit {
	s.mu.Lock()
	defer s.mu.Unlock()
	var open []Circuit
	for name, e := range s.entities {
		e.advance(now)
		open = appendOpen(open, name, e)
	}
	slices.SortFunc(open, func(a, b Circuit) int { return strings.Compare(a.Name, b.Name) })
	s.bus.advance(now)
	return append(appendOpen(nil, Bus, &s.bus), open...)
}

func appendOpen(list []Circuit, name string, c *circuit) []Circuit {
	if c.state == Closed {
		return list
	}
	return append(list, Circuit{
		Name: name, State: c.state, Since: c.since, Until: c.until, Reason: c.reason, Trips: c.trips,
	})
}

// advance advances the bus and the entity to now, and returns the entity.
func (s *Set) advance(entity string, now time.Time) *circuit {
	s.bus.advance(now)
	e, ok := s.entities[entity]
	if !ok {
		e = &circuit{settings: &s.settings}
		s.entities[entity] = e
	}
	e.advance(now)
	return e
}
