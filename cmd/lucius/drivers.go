//go:build !nodrivers

package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
	"github.com/lucius-project/lucius/pkg/metrics"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pacer"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// driverCommands returns the commands for PostgreSQL and Azure.
func (p *program) driverCommands() []*cobra.Command {
	return []*cobra.Command{p.azure(), p.postgres()}
}

// checkDrivers returns an error for settings whose driver this build leaves out.
func checkDrivers(*config.Config) error { return nil }

// openRemote opens the configured store outside of the process. With metrics, its calls keep
// a pace that adapts to it; without, it is only read.
func openRemote(ctx context.Context, cfg *config.Config, log *slog.Logger, m *programMetrics) (tablestore.Store, error) {
	if cfg.StorageBackend == config.BackendPostgres {
		options := postgresOptions(cfg)
		options.ReadOnly, options.Logger = m == nil, log
		store, err := pgstore.Open(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
		}
		settings := pacer.Config{Deadline: 30 * time.Second} // A commit may wait for a standby.
		if m != nil {
			settings.Observe = m.observeCall
			m.createRequests()
		}
		return paced(store, settings, m), nil
	}
	options := tableOptions(cfg, log)
	options.ReadOnly = m == nil
	if m != nil {
		options.Observe = func(sample aztablestore.Sample) {
			if sample.Outcome == aztablestore.Held { // It was not sent.
				m.storeRequests.WithLabelValues(sample.Operation, string(sample.Outcome)).Inc()
				return
			}
			m.observeRequest(sample.Operation, string(sample.Outcome), sample.Took)
		}
		m.createRequests(metrics.Names(aztablestore.Throttled, aztablestore.Cancelled, aztablestore.Held)...)
	}
	store, err := aztablestore.Open(ctx, options)
	if err != nil {
		variable := "LUCIUS_TABLE_CONNECTION"
		if cfg.TableConnection == "" {
			variable = "LUCIUS_TABLE_ENDPOINT"
		}
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	return paced(store, pacer.Config{}, m), nil
}

// watched is a store with metrics of its own.
type watched interface {
	tablestore.Store
	Watch(to metrics.Registry)
}

// paced returns the store with a pace, and registers the metrics of both. Without metrics it
// returns the store itself.
func paced(store watched, settings pacer.Config, m *programMetrics) tablestore.Store {
	if m == nil {
		return store
	}
	store.Watch(m.Registry)
	result := pacer.New(store, settings)
	result.(watched).Watch(m.Registry)
	return result
}

// postgresOptions returns the options of a server's store on PostgreSQL.
func postgresOptions(cfg *config.Config) pgstore.Options {
	return pgstore.Options{URL: cfg.PostgresURL, Inbox: cfg.Has(config.RoleAPI)}
}

// tableOptions returns the options of the tables on Azure.
func tableOptions(cfg *config.Config, log *slog.Logger) aztablestore.Options {
	return aztablestore.Options{
		Connection: cfg.TableConnection, Endpoint: cfg.TableEndpoint, Logger: log, Tables: tableNames(cfg),
	}
}

// tableNames returns the names of all tables of the layout.
func tableNames(cfg *config.Config) []string {
	names := ledgerTables(cfg).All()
	if cfg.StorageBackend == config.BackendTable {
		names = append(names, cfg.ProjectedTables.Jobs, cfg.ProjectedTables.Outbox, cfg.ProjectedTables.Events)
	}
	return names
}

// openDrivers opens what the settings name besides the store, and adds it to the server.
func (h *host) openDrivers(ctx context.Context, settings *server.Config) error {
	if h.cfg.Bus == config.BusServiceBus {
		settings.OpenBus = h.openBus
	}
	if h.cfg.StorageBackend == config.BackendTable {
		settings.Ledger.Projector = projections.New(h.store, projections.Tables(h.cfg.ProjectedTables), nil)
	}
	if h.cfg.StorageBackend == config.BackendPostgres && h.cfg.Has(config.RoleAPI) {
		return h.openInbox(ctx, settings)
	}
	return nil
}

// openInbox opens the inbox of PostgreSQL, and listens for new commands.
func (h *host) openInbox(ctx context.Context, settings *server.Config) error {
	opened, err := pginbox.Open(ctx, pginbox.Options{
		URL: h.cfg.PostgresURL, Table: settings.Ledger.Tables.Ledger, MaxPayload: h.cfg.MaxPayloadBytes,
	})
	if err != nil {
		return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
	}
	h.closers = append(h.closers, opened.Close)
	if err := opened.Claim(ctx); err != nil {
		return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
	}
	submitted := make(chan struct{}, 1)
	if notifier, ok := tablestore.As[tablestore.Notifier](h.store); ok {
		notifier.Listen(pginbox.Channel, func(string) {
			select {
			case submitted <- struct{}{}:
			default: // A signal is already pending.
			}
		})
	}
	settings.Inbox, settings.InboxWake = opened, submitted
	return nil
}
