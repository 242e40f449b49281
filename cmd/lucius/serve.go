package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/console"
	"github.com/lucius-project/lucius/pkg/callbacks"
	"github.com/lucius-project/lucius/pkg/census"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/tracing"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/webhook"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// serve returns lucius serve, which runs the server until it is told to stop.
func (p *program) serve() *cobra.Command {
	cmd := &cobra.Command{
		Use: "serve", GroupID: cli.GroupServer, Short: "Run the server", Args: cli.Takes(0, 0),
		Long:    "Runs the server. Each flag has a variable, named behind it; flags win over variables.",
		Example: "  lucius serve\n  lucius serve --listen-addr 127.0.0.1:9090 --data-dir /var/lib/lucius",
	}
	config.Flags(cmd.Flags())
	printing := cmd.Flags().Bool("print-config", false, "print the configuration and exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		loaded, err := config.Load(cmd.Flags(), p.Environment)
		if err != nil {
			return err
		}
		if *printing {
			return loaded.Print(p.Stdout)
		}
		hangups := make(chan os.Signal, 1)
		signal.Notify(hangups, syscall.SIGHUP)
		defer signal.Stop(hangups)
		p.hangups = hangups
		return p.runServer(cmd.Context(), &loaded.Config, func(baseURL string) error {
			if _, err := fmt.Fprintf(p.Stdout, "lucius serves %s\n", baseURL); err != nil {
				return fmt.Errorf("print the server's URL: %w", err)
			}
			return nil
		})
	}
	return cmd
}

// runServer runs one server until the context ends: it builds the parts from the store
// outwards, serves, and closes them in reverse. It calls ready with the base URL once
// the server accepts connections.
func (p *program) runServer(ctx context.Context, cfg *config.Config, ready func(baseURL string) error) (err error) {
	log, err := newLogger(p.Stderr, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return err
	}
	serves := false
	defer func() {
		if serves {
			log.InfoContext(ctx, "stopped")
		}
	}()
	tuneCollector()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.ListenAddr)
	if err != nil {
		return fmt.Errorf("LUCIUS_LISTEN_ADDR %s: %w", cfg.ListenAddr, err)
	}
	defer func() { _ = listener.Close() }() // The HTTP server has closed it if it served.
	registry, err := protocol.Load(cfg.ProtocolsDir)
	if err != nil {
		return protocolsError(cfg.ProtocolsDir, err)
	}
	access, err := openAccess(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.close()) }()
	c, err := newCore(ctx, cfg, log)
	if err != nil {
		return err
	}
	defer func() {
		if closing := c.store.Close(); closing != nil {
			err = errors.Join(err, fmt.Errorf("close the store: %w", closing))
		}
	}()
	defer c.closeTracer()
	_, stopProfiles, err := serveProfiles(ctx, cfg.DebugAddr)
	if err != nil {
		return err
	}
	defer stopProfiles()
	if err := c.open(ctx); err != nil {
		return err
	}
	bus, err := openBus(c)
	if err != nil {
		return err
	}
	defer bus.close(log)
	s, err := assemble(ctx, c, bus, access, protocol.NewHolder(registry))
	if err != nil {
		return err
	}
	defer s.maintenance.sender.Close()
	scheme := "http"
	if access.certificates != nil {
		scheme = "https"
	}
	if err := ready(scheme + "://" + listener.Addr().String()); err != nil {
		return err
	}
	serves = true
	log.InfoContext(ctx, "serving", "url", scheme+"://"+listener.Addr().String(), "version", moduleVersion(),
		"store", cfg.StorageBackend, "bus", cfg.Bus, "roles", cfg.Roles, "traces", c.tracer != nil)
	return s.run(ctx, listener, p.hangups)
}

// protocolsError returns the error of a start, by that of [protocol.Load].
func protocolsError(dir string, err error) error {
	if missing(err) {
		err = fmt.Errorf("%w: name the folder of your protocols, or begin with lucius init", err)
	}
	return fmt.Errorf("LUCIUS_PROTOCOLS_DIR %s: %w", dir, err)
}

// core is the state of the jobs, on which all other parts work.
type core struct {
	cfg      *config.Config
	log      *slog.Logger
	metrics  *metrics
	store    tablestore.Store
	writable func() error // Why the store takes no writes; see writableOf.
	clock    *clockCheck
	tracer   *tracing.Tracer    // nil unless the environment names a place to report to
	local    *pebblestore.Store // nil without a data directory
	ledger   *ledger.Ledger
	inbox    *outbox.Inbox     // directives between a commit and the relay
	mirror   *workqueue.Mirror // the head of the ready index
	queue    *workqueue.Queue
	pauses   *pauses.Service
	gate     *pauses.Gate // this process's view of the pauses
	ended    jobs.Ended
	census   *census.Census

	callbacks *callbacks.Service
	webhooks  *upkeep.Webhooks // set before any job ends; nil in a command
	tenants   *config.Tenants
}

// tracesGrace is how long a server that stops tries to report its last spans.
const tracesGrace = 5 * time.Second

// closeTracer reports the last spans.
func (c *core) closeTracer() {
	if c.tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tracesGrace)
	defer cancel()
	if err := c.tracer.Close(ctx); err != nil {
		c.log.WarnContext(ctx, "last spans could not be reported", "error", err)
	}
}

// linked returns the handler, whose requests are linked to the callers' spans.
func (c *core) linked(handler http.Handler) http.Handler {
	if c.tracer == nil {
		return handler
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(c.tracer.Received(r.Context(), r.Header.Get("traceparent"))))
	})
}

// newCore opens the store.
func newCore(ctx context.Context, cfg *config.Config, log *slog.Logger) (*core, error) {
	m := newMetrics()
	store, err := openStore(ctx, cfg, log, m)
	if err != nil {
		return nil, err
	}
	return newCoreOn(cfg, log, m, store), nil
}

// newCoreOn returns the core on an open store.
func newCoreOn(cfg *config.Config, log *slog.Logger, m *metrics, store tablestore.Store) *core {
	local, _ := store.(*pebblestore.Store)
	m.watchStore(store)
	return &core{
		cfg: cfg, log: log, metrics: m, store: killableStore(store), writable: writableOf(store), local: local,
		clock: newClockCheck(store, cfg.ClockTolerance, log),
	}
}

// inboxSize is how many directives the inbox holds; the dispatch schedule has the rest.
const inboxSize = 8192

// open opens the ledger, the pull queue on it, and the pauses, before anything is
// dispatched.
func (c *core) open(ctx context.Context) (err error) {
	c.inbox, c.mirror = outbox.NewInbox(inboxSize), workqueue.NewMirror(0)
	if c.tracer, err = tracing.FromEnvironment(ctx, moduleVersion(), c.log); err != nil {
		return err
	}
	if c.tenants, err = c.cfg.OpenTenants(); err != nil {
		return err
	}
	settings := ledger.Config{
		Store: c.store, Shared: c.cfg.StorageBackend == config.BackendPostgres, Tables: ledgerTables(c.cfg),
		Hold: c.cfg.PublishTimeout * 3 / 2, Jitter: c.cfg.Jitter,
		Bus: statemachine.Bus(c.cfg.Bus), Ready: c.mirror.Ready, Taker: c.mirror.Taker,
		SpreadIDs: c.cfg.StorageBackend == config.BackendLedger || c.cfg.StorageBackend == config.BackendTable,
		Ended: func(job *statemachine.Job) {
			c.ended.Tell(job)
			if c.webhooks != nil {
				c.webhooks.Offer(job)
			}
		},
		Retention: c.cfg.Retention, KeyTTL: c.cfg.KeyTTL, Limit: c.tenants.MaxInflight,
		Observe: func(ctx context.Context, before, after *statemachine.Aggregate, history []statemachine.Transition) {
			c.census.Observe(before, after, history)
			c.metrics.observeTransitions(after, history)
			logTransitions(c.log, after, history)
			c.tracer.Observe(ctx, before, after, history)
		},
		Unsure: func() { c.census.Unsure() },
		Held:   func(target statemachine.Target) bool { return c.gate.HoldsNew(target) },
	}
	if c.tracer != nil {
		settings.Sample = c.tracer.Sample
	}
	if c.cfg.StorageBackend == config.BackendTable {
		settings.Projector = ledger.NewProjections(c.store, c.cfg.Tables, nil)
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
	c.callbacks = callbacks.New(callbacks.Config{
		Ledger: c.ledger, Logger: c.log,
		Rejected:   func(kind, cause string) { c.metrics.rejected.WithLabelValues(kind, cause).Inc() },
		Unrecorded: func(count int64) { c.metrics.unrecorded.Add(float64(count)) },
	})
	c.queue, err = workqueue.New(workqueue.Config{
		Ledger: c.ledger, Store: c.store, Mirror: c.mirror, Logger: c.log,
		Held:       func(target statemachine.Target) bool { return c.gate.HoldsQueued(target) },
		HeldTenant: func(tenantID string) bool { return c.gate.HoldsTenant(tenantID) },
	})
	if err != nil {
		return err
	}
	if err := c.openCensus(ctx); err != nil {
		return err
	}
	c.pauses = pauses.New(c.store, c.ledger.Tables().Schedule, nil)
	if c.cfg.StartPaused {
		if _, err := c.pauses.Create(ctx, statemachine.Scope{}, "started with LUCIUS_START_PAUSED", ledger.ActorSystem); err != nil {
			return err
		}
	}
	c.gate, err = pauses.NewGate(ctx, c.pauses)
	return err
}

// openCensus opens the census, before any job changes.
func (c *core) openCensus(ctx context.Context) (err error) {
	c.census, err = census.New(census.Config{
		Store: c.store, Table: c.ledger.Tables().Queue, Exclusive: c.ledger.Exclusive(), Queue: c.queue, Replica: rand.Text(),
		Waited: c.metrics.waited, Took: c.metrics.took,
	})
	if err != nil {
		return err
	}
	return c.census.Open(ctx)
}

// defectGrace is how long a server with an illegal transition may take to stop in good
// order before it exits as it is, so that it has ended within a second.
//
// Source: Stage1 seq ledger spec, Illegal Transition Policy.
const defectGrace = 800 * time.Millisecond

// system is a server that is ready to run.
type system struct {
	*core
	access      *access
	bus         *bus
	relay       *outbox.Relay
	illegal     <-chan *seqledger.IllegalTransitionError // a defect of the relay
	maintenance *maintenance
	watchers    []*upkeep.Watcher
	handler     *httpapi.Server
	connections int // how many connections may be open
}

// assemble builds the relay, the loops and the API around the core.
func assemble(ctx context.Context, c *core, bus *bus, access *access, protocols *protocol.Holder) (*system, error) {
	illegal := make(chan *seqledger.IllegalTransitionError, 1)
	host, _ := os.Hostname() // Without it the process id alone names the replica.
	relay, err := outbox.NewRelay(outbox.Config{
		Ledger: c.ledger, Publisher: bus.publisher, Inbox: c.inbox, Breakers: bus.circuits,
		Deadline: c.cfg.PublishTimeout, Logger: c.log, Replica: fmt.Sprintf("%s:%d", host, os.Getpid()),
		Observe: func(outcome outbox.Outcome) { c.metrics.relayed.WithLabelValues(string(outcome)).Inc() },
		Sent: func(answer outbox.Outcome, took time.Duration) {
			c.metrics.published.WithLabelValues(string(answer)).Observe(took.Seconds())
		},
		Admit: c.gate.Admit, Held: c.gate.HoldsQueued, // A ramp counts what it admitted no second time.
		Fatal: func(defect *seqledger.IllegalTransitionError) {
			c.log.ErrorContext(ctx, "illegal transition in the relay's window", slog.Any("transition", defect))
			time.AfterFunc(defectGrace, func() { os.Exit(cli.ExitDefect) }) //nolint:revive // It cannot wait for main.
			illegal <- defect                                               // It is called once.
		},
	})
	if err != nil {
		return nil, err
	}
	breakableWindow(relay.Window())
	maintenance, err := newMaintenance(c, bus)
	if err != nil {
		return nil, err
	}
	c.metrics.watchRelay(c.inbox, relay, bus.circuits)
	c.metrics.watchUpkeep(c, maintenance.reconciler)
	c.metrics.registry.MustRegister(newCounted(c.census, protocols))
	c.metrics.know(protocols.Current())
	watchers := watchFiles(c, protocols, access)
	commands, err := newCommands(c.cfg, c.ledger, protocols, maintenance.guard)
	if err != nil {
		return nil, err
	}
	ready := &readiness{
		clock:  c.clock,
		ledger: c.ledger, writable: c.writable, local: c.local, bus: bus, gate: c.gate,
		reconciler: maintenance.reconciler, watchers: watchers,
	}
	around := jobs.Surroundings{Pause: c.gate.Covering, LastPoll: c.queue.LastPoll, EndRate: c.census.EndRate, Live: c.census.Live}
	if bus.outages != nil {
		around.Circuit = bus.outages.Circuit
	}
	connections := maxConnections(ctx, c.cfg, c.log)
	useCases := httpapi.UseCases{
		Ledger: c.ledger, Commands: commands, Jobs: jobs.New(c.ledger, &c.ended, around),
		Callbacks: c.callbacks, Queue: c.queue, Operator: outbox.NewOperator(c.ledger), Reconciler: maintenance.reconciler,
		Census:     c.census,
		Operations: maintenance.operations, Pauses: c.pauses, Gate: c.gate, Protocols: protocols,
	}
	if statemachine.Bus(c.cfg.Bus) != statemachine.BusQueue {
		useCases.Circuits = bus.notClosed
	}
	if bus.deadLetters != nil {
		useCases.DeadLetters = bus.deadLetters
	}
	if c.local != nil {
		useCases.Backup = c.backup
	}
	handler, err := httpapi.New(httpapi.Config{
		UseCases: useCases,
		Ready:    ready.Ready, Registry: c.metrics.registry, Log: c.log, Lanes: c.cfg.Lanes, MaxBodyBytes: int64(c.cfg.MaxBodyBytes),
		MaxWaits:   max(1, connections/2), // Callers that wait leave connections for the others.
		ProbesOnly: !c.cfg.Has(config.RoleAPI),
		Auth:       access.authenticator, CallerLimit: access.callers, TenantLimit: access.tenants, Audit: access.audit,
		Console: func(api http.Handler, ended <-chan struct{}) (http.Handler, error) {
			return console.New(console.Config{
				API: api, Ended: ended, Log: c.log, Issuer: access.signIn, PublicURL: c.cfg.PublicURL,
			})
		},
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
		Ledger: l, Protocols: protocols, Router: router,
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
	operations *upkeep.Operations
	bulk       *upkeep.Bulk
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
	if m.operations, err = upkeep.NewOperations(upkeep.OperationsConfig{
		Ledger: c.ledger, Store: c.store, Table: c.ledger.Tables().Schedule, Live: c.census.Live,
	}); err != nil {
		return nil, err
	}
	if m.bulk, err = upkeep.NewBulk(upkeep.BulkConfig{
		Operations: m.operations, Logger: c.log,
		Observe: func(kind upkeep.Kind, outcome upkeep.ItemOutcome) {
			c.metrics.bulkJobs.WithLabelValues(string(kind), string(outcome)).Inc()
		},
	}); err != nil {
		return nil, err
	}
	if m.reconciler, err = upkeep.NewReconciler(upkeep.ReconcilerConfig{Ledger: c.ledger, Census: c.census, Logger: c.log}); err != nil {
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
	webhooks := upkeep.WebhooksConfig{
		Ledger: c.ledger, Logger: c.log,
		Dispatcher: &webhook.Dispatcher{Send: m.sender.Send, Gate: gate, Policy: webhook.StandardPolicy()},
		Observe: func(job *statemachine.Job, began time.Time, result webhook.Result) {
			c.metrics.webhooks.WithLabelValues(string(result.Outcome)).Inc()
			if result.Outcome != webhook.Deferred {
				c.tracer.Webhook(job, began, string(result.Outcome), result.Reason)
			}
		},
	}
	if c.tracer != nil {
		webhooks.Traceparent = tracing.Traceparent
	}
	c.webhooks, err = upkeep.NewWebhooks(webhooks)
	return m, err
}

// watchFiles returns the watchers that reload changed files, with their metrics.
func watchFiles(c *core, protocols *protocol.Holder, access *access) []*upkeep.Watcher {
	m := c.metrics
	attempts := m.counter("lucius_protocol_reloads_total", "Attempts to reload the protocol files, by outcome.", "outcome")
	folder := protocol.Folder{Dir: c.cfg.ProtocolsDir, Holder: protocols}
	reloaded := observeReloads(attempts)
	watcher := upkeep.NewWatcher("protocol files", folder, c.log, func(outcome upkeep.ReloadOutcome) {
		m.know(protocols.Current())
		reloaded(outcome)
	})
	m.gauge("lucius_protocols_loaded_timestamp_seconds", "When the protocols in use were loaded, in Unix time.",
		func() float64 { return float64(protocols.LoadedAt().UnixMilli()) / 1000 })
	m.watchRefusals("lucius_protocols_refused", "1 while the protocol files on disk are refused and older ones in use, else 0.",
		nil, watcher)
	watchers := []*upkeep.Watcher{watcher}

	attempts = m.counter("lucius_access_reloads_total",
		"Attempts to reload the token file, the certificates or the tenants' limits, by outcome.", "files", "outcome")
	watch := func(name, label string, set upkeep.Files) {
		files := prometheus.Labels{"files": label}
		watcher := upkeep.NewWatcher(name, set, c.log, observeReloads(attempts.MustCurryWith(files)))
		m.watchRefusals("lucius_access_refused",
			"1 while files on disk are refused and the previous ones are in use, else 0.", files, watcher)
		watchers = append(watchers, watcher)
	}
	if tokens := access.tokens; tokens != nil {
		watch("tokens", "token_file", tokens)
	}
	if certificates := access.certificates; certificates != nil {
		m.gauge("lucius_tls_certificate_expires_timestamp_seconds", "When the server's certificate expires, in Unix time.",
			func() float64 { return float64(certificates.Expires().Unix()) })
		watch("certificates", "certificates", certificates)
	}
	if c.cfg.TenantsFile != "" {
		watch("tenants' limits", "tenants_file", c.tenants)
	}
	return watchers
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
	server := httpapi.NewHTTPServer(killableAnswers(s.core.linked(s.handler)), s.log)
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
	s.log.InfoContext(ctx, "shutting down", "cause", errors.Join(cause, context.Cause(ctx), context.Cause(failed)),
		"grace", s.cfg.ShutdownGrace.String())
	s.handler.Drain()
	grace, cancel := context.WithTimeout(context.Background(), s.cfg.ShutdownGrace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		cause = errors.Join(cause, fmt.Errorf("requests did not end in %s: %w", s.cfg.ShutdownGrace, err), server.Close())
	}
	stopReplies() // Before the relay, which publishes what they commit.
	replies.Wait()
	stop()
	cause = errors.Join(cause, group.Wait())
	s.closeCensus(cause == nil)
	return cause
}

// closeCensus stores what was counted. Without it, the next process counts again.
func (c *core) closeCensus(orderly bool) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := c.census.Close(ctx, orderly); err != nil {
		c.log.WarnContext(ctx, "the census is not stored", "error", err)
	}
}

// censusInterval is the time between two writes of the census: a crash loses that much.
const censusInterval = 10 * time.Second

// deadLetterInterval is the time between two counts of the dead letters.
const deadLetterInterval = 15 * time.Second

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
	every(censusInterval, upkeep.Loop{Name: "census", Pass: s.census.RunOnce})
	every(time.Second, upkeep.Loop{Name: "rejected callbacks", Pass: s.callbacks.RunOnce, Drain: func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		s.callbacks.Flush(ctx)
	}})
	for _, watcher := range s.watchers {
		every(s.cfg.ProtocolsInterval, watcher.Loop())
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
	if s.bus.deadLetters != nil && s.cfg.Has(config.RoleAPI) {
		every(deadLetterInterval, upkeep.Loop{Name: "dead letters", Pass: s.bus.deadLetters.Count})
	}
	if s.cfg.Has(config.RoleRelay) {
		loops = append(loops, s.relay.Run)
		every(s.cfg.RetryInterval, upkeep.Loop{Name: "relay", Pass: func(ctx context.Context) error {
			_, err := s.relay.RunOnce(ctx)
			return err
		}})
	}
	if s.cfg.Has(config.RoleSweeper) {
		every(s.cfg.SweepInterval, s.clock.guard(s.maintenance.sweeper.Loop()))
		every(s.cfg.SweepInterval, s.clock.guard(s.maintenance.retention.Loop()))
		every(time.Second, s.clock.guard(s.maintenance.reconciler.Loop()))
		every(time.Second, s.maintenance.bulk.Loop())
		loops = append(loops, s.webhooks.Run)
		every(s.cfg.SweepInterval, s.webhooks.Loop())
	}
	return loops
}
