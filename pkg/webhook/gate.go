package webhook

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/breaker"
)

// minSpacing is the least time between two turns.
const minSpacing = time.Millisecond

// GateConfig configures a [Gate].
type GateConfig struct {
	// PerHost is the most attempts under way to one host. Optional. Defaults to 8.
	PerHost int
	// Circuit configures each host's circuit. Optional. Defaults to the settings
	// of package breaker, except TripAfter 5, CoolDown 15 s, MaxCoolDown 5 min and
	// Probes 2.
	Circuit breaker.Settings
	// MaxDefer is the longest time that an attempt is deferred by. Optional. Defaults to
	// 10 min.
	MaxDefer time.Duration
	// MaxHosts is how many hosts are remembered; beyond it, hosts without an attempt
	// under way are forgotten. Optional. Defaults to 10,000.
	MaxHosts int
}

// Gate isolates receivers from each other: a host has a bounded number of attempts
// under way, and none while its circuit is open. Its callers pass the time. It is
// safe for concurrent use.
type Gate struct {
	cfg GateConfig

	mu    sync.Mutex
	hosts map[string]*host
}

// host is the state of a host. Its circuit is in a set of its own, so that it can be
// forgotten alone.
type host struct {
	circuit  *breaker.Set
	inFlight int
	// mean is the recent mean duration of an attempt.
	mean time.Duration
	// tail is the last turn that was assigned.
	tail time.Time
}

// NewGate returns a gate. The error names the field that is out of range.
func NewGate(cfg GateConfig) (*Gate, error) {
	cfg.PerHost = cmp.Or(cfg.PerHost, 8)
	cfg.MaxDefer = cmp.Or(cfg.MaxDefer, 10*time.Minute)
	cfg.MaxHosts = cmp.Or(cfg.MaxHosts, 10_000)
	cfg.Circuit.TripAfter = cmp.Or(cfg.Circuit.TripAfter, 5)
	cfg.Circuit.Probes = cmp.Or(cfg.Circuit.Probes, 2)
	if cfg.Circuit.CoolDown == 0 {
		cfg.Circuit.CoolDown = 15 * time.Second
		cfg.Circuit.MaxCoolDown = cmp.Or(cfg.Circuit.MaxCoolDown, 5*time.Minute)
	}
	if cfg.PerHost < 0 || cfg.MaxHosts < 0 || cfg.MaxDefer < 0 {
		return nil, fmt.Errorf("webhook: PerHost, MaxHosts and MaxDefer must not be negative, are %d, %d and %s",
			cfg.PerHost, cfg.MaxHosts, cfg.MaxDefer)
	}
	if _, err := breaker.NewSet(breaker.Config{Entity: cfg.Circuit}); err != nil {
		return nil, fmt.Errorf("webhook: Circuit: %w", err)
	}
	return &Gate{cfg: cfg, hosts: make(map[string]*host)}, nil
}

// Pass permits one attempt. Its holder returns it by [Pass.Leave], once.
type Pass struct {
	gate  *Gate
	host  *host
	grant breaker.Grant
	since time.Time
}

// Enter asks to make an attempt at a host, now. It returns a pass, or nil and the
// time at which to ask again. Attempts that wait for one host get turns at the pace
// of its recent answers, so that they do not all come back at the same time.
func (g *Gate) Enter(name string, now time.Time) (*Pass, time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h, known := g.hosts[name]
	if !known {
		if len(g.hosts) >= g.cfg.MaxHosts {
			// A circuit that is forgotten opens again after a few failures.
			maps.DeleteFunc(g.hosts, func(_ string, h *host) bool { return h.inFlight == 0 })
		}
		circuit, err := breaker.NewSet(breaker.Config{Entity: g.cfg.Circuit})
		if err != nil {
			panic(err) // NewGate has validated the settings.
		}
		h = &host{circuit: circuit}
		g.hosts[name] = h
	}
	earliest := now
	if h.inFlight < g.cfg.PerHost {
		grant := h.circuit.Allow(name, 1, now)
		if grant.N > 0 {
			h.inFlight++
			return &Pass{gate: g, host: h, grant: grant, since: now}, time.Time{}
		}
		earliest = grant.RetryAt
	}
	if h.tail.Before(earliest) {
		h.tail = earliest
	}
	h.tail = h.tail.Add(max(h.mean/time.Duration(g.cfg.PerHost), minSpacing))
	if latest := now.Add(g.cfg.MaxDefer); h.tail.After(latest) {
		h.tail = latest
	}
	return nil, h.tail
}

// Leave returns the pass and reports the result of the attempt.
func (p *Pass) Leave(result Result, now time.Time) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	p.host.inFlight--
	var outcome breaker.Outcome // Without a verdict the result says nothing about the host.
	switch {
	case result.HostFault:
		outcome = breaker.Outcome{Verdict: breaker.EntityFailed, Reason: result.Reason}
	case result.Status != 0:
		outcome.Verdict = breaker.Answered
	}
	if outcome.Verdict != breaker.NoVerdict {
		p.host.mean += (now.Sub(p.since) - p.host.mean) / 4
	}
	p.host.circuit.Report(p.grant, outcome, now)
}
