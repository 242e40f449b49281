package breaker_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

func TestTheBusIsAboveAll(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, busFailed, 0)
	f.wantRetryAt(f.allow(blue, 5, 0, 1), 10)

	f.allow(blue, 2, 2, 10) // One page for the whole bus.
	f.allow(red, 2, 1, 10)
	f.allow("topic-green", 2, 0, 10)
}

// TestARefusalTakesNoPlace: a row that the entity refuses takes no place in the
// bus, and the reverse.
func TestARefusalTakesNoPlace(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.fail(blue, busFailed, 5)
	f.recover(blue, 15) // The bus is on its ramp, red is half-open.
	f.allow(red, 3, 1, 15)
	f.allow(red, 3, 0, 15)
	page := f.allow(red, 1, 1, 16)
	f.report(page, 16, entityFailed)
	f.allow(red, 3, 0, 16)
	f.allow(blue, 3, 1, 16)
}

// TestRetryAtIsTheLaterOfBoth: asking before it would get no rows.
func TestRetryAtIsTheLaterOfBoth(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.fail(blue, busFailed, 5)
	f.wantRetryAt(f.allow(red, 1, 0, 6), 15)
	f.wantRetryAt(f.allow(red, 1, 0, 12), 15)
	f.recover(blue, 15)
	f.fail(red, entityFailed, 15)
	f.wantRetryAt(f.allow(red, 1, 0, 15), 35)
}

// TestAnEntityFailureIsAnAnswerOfTheBus: a bus that reports a missing topic is
// reachable.
func TestAnEntityFailureIsAnAnswerOfTheBus(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, busFailed, 0)
	f.fail(red, entityFailed, 10)
	f.wantState(breaker.Bus, breaker.Closed, 10)
	f.wantState(red, breaker.Open, 10)
}

// TestABusFailureSaysNothingAboutTheEntity: the entity's probe is returned.
func TestABusFailureSaysNothingAboutTheEntity(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	f.fail(red, entityFailed, 0)
	f.report(f.allow(red, 3, 3, 10), 10, busFailed, noVerdict, noVerdict)
	want := []string{"* open", red + " half-open"}
	if got := list(f.Open(at(10))); !slices.Equal(got, want) {
		t.Errorf("open %q, want %q", got, want)
	}
	f.report(f.allow(red, 3, 3, 20), 20, answered, answered, answered)
	if got := f.Open(at(20)); len(got) > 0 {
		t.Errorf("open %+v, want none", got)
	}
}

func TestOpenIsSorted(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	for _, topic := range []string{"d", "a", "$", "c", "b"} {
		f.fail(topic, entityFailed, 0)
	}
	f.allow("well", 1, 1, 0)
	f.fail("e", busFailed, 5)
	want := []string{"* open", "$ half-open", "a half-open", "b half-open", "c half-open", "d half-open"}
	if got := list(f.Open(at(10))); !slices.Equal(got, want) {
		t.Errorf("open %q, want %q", got, want)
	}
}

func list(circuits []breaker.Circuit) []string {
	var names []string
	for _, c := range circuits {
		names = append(names, c.Name+" "+c.State.String())
	}
	return names
}

func TestStateNames(t *testing.T) {
	t.Parallel()
	want := []string{"closed", "half-open", "open", "State(3)"}
	for i, name := range want {
		if got := breaker.State(i).String(); got != name {
			t.Errorf("state %d is %q, want %q", i, got, name)
		}
	}
}

// TestConfigDefaults runs an outage with the default settings.
func TestConfigDefaults(t *testing.T) {
	t.Parallel()
	f := newSetOf(t, breaker.Config{})
	now := 0.0
	for _, coolDown := range []float64{5, 10, 20, 40, 60, 60} {
		f.fail(red, entityFailed, now)
		now += coolDown
		f.wantState(red, breaker.Open, now-0.001)
		f.wantState(red, breaker.HalfOpen, now)
	}
	page := f.allow(red, 1000, 10, now)
	f.wantRetryAt(page, now+60)
	f.report(page, now, slices.Repeat([]breaker.Outcome{answered}, 10)...)
	f.allow(red, 10_000, 1, now)
	f.allow(red, 10_000, 100, now+1)
	f.allow(red, 10_000, 1600, now+5)
	f.allow(red, 10_000_000, 10_000_000, now+15)
}

// TestConcurrentUse runs an outage with many publishers, and checks that the
// set works afterwards. The race detector checks the rest.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	f := newSet(t)
	var publishers sync.WaitGroup
	for i := range 8 {
		publishers.Go(func() {
			entity := []string{red, blue}[i%2]
			for second := range 300 {
				now := at(float64(second))
				grant := f.Allow(entity, 5, now)
				for row := range grant.N {
					outcomes := []breaker.Outcome{answered, busFailed, entityFailed, noVerdict}
					f.Report(grant, outcomes[(second+i+row)%4], now)
				}
				f.State(entity, now)
				f.Open(now)
			}
		})
	}
	publishers.Wait()
	f.recover(red, 1000)
	f.recover(blue, 1000)
	if open := f.Open(at(1000)); len(open) > 0 {
		t.Errorf("open: %+v", open)
	}
}
