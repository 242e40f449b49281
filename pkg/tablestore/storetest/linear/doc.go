// Package linear checks that a table store is linearizable: that each call takes
// effect at one instant between its beginning and its end, as if there were one
// client only. Clients work side by side on few rows, and porcupine looks for an
// order of their calls that explains every answer.
//
//	clients ──► store            history: call, answer, when
//	                                  │
//	                                  ▼
//	            model of a partition: rows, each absent or with its last write
//
// A write whose outcome is unknown may have been applied or not, and may yet be:
// in the history it never ends, so it can take effect at any time, or at none. A
// batch is one call on one partition. A search that does not come to an end within
// its time proves nothing, and fails the test.
package linear
