package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/reload"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/webhook"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// serve runs the server until it is told to stop.
func (p *program) serve(ctx context.Context, args []string) error {
	loaded, flags, err := config.Load(args, p.lookup, p.stderr)
	if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("serve takes no argument, got %q", flags.Arg(0))
	}
	if printing := flags.Lookup("print-config"); printing != nil && printing.Value.String() == "true" {
		return loaded.Print(p.stdout)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	p.hangups = hangups
	return p.runServer(ctx, &loaded.Config, func(baseURL string) error {
		if _, err := fmt.Fprintf(p.stdout, "lucius serves %s\n", baseURL); err != nil {
			return fmt.Errorf("print the server's URL: %w", err)
		}
		return nil
	})
}

// runServer runs one server until the context ends: it builds the parts from the store
// outwards, serves, and closes them in reverse. It calls ready with the base URL once
// the server accepts connections.
func (p *program) runServer(ctx context.Context, cfg *config.Config, ready func(baseURL string) error) (err error) {
	log, err := newLogger(cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.ListenAddr)
	if err != nil {
		return fmt.Errorf("LUCIUS_LISTEN_ADDR %s: %w", cfg.ListenAddr, err)
	}
	defer func() { _ = listener.Close() }() // The HTTP server has closed it if it served.
	tuneCollector()
	registry, err := protocol.Load(cfg.ProtocolsDir)
	if err != nil {
		return fmt.Errorf("LUCIUS_PROTOCOLS_DIR %s: %w", cfg.ProtocolsDir, err)
	}
	access, err := openAccess(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.close()) }()
	store, err := openStore(ctx, cfg, log)
	if err != nil {
		return err
	}
	c := &core{cfg: cfg, log: log, metrics: newMetrics(), store: killableStore(store), writable: writableOf(store)}
	defer func() {
		if closing := c.store.Close(); closing != nil {
			err = errors.Join(err, fmt.Errorf("close the store: %w", closing))
		}
	}()
	if err := c.open(ctx); err != nil {
		return err
	}
	s, err := assemble(ctx, c, access, protocol.NewHolder(registry))
	if err != nil {
		return err
	}
	defer s.bus.close(log)
	defer s.maintenance.sender.Close()
	scheme := "http"
	if access.certificates != nil {
		scheme = "https"
	}
	if err := ready(scheme + "://" + listener.Addr().String()); err != nil {
		return err
	}
	return s.run(ctx, listener, p.hangups)
}

// core is the state of the jobs, on which all other parts work.
type core struct {
	cfg      *config.Config
	log      *slog.Logger
	metrics  *metrics
	store    tablestore.Store
	writable func() error // Why the store takes no writes; see writableOf.
	ledger   *ledger.Ledger
	inbox    *outbox.Inbox     // directives between a commit and the relay
	mirror   *workqueue.Mirror // the head of the ready index
	queue    *workqueue.Queue
	pauses   *pauses.Service
	gate     *pauses.Gate // this process's view of the pauses
	ended    jobs.Ended
}

// inboxSize is how many directives the inbox holds; the dispatch schedule has the rest.
const inboxSize = 8192

// open opens the ledger, the pull queue on it, and the pauses, before anything is
// dispatched.
func (c *core) open(ctx context.Context) (err error) {
	c.inbox, c.mirror = outbox.NewInbox(inboxSize), workqueue.NewMirror(0)
	settings := ledger.Config{
		Store: c.store, Tables: ledgerTables(c.cfg), Hold: c.cfg.PublishTimeout * 3 / 2, Jitter: c.cfg.Jitter,
		Bus: statemachine.Bus(c.cfg.Bus), Ready: c.mirror.Ready, Ended: c.ended.Tell,
		Retention: c.cfg.Retention, KeyTTL: c.cfg.KeyTTL,
		Observe: func(after *statemachine.Aggregate, history []statemachine.Transition) {
			c.metrics.observeTransitions(after, history)
			logTransitions(c.log, after, history)
		},
		Held: func(target statemachine.Target) bool { return c.gate.HoldsNew(target) },
	}
	if c.cfg.StorageBackend == config.BackendTable {
		settings.Projector = projections.New(c.store, projectedTables(c.cfg), nil)
	}
	if c.cfg.Has(config.RoleRelay) {
		settings.Handoff = c.inbox // Without it the relays of other processes find the row at once.
	}
	if c.cfg.ArchiveDir != "" {
		if err := os.MkdirAll(c.cfg.ArchiveDir, 0o750); err != nil {
			return fmt.Errorf("LUCIUS_ARCHIVE_DIR %s: %w", c.cfg.ArchiveDir, err)
		}
		settings.Archive = (&archive{dir: c.cfg.ArchiveDir}).add
	}
	if c.ledger, err = ledger.Open(ctx, settings); err != nil {
		return err
	}
	c.queue, err = workqueue.New(workqueue.Config{
		Ledger: c.ledger, Store: c.store, Mirror: c.mirror, Logger: c.log,
		Held:       func(target statemachine.Target) bool { return c.gate.HoldsQueued(target) },
		HeldTenant: func(tenantID string) bool { return c.gate.HoldsTenant(tenantID) },
	})
	if err != nil {
		return err
	}
	if c.ledger.Exclusive() {
		if err := c.queue.Count(ctx); err != nil {
			return err
		}
	}
	c.pauses = pauses.New(c.store, c.ledger.Tables().Schedule, nil)
	if c.cfg.StartPaused {
		if _, err := c.pauses.Create(ctx, pauses.Scope{}, "started with LUCIUS_START_PAUSED", ledger.ActorSystem); err != nil {
			return err
		}
	}
	c.gate, err = pauses.NewGate(ctx, c.pauses)
	return err
}

// system is a server that is ready to run.
type system struct {
	*core
	access      *access
	bus         *bus
	relay       *outbox.Relay
	illegal     <-chan *seqledger.IllegalTransitionError // a defect of the relay
	maintenance *maintenance
	watchers    []*reload.Watcher
	handler     *httpapi.Server
	connections int // how many connections may be open
}

// assemble builds the relay, the loops and the API around the core.
func assemble(ctx context.Context, c *core, access *access, protocols *protocol.Holder) (*system, error) {
	callbacks := callbacks.New(c.ledger)
	bus, err := openBus(c, callbacks)
	if err != nil {
		return nil, err
	}
	illegal := make(chan *seqledger.IllegalTransitionError, 1)
	relay, err := outbox.NewRelay(outbox.Config{
		Ledger: c.ledger, Publisher: bus.publisher, Inbox: c.inbox, Breakers: bus.circuits,
		Deadline: c.cfg.PublishTimeout, Logger: c.log,
		Observe: func(outcome outbox.Outcome) { c.metrics.relayed.WithLabelValues(string(outcome)).Inc() },
		Admit:   c.gate.Admit,
		Fatal: func(defect *seqledger.IllegalTransitionError) {
			c.log.ErrorContext(ctx, "illegal transition in the relay's window", slog.Any("transition", defect))
			select {
			case illegal <- defect:
			default: // The first one stops the process.
			}
		},
	})
	if err != nil {
		return nil, err
	}
	maintenance, err := newMaintenance(c, bus)
	if err != nil {
		return nil, err
	}
	c.metrics.watchRelay(c.inbox, relay, bus.circuits)
	c.metrics.watchJobs(c, maintenance.reconciler)
	watchers, err := watchFiles(c, protocols, access)
	if err != nil {
		return nil, err
	}
	commands, err := newCommands(c.cfg, c.ledger, protocols, maintenance.guard)
	if err != nil {
		return nil, err
	}
	ready := &readiness{
		ledger: c.ledger, writable: c.writable, bus: bus, gate: c.gate, reconciler: maintenance.reconciler, watchers: watchers,
	}
	connections := maxConnections(ctx, c.cfg, c.log)
	handler, err := httpapi.New(httpapi.Config{
		UseCases: httpapi.UseCases{
			Ledger: c.ledger, Commands: commands, Jobs: jobs.New(c.ledger, &c.ended, c.cfg.MaxInflight),
			Callbacks: callbacks, Queue: c.queue, Operator: outbox.NewOperator(c.ledger), Reconciler: maintenance.reconciler,
			Failures: maintenance.failures, Pauses: c.pauses, Gate: c.gate, Protocols: protocols,
		},
		Ready: ready.Ready, Registry: c.metrics.registry, Log: c.log, MaxBodyBytes: int64(c.cfg.MaxBodyBytes),
		MaxWaits:   max(1, connections/2), // Callers that wait leave connections for the others.
		ProbesOnly: !c.cfg.Has(config.RoleAPI),
		Auth:       access.authenticator, CallerLimit: access.callers, TenantLimit: access.tenants, Audit: access.audit,
	})
	return &system{
		core: c, access: access, bus: bus, relay: relay, illegal: illegal, maintenance: maintenance, watchers: watchers,
		handler: handler, connections: connections,
	}, err
}

// newCommands returns the use case that accepts commands.
func newCommands(cfg *config.Config, l *ledger.Ledger, protocols *protocol.Holder, guard *webhook.Guard,
) (*commands.Service, error) {
	router, err := routing.New(routing.Config{Lanes: cfg.Lanes, TopicPrefix: cfg.TopicPrefix})
	if err != nil {
		return nil, err
	}
	return commands.New(commands.Config{
		Ledger: l, Protocols: protocols, Router: router, Limit: cfg.MaxInflight,
		Policy: commands.Policy{
			AllowedRefs: cfg.RefPrefixes, MaxPayloadBytes: cfg.MaxPayloadBytes,
			CheckCallbackURL: func(url string) string {
				if refused, ok := errors.AsType[*webhook.RefusedError](guard.CheckURL(url)); ok {
					return refused.Message
				}
				return ""
			},
		},
		Defaults: statemachine.Policy{
			AckTimeout: cfg.AckTimeout, Lease: cfg.Lease, Timeout: cfg.StepTimeout, Dispatch: cfg.DispatchBackoff,
			Ack: cfg.AckBackoff, Execution: cfg.ExecutionBackoff, MaxAttempts: cfg.MaxAttempts,
		},
	})
}

// maintenance works on jobs without a request.
type maintenance struct {
	sweeper    *upkeep.Sweeper
	retention  *upkeep.Retention
	reconciler *upkeep.Reconciler
	failures   *upkeep.Failures
	bulk       *upkeep.Bulk
	webhooks   *upkeep.Webhooks
	guard      *webhook.Guard
	sender     *webhook.Sender // Close it.
}

func newMaintenance(c *core, bus *bus) (*maintenance, error) {
	m := new(maintenance)
	var err error
	if m.sweeper, err = upkeep.NewSweeper(upkeep.SweeperConfig{
		Ledger: c.ledger, Logger: c.log, Observe: c.metrics.observeSweep, Outages: bus.outagesForSweeper(),
	}); err != nil {
		return nil, err
	}
	if m.retention, err = upkeep.NewRetention(upkeep.RetentionConfig{
		Ledger: c.ledger, Logger: c.log,
		Observe: func(outcome ledger.Purged) { c.metrics.purged.WithLabelValues(outcome.String()).Inc() },
	}); err != nil {
		return nil, err
	}
	if m.failures, err = upkeep.NewFailures(upkeep.FailuresConfig{
		Ledger: c.ledger, Store: c.store, Table: c.ledger.Tables().Schedule,
	}); err != nil {
		return nil, err
	}
	if m.bulk, err = upkeep.NewBulk(upkeep.BulkConfig{
		Failures: m.failures, Limit: c.cfg.MaxInflight, Logger: c.log,
		Observe: func(outcome upkeep.ItemOutcome) { c.metrics.reruns.WithLabelValues(string(outcome)).Inc() },
	}); err != nil {
		return nil, err
	}
	if m.reconciler, err = upkeep.NewReconciler(upkeep.ReconcilerConfig{Ledger: c.ledger, Logger: c.log}); err != nil {
		return nil, err
	}
	if m.guard, err = webhook.NewGuard(webhook.GuardConfig{
		AllowedPrefixes: c.cfg.WebhookNetworks, AllowHTTP: c.cfg.WebhookAllowHTTP,
	}); err != nil {
		return nil, err
	}
	secrets := c.cfg.WebhookSecrets
	if len(secrets) == 0 { // Webhooks are still sent, but receivers cannot verify the sender.
		var key [32]byte
		_, _ = rand.Read(key[:]) // It never fails.
		secret, err := webhook.ParseSecret("whsec_" + base64.StdEncoding.EncodeToString(key[:]))
		if err != nil {
			return nil, err
		}
		secrets = []webhook.Secret{secret}
	}
	if m.sender, err = webhook.NewSender(webhook.Config{Guard: m.guard, Secrets: webhook.TenantSecrets(secrets...)}); err != nil {
		return nil, err
	}
	gate, err := webhook.NewGate(webhook.GateConfig{})
	if err != nil {
		return nil, err
	}
	m.webhooks, err = upkeep.NewWebhooks(upkeep.WebhooksConfig{
		Ledger: c.ledger, Logger: c.log,
		Dispatcher: &webhook.Dispatcher{Send: m.sender.Send, Gate: gate, Policy: webhook.StandardPolicy()},
		Observe: func(result webhook.Result) {
			c.metrics.webhooks.WithLabelValues(string(result.Outcome)).Inc()
		},
	})
	return m, err
}

// watchFiles returns the watchers that reload changed files, with their metrics.
func watchFiles(c *core, protocols *protocol.Holder, access *access) ([]*reload.Watcher, error) {
	m := c.metrics
	attempts := m.counter("lucius_protocol_reloads_total", "Attempts to reload the protocol files, by outcome.", "outcome")
	watcher, err := protocol.NewWatcher(protocol.WatcherConfig{
		Dir: c.cfg.ProtocolsDir, Holder: protocols, Logger: c.log, Observe: observeReloads(attempts),
	})
	if err != nil {
		return nil, err
	}
	m.gauge("lucius_protocols_loaded_timestamp_seconds", "When the protocols in use were loaded, in Unix time.",
		func() float64 { return float64(protocols.LoadedAt().UnixMilli()) / 1000 })
	m.watchRefusals("lucius_protocols_refused", "1 while the protocol files on disk are refused and older ones in use, else 0.",
		nil, watcher)
	watchers := []*reload.Watcher{watcher}

	attempts = m.counter("lucius_access_reloads_total",
		"Attempts to reload the token file or the certificates, by outcome.", "files", "outcome")
	watch := func(name, label string, look func() (string, reload.Load), inUse func() string) error {
		files := prometheus.Labels{"files": label}
		watcher, err := reload.New(reload.Config{
			Name: name, Look: look, InUse: inUse, Logger: c.log, Observe: observeReloads(attempts.MustCurryWith(files)),
		})
		if err != nil {
			return err
		}
		m.watchRefusals("lucius_access_refused",
			"1 while files on disk are refused and the previous ones are in use, else 0.", files, watcher)
		watchers = append(watchers, watcher)
		return nil
	}
	if tokens := access.tokens; tokens != nil {
		if err := watch("tokens", "token_file", tokens.Look, tokens.InUse); err != nil {
			return nil, err
		}
	}
	if certificates := access.certificates; certificates != nil {
		m.gauge("lucius_tls_certificate_expires_timestamp_seconds", "When the server's certificate expires, in Unix time.",
			func() float64 { return float64(certificates.Expires().Unix()) })
		if err := watch("certificates", "certificates", certificates.Look, certificates.InUse); err != nil {
			return nil, err
		}
	}
	return watchers, nil
}

// run serves on the listener until the context ends, or until a part fails. Then it
// drains: it takes no new requests, waits for those in progress, and lets the relay
// publish what they committed.
func (s *system) run(ctx context.Context, listener net.Listener, hangups <-chan os.Signal) error {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, failed := errgroup.WithContext(running)
	for _, loop := range s.loops(hangups) {
		group.Go(func() error { return loop(failed) })
	}
	var replies sync.WaitGroup
	reading, stopReplies := context.WithCancel(failed)
	defer stopReplies()
	if s.bus.replies != nil && s.cfg.Has(config.RoleAPI) { // Replies are callbacks over the bus.
		replies.Go(func() { _ = s.bus.replies.Run(reading) }) // It logs topics that it cannot read.
	}
	server := httpapi.NewHTTPServer(killableAnswers(s.handler), s.log)
	limited := httpapi.LimitConnections(server, listener, s.connections)
	served := make(chan error, 1)
	go func() {
		if s.access.certificates == nil {
			served <- server.Serve(limited)
			return
		}
		server.TLSConfig = s.access.certificates.TLSConfig()
		served <- server.ServeTLS(limited, "", "")
	}()

	var cause error
	select {
	case <-ctx.Done():
	case cause = <-served:
		cause = fmt.Errorf("serve: %w", cause)
	case illegal := <-s.illegal:
		cause = fmt.Errorf("relay stopped: %w", illegal)
	case <-failed.Done():
	}
	s.handler.Drain()
	grace, cancel := context.WithTimeout(context.Background(), s.cfg.ShutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		cause = errors.Join(cause, fmt.Errorf("requests did not end in %s: %w", s.cfg.ShutdownGrace, err), server.Close())
	}
	stopReplies() // Before the relay, which publishes what they commit.
	replies.Wait()
	stop()
	return errors.Join(cause, group.Wait())
}

// loopJitter is the share by which the intervals of loops vary, so that replicas do not
// work in step.
const loopJitter = 0.1

// loops returns the background work of the process's roles.
func (s *system) loops(hangups <-chan os.Signal) []func(context.Context) error {
	var loops []func(context.Context) error
	every := func(interval time.Duration, loop upkeep.Loop) {
		loop.Interval, loop.Jitter, loop.Logger, loop.Observe = interval, loopJitter, s.log, s.metrics.observeLoop(loop.Name)
		loops = append(loops, loop.Run)
	}
	every(time.Second, upkeep.Loop{Name: "pauses", Pass: s.gate.Refresh})
	every(time.Second, memoryLoop())
	for _, watcher := range s.watchers {
		every(s.cfg.ProtocolsInterval, upkeep.Loop{Name: watcher.Name(), Wake: watcher.Asked(), Pass: func(ctx context.Context) error {
			_, _ = watcher.RunOnce(ctx) // It logs the error, and Err returns it.
			return nil
		}})
	}
	loops = append(loops, func(ctx context.Context) error {
		for {
			select {
			case <-hangups:
				for _, watcher := range s.watchers {
					watcher.Ask()
				}
			case <-ctx.Done():
				return nil
			}
		}
	})
	if s.bus.outages != nil {
		every(time.Second, upkeep.Loop{Name: "outages", Pass: func(ctx context.Context) error {
			return s.bus.outages.Note(ctx, s.bus.outOfService(time.Now())...)
		}})
	}
	if s.cfg.Has(config.RoleRelay) {
		loops = append(loops, s.relay.Run)
		every(s.cfg.RetryInterval, upkeep.Loop{Name: "relay", Pass: func(ctx context.Context) error {
			_, err := s.relay.RunOnce(ctx)
			return err
		}})
	}
	if s.cfg.Has(config.RoleSweeper) {
		every(s.cfg.SweepInterval, s.maintenance.sweeper.Loop())
		every(s.cfg.SweepInterval, s.maintenance.retention.Loop())
		every(time.Second, s.maintenance.reconciler.Loop())
		every(time.Second, s.maintenance.bulk.Loop())
		every(time.Second, s.maintenance.webhooks.Loop())
	}
	return loops
}
