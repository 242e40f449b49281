package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/ledger"
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
	case config.BackendLedger:
		store, err := aztablestore.Open(ctx, aztablestore.Options{
			Connection: cfg.TableConnection, Endpoint: cfg.TableEndpoint, Logger: log,
			Tables: append(ledgerTables(cfg).All(), cfg.Tables.Queue),
		})
		if err != nil {
			return nil, fmt.Errorf("LUCIUS_STORAGE_BACKEND %s: %w", cfg.StorageBackend, err)
		}
		return store, nil
	}
	store, err := pebblestore.Open(pebblestore.Options{Dir: cfg.DataDir, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_DATA_DIR %s: %w", cfg.DataDir, err)
	}
	return store, nil
}

// ledgerTables are the names of the ledger's tables.
func ledgerTables(cfg *config.Config) ledger.Tables {
	return ledger.Tables{
		Ledger: cfg.Tables.Ledger, Idempotency: cfg.Tables.Idempotency, Inflight: cfg.Tables.Inflight,
		Schedule: cfg.Tables.Schedule, Index: cfg.Tables.Index,
	}
}
