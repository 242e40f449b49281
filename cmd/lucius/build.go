package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// build makes the parts, from the store outwards.
func (s *system) build(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	s.metrics = newMetrics(registry)
	for _, part := range []func(context.Context) error{
		s.buildLedger, s.buildPauses, s.buildBus, s.buildDispatch, s.buildLoops, s.buildWebhooks,
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	s.metrics.watch(registry, s)
	s.bus.watch(registry)
	for _, watch := range []func(*prometheus.Registry) error{s.watchProtocols, s.watchAccess} {
		if err := watch(registry); err != nil {
			return err
		}
	}
	return s.buildAPI(registry)
}

// buildLedger makes the ledger, and the pull queue on it.
func (s *system) buildLedger(ctx context.Context) error {
	s.mirror = workqueue.NewMirror(0)
	settings := ledger.Config{
		Store: s.store, Tables: ledgerTables(s.cfg), Hold: s.cfg.PublishTimeout * 3 / 2, Jitter: s.cfg.Jitter,
		Bus: statemachine.Bus(s.cfg.Bus), Ready: s.mirror.Ready, Projector: projector(s.cfg, s.store),
		Ended: s.ended.Tell, Observe: s.changed, Retention: s.cfg.Retention, KeyTTL: s.cfg.KeyTTL,
		Held: func(tenantID, protocolID string, lane int) bool {
			return s.gate.Holds(pauses.Subject{TenantID: tenantID, ProtocolID: protocolID, Lane: lane})
		},
	}
	if s.cfg.Has(config.RoleRelay) {
		settings.Handoff = s.inbox // Else the relays of other processes find it, at once.
	}
	if s.cfg.ArchiveDir != "" {
		jobArchive, err := newArchive(s.cfg.ArchiveDir)
		if err != nil {
			return err
		}
		settings.Archive = jobArchive.add
	}
	var err error
	if s.ledger, err = ledger.Open(ctx, settings); err != nil {
		return err
	}
	s.callbacks = callbacks.New(s.ledger)
	s.queue, err = workqueue.New(workqueue.Config{
		Ledger: s.ledger, Store: s.store, Mirror: s.mirror, Logger: s.log,
		Held: func(hint *ledger.Hint) bool {
			return s.gate.Pauses(pauses.Subject{TenantID: hint.TenantID, ProtocolID: hint.ProtocolID, Lane: hint.Lane})
		},
		HeldTenant: func(tenantID string) bool { return s.gate.PausesTenant(tenantID) },
	})
	if err != nil || !s.ledger.Exclusive() {
		return err
	}
	return s.queue.Count(ctx)
}

// startPaused is the reason of a pause that the configuration asked for.
const startPaused = "started with LUCIUS_START_PAUSED"

// buildPauses makes the pauses, before anything is dispatched.
func (s *system) buildPauses(ctx context.Context) error {
	var err error
	s.pauses, err = pauses.New(pauses.Config{Store: s.store, Table: s.ledger.Tables().Schedule})
	if err != nil {
		return err
	}
	if s.cfg.StartPaused {
		if _, err := s.pauses.Create(ctx, pauses.Scope{}, startPaused, ledger.ActorSystem); err != nil {
			return err
		}
	}
	s.gate, err = pauses.NewGate(ctx, s.pauses)
	return err
}

// buildDispatch makes the relay and the circuits that it goes through.
func (s *system) buildDispatch(context.Context) error {
	var err error
	if s.breakers, err = breaker.NewSet(breaker.Config{}); err != nil {
		return err
	}
	s.relay, err = outbox.NewRelay(outbox.Config{
		Ledger: s.ledger, Publisher: s.bus, Inbox: s.inbox, Breakers: s.breakers, Fatal: s.fatal,
		Deadline: s.cfg.PublishTimeout, Logger: s.log, Observe: s.metrics.relayed,
		Admit: func(tenantID, protocolID string, lane int) bool {
			return s.gate.Admit(pauses.Subject{TenantID: tenantID, ProtocolID: protocolID, Lane: lane})
		},
	})
	return err
}

// buildLoops makes what looks after jobs that nobody asks about.
func (s *system) buildLoops(context.Context) error {
	var err error
	s.sweeper, err = upkeep.NewSweeper(upkeep.SweeperConfig{
		Ledger: s.ledger, Logger: s.log, Observe: s.metrics.swept, Outages: s.outagesForSweeper(),
	})
	if err != nil {
		return err
	}
	s.retention, err = upkeep.NewRetention(upkeep.RetentionConfig{
		Ledger: s.ledger, Logger: s.log, Observe: s.metrics.purged,
	})
	if err != nil {
		return err
	}
	if s.failures, err = upkeep.NewFailures(upkeep.FailuresConfig{
		Ledger: s.ledger, Store: s.store, Table: s.ledger.Tables().Schedule,
	}); err != nil {
		return err
	}
	s.bulk, err = upkeep.NewBulk(upkeep.BulkConfig{
		Failures: s.failures, Limit: s.cfg.MaxInflight, Logger: s.log, Observe: s.metrics.reran,
	})
	if err != nil {
		return err
	}
	s.reconciler, err = upkeep.NewReconciler(upkeep.ReconcilerConfig{Ledger: s.ledger, Logger: s.log})
	return err
}

// fatal is told of a defect in the relay. The process must not go on.
func (s *system) fatal(illegal *seqledger.IllegalTransitionError) {
	s.log.Error("illegal transition in the relay's window", slog.Any("transition", illegal))
	select {
	case s.defect <- illegal:
	default:
	}
}

// buildAPI makes the use cases and the HTTP server in front of them.
func (s *system) buildAPI(registry *prometheus.Registry) error {
	accepting, err := s.accepting()
	if err != nil {
		return err
	}
	s.handler, err = httpapi.New(httpapi.Config{
		UseCases: httpapi.UseCases{
			Ledger: s.ledger, Commands: accepting, Jobs: jobs.New(s.ledger, &s.ended, s.cfg.MaxInflight),
			Callbacks: s.callbacks, Queue: s.queue, Operator: outbox.NewOperator(s.ledger), Reconciler: s.reconciler,
			Failures: s.failures, Pauses: s.pauses, Gate: s.gate, Protocols: s.protocols,
		},
		Ready: readiness{s}.Ready, Registry: registry, Log: s.log, MaxBodyBytes: int64(s.cfg.MaxBodyBytes),
		MaxWaits:   max(1, s.room/2), // Those who wait leave room for all others.
		ProbesOnly: !s.cfg.Has(config.RoleAPI),
		Auth:       s.admission.authenticator, CallerLimit: s.admission.callers, TenantLimit: s.admission.tenants,
		Audit: s.admission.audit,
	})
	return err
}

// accepting makes the use case that accepts commands.
func (s *system) accepting() (*commands.Service, error) {
	router, err := routing.New(routing.Config{Lanes: s.cfg.Lanes, TopicPrefix: s.cfg.TopicPrefix})
	if err != nil {
		return nil, err
	}
	return commands.New(commands.Config{
		Ledger: s.ledger, Protocols: s.protocols, Router: router, Limit: s.cfg.MaxInflight,
		Policy: commands.Policy{
			AllowedRefs: s.cfg.RefPrefixes, MaxPayloadBytes: s.cfg.MaxPayloadBytes, CheckCallbackURL: s.checkCallbackURL,
		},
		Defaults: statemachine.Policy{
			AckTimeout: s.cfg.AckTimeout, Lease: s.cfg.Lease, Timeout: s.cfg.StepTimeout, Dispatch: s.cfg.DispatchBackoff,
			Ack: s.cfg.AckBackoff, Execution: s.cfg.ExecutionBackoff, MaxAttempts: s.cfg.MaxAttempts,
		},
	})
}

// overdue is how long a due outbox row may wait before readyz warns of it.
const overdue = time.Minute

// warnings says what is degraded though requests are served.
func (s *system) warnings(now time.Time) []string {
	var warnings []string
	for _, circuit := range s.breakers.Open(now) {
		name := circuit.Name
		if name == breaker.Bus {
			name = "the whole bus"
		}
		warnings = append(warnings, "the circuit of "+name+" is "+circuit.State.String())
	}
	for _, topic := range s.bus.down() {
		warnings = append(warnings, "replies cannot be read from "+topic+": see the log")
	}
	for _, pause := range s.gate.Active() {
		warnings = append(warnings, "dispatch of "+pause.ID()+" is "+string(pause.State)+": "+pause.Reason)
	}
	for _, watcher := range s.watchers {
		if watcher.Err() != nil {
			warnings = append(warnings, "the "+watcher.Name()+" are refused, those before stay in use: see the log")
		}
	}
	if oldest := s.reconciler.Report().OldestPending; oldest > overdue && len(warnings) == 0 {
		warnings = append(warnings, fmt.Sprintf(
			"an outbox row has waited %s to be published: is a process with the role relay running?", oldest.Round(time.Second)))
	}
	if len(s.reconciler.Report().Stuck) > 0 {
		warnings = append(warnings, "jobs are stuck: see /v1/admin/stuck")
	}
	return warnings
}
