// Package sim simulates a whole Lucius: several replicas on one store, clients,
// operators and workers, all in one process, on virtual time, from one seed. Who is
// outside speaks to the HTTP handlers of the replicas.
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
//	     driver ── one seeded source ── which goes on, and what goes wrong
//	                                    │
//	                         store ◀────┴────▶ bus
//	                                    │
//	                                 checker ── holds each write, each publish
//	                                            and each answer against the rules
//
// The code under test is the program's own; what is simulated is the store, the
// bus, the time, and those outside. Everything runs in one bubble of
// [testing/synctest]. A bubble makes time virtual, but does not order what runs:
// that is the gate's part. The driver waits until all have come to rest, sorts
// what waits by who asks and what for, and draws. So the same seed does the same
// again, however many processors there are.
//
// After a phase with faults comes one in which all are kind: then every job has
// to come to its end and nothing may be left over. In the last phase nothing is
// to be done, and hardly anybody may call.
//
// Every fourth seed runs in the storage layout "table". There, in the end, the
// projected rows must be what the jobs are.
//
// Run one seed with
//
//	go test ./internal/sim -run Sim -sim.seed=N
package sim
