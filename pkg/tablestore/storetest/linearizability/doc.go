// Package linearizability checks that a table store is linearizable: that each
// call takes effect at one instant between its beginning and its end, as if
// there were only one client. Clients work concurrently on few rows, and
// porcupine searches for an order of their calls that explains every answer.
//
//	clients ──► store            history: call, answer, when
//	                                  │
//	                                  ▼
//	            model of a partition: rows, each absent or with its last write
//
// A write with unknown outcome may or may not have been applied, and may yet
// be: in the history it never ends, so it can take effect at any time or never.
// A batch is one call on one partition. A search that does not end within its
// time limit proves nothing and fails the test.
package linearizability
