package breaker

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// State is the state of a circuit. A greater one admits less.
type State uint8

// The states.
const (
	// Closed is the normal state. It admits everything, within the ramp's
	// limit.
	Closed State = iota
	// HalfOpen admits one page of probes.
	HalfOpen
	// Open admits nothing.
	Open
)

// String returns the state in lower case, as metrics and health reports show
// it.
func (s State) String() string {
	switch s {
	case Closed:
		return "closed"
	case HalfOpen:
		return "half-open"
	case Open:
		return "open"
	default:
		return fmt.Sprintf("State(%d)", uint8(s))
	}
}

// Circuit describes a circuit that is not closed, for health, metrics and the
// row that tells other replicas. Circuits may be compared with ==.
type Circuit struct {
	// Name is the entity's name, or Bus.
	Name string
	// State is Open or HalfOpen.
	State State
	// Since is when the outage began: when the circuit left Closed.
	Since time.Time
	// Until is when the current or last cool-down ends.
	Until time.Time
	// Reason is the reason of the failure that last opened the circuit.
	Reason string
	// Trips counts how often the circuit opened since it last completed its
	// ramp.
	Trips int
}

// Verdict is what a row's outcome says about the bus.
type Verdict uint8

// The verdicts. The zero one says nothing.
const (
	// NoVerdict is a row that was not sent, or whose failure says nothing about
	// the bus, such as a cancellation. Its place goes to another row.
	NoVerdict Verdict = iota
	// Answered is a row that the entity accepted, or rejected because of the
	// message itself. Entity and bus are healthy.
	Answered
	// EntityFailed is a failure of the entity: missing, disabled, full,
	// unauthorised, throttled. The bus is healthy, since it answered.
	EntityFailed
	// BusFailed is a failure of the connection or of the whole bus. It says
	// nothing about the entity.
	BusFailed
)

// Outcome is the reported outcome of a row.
type Outcome struct {
	Verdict Verdict
	// Reason is the cause in a few words, for EntityFailed and BusFailed.
	Reason string
}

// Grant is the answer of Allow. The caller reports each of its N rows once.
type Grant struct {
	// Entity is the entity asked for.
	Entity string
	// N is how many rows may be published.
	N int
	// RetryAt is when to ask for the rest if fewer rows were granted than asked
	// for, otherwise the zero time. With a page of probes under way it is the
	// latest time; the circuit may close earlier.
	RetryAt time.Time

	bus, entity uint64 // the epochs of the circuits
}

// Bus is the name of the circuit above all entities. It is not a legal entity
// name.
const Bus = "*"

// Set holds the circuits of one bus: its own, and one for each entity. It is
// safe for concurrent use. An entity's circuit is made at its first use and
// kept.
type Set struct {
	settings Settings // of the entities

	mu       sync.Mutex // A row is admitted by the bus and its entity in one step.
	bus      circuit
	entities map[string]*circuit
}

// NewSet returns a set with all circuits closed.
func NewSet(cfg Config) *Set {
	bus := cfg.Bus.withDefaults()
	return &Set{
		settings: cfg.Entity.withDefaults(),
		bus:      circuit{settings: &bus},
		entities: make(map[string]*circuit),
	}
}

// Allow asks to publish n rows to the entity, and grants as many as both the
// entity and the bus have room for. The caller must not publish the others. The
// entity must not be Bus, which is always asked as well.
func (s *Set) Allow(entity string, n int, now time.Time) Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.advance(entity, now)
	inBus, inEntity := s.bus.room(n, now), e.room(n, now)
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
		switch outcome.Verdict {
		case Answered, EntityFailed:
			s.bus.succeed(now)
		case BusFailed:
			s.bus.fail(outcome.Reason, now)
		default:
			s.bus.forgo(now)
		}
	}
	if grant.entity == e.epoch {
		switch outcome.Verdict {
		case Answered:
			e.succeed(now)
		case EntityFailed:
			e.fail(outcome.Reason, now)
		default:
			e.forgo(now)
		}
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
	s.bus.advance(now)
	open := appendOpen(nil, Bus, &s.bus)
	for _, name := range slices.Sorted(maps.Keys(s.entities)) {
		e := s.entities[name]
		e.advance(now)
		open = appendOpen(open, name, e)
	}
	return open
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
