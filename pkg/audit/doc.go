// Package audit holds what is stored against the rules of the design: that
// nothing was lost, nothing happened twice, nothing that had ended changed, and
// every job that goes on has something that will take it up again.
//
//	       rows of one job            rows beside it
//	  JOB STEP OUTBOX EVENT       entry  slot  claim  lists
//	  DIRECTIVE WEBHOOK           ready hint
//	  OPENITEM ITEM BEAT
//	          │                          │
//	          └───────────┬──────────────┘
//	                      ▼
//	              Evidence.Judge ──► findings
//	                      ▲
//	Auditor: walks the tables, gathers the evidence of each job, and
//	looks for rows that no job accounts for
//
// The judgement is pure: it takes rows and a time, and knows nothing of the code
// that wrote them but the names of tables, rows and columns, and the law that both
// are held to: the transition tables and the lifecycle of work items. So it is not
// blind where that code is. The simulation, the crash tests and "lucius audit" all use
// it.
//
// A finding is a violation, which no crash and no delay explains, or late: work
// that is left after a crash is lawful for as long as somebody will do it, and
// late when it is long past its time. In a store that is being written the rows
// of a job are not read at one instant, so a finding counts there only if it is
// still there when the job is read again, and again.
//
// Source: Ledger and state model (tables and transitions); Stage1 seq ledger
// spec, Safety guarantees; Option B spec, 15 to 18.
package audit
