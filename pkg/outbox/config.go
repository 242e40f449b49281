package outbox

import (
	"cmp"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/seqledger"
)

// Config is what a [Relay] is made of.
type Config struct {
	// Ledger holds the outbox rows. Required.
	Ledger *ledger.Ledger
	// Publisher is the bus. Required.
	Publisher Publisher
	// Inbox is the hot path's queue. Required.
	Inbox *Inbox
	// Breakers are the circuits of the topics and of the bus. Required.
	Breakers *breaker.Set
	// Fatal is told of an illegal transition in the window, a defect: it logs
	// the facts and stops the process. Required.
	Fatal func(*seqledger.IllegalTransitionError)
	// Owner is this process's token in the window. Optional. Defaults to "relay".
	Owner string
	// Deadline is how long one publish may take, retries included; it must be
	// shorter than the ledger's hold. Optional. Defaults to 10 s.
	Deadline time.Duration
	// Batch is the most messages that are published together. Optional.
	// Defaults to 64.
	Batch int
	// Workers is the number of batches under way on the hot path. Optional.
	// Defaults to 4.
	Workers int
	// Marks is the number of rows marked side by side in a batch. Optional.
	// Defaults to 32.
	Marks int
	// PassLimit is the most rows that one pass takes up, and so bounds the drain rate
	// after an outage. Optional. Defaults to 2048.
	PassLimit int
	// Admit says whether dispatch goes on for such directives: what it holds back
	// stays in the schedule. Optional. It must not block.
	Admit func(tenantID, protocolID string, lane int) bool
	// Random returns numbers in [0, 1), for the shard at which a pass begins and for
	// the delays between publishes. Optional. Defaults to math/rand/v2. It must be
	// safe for concurrent use.
	Random func() float64
	// Logger is told of rows that could not be published. Optional.
	Logger *slog.Logger
	// Observe is told of each outcome. Optional.
	Observe func(Outcome)
}

// Outcome is what became of one take-up of a row.
type Outcome string

// The outcomes.
const (
	Marked    Outcome = "marked"    // published, and its row SENT
	Settled   Outcome = "settled"   // published, but somebody else had settled the row
	Rejected  Outcome = "rejected"  // refused by the bus for the message's own sake
	Uncertain Outcome = "uncertain" // left to the schedule, outcome unknown
	Outage    Outcome = "outage"    // left to the schedule, bus or topic out of service
	Overload  Outcome = "overload"  // left to the schedule, the window is full
	Gated     Outcome = "gated"     // left to the schedule, the circuit is open
	Held      Outcome = "held"      // left to the schedule, dispatch is paused
	Unmarked  Outcome = "unmarked"  // published, but the row could not be marked
)

// uncertain is the one class of failure that is retried under its seq, inside
// the publish deadline.
const uncertain seqledger.Class = "uncertain"

// validate checks the configuration and fills in the defaults.
func (c *Config) validate() error {
	if c.Ledger == nil || c.Publisher == nil || c.Inbox == nil || c.Breakers == nil || c.Fatal == nil {
		return errors.New("relay: Ledger, Publisher, Inbox, Breakers and Fatal are required")
	}
	c.Owner = cmp.Or(c.Owner, "relay")
	c.Deadline = cmp.Or(c.Deadline, 10*time.Second)
	c.Batch = cmp.Or(c.Batch, 64)
	c.Workers = cmp.Or(c.Workers, 4)
	c.Marks = cmp.Or(c.Marks, 32)
	c.PassLimit = cmp.Or(c.PassLimit, 2048)
	if c.Deadline < 0 || min(c.Batch, c.Workers, c.Marks, c.PassLimit) < 0 {
		return errors.New("relay: Deadline, Batch, Workers, Marks and PassLimit must be positive")
	}
	if c.Admit == nil {
		c.Admit = func(string, string, int) bool { return true }
	}
	if c.Random == nil {
		c.Random = rand.Float64
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Observe == nil {
		c.Observe = func(Outcome) {}
	}
	return nil
}
