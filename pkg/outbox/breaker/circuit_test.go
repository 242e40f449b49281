package breaker_test

import (
	"slices"
	"testing"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

func TestAClosedCircuitAdmitsEverything(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	for range 3 {
		grant := f.allow(red, 10_000, 10_000, 0)
		f.report(grant, 0, answered, noVerdict)
		if !grant.RetryAt.IsZero() {
			t.Errorf("RetryAt is %s although all was granted", grant.RetryAt)
		}
	}
	for _, n := range []int{0, -1} {
		f.report(f.allow(red, n, 0, 0), 0, entityFailed, busFailed)
	}
	f.wantState(red, breaker.Closed, 0)
	f.wantState(breaker.Bus, breaker.Closed, 0)
	if open := f.Open(at(0)); len(open) > 0 {
		t.Errorf("open: %+v", open)
	}
}

// TestVerdictsOpenTheirCircuit checks which circuit each verdict opens.
func TestVerdictsOpenTheirCircuit(t *testing.T) {
	t.Parallel()
	const open, closed = breaker.Open, breaker.Closed
	tests := []struct {
		name            string
		outcome         breaker.Outcome
		bus, red, other breaker.State
	}{
		{"no verdict", noVerdict, closed, closed, closed},
		{"answered", answered, closed, closed, closed},
		{"entity failed", entityFailed, closed, open, closed},
		{"bus failed", busFailed, open, open, open},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newSet(t)
			f.fail(red, test.outcome, 0)
			f.wantState(breaker.Bus, test.bus, 1)
			f.wantState(red, test.red, 1)
			f.wantState(blue, test.other, 1)
		})
	}
}

// TestTripAfter counts consecutive failures: an answer resets the count, a row
// without a verdict does not.
func TestTripAfter(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		outcomes []breaker.Outcome
		want     breaker.State
	}{
		{"two of three", []breaker.Outcome{entityFailed, entityFailed}, breaker.Closed},
		{"three of three", []breaker.Outcome{entityFailed, entityFailed, entityFailed}, breaker.Open},
		{"an answer between", []breaker.Outcome{entityFailed, entityFailed, answered, entityFailed}, breaker.Closed},
		{"no verdict between", []breaker.Outcome{entityFailed, entityFailed, noVerdict, entityFailed}, breaker.Open},
		{"the bus's fault between", []breaker.Outcome{entityFailed, entityFailed, busFailed, entityFailed}, breaker.Open},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			patient := small
			patient.TripAfter = 3
			f := newSetOf(t, breaker.Config{Bus: patient, Entity: patient})
			f.report(f.allow(red, 10, 10, 0), 0, test.outcomes...)
			f.wantState(red, test.want, 0)
			f.wantState(breaker.Bus, breaker.Closed, 0)
		})
	}
}

func TestAnOpenCircuitAdmitsNothingUntilItHasCooledDown(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 5)
	for _, seconds := range []float64{5, 6, 14.999} {
		f.wantRetryAt(f.allow(red, 10, 0, seconds), 15)
		f.wantState(red, breaker.Open, seconds)
	}
	f.wantState(red, breaker.HalfOpen, 15)
	f.allow(blue, 10, 10, 6)
}

func TestHalfOpenAdmitsOnePage(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.allow(red, 2, 2, 10)
	f.wantRetryAt(f.allow(red, 5, 1, 12), 42)
	f.wantRetryAt(f.allow(red, 5, 0, 13), 42)
}

// TestAPageIsJudgedAsAWhole reports outcomes of a page of probes and checks the
// circuit's state.
func TestAPageIsJudgedAsAWhole(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		probes   int
		outcomes []breaker.Outcome
		want     breaker.State
	}{
		{"full page, all answered", 3, []breaker.Outcome{answered, answered, answered}, breaker.Closed},
		{"full page, one to come", 3, []breaker.Outcome{answered, answered}, breaker.HalfOpen},
		{"short page, all answered", 1, []breaker.Outcome{answered}, breaker.Closed},
		{"first one failed", 3, []breaker.Outcome{entityFailed}, breaker.Open},
		{"last one failed", 3, []breaker.Outcome{answered, answered, entityFailed}, breaker.Open},
		{"the answers count, not the rows that say nothing", 3, []breaker.Outcome{noVerdict, answered, noVerdict}, breaker.Closed},
		{"nothing but rows that say nothing", 2, []breaker.Outcome{noVerdict, noVerdict}, breaker.HalfOpen},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newSet(t)
			f.fail(red, entityFailed, 0)
			f.report(f.allow(red, test.probes, test.probes, 10), 11, test.outcomes...)
			f.wantState(red, test.want, 11)
		})
	}
}

func TestARowWithoutAVerdictReturnsItsPlace(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	page := f.allow(red, 3, 3, 10)
	f.allow(red, 3, 0, 10)
	f.report(page, 11, noVerdict, noVerdict)
	f.allow(red, 3, 2, 11)
}

// TestCoolDownsDouble follows one long outage.
func TestCoolDownsDouble(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	for i, until := range []float64{10, 30, 70, 130, 190} {
		want := []breaker.Circuit{{
			Name: red, State: breaker.Open, Since: at(0), Until: at(until), Reason: "topic is disabled", Trips: i + 1,
		}}
		if got := f.Open(at(until - 1)); !slices.Equal(got, want) {
			t.Errorf("open %+v, want %+v", got, want)
		}
		want[0].State = breaker.HalfOpen
		if got := f.Open(at(until)); !slices.Equal(got, want) {
			t.Errorf("open %+v, want %+v", got, want)
		}
		f.fail(red, entityFailed, until)
	}
}

// TestProbesThatAreNeverAnswered checks that unanswered probes fail their page
// at its deadline, whenever the set is called.
func TestProbesThatAreNeverAnswered(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		looks []float64
		want  breaker.Circuit
	}{
		{"just before", []float64{41.9}, breaker.Circuit{
			State: breaker.HalfOpen, Until: at(10), Reason: "topic is disabled", Trips: 1,
		}},
		{"at the deadline", []float64{42}, breaker.Circuit{
			State: breaker.Open, Until: at(62), Reason: "probes were not answered in time", Trips: 2,
		}},
		{"long after", []float64{61.9}, breaker.Circuit{
			State: breaker.Open, Until: at(62), Reason: "probes were not answered in time", Trips: 2,
		}},
		{"after the next cool-down", []float64{62}, breaker.Circuit{
			State: breaker.HalfOpen, Until: at(62), Reason: "probes were not answered in time", Trips: 2,
		}},
		{"again and again", []float64{15, 42, 43, 62, 100}, breaker.Circuit{
			State: breaker.HalfOpen, Until: at(62), Reason: "probes were not answered in time", Trips: 2,
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newSet(t)
			f.fail(red, entityFailed, 0)
			page := f.allow(red, 2, 2, 10)
			f.report(page, 11, answered)
			f.allow(red, 1, 1, 12) // The last probe sets the deadline.
			var got []breaker.Circuit
			for _, look := range test.looks {
				got = f.Open(at(look))
			}
			test.want.Name, test.want.Since = red, at(0)
			if !slices.Equal(got, []breaker.Circuit{test.want}) {
				t.Errorf("open %+v, want %+v", got, test.want)
			}
		})
	}
}

// TestLateReportsChangeNothing: a grant from before the circuit's last change
// of state no longer counts.
func TestLateReportsChangeNothing(t *testing.T) {
	t.Parallel()
	tests := []struct {
		circuit string
		failed  breaker.Outcome
	}{{red, entityFailed}, {breaker.Bus, busFailed}}
	for _, test := range tests {
		t.Run(test.circuit, func(t *testing.T) {
			t.Parallel()
			f := newSet(t)
			early := f.allow(red, 100, 100, 0)
			f.report(early, 1, test.failed, test.failed, answered)
			f.wantState(test.circuit, breaker.Open, 10.9)
			f.report(early, 10.9, test.failed)
			f.wantState(test.circuit, breaker.HalfOpen, 11) // The second failure did not prolong it.

			page := f.allow(red, 2, 2, 11)
			f.report(early, 12, answered, answered, noVerdict)
			f.allow(red, 3, 1, 12)
			f.report(early, 12, test.failed)
			f.wantState(test.circuit, breaker.HalfOpen, 12)

			f.report(page, 13, test.failed) // Open until 33.
			f.report(page, 34, answered)
			f.wantState(test.circuit, breaker.HalfOpen, 34)
			f.recover(red, 34)
			f.report(page, 35, test.failed)
			f.wantState(test.circuit, breaker.Closed, 35)
		})
	}
}

// TestExcessReportsAreIgnored: rows beyond the grant are not counted.
func TestExcessReportsAreIgnored(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	page := f.allow(red, 2, 2, 10)
	f.report(page, 10, noVerdict, noVerdict, noVerdict, answered, noVerdict)
	f.wantState(red, breaker.HalfOpen, 10)
	page = f.allow(red, 5, 3, 10)
	f.report(page, 10, answered, answered)
	f.wantState(red, breaker.HalfOpen, 10)
	f.report(page, 10, answered)
	f.wantState(red, breaker.Closed, 10)
}

// TestOneFailedProbeIsEnough, whatever TripAfter says.
func TestOneFailedProbeIsEnough(t *testing.T) {
	t.Parallel()
	patient := small
	patient.TripAfter = 2
	f := newSetOf(t, breaker.Config{Bus: patient, Entity: patient})
	f.report(f.allow(red, 2, 2, 0), 0, entityFailed, entityFailed)
	f.fail(red, entityFailed, 10)
	f.wantState(red, breaker.Open, 10)
}

func TestReopeningOnTheRampIsANewOutage(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	f.fail(red, breaker.Outcome{Verdict: breaker.EntityFailed, Reason: "full"}, 12)
	want := []breaker.Circuit{{
		Name: red, State: breaker.Open, Since: at(12), Until: at(32), Reason: "full", Trips: 2,
	}}
	if got := f.Open(at(13)); !slices.Equal(got, want) {
		t.Errorf("open %+v, want %+v", got, want)
	}
}

func TestAfterTheRampTheCoolDownIsShortAgain(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.recover(red, 10)
	f.fail(red, entityFailed, 25)
	f.wantRetryAt(f.allow(red, 1, 0, 26), 35)
}
