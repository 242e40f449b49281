package breaker

import (
	"fmt"
	"time"
)

// State is the state of a circuit. A greater one admits less.
type State uint8

// The states.
const (
	// Closed is the normal state. It admits everything, or what the ramp lets
	// pass.
	Closed State = iota
	// HalfOpen admits one page of probes.
	HalfOpen
	// Open admits nothing.
	Open
)

// String returns the state in lower case, as metrics and health reports have
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
// row by which other replicas know. Circuits may be compared with ==.
type Circuit struct {
	// Name is that of the entity, or Bus.
	Name string
	// State is Open or HalfOpen.
	State State
	// Since is when the outage began, which is when the circuit left Closed.
	Since time.Time
	// Until is when the current or last cool-down ends.
	Until time.Time
	// Reason is that of the failure which opened the circuit last.
	Reason string
	// Trips counts how often it opened since it was last closed for good, with
	// its ramp behind it.
	Trips int
}

// Verdict is what became of a row, as far as it says anything about the bus.
type Verdict uint8

// The verdicts. The zero one says nothing.
const (
	// NoVerdict is a row that was not sent, or whose failure counts against
	// nobody, such as a cancellation. Its place goes to another.
	NoVerdict Verdict = iota
	// Answered is a row that the entity has answered: taken, or rejected for the
	// message's own sake. Entity and bus are well.
	Answered
	// EntityFailed is a failure of the entity: missing, disabled, full,
	// unauthorised, throttled. The bus is well, for it said so.
	EntityFailed
	// BusFailed is a failure of the connection or of the whole bus. It says
	// nothing about the entity.
	BusFailed
)

// Outcome is what is reported of a row.
type Outcome struct {
	Verdict Verdict
	// Reason says in a few words why, for EntityFailed and BusFailed.
	Reason string
}

// Grant is the answer of Allow. Each of the N rows is to be reported under it
// once. It is a value, which belongs to the caller.
type Grant struct {
	// Entity is what was asked for.
	Entity string
	// N is how many rows may be published.
	N int
	// RetryAt is when to ask for the rest, if N is less than was asked for, and
	// the zero time otherwise. With a page of probes under way that is the
	// latest time; the circuit may well close before.
	RetryAt time.Time

	bus, entity uint64 // the epochs of the circuits
}
