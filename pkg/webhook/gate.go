package webhook

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"github.com/lucius-project/lucius/pkg/outbox/breaker"
)

// minSpacing is the least time between two turns.
const minSpacing = time.Millisecond

// GateConfig configures a [Gate].
type GateConfig struct {
	// Attempts is the most concurrent attempts. A tenant may have as many of them as
	// remain free for others. Optional. Defaults to 64.
	Attempts int
	// PerHost is the most concurrent attempts of one tenant to one host. Optional.
	// Defaults to 8.
	PerHost int
	// Circuit configures the circuit of each tenant's host. Optional. Defaults to the
	// settings of package breaker, except TripAfter 5, CoolDown 15 s, MaxCoolDown 5 min
	// and Probes 2.
	Circuit breaker.Settings
	// MaxDefer is the longest time by which an attempt is deferred. Optional. Defaults to
	// 10 min.
	MaxDefer time.Duration
	// MaxHosts is how many hosts of tenants are remembered. Beyond it, the gate forgets
	// hosts without a current attempt. Optional. Defaults to 10,000.
	MaxHosts int
}

// Gate isolates receivers and tenants from each other. It bounds the concurrent attempts
// to each tenant's host, and allows none while the host's circuit is open. Tenants with
// receivers on one host do not affect each other. Callers pass the time. Gate is safe for
// concurrent use.
type Gate struct {
	cfg GateConfig

	mu    sync.Mutex // Guards all below: an attempt is admitted and counted in one step.
	hosts map[hostKey]*host
	// tenants counts the current attempts of each tenant that has any.
	//
	//	invariant: total is the sum of tenants, and total ≤ cfg.Attempts
	tenants map[string]int
	total   int
}

// hostKey identifies a host as one tenant's receiver.
type hostKey struct{ tenantID, name string }

// host is the state of a tenant's host. Each has a breaker set of its own, so that one can
// be forgotten alone.
type host struct {
	circuit  *breaker.Set
	inFlight int
	mean     time.Duration // moving average of the duration of an attempt
	tail     time.Time     // the last turn that was assigned
}

// NewGate returns a gate.
func NewGate(cfg GateConfig) *Gate {
	cfg.Attempts = cmp.Or(cfg.Attempts, 64)
	cfg.PerHost = cmp.Or(cfg.PerHost, 8)
	cfg.MaxDefer = cmp.Or(cfg.MaxDefer, 10*time.Minute)
	cfg.MaxHosts = cmp.Or(cfg.MaxHosts, 10_000)
	cfg.Circuit.TripAfter = cmp.Or(cfg.Circuit.TripAfter, 5)
	cfg.Circuit.Probes = cmp.Or(cfg.Circuit.Probes, 2)
	if cfg.Circuit.CoolDown == 0 {
		cfg.Circuit.CoolDown = 15 * time.Second
		cfg.Circuit.MaxCoolDown = cmp.Or(cfg.Circuit.MaxCoolDown, 5*time.Minute)
	}
	return &Gate{cfg: cfg, hosts: make(map[hostKey]*host), tenants: make(map[string]int)}
}

// Pass permits one attempt. Its holder must call [Pass.Leave] exactly once.
type Pass struct {
	gate     *Gate
	tenantID string
	host     *host
	grant    breaker.Grant
	since    time.Time
}

// Enter asks for permission to make an attempt to a tenant's host now. It returns a pass,
// or nil and the result of the deferred attempt, which says why and for how long. Attempts
// that wait for one host get turns at the pace of its recent responses, so that they do not
// all come back at the same time.
func (g *Gate) Enter(tenantID, name string, now time.Time) (*Pass, Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.host(hostKey{tenantID, name})
	earliest := now
	var reason string
	silent := false
	switch {
	case h.inFlight >= g.cfg.PerHost:
		reason = "the tenant has its maximum of concurrent attempts to the receiver's host"
	case g.tenants[tenantID] >= g.cfg.Attempts-g.total:
		reason = "the tenant has its share of all concurrent attempts"
	default:
		grant := h.circuit.Allow(name, 1, now)
		if grant.N > 0 {
			h.inFlight++
			g.tenants[tenantID]++
			g.total++
			return &Pass{gate: g, tenantID: tenantID, host: h, grant: grant, since: now}, Result{}
		}
		earliest, reason, silent = grant.RetryAt, "circuit open", true
		for _, circuit := range h.circuit.Open(now) {
			reason += ": " + circuit.Reason
		}
	}
	if h.tail.Before(earliest) {
		h.tail = earliest
	}
	h.tail = h.tail.Add(max(h.mean/time.Duration(g.cfg.PerHost), minSpacing))
	if latest := now.Add(g.cfg.MaxDefer); h.tail.After(latest) {
		h.tail = latest
	}
	return nil, Result{Outcome: Deferred, After: h.tail.Sub(now), Reason: reason, HostFault: silent}
}

// host returns the state of a tenant's host, and creates it if there is none. The caller
// holds mu.
func (g *Gate) host(key hostKey) *host {
	if h, known := g.hosts[key]; known {
		return h
	}
	if len(g.hosts) >= g.cfg.MaxHosts {
		// If the host still fails, its new circuit opens after a few attempts.
		maps.DeleteFunc(g.hosts, func(_ hostKey, h *host) bool { return h.inFlight == 0 })
	}
	h := &host{circuit: breaker.NewSet(breaker.Config{Entity: g.cfg.Circuit})}
	g.hosts[key] = h
	return h
}

// Leave ends the attempt and reports its result.
func (p *Pass) Leave(result Result, now time.Time) {
	g := p.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	p.host.inFlight--
	g.total--
	if g.tenants[p.tenantID]--; g.tenants[p.tenantID] == 0 {
		delete(g.tenants, p.tenantID)
	}
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
