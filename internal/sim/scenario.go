package sim

import (
	"math/rand/v2"
	"time"
)

// The times of the simulated servers. They are short, so that much happens in little virtual
// time, but have the same proportions as in the program.
const (
	shards            = 2
	publishDeadline   = 4 * time.Second
	hold              = 6 * time.Second
	relayInterval     = 3 * time.Second
	sweepInterval     = 4 * time.Second
	reconcileInterval = 10 * time.Second
	ackTimeout        = 12 * time.Second
	leaseTime         = 30 * time.Second
)

// scenario is the configuration that a seed draws.
type scenario struct {
	pull          bool // processes publish to the pull queue, otherwise to a bus
	mixed         bool // each process draws which of the two it publishes to
	table         bool // the storage layout is "table", otherwise "ledger"
	atomic        bool // the store applies a whole change in one write
	shared        bool // several replicas use the atomic store, as on PostgreSQL; otherwise one, as embedded
	spread        bool // job ids begin with random bits, as on Azure, otherwise with the time
	limits        bool // the service has a limit
	running       int  // of so many attempts that run at once; 0 means that it is of starts alone
	pauses        bool // operators pause dispatch by scope
	dated         bool // a third of the commands has dates, and operators reschedule jobs
	bare          bool // processes are ledgers alone: see Explore
	scheduled     bool // operators make, change and delete schedules
	ordered       bool // two thirds of the commands have an order key
	classed       bool // a third of the commands is bulk work, and operators change classes
	described     bool // commands have documents and tags, and clients list jobs by them
	announced     bool // two thirds of the commands have callback URLs, and operators replay webhooks
	sharesOutages bool // replicas share outages of the bus
	replicas      int
	clients       int
	workers       int
	commands      int           // how many distinct commands there are
	submits       int           // how often each client submits one
	tries         int           // how often it repeats a request without an answer
	controls      int           // how often the operator acts
	limit         int           // the limit of a tenant's jobs in flight; 0 means no limit
	handoff       int           // the size of the relay's handoff
	jitter        float64       // of the delays before retries
	reconcile     bool          // the reconciler runs from the start
	cold          bool          // one replica does not hand rows straight to its relay
	retryUnit     time.Duration // the unit of the delays before a retry
	retention     time.Duration // 0 keeps jobs
	parallel      bool          // loops work on as many jobs at once as in the program
	length        time.Duration // of the phase with faults
	faults        profile
}

// newScenario draws a scenario.
func newScenario(rng *rand.Rand) scenario {
	s := scenario{
		pull: rng.IntN(3) != 0, replicas: 2 + rng.IntN(2), clients: 2, workers: 1 + rng.IntN(3),
		commands: 2 + rng.IntN(5), submits: 2 + rng.IntN(4), tries: 6, controls: rng.IntN(16), handoff: 1 + rng.IntN(8),
		length: time.Minute + time.Duration(rng.IntN(120))*time.Second,
	}
	if rng.IntN(3) == 0 {
		s.limit = 1 + rng.IntN(3)
	}
	if rng.IntN(2) == 0 {
		s.jitter = 0.3
	}
	s.reconcile = rng.IntN(3) == 0
	s.cold = rng.IntN(4) == 0
	s.retryUnit = time.Duration(1+rng.IntN(3)*5) * time.Second
	if rng.IntN(5) == 0 {
		s.retention = 4 * maxLate // so that a late write still finds the job
	}
	s.faults = newProfile(rng)
	return s
}
