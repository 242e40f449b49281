// Package audit judges what is stored by the rules of the design: nothing was lost,
// nothing happened twice, nothing changed after its end, and every live job has
// something that will continue it.
//
//	       rows of one job            rows in other partitions
//	  JOB STEP OUTBOX EVENT       entry  slot  claim  lists
//	  DIRECTIVE WEBHOOK           ready hint
//	  OPENITEM ITEM BEAT CALLBACKS
//	          │                          │
//	          └───────────┬──────────────┘
//	                      ▼
//	               Evidence.judge ──► findings
//	                      ▲
//	Run: walks the tables, gathers the evidence of each job, and
//	looks for rows that belong to no job
//
// The judgement is pure: it takes rows and a time. Of the code that wrote the rows it
// knows only the names of tables, rows and columns, and the law of both: the
// transition tables and the lifecycle of work items. So it does not share that code's
// errors. The simulation, the crash tests and "lucius audit" use it.
//
// A finding is a violation, which no crash and no delay explains, or late: work that
// a crash has left is legal while something will do it, and late when it is long past
// its time. In a store that is in use, the rows of a job are not read at one instant,
// so a finding counts there only if it is still there when the job is read again.
//
// Source: Ledger and state model (tables and transitions); Stage1 seq ledger
// spec, Safety guarantees; Option B spec, 15 to 18.
package audit
