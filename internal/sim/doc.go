// Package sim simulates a whole Lucius: several replicas on one store, and as visitors
// clients, operators and workers, all in one process, on virtual time, from one seed.
// Visitors call the HTTP handlers of the replicas.
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
//	                         store ◀────┴────▶ bus
//	                                    │
//	                                 checker ── checks each write, publish and
//	                                            answer against the invariants
//
// The code under test is the program's own; the store, the bus, the time and the
// visitors are simulated. Everything runs in one bubble of [testing/synctest]. A bubble
// makes time virtual, but does not order goroutines: the gate does. The driver waits
// until all goroutines are blocked, sorts the parked calls by actor and content, and
// draws one. So a seed has the same trace again, on any number of processors.
//
// An eighth of all seeds has one replica on the embedded store, which applies a write at
// once, shows it to its process, and syncs it later. The checker sees each write when it is
// synced, so whatever is told before violates an invariant, even if no crash follows.
//
// After a phase with faults comes a calm one, in which every job must end and nothing
// may be left over. In the last phase there is no work, and few calls are allowed.
//
// Every fourth seed runs in the storage layout "table". At its end, the projected rows
// must agree with the jobs. A quarter of all seeds makes job ids that begin with random
// bits, as on Azure.
//
// Run one seed with
//
//	go test ./internal/sim -run Sim -sim.seed=N
package sim
