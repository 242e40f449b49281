// Package audit checks a store against the design's invariants: nothing was lost, nothing
// happened twice, nothing changed after its end, and every live job has something that will
// continue it.
//
//	       rows of one job            rows in other partitions
//	  JOB STEP OUTBOX EVENT       entry  slot  record  lists
//	  DIRECTIVE WEBHOOK           ready hint
//	  OPENITEM ITEM BEAT CALLBACK
//	          │                          │
//	          └───────────┬──────────────┘
//	                      ▼
//	               Evidence.judge ──► findings
//	                      ▲
//	Run: walks the tables, gathers the evidence of each job, and
//	looks for rows that belong to no job
//
// The checks are pure: they take rows and a time. They share no code with the writers
// except the names of tables, rows and columns, the transition tables and the lifecycle of
// work items, so they do not share the writers' errors. The simulation, the crash tests and
// "lucius audit" use them.
//
// A finding is either a violation, which no crash or delay explains, or late: work left by
// a crash is legal while something will do it, and late when it is long overdue. What a clock
// that was set back, or a TTL of keys that was shorter, explains is late, too. In a store
// that is in use, the rows of a job are not read at one instant, so a finding counts only
// if it persists when the job is read again.
//
// Source: Ledger and state model (tables and transitions); Stage1 seq ledger
// spec, Safety guarantees; Option B spec, 15 to 18.
package audit
