// Package queuetest is what every work queue must do, as tests. An
// implementation wraps itself as a [Queue] and runs the whole suite with a few
// lines:
//
//	func TestQueue(t *testing.T) {
//		queuetest.Run(t, func(t testing.TB) queuetest.Harness {
//			clock := newClock()
//			return queuetest.Harness{Queue: open(t, clock), Now: clock.Now, Advance: clock.Advance}
//		})
//	}
//
// Each check names the rule of the source that it holds the queue to, and says
// it when it fails. After each check all items that it made are read back:
// each must be valid ([lifecycle.Validate]), and its history must be a walk
// along the allowed transitions ([lifecycle.ValidateHistory]).
//
// What the source leaves to others is not tested here: the choice among the
// items that may be claimed, how long leases last, and who stalls an item when.
// The suite calls Stall itself.
//
// The tests of this package run the suite on a small correct queue, and on
// broken variants of it. Each variant must be caught, and each check must catch
// one: a check that nothing can trip proves nothing.
//
// Source: Job lifecycle plan 02, Acceptance criteria.
package queuetest
