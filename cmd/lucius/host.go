package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/console"
	"github.com/lucius-project/lucius/pkg/background"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
	"github.com/lucius-project/lucius/pkg/tracing"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// host is what the program adds to a server: settings, drivers, files that are reloaded,
// and an HTTP server.
type host struct {
	cfg       *config.Config
	log       *slog.Logger
	metrics   *programMetrics
	store     tablestore.Store   // with the points at which tests kill the process
	local     *pebblestore.Store // nil without a data directory
	access    *access
	protocols *commands.ProtocolHolder
	tenants   *config.Tenants
	tracer    *tracing.Tracer // nil unless the environment names a place to report to
	closers   []func()        // close what openDrivers opened

	server      *server.Server
	connections int // how many connections may be open
}

// newHost returns a host on an open store. [host.close] closes what [host.open] opens.
func newHost(cfg *config.Config, log *slog.Logger, m *programMetrics, store tablestore.Store, access *access,
	protocols *commands.ProtocolHolder,
) *host {
	local, _ := store.(*pebblestore.Store)
	if local != nil {
		local.Watch(m.Registry)
		m.createRequests()
	}
	return &host{cfg: cfg, log: log, metrics: m, store: killableStore(store), local: local, access: access, protocols: protocols}
}

// open opens the server.
func (h *host) open(ctx context.Context) error {
	settings, err := h.settings(ctx)
	if err != nil {
		return err
	}
	if h.server, err = server.Open(ctx, *settings); err != nil {
		return err
	}
	breakableWindow(h.server.Relay().Window())
	return nil
}

// settings returns the configuration of the server, and opens what it names.
func (h *host) settings(ctx context.Context) (_ *server.Config, err error) {
	if h.tracer, err = tracing.FromEnvironment(ctx, moduleVersion(), h.log); err != nil {
		return nil, err
	}
	if h.tenants, err = h.cfg.OpenTenants(); err != nil {
		return nil, err
	}
	stored, err := h.ledgerSettings()
	if err != nil {
		return nil, err
	}
	cfg := h.cfg
	h.connections = maxConnections(ctx, cfg, h.log)
	name, _ := os.Hostname() // Without it the process id alone names the replica.
	settings := &server.Config{
		Store: h.store, Protocols: h.protocols, Ledger: *stored, HTTP: h.httpSettings(),
		Policy:         commands.Policy{AllowedRefs: cfg.RefPrefixes, MaxPayloadBytes: cfg.MaxPayloadBytes},
		Defaults:       cfg.Steps,
		Routing:        routing.Config{Lanes: cfg.Lanes, TopicPrefix: cfg.TopicPrefix},
		Webhooks:       webhook.GuardConfig{AllowedPrefixes: cfg.WebhookNetworks, AllowHTTP: cfg.WebhookAllowHTTP},
		WebhookSecrets: cfg.WebhookSecrets, PublishTimeout: cfg.PublishTimeout, RelayInterval: cfg.RetryInterval,
		BulkShare: cfg.BulkShare, SweepInterval: cfg.SweepInterval, ClockTolerance: cfg.ClockTolerance, Grace: cfg.ShutdownGrace,
		LimitSkew: cfg.LimitSkew, MaxClose: cfg.MaxClose,
		Watchers: h.watchFiles(), ReloadInterval: cfg.ProtocolsInterval, Loops: []background.Loop{memoryLoop()},
		Registry: h.metrics.Registry.Registry, Logger: h.log, LogFailuresOnly: cfg.LogJobs == config.LogJobsFailures,
		Replica: fmt.Sprintf("%s:%d", name, os.Getpid()),
		Build:   thisBuild().order(),
		Fatal:   exitSoon(os.Exit),
	}
	for _, role := range cfg.Roles {
		settings.Roles = append(settings.Roles, server.Role(role))
	}
	if err := h.openDrivers(ctx, settings); err != nil {
		return nil, err
	}
	if cfg.StartPaused {
		settings.StartPaused = "started with LUCIUS_START_PAUSED"
	}
	if h.tracer != nil {
		settings.Tracer = h.tracer
	}
	return settings, nil
}

// ledgerSettings returns how and for how long jobs are stored.
func (h *host) ledgerSettings() (*ledger.Config, error) {
	settings := &ledger.Config{
		Tables: ledgerTables(h.cfg), SpreadIDs: h.cfg.OnAzure(),
		Jitter: h.cfg.Jitter, Retention: h.cfg.Retention, KeyTTL: h.cfg.KeyTTL, Limit: h.tenants.MaxInflight,
	}
	if h.cfg.ArchiveDir != "" {
		if err := os.MkdirAll(h.cfg.ArchiveDir, 0o750); err != nil {
			return nil, fmt.Errorf("LUCIUS_ARCHIVE_DIR %s: %w", h.cfg.ArchiveDir, err)
		}
		settings.Archive = (&archive{dir: h.cfg.ArchiveDir}).add
	}
	return settings, nil
}

// httpSettings returns who may call and how often, and what the process serves.
func (h *host) httpSettings() httpapi.Config {
	settings := httpapi.Config{
		Auth: h.access.authenticator, CallerLimit: h.access.callers, TenantLimit: h.access.tenants, Audit: h.access.audit,
		MaxBodyBytes: int64(h.cfg.MaxBodyBytes),
		MaxWaits:     max(1, h.connections/2), // Callers that wait leave connections for the others.
		Console: func(api http.Handler, ended <-chan struct{}) (http.Handler, error) {
			return console.New(console.Config{
				API: api, Ended: ended, Log: h.log, Issuer: h.access.signIn, PublicURL: h.cfg.PublicURL,
				Environment: h.cfg.Environment.Name, Colour: h.cfg.Environment.Colour,
			})
		},
	}
	if h.local != nil {
		settings.Backup = h.backup
	}
	return settings
}

// watchFiles returns the watchers that reload changed files, with their metrics.
func (h *host) watchFiles() []*background.Watcher {
	m := h.metrics
	attempts := m.Counter("lucius_protocol_reloads_total", "Attempts to reload the protocol files, by outcome.", "outcome")
	folder := commands.ProtocolFolder{Dir: h.cfg.ProtocolsDir, Holder: h.protocols}
	watcher := background.NewWatcher("protocol files", folder, h.log, observeReloads(attempts))
	m.watchRefusals("lucius_protocols_refused", "1 while the protocol files on disk are refused and older ones are in use, otherwise 0.",
		nil, watcher)
	watchers := []*background.Watcher{watcher}

	attempts = m.Counter("lucius_access_reloads_total",
		"Attempts to reload the token file, the certificates or the tenants' limits, by outcome.", "files", "outcome")
	watch := func(name, label string, set background.Files) {
		files := prometheus.Labels{"files": label}
		watcher := background.NewWatcher(name, set, h.log, observeReloads(attempts.MustCurryWith(files)))
		m.watchRefusals("lucius_access_refused",
			"1 while files on disk are refused and the previous ones are in use, otherwise 0.", files, watcher)
		watchers = append(watchers, watcher)
	}
	if tokens := h.access.tokens; tokens != nil {
		watch("tokens", "token_file", tokens)
	}
	if certificates := h.access.certificates; certificates != nil {
		m.Gauge("lucius_tls_certificate_expires_timestamp_seconds", "When the server's certificate expires, in Unix time.",
			func() float64 { return float64(certificates.Expires().Unix()) })
		watch("certificates", "certificates", certificates)
	}
	if h.cfg.TenantsFile != "" {
		watch("tenants' limits", "tenants_file", h.tenants)
	}
	return watchers
}

// defectGrace is how long a server with an illegal transition may take to stop in good
// order before it exits as it is, so that it has ended within a second.
//
// Source: Stage1 seq ledger spec, Illegal Transition Policy.
const defectGrace = 800 * time.Millisecond

// exitSoon returns what an illegal transition calls: it ends the process after that grace
// regardless of requests under way, which main would wait for.
func exitSoon(exit func(code int)) func(*seqledger.IllegalTransitionError) {
	return func(*seqledger.IllegalTransitionError) {
		time.AfterFunc(defectGrace, func() { exit(cli.ExitDefect) })
	}
}

// run serves on the listener until the context ends, or until a part fails. Then it takes
// no new connections, and lets the server stop in good order.
func (h *host) run(ctx context.Context, listener net.Listener, hangups <-chan os.Signal) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ran, served := make(chan error, 1), make(chan error, 1)
	go func() { ran <- h.server.Run(running) }()
	front := httpapi.NewHTTPServer(killableAnswers(h.server), h.log)
	limited := httpapi.LimitConnections(front, listener, h.connections)
	go func() {
		if h.access.certificates == nil {
			served <- front.Serve(limited)
			return
		}
		front.TLSConfig = h.access.certificates.TLSConfig()
		served <- front.ServeTLS(limited, "", "")
	}()
	go func() {
		for {
			select {
			case <-hangups:
				h.server.Reload()
			case <-running.Done():
				return
			}
		}
	}()

	var cause, ended error
	select {
	case <-ctx.Done():
	case err := <-served:
		cause = fmt.Errorf("serve: %w", err)
	case ended = <-ran:
		ran <- nil
	}
	stop(cause)
	grace, cancel := context.WithTimeout(context.Background(), h.cfg.ShutdownGrace)
	defer cancel()
	if front.Shutdown(grace) != nil {
		_ = front.Close() // Run reports whether requests were in progress.
	}
	return errors.Join(cause, ended, <-ran)
}

// tracesGrace is how long a server that stops tries to report its last spans.
const tracesGrace = 5 * time.Second

// close closes the drivers, and reports the last spans.
func (h *host) close() {
	for _, end := range h.closers {
		end()
	}
	if h.tracer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tracesGrace)
	defer cancel()
	if err := h.tracer.Close(ctx); err != nil {
		h.log.WarnContext(ctx, "last spans could not be exported", "error", err)
	}
}
