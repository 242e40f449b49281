package breaker_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

// witness observes a set from outside: it knows only the states, the grants and
// the settings.
type witness struct {
	set    fixture
	now    time.Time
	grants []*granted
	seen   map[string]*seen
}

// seen is the witness's knowledge of one circuit.
type seen struct {
	state breaker.State
	// closed is when the circuit was last seen to close, and admitted counts
	// the rows granted since.
	closed   time.Time
	admitted int
	// periods counts the changes of state, reopening included.
	periods int
	last    breaker.Circuit
}

type granted struct {
	breaker.Grant
	unreported int
	// periods are the circuits' periods at the time of the grant.
	periods map[string]int
}

func newWitness(t *testing.T) *witness {
	t.Helper()
	return &witness{
		set: newSet(t), now: t0,
		seen: map[string]*seen{breaker.Bus: {}, red: {}, blue: {}},
	}
}

func (w *witness) allow(t *rapid.T) {
	entity := rapid.SampledFrom([]string{red, blue}).Draw(t, "entity")
	n := rapid.SampledFrom([]int{1, 2, 3, 4, 20}).Draw(t, "rows")
	w.observe()
	grant := w.set.Allow(entity, n, w.now)
	if grant.N < 0 || grant.N > n {
		t.Fatalf("granted %d rows of %d", grant.N, n)
	}
	if (grant.N < n) != grant.RetryAt.After(w.now) {
		t.Fatalf("granted %d rows of %d at %s, with RetryAt %s", grant.N, n, w.now, grant.RetryAt)
	}
	periods := map[string]int{breaker.Bus: w.seen[breaker.Bus].periods, entity: w.seen[entity].periods}
	w.grants = append(w.grants, &granted{grant, grant.N, periods})
	for name := range periods {
		w.checkBound(t, name, grant.N)
	}
}

// checkBound checks the last grant against the limit of the circuit's state.
func (w *witness) checkBound(t *rapid.T, name string, n int) {
	c := w.seen[name]
	switch c.state {
	case breaker.Open:
		if n > 0 {
			t.Fatalf("%s is open and admitted %d rows", name, n)
		}
	case breaker.HalfOpen:
		if got := w.underWay(name); got > small.Probes {
			t.Fatalf("%s is half-open and has %d probes under way", name, got)
		}
	default:
		since := w.now.Sub(c.closed)
		if c.closed.IsZero() || since >= breaker.RampFor {
			return
		}
		c.admitted += n
		// At the end of second k, 2^(k+1) - 1 times RampStep and the first one.
		if limit := small.RampStep*(2<<int(since.Seconds())-1) + 1; c.admitted > limit {
			t.Fatalf("%s admitted %d rows within %s of its ramp, the limit is %d", name, c.admitted, since, limit)
		}
	}
}

// underWay counts the unreported rows that the circuit admitted in its current
// period.
func (w *witness) underWay(name string) (rows int) {
	for _, g := range w.grants {
		if period, ok := g.periods[name]; ok && period == w.seen[name].periods {
			rows += g.unreported
		}
	}
	return rows
}

func (w *witness) report(t *rapid.T) {
	pending := slices.DeleteFunc(slices.Clone(w.grants), func(g *granted) bool { return g.unreported == 0 })
	if len(pending) == 0 {
		return
	}
	grant := rapid.SampledFrom(pending).Draw(t, "grant")
	outcome := rapid.SampledFrom([]breaker.Outcome{answered, entityFailed, busFailed, noVerdict}).Draw(t, "outcome")
	grant.unreported--
	w.set.Report(grant.Grant, outcome, w.now)
	w.observe()
}

// observe records the circuits' state changes since the last call.
func (w *witness) observe() {
	open := w.set.Open(w.now)
	for name, c := range w.seen {
		now := breaker.Circuit{}
		if i := slices.IndexFunc(open, func(o breaker.Circuit) bool { return o.Name == name }); i >= 0 {
			now = open[i]
		}
		if now == c.last {
			continue
		}
		if now.State == breaker.Closed {
			c.closed, c.admitted = w.now, 0
		}
		c.state, c.last = now.State, now
		c.periods++
	}
}

// TestBoundsHold makes random calls and checks each grant.
func TestBoundsHold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := newWitness(t)
		actions := []func(*rapid.T){w.report, w.allow, w.wait}
		for range 300 {
			actions[rapid.IntRange(0, 2).Draw(rt, "action")](rt)
		}
		w.wantRecovery(rt)
	})
}

func (w *witness) wait(t *rapid.T) {
	w.now = w.now.Add(rapid.SampledFrom([]time.Duration{
		200 * time.Millisecond, time.Second, 10 * time.Second, 40 * time.Second,
	}).Draw(t, "wait"))
}

// wantRecovery checks that every circuit can close after any history: once the
// last cool-down and page are over, one row to each entity is enough.
func (w *witness) wantRecovery(t *rapid.T) {
	w.now = w.now.Add(2 * small.MaxCoolDown)
	for _, entity := range []string{red, blue} {
		grant := w.set.Allow(entity, 1, w.now)
		w.set.Report(grant, answered, w.now)
	}
	if open := w.set.Open(w.now); len(open) > 0 {
		t.Fatalf("still open: %+v", open)
	}
}

// TestReadingChangesNothing makes the same random calls on two sets, one of
// which is also read all the time, and compares all answers.
func TestReadingChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		plain, watched := newSet(t), newSet(t)
		now := t0
		var grants [][2]breaker.Grant
		for range 100 {
			for range rapid.IntRange(0, 120).Draw(rt, "half seconds") {
				now = now.Add(500 * time.Millisecond)
				watched.Open(now)
				watched.State(red, now)
			}
			if rapid.Bool().Draw(rt, "allow") {
				n := rapid.SampledFrom([]int{1, 2, 20}).Draw(rt, "rows")
				pair := [2]breaker.Grant{plain.Allow(red, n, now), watched.Allow(red, n, now)}
				if pair[0] != pair[1] {
					rt.Fatalf("plain granted %+v, watched %+v", pair[0], pair[1])
				}
				grants = append(grants, pair)
			} else if len(grants) > 0 {
				pair := grants[len(grants)-1]
				outcome := rapid.SampledFrom([]breaker.Outcome{answered, entityFailed, busFailed, noVerdict}).Draw(rt, "outcome")
				plain.Report(pair[0], outcome, now)
				watched.Report(pair[1], outcome, now)
			}
		}
		if a, b := plain.Open(now), watched.Open(now); !slices.Equal(a, b) {
			rt.Fatalf("plain has open %+v, watched %+v", a, b)
		}
	})
}
