package webhook

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/breaker"
)

// GateConfig configures a [Gate].
type GateConfig struct {
	// PerHost is the most attempts under way to one host. Optional. Defaults to 8.
	PerHost int
	// Circuit has the settings of each host's circuit. Optional. Defaults to those
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

// Validate returns an error that names the field which is out of range.
func (c GateConfig) Validate() error {
	if c.PerHost < 0 || c.MaxHosts < 0 {
		return fmt.Errorf("webhook: PerHost and MaxHosts must not be negative, are %d and %d", c.PerHost, c.MaxHosts)
	}
	if c.MaxDefer < 0 {
		return fmt.Errorf("webhook: MaxDefer must not be negative, is %s", c.MaxDefer)
	}
	if _, err := breaker.NewSet(breaker.Config{Entity: c.withDefaults().Circuit}); err != nil {
		return fmt.Errorf("webhook: Circuit: %w", err)
	}
	return nil
}

func (c GateConfig) withDefaults() GateConfig {
	c.PerHost = cmp.Or(c.PerHost, 8)
	c.MaxDefer = cmp.Or(c.MaxDefer, 10*time.Minute)
	c.MaxHosts = cmp.Or(c.MaxHosts, 10_000)
	c.Circuit.TripAfter = cmp.Or(c.Circuit.TripAfter, 5)
	c.Circuit.Probes = cmp.Or(c.Circuit.Probes, 2)
	if c.Circuit.CoolDown == 0 {
		c.Circuit.CoolDown = 15 * time.Second
		c.Circuit.MaxCoolDown = cmp.Or(c.Circuit.MaxCoolDown, 5*time.Minute)
	}
	return c
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
	name     string
	circuit  *breaker.Set
	inFlight int
	// mean is the recent mean duration of an attempt.
	mean time.Duration
	// tail is the last turn that was assigned.
	tail time.Time
}

// NewGate returns a gate. The error names the invalid field.
func NewGate(cfg GateConfig) (*Gate, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Gate{cfg: cfg.withDefaults(), hosts: make(map[string]*host)}, nil
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
	h := g.host(name)
	if h.inFlight >= g.cfg.PerHost {
		return nil, h.turn(now, now, &g.cfg)
	}
	grant := h.circuit.Allow(name, 1, now)
	if grant.N == 0 {
		return nil, h.turn(now, grant.RetryAt, &g.cfg)
	}
	h.inFlight++
	return &Pass{gate: g, host: h, grant: grant, since: now}, time.Time{}
}

// Leave returns the pass and reports the result of the attempt.
func (p *Pass) Leave(result Result, now time.Time) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	p.host.inFlight--
	outcome := verdict(result)
	if outcome.Verdict != breaker.NoVerdict {
		p.host.mean += (now.Sub(p.since) - p.host.mean) / 4
	}
	p.host.circuit.Report(p.grant, outcome, now)
}

// verdict returns what a result says about the host.
func verdict(result Result) breaker.Outcome {
	switch {
	case result.HostFault:
		return breaker.Outcome{Verdict: breaker.EntityFailed, Reason: result.Reason}
	case result.Status != 0:
		return breaker.Outcome{Verdict: breaker.Answered}
	default:
		return breaker.Outcome{}
	}
}

// Open lists the circuits that are not closed, in no order.
func (g *Gate) Open(now time.Time) []breaker.Circuit {
	g.mu.Lock()
	defer g.mu.Unlock()
	var open []breaker.Circuit
	for _, h := range g.hosts {
		open = append(open, h.circuit.Open(now)...)
	}
	return open
}

// host returns the state of a host.
func (g *Gate) host(name string) *host {
	if h, ok := g.hosts[name]; ok {
		return h
	}
	if len(g.hosts) >= g.cfg.MaxHosts {
		g.forget()
	}
	circuit, err := breaker.NewSet(breaker.Config{Entity: g.cfg.Circuit})
	if err != nil {
		panic(err) // the same settings were valid in NewGate
	}
	h := &host{name: name, circuit: circuit}
	g.hosts[name] = h
	return h
}

// forget drops the hosts without an attempt under way. A forgotten circuit opens
// again after a few failures.
func (g *Gate) forget() {
	for name, h := range g.hosts {
		if h.inFlight == 0 {
			delete(g.hosts, name)
		}
	}
}

// minSpacing is the least time between two turns.
const minSpacing = time.Millisecond

// turn assigns the next turn that is not before earliest.
func (h *host) turn(now, earliest time.Time, cfg *GateConfig) time.Time {
	next := h.tail
	if earliest.After(next) {
		next = earliest
	}
	next = next.Add(max(h.mean/time.Duration(cfg.PerHost), minSpacing))
	if limit := now.Add(cfg.MaxDefer); next.After(limit) {
		next = limit
	}
	h.tail = next
	return next
}
