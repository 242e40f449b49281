package webhook_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/webhook"
)

func gate(t testing.TB, cfg webhook.GateConfig) *webhook.Gate {
	t.Helper()
	made, err := webhook.NewGate(cfg)
	if err != nil {
		t.Fatalf("NewGate: %v", err)
	}
	return made
}

// enter expects a pass.
func enter(t testing.TB, g *webhook.Gate, host string, now time.Time) *webhook.Pass {
	t.Helper()
	pass, turn := g.Enter(host, now)
	if pass == nil {
		t.Fatalf("%s: put off to %s, want a pass", host, turn)
	}
	return pass
}

// putOff expects none for the slow host, and returns how long the attempt is deferred.
func putOff(t testing.TB, g *webhook.Gate, now time.Time) time.Duration {
	t.Helper()
	pass, turn := g.Enter(slow, now)
	if pass != nil {
		t.Fatalf("%s: got a pass, want none", slow)
	}
	return turn.Sub(now)
}

var (
	delivered = webhook.Result{Outcome: webhook.Delivered, Status: 200}
	silent    = webhook.Result{Outcome: webhook.Failed, Reason: "the receiver did not answer in time", HostFault: true}
)

const slow, well = "slow.example:443", "well.example:443"

func TestGate_BoundsTheAttemptsOfAHost(t *testing.T) {
	t.Parallel()
	g := gate(t, webhook.GateConfig{PerHost: 2})
	first := enter(t, g, slow, t0)
	enter(t, g, slow, t0)
	putOff(t, g, t0)
	for range 2 {
		enter(t, g, well, t0)
	}
	first.Leave(delivered, t0)
	enter(t, g, slow, t0)
	putOff(t, g, t0)
}

// TestGate_TurnsComeAtThePaceOfTheHost: with attempts of 8 s, two at a time, a
// turn comes every 4 s, and no attempt waits longer than MaxDefer.
func TestGate_TurnsComeAtThePaceOfTheHost(t *testing.T) {
	t.Parallel()
	g := gate(t, webhook.GateConfig{PerHost: 2, MaxDefer: 15 * time.Second})
	now := t0
	for range 100 { // until the mean is known
		pass := enter(t, g, slow, now)
		now = now.Add(8 * time.Second)
		pass.Leave(delivered, now)
	}
	enter(t, g, slow, now)
	enter(t, g, slow, now)
	for _, want := range []string{"4s", "8s", "12s", "15s", "15s"} {
		if got := putOff(t, g, now).Round(time.Millisecond).String(); got != want {
			t.Errorf("put off for %s, want %s", got, want)
		}
	}
	now = now.Add(10 * time.Second)
	if got := putOff(t, g, now).Round(time.Millisecond); got != 9*time.Second {
		t.Errorf("10 s later put off for %s, want 9s", got)
	}
}

func TestGate_AHostThatIsDownIsLeftAlone(t *testing.T) {
	t.Parallel()
	g := gate(t, webhook.GateConfig{Circuit: breaker.Settings{TripAfter: 2, CoolDown: time.Minute, Probes: 1}})
	for range 2 {
		enter(t, g, slow, t0).Leave(silent, t0)
	}
	if got := putOff(t, g, t0); got < time.Minute || got > time.Minute+time.Second {
		t.Errorf("put off for %s, want about a minute", got)
	}
	enter(t, g, well, t0)

	later := t0.Add(time.Minute)
	probe := enter(t, g, slow, later)
	putOff(t, g, later)
	probe.Leave(delivered, later)
	enter(t, g, slow, later)
	enter(t, g, slow, later)
}

// TestGate_WhichResultsOpenACircuit lists the results that speak against a host.
func TestGate_WhichResultsOpenACircuit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		result webhook.Result
		opens  bool
	}{
		{"delivered", delivered, false},
		{"404 or 500", failed(), false},
		{"gone", webhook.Result{Outcome: webhook.Gone, Status: 410}, false},
		{"refused", webhook.Result{Outcome: webhook.Refused}, false},
		{"interrupted", webhook.Result{Outcome: webhook.Interrupted}, false},
		{"no answer", silent, true},
		{"overload", retryAfter(time.Second), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := gate(t, webhook.GateConfig{})
			for range 5 {
				enter(t, g, slow, t0).Leave(test.result, t0)
			}
			if pass, _ := g.Enter(slow, t0); (pass == nil) != test.opens {
				t.Errorf("opened: %t, want %t", pass == nil, test.opens)
			}
		})
	}
}

// TestGate_ForgetsHosts: wildcard names do not fill the memory, and a
// host with attempts under way keeps its share.
func TestGate_ForgetsHosts(t *testing.T) {
	t.Parallel()
	g := gate(t, webhook.GateConfig{PerHost: 1, MaxHosts: 3, Circuit: breaker.Settings{TripAfter: 1}})
	busy := enter(t, g, slow, t0)
	for i := range 20 {
		enter(t, g, fmt.Sprintf("%d.example:443", i), t0).Leave(silent, t0)
	}
	putOff(t, g, t0)
	remembered := 0
	for pass := (*webhook.Pass)(nil); pass == nil; remembered++ {
		pass, _ = g.Enter(fmt.Sprintf("%d.example:443", 19-remembered), t0)
	}
	if remembered--; remembered == 0 || remembered > 2 {
		t.Errorf("%d circuits are remembered, want 1 or 2", remembered)
	}
	busy.Leave(delivered, t0)
	enter(t, g, slow, t0)
}

func TestNewGate_NamesTheBadField(t *testing.T) {
	t.Parallel()
	for field, cfg := range map[string]webhook.GateConfig{
		"PerHost":   {PerHost: -1},
		"MaxHosts":  {MaxHosts: -1},
		"MaxDefer":  {MaxDefer: -1},
		"TripAfter": {Circuit: breaker.Settings{TripAfter: -1}},
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			if _, err := webhook.NewGate(cfg); err == nil || !strings.Contains(err.Error(), field) {
				t.Errorf("NewGate: %v, want an error about %s", err, field)
			}
		})
	}
}
