package breaker

import (
	"fmt"
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
