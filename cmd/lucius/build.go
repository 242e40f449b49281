package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/serving"
	"github.com/lucius-project/lucius/pkg/breaker"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/envelope"
	"github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/liveness"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/retention"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/sweeper"
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

// buildLedger makes the ledger, and the pull queue that follows it.
func (s *system) buildLedger(ctx context.Context) error {
	storage := workqueue.NewStorage(s.store, s.cfg.Tables.Queue)
	settings := ledger.Config{
		Store: s.store, Tables: ledgerTables(s.cfg), Hold: s.cfg.PublishTimeout * 3 / 2, Jitter: s.cfg.Jitter,
		Follower: storage, Projector: projector(s.cfg, s.store),
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
		Storage: storage, Ledger: s.ledger, Logger: s.log,
		Held: func(tenantID string) bool { return s.gate.HoldsTenant(tenantID) },
	})
	return err
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
	s.gate, err = pauses.NewGate(ctx, s.pauses, s.log)
	return err
}

// buildDispatch makes the relay and the circuits that it goes through.
func (s *system) buildDispatch(context.Context) error {
	var err error
	if s.breakers, err = breaker.NewSet(breaker.Config{}); err != nil {
		return err
	}
	s.relay, err = outbox.NewRelay(outbox.Config{
		Ledger: s.ledger, Publisher: killablePublisher(s.bus), Inbox: s.inbox, Breakers: s.breakers, Fatal: s.fatal,
		Deadline: s.cfg.PublishTimeout, Interval: s.cfg.RetryInterval, Logger: s.log, Observe: s.metrics.relayed,
		Admit: func(tenantID, protocolID string, lane int) bool {
			return s.gate.Admit(pauses.Subject{TenantID: tenantID, ProtocolID: protocolID, Lane: lane})
		},
	})
	return err
}

// buildLoops makes what looks after jobs that nobody asks about.
func (s *system) buildLoops(context.Context) error {
	var err error
	s.sweeper, err = sweeper.New(sweeper.Config{
		Ledger: s.ledger, Interval: s.cfg.SweepInterval, Logger: s.log, Observe: s.metrics.swept,
		Outages: s.outagesForSweeper(),
	})
	if err != nil {
		return err
	}
	s.purger, err = retention.New(retention.Config{
		Ledger: s.ledger, Interval: s.cfg.SweepInterval, Logger: s.log, Observe: s.metrics.purged,
	})
	if err != nil {
		return err
	}
	if s.failures, err = failures.New(failures.Config{
		Ledger: s.ledger, Store: s.store, Table: s.ledger.Tables().Schedule,
	}); err != nil {
		return err
	}
	s.rerunner, err = failures.NewRunner(failures.RunnerConfig{
		Service: s.failures, Limit: s.cfg.MaxInflight, Logger: s.log, Observe: s.metrics.reran,
	})
	if err != nil {
		return err
	}
	s.checker, err = liveness.New(liveness.Config{Ledger: s.ledger, Ensure: s.withinReach, Logger: s.log})
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
	probesOnly := !s.cfg.Has(config.RoleAPI)
	config, err := serving.Ports(&serving.Parts{
		Ledger: s.ledger, Commands: accepting, Jobs: jobs.New(s.ledger, &s.ended, s.cfg.MaxInflight),
		Callbacks: s.callbacks, Queue: s.queue, Operator: outbox.NewOperator(s.ledger), Checker: s.checker,
		Failures: s.failures, Pauses: s.pauses, Gate: s.gate, Protocols: s.protocols, Log: s.log,
	})
	if err != nil {
		return err
	}
	config.Readiness, config.Registry, config.MaxBodyBytes = readiness{s}, registry, int64(s.cfg.MaxBodyBytes)
	config.MaxWaits = max(1, s.room/2) // Those who wait leave room for all others.
	config.ProbesOnly = probesOnly
	s.admission.guard(&config)
	s.handler, err = httpapi.New(config)
	return err
}

// accepting makes the use case that accepts commands.
func (s *system) accepting() (*commands.Service, error) {
	router, err := routing.New(routing.Config{Lanes: s.cfg.Lanes, TopicPrefix: s.cfg.TopicPrefix})
	if err != nil {
		return nil, err
	}
	return commands.New(commands.Config{
		Ledger: serving.Admitting(s.ledger), Protocols: s.protocols, Router: router, Limit: s.cfg.MaxInflight,
		Policy: envelope.Policy{
			AllowedRefs: s.cfg.RefPrefixes, MaxPayloadBytes: s.cfg.MaxPayloadBytes, CheckCallbackURL: s.checkCallbackURL,
		},
		Defaults: statemachine.Policy{
			AckTimeout: s.cfg.AckTimeout, Lease: s.cfg.Lease, Timeout: s.cfg.StepTimeout, Dispatch: s.cfg.DispatchBackoff,
			Ack: s.cfg.AckBackoff, Execution: s.cfg.ExecutionBackoff, MaxAttempts: s.cfg.MaxAttempts,
		},
	})
}

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
	if len(s.checker.Report().Stuck) > 0 {
		warnings = append(warnings, "jobs are stuck: see /v1/admin/stuck")
	}
	return warnings
}
