package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/projections"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/aztablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// openStore opens the configured backend.
func openStore(ctx context.Context, cfg *config.Config, log *slog.Logger) (tablestore.Store, error) {
	switch cfg.StorageBackend {
	case config.BackendMemory:
		return memstore.New(memstore.Options{}), nil
	case config.BackendLedger, config.BackendTable:
		store, err := aztablestore.Open(ctx, tableOptions(cfg, log))
		if err != nil {
			return nil, fmt.Errorf("LUCIUS_STORAGE_BACKEND %s: %w", cfg.StorageBackend, err)
		}
		return store, nil
	}
	store, err := pebblestore.Open(pebblestore.Options{Dir: cfg.DataDir, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_DATA_DIR %s: %w", cfg.DataDir, err)
	}
	info := store.Info()
	if info.New {
		log.InfoContext(ctx, "new store made", "dir", info.Dir)
	} else {
		log.InfoContext(ctx, "store opened", "dir", info.Dir, "created", info.Created.UTC(),
			"age", time.Since(info.Created).Round(time.Second).String(), "opened", info.Opened, "bytes", info.Bytes)
	}
	return store, nil
}

// writableOf is what tells why the store takes no writes at the moment, as far as
// it knows before it is written to. Those that are elsewhere do not.
func writableOf(store tablestore.Store) func() error {
	if local, ok := store.(interface{ Writable() error }); ok {
		return local.Writable
	}
	return func() error { return nil }
}

// unwritable is the problem of a store that can be read and takes no writes.
func unwritable(err error) error {
	detail := "The store takes no writes."
	switch {
	case errors.Is(err, pebblestore.ErrNoSpace):
		detail = "The store takes no writes: less disk space is free than its reserve."
	case errors.Is(err, pebblestore.ErrLost):
		detail = "The store takes no writes: its data directory was removed or replaced."
	case errors.Is(err, pebblestore.ErrDamaged):
		detail = "The store takes no writes: a file of its data directory is damaged."
	}
	return &problem.Error{Code: problem.StoreUnavailable, Detail: detail, RetryAfter: time.Second, Err: err}
}

// tableOptions say where the tables are on Azure.
func tableOptions(cfg *config.Config, log *slog.Logger) aztablestore.Options {
	return aztablestore.Options{
		Connection: cfg.TableConnection, Endpoint: cfg.TableEndpoint, Logger: log, Tables: tableNames(cfg),
	}
}

// tableNames are the names of all tables that the layout has.
func tableNames(cfg *config.Config) []string {
	names := ledgerTables(cfg).All()
	if cfg.StorageBackend == config.BackendTable {
		names = append(names, projectedTables(cfg).All()...)
	}
	return names
}

// ledgerTables are the names of the ledger's tables. In the layout "table" the
// jobs lie with their steps.
func ledgerTables(cfg *config.Config) ledger.Tables {
	tables := ledger.Tables{
		Ledger: cfg.Tables.Ledger, Idempotency: cfg.Tables.Idempotency, Inflight: cfg.Tables.Inflight,
		Schedule: cfg.Tables.Schedule, Index: cfg.Tables.Index, Queue: cfg.Tables.Queue,
	}
	if cfg.StorageBackend == config.BackendTable {
		tables.Ledger = cfg.Tables.Steps
	}
	return tables
}

// projectedTables are the names of the tables that show the jobs.
func projectedTables(cfg *config.Config) projections.Tables {
	return projections.Tables{Jobs: cfg.Tables.Jobs, Outbox: cfg.Tables.Outbox, Events: cfg.Tables.Events}
}

// projector is what shows the jobs in further tables, nil where the layout has
// none.
func projector(cfg *config.Config, store tablestore.Store) ledger.Projector {
	if cfg.StorageBackend != config.BackendTable {
		return nil
	}
	return projections.New(store, projectedTables(cfg), nil)
}
