// Package sim simulates a whole system in one process, on virtual time, from one seed:
// several replicas on one store, and the clients, operators and workers that call their
// HTTP handlers, called visitors.
//
//	clients   operator   workers          replicas: ledger, relay, sweeper,
//	   │          │         │             pull queue, reconciler, retention
//	   └──────────┴─────────┴──────┐          │
//	                               ▼          ▼
//	                       ┌────────── gate ──────────┐
//	                       │ every call of a port     │
//	                       │ waits here for its turn  │
//	                       └────────────┬─────────────┘
//	                                    ▼
//	     driver ── one seeded source ── which call is next, and its fault
//	                                    │
//	                         store ◀────┴────▶ bus, receivers of webhooks
//	                                    │
//	                                 checker ── checks each write, publish, webhook and
//	                                            answer against the invariants
//
// The code under test is the program's own; the store, the bus, the time and the
// visitors are simulated. Everything runs in one bubble of [testing/synctest]. A bubble
// makes time virtual, but does not order goroutines: the gate does. The driver waits
// until all goroutines are blocked, sorts the parked calls by actor and content, and
// picks one at random. So a seed always has the same trace, on any number of processors.
//
// An eighth of all seeds run one replica on a model of the embedded store, which applies a
// write at once, shows it to its process, and syncs it later. The checker sees each write
// when it is synced, so telling anyone of it earlier violates an invariant, even if no crash
// follows. A sixteenth run several replicas on a store that applies a whole change at once,
// as PostgreSQL does.
//
// A phase with faults is followed by a calm one, in which every job must end and nothing
// may be left over. In the last phase there is no work, and few calls are allowed.
//
// Every fourth seed runs in the storage layout "table". At its end, the projected rows
// must agree with the jobs. In a quarter of all seeds, job ids begin with random bits, as
// on Azure.
//
// With a bit of their own, seeds have lines of jobs ([Ordered]), schedules ([Scheduled]) or
// webhooks ([Announced]). Receivers of webhooks refuse them, are slow, are down for a while, or
// answer in vain; an operator replays what was given up.
//
// Run one seed with
//
//	go test ./internal/sim -run Sim -sim.seed=N
package sim
