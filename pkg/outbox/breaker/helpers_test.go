package breaker_test

import (
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

var t0 = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// at returns the time that many seconds after t0.
func at(seconds float64) time.Time {
	return t0.Add(time.Duration(seconds * float64(time.Second)))
}

// Two topics, and the outcomes of their rows.
const (
	red  = "topic-red"
	blue = "topic-blue"
)

var (
	noVerdict    = breaker.Outcome{}
	answered     = breaker.Outcome{Verdict: breaker.Answered}
	entityFailed = breaker.Outcome{Verdict: breaker.EntityFailed, Reason: "topic is disabled"}
	busFailed    = breaker.Outcome{Verdict: breaker.BusFailed, Reason: "connection refused"}
)

// small are settings with small numbers: cool-downs of 10, 20, 40 and 60
// seconds, pages of 3 probes, and a ramp of 2, 4, 8 … rows a second.
var small = breaker.Settings{
	TripAfter:    1,
	CoolDown:     10 * time.Second,
	MaxCoolDown:  time.Minute,
	Probes:       3,
	ProbeTimeout: 30 * time.Second,
	RampStep:     2,
}

// fixture is a set whose calls are checked as they are made.
type fixture struct {
	*breaker.Set
	t *testing.T
}

func newSet(t *testing.T) fixture {
	t.Helper()
	return newSetOf(t, breaker.Config{Bus: small, Entity: small})
}

func newSetOf(t *testing.T, cfg breaker.Config) fixture {
	t.Helper()
	set := breaker.NewSet(cfg)
	return fixture{set, t}
}

// allow asks for n rows and expects want of them granted.
func (f fixture) allow(entity string, n, want int, seconds float64) breaker.Grant {
	f.t.Helper()
	grant := f.Allow(entity, n, at(seconds))
	if grant.N != want {
		f.t.Fatalf("at %g s: %d rows of %d granted to %s, want %d", seconds, grant.N, n, entity, want)
	}
	return grant
}

func (f fixture) report(grant breaker.Grant, seconds float64, outcomes ...breaker.Outcome) {
	for _, outcome := range outcomes {
		f.Report(grant, outcome, at(seconds))
	}
}

// fail opens a circuit by one failed row.
func (f fixture) fail(entity string, outcome breaker.Outcome, seconds float64) {
	f.t.Helper()
	f.report(f.allow(entity, 1, 1, seconds), seconds, outcome)
}

// recover closes a half-open circuit by one probe.
func (f fixture) recover(entity string, seconds float64) {
	f.t.Helper()
	f.report(f.allow(entity, 1, 1, seconds), seconds, answered)
}

func (f fixture) wantState(entity string, want breaker.State, seconds float64) {
	f.t.Helper()
	if got := f.State(entity, at(seconds)); got != want {
		f.t.Errorf("at %g s: %s is %s, want %s", seconds, entity, got, want)
	}
}

func (f fixture) wantRetryAt(grant breaker.Grant, want float64) {
	f.t.Helper()
	if !grant.RetryAt.Equal(at(want)) {
		f.t.Errorf("RetryAt is %s, want %s", grant.RetryAt, at(want))
	}
}
