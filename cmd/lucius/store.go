package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/search"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// openStore opens the configured backend. Its requests are counted in the metrics, unless
// those are nil.
func openStore(ctx context.Context, cfg *config.Config, log *slog.Logger, m *programMetrics) (tablestore.Store, error) {
	switch cfg.StorageBackend {
	case config.BackendMemory:
		return memstore.New(memstore.Options{}), nil
	case config.BackendLocal:
		return openLocal(ctx, cfg, log, m)
	}
	return openRemote(ctx, cfg, log, m)
}

// openLocal opens the store in the data directory.
func openLocal(ctx context.Context, cfg *config.Config, log *slog.Logger, m *programMetrics) (tablestore.Store, error) {
	options := pebblestore.Options{Dir: cfg.DataDir, Logger: log, Fatal: func(cause error) {
		os.Exit(exitCode(cause)) //nolint:revive // The store ends the process: nothing may go on.
	}}
	if m != nil {
		options.Observe = m.observeCall
	}
	store, err := pebblestore.Open(options)
	if err != nil {
		return nil, fmt.Errorf("LUCIUS_DATA_DIR %s: %w", cfg.DataDir, err)
	}
	warnIfExposed(ctx, log, "LUCIUS_DATA_DIR", cfg.DataDir)
	info := store.Info()
	if info.New {
		log.InfoContext(ctx, "new store made", "dir", info.Dir)
	} else {
		log.InfoContext(ctx, "store opened", "dir", info.Dir, "created", info.Created.UTC(),
			"age", time.Since(info.Created).Round(time.Second).String(), "opened", info.Opened, "bytes", info.Bytes)
	}
	return store, nil
}

// backup takes a backup of the local store.
func (h *host) backup(ctx context.Context) (httpapi.Backup, error) {
	live := map[string]int{}
	for state, jobs := range h.server.UseCases().Counts.Report().Jobs {
		live[string(state)] = jobs
	}
	backup, err := h.local.Backup(ctx, pebblestore.BackupNote{Version: moduleVersion(), Jobs: live})
	if errors.Is(err, pebblestore.ErrBackupRunning) {
		return nil, apierror.Newf(apierror.RateLimited, "Another backup is under way; only one can run at a time.")
	}
	if err != nil {
		return nil, err // Otherwise the interface would hold nil.
	}
	return backup, nil
}

// ledgerTables returns the names of the ledger's tables. The layout "table" keeps the
// jobs with their steps.
func ledgerTables(cfg *config.Config) ledger.Tables {
	tables := cfg.Tables
	if cfg.StorageBackend == config.BackendTable {
		tables.Ledger = cfg.StepsTable
	}
	return tables
}

// archive appends each job that is about to be purged to a file of its month, as one
// line of JSON.
type archive struct {
	dir string
	mu  sync.Mutex
}

// archivedJob is one line: the job as the API shows it, with its history.
type archivedJob struct {
	api.Job

	Payload json.RawMessage `json:"payload,omitempty"`
	Events  []api.Event     `json:"events"`
}

// add writes the job's line and syncs the file. A job has two lines if its purge is
// repeated after a crash, or if two replicas purge it at the same time.
func (a *archive) add(_ context.Context, job *ledger.Archived) (err error) {
	shown := search.Shown{Aggregate: &job.Aggregate} // The job has ended and waits for nothing.
	line, err := json.Marshal(archivedJob{Job: httpapi.JobOf(&shown), Payload: job.Payload, Events: httpapi.EventsOf(job.History)})
	if err != nil {
		return fmt.Errorf("encode job %s for the archive: %w", job.Job.ID, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	path := filepath.Join(a.dir, "jobs-"+job.Job.CreatedAt.Format("2006-01")+".jsonl")
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("open the archive: %w", err)
	}
	if size := info.Size(); size > 0 { // A crash or a full disk may have cut the last line short.
		end := make([]byte, 1)
		if _, err := file.ReadAt(end, size-1); err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if end[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write to the archive: %w", err)
	}
	if err := file.Sync(); err != nil || info.Size() > 0 {
		return err
	}
	if dir, err := os.Open(a.dir); err == nil { // The file is new: its name must be durable, too. Not every system can sync a folder.
		_, _ = dir.Sync(), dir.Close()
	}
	return nil
}
