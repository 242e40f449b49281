package webhook_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// enter expects a pass for tenant_a.
func enter(t testing.TB, g *webhook.Gate, host string, now time.Time) *webhook.Pass {
	t.Helper()
	return enterFor(t, g, "tenant_a", host, now)
}

func enterFor(t testing.TB, g *webhook.Gate, tenantID, host string, now time.Time) *webhook.Pass {
	t.Helper()
	pass, deferred := g.Enter(tenantID, host, now)
	if pass == nil {
		t.Fatalf("%s at %s: %+v, want a pass", tenantID, host, deferred)
	}
	return pass
}

// deferredFor expects a deferral for the slow host, and returns its duration.
func deferredFor(t testing.TB, g *webhook.Gate, now time.Time) time.Duration {
	t.Helper()
	return deferral(t, g, "tenant_a", slow, now).After
}

func deferral(t testing.TB, g *webhook.Gate, tenantID, host string, now time.Time) webhook.Result {
	t.Helper()
	pass, deferred := g.Enter(tenantID, host, now)
	if pass != nil || deferred.Outcome != webhook.Deferred {
		t.Fatalf("%s at %s: %v and %+v, want a deferral", tenantID, host, pass, deferred)
	}
	return deferred
}

var (
	delivered = webhook.Result{Outcome: webhook.Delivered, Status: 200}
	silent    = webhook.Result{Outcome: webhook.Failed, Reason: "the receiver did not answer in time", HostFault: true}
)

const slow, well = "slow.example:443", "well.example:443"

func TestGate_BoundsTheAttemptsOfAHost(t *testing.T) {
	t.Parallel()
	g := webhook.NewGate(webhook.GateConfig{PerHost: 2})
	first := enter(t, g, slow, t0)
	enter(t, g, slow, t0)
	deferredFor(t, g, t0)
	for range 2 {
		enter(t, g, well, t0)
	}
	first.Leave(delivered, t0)
	enter(t, g, slow, t0)
	deferredFor(t, g, t0)
}

// With two attempts of 8 s at a time, a turn comes every 4 s. No attempt waits longer than
// MaxDefer.
func TestGate_TurnsComeAtThePaceOfTheHost(t *testing.T) {
	t.Parallel()
	g := webhook.NewGate(webhook.GateConfig{PerHost: 2, MaxDefer: 15 * time.Second})
	now := t0
	for range 100 { // until the mean is known
		pass := enter(t, g, slow, now)
		now = now.Add(8 * time.Second)
		pass.Leave(delivered, now)
	}
	enter(t, g, slow, now)
	enter(t, g, slow, now)
	for _, want := range []string{"4s", "8s", "12s", "15s", "15s"} {
		if got := deferredFor(t, g, now).Round(time.Millisecond).String(); got != want {
			t.Errorf("put off for %s, want %s", got, want)
		}
	}
	now = now.Add(10 * time.Second)
	if got := deferredFor(t, g, now).Round(time.Millisecond); got != 9*time.Second {
		t.Errorf("10 s later put off for %s, want 9s", got)
	}
}

func TestGate_OpensACircuitForAHostThatIsDown(t *testing.T) {
	t.Parallel()
	g := webhook.NewGate(webhook.GateConfig{Circuit: breaker.Settings{TripAfter: 2, CoolDown: time.Minute, Probes: 1}})
	for range 2 {
		enter(t, g, slow, t0).Leave(silent, t0)
	}
	if got := deferredFor(t, g, t0); got < time.Minute || got > time.Minute+time.Second {
		t.Errorf("put off for %s, want about a minute", got)
	}
	enter(t, g, well, t0)

	later := t0.Add(time.Minute)
	probe := enter(t, g, slow, later)
	deferredFor(t, g, later)
	probe.Leave(delivered, later)
	enter(t, g, slow, later)
	enter(t, g, slow, later.Add(10*time.Millisecond)) // The circuit's ramp lets one pass at once.
}

// One tenant's receiver reaches its bound and opens its circuit. The gate still admits the
// attempts of another tenant to the same host.
func TestGate_IsolatesTenantsOnOneHost(t *testing.T) {
	t.Parallel()
	g := webhook.NewGate(webhook.GateConfig{PerHost: 2, Circuit: breaker.Settings{TripAfter: 2, CoolDown: time.Minute}})
	hanging := []*webhook.Pass{enter(t, g, slow, t0), enter(t, g, slow, t0)}
	deferredFor(t, g, t0)
	enterFor(t, g, "tenant_b", slow, t0).Leave(delivered, t0)
	for _, pass := range hanging {
		pass.Leave(silent, t0)
	}
	deferredFor(t, g, t0)
	enterFor(t, g, "tenant_b", slow, t0).Leave(delivered, t0)
}

// Over all hosts, one tenant may have half of the attempts, and two tenants two thirds.
func TestGate_ATenantLeavesAttemptsForOthers(t *testing.T) {
	t.Parallel()
	g := webhook.NewGate(webhook.GateConfig{Attempts: 12})
	fill := func(tenantID string) (passes []*webhook.Pass) {
		for i := range 20 {
			pass, _ := g.Enter(tenantID, fmt.Sprintf("%d.example:443", i), t0)
			if pass == nil {
				return passes
			}
			passes = append(passes, pass)
		}
		return passes
	}
	of := map[string][]*webhook.Pass{}
	for _, want := range []struct {
		tenantID string
		attempts int
	}{{"tenant_a", 6}, {"tenant_b", 3}, {"tenant_c", 2}, {"tenant_d", 1}, {"tenant_e", 0}} {
		if of[want.tenantID] = fill(want.tenantID); len(of[want.tenantID]) != want.attempts {
			t.Errorf("%s has %d attempts under way, want %d", want.tenantID, len(of[want.tenantID]), want.attempts)
		}
	}
	for _, tenantID := range []string{"tenant_a", "tenant_b", "tenant_c", "tenant_d"} {
		for _, pass := range of[tenantID] {
			pass.Leave(delivered, t0)
		}
	}
	if n := len(fill("tenant_e")); n != 6 {
		t.Errorf("alone, tenant_e has %d attempts under way, want 6", n)
	}
}

func TestGate_SaysWhyAnAttemptIsDeferred(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  webhook.GateConfig
		make func(g *webhook.Gate)
		want string
	}{
		{"circuit open", webhook.GateConfig{Circuit: breaker.Settings{TripAfter: 1}}, func(g *webhook.Gate) {
			enter(t, g, slow, t0).Leave(silent, t0)
		}, "circuit open: the receiver did not answer in time"},
		{"host is busy", webhook.GateConfig{PerHost: 1}, func(g *webhook.Gate) {
			enter(t, g, slow, t0)
		}, "the tenant has its maximum of concurrent attempts to the receiver's host"},
		{"tenant is busy", webhook.GateConfig{Attempts: 2}, func(g *webhook.Gate) {
			enter(t, g, well, t0)
		}, "the tenant has its share of all concurrent attempts"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			g := webhook.NewGate(test.cfg)
			test.make(g)
			if got := deferral(t, g, "tenant_a", slow, t0).Reason; got != test.want {
				t.Errorf("reason %q, want %q", got, test.want)
			}
		})
	}
}

func TestGate_OpensACircuitOnHostFaults(t *testing.T) {
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
			g := webhook.NewGate(webhook.GateConfig{})
			for range 5 {
				enter(t, g, slow, t0).Leave(test.result, t0)
			}
			if pass, _ := g.Enter("tenant_a", slow, t0); (pass == nil) != test.opens {
				t.Errorf("opened: %t, want %t", pass == nil, test.opens)
			}
		})
	}
}

// Wildcard names do not fill the memory, and a host with current attempts keeps its bound.
func TestGate_ForgetsHosts(t *testing.T) {
	t.Parallel()
	g := webhook.NewGate(webhook.GateConfig{PerHost: 1, MaxHosts: 3, Circuit: breaker.Settings{TripAfter: 1}})
	busy := enter(t, g, slow, t0)
	for i := range 20 {
		enter(t, g, fmt.Sprintf("%d.example:443", i), t0).Leave(silent, t0)
	}
	deferredFor(t, g, t0)
	remembered := 0
	for pass := (*webhook.Pass)(nil); pass == nil; remembered++ {
		pass, _ = g.Enter("tenant_a", fmt.Sprintf("%d.example:443", 19-remembered), t0)
	}
	if remembered--; remembered == 0 || remembered > 2 {
		t.Errorf("%d circuits are remembered, want 1 or 2", remembered)
	}
	busy.Leave(delivered, t0)
	enter(t, g, slow, t0)
}
