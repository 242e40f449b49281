package queuetest

import (
	"slices"
	"testing"

	"github.com/lucius-project/lucius/pkg/workqueue/lifecycle"
)

// Run runs the suite as subtests of t, in parallel, each on a harness of its
// own from open.
func Run(t *testing.T, open func(t testing.TB) Harness) {
	t.Helper()
	RunWithin(t, func(t *testing.T, check func(t *testing.T)) { check(t) }, open)
}

// RunWithin does what [Run] does, with each check and the opening of its
// harness inside a call of within. With [testing/synctest.Test] there, a queue
// that reads the wall clock is tested on one that can be moved.
func RunWithin(t *testing.T, within func(t *testing.T, check func(t *testing.T)), open func(t testing.TB) Harness) {
	t.Helper()
	for _, check := range checks() {
		t.Run(check.name, func(t *testing.T) {
			t.Parallel()
			within(t, func(t *testing.T) { check.runOn(t, open(t)) })
		})
	}
}

// check is one test of the suite.
type check struct {
	name string
	// rule is what the source says.
	rule string
	run  func(t testing.TB, e *env)
}

// checks returns all checks, by capability.
func checks() []check {
	return slices.Concat(
		enqueueChecks, claimChecks, claimRepeatChecks, startChecks, heartbeatChecks, endChecks,
		stallChecks, requeueChecks, transitionChecks, requestChecks, repeatChecks, eventChecks, raceChecks,
	)
}

// runOn runs the check on that queue, and reads back all that it made.
func (c check) runOn(t testing.TB, harness Harness) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("rule: %s", c.rule)
		}
	}()
	e := &env{Harness: harness}
	c.run(t, e)
	e.audit(t)
}

// audit checks every item that the check made, and its history.
func (e *env) audit(t testing.TB) {
	t.Helper()
	for _, id := range e.made {
		item := e.get(t, id)
		if err := lifecycle.Validate(item); err != nil {
			t.Errorf("read back: %v", err)
		}
		if err := lifecycle.ValidateHistory(item, e.events(t, id)); err != nil {
			t.Errorf("history: %v", err)
		}
	}
}
