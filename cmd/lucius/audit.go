package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// audit returns lucius audit, which checks a store against the invariants and prints a report.
func (p *program) audit() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", GroupID: cli.GroupOperate, Short: "Check a store for lost or inconsistent data", Args: cli.Takes(0, 0),
		Example: "  lucius audit --data-dir ./lucius-data\n  lucius audit --quiescent -o json",
	}
	flags := cmd.Flags()
	dataDir := flags.String("data-dir", "", "audit the local store in this folder, which no server may have open;\n"+
		"without it, the store that the LUCIUS_ variables name")
	var options audit.Options
	flags.BoolVar(&options.Quiescent, "quiescent", false, "expect that every job has ended and no work is left")
	flags.DurationVar(&options.Slack, "slack", 0, "how overdue work may be (default 10m)")
	var output cli.Output
	output.Register(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := output.Check(); err != nil {
			return err
		}
		var local []string
		if *dataDir != "" {
			local = []string{"--storage-backend", config.BackendLocal, "--data-dir", *dataDir}
		}
		loaded, err := config.LoadArgs(local, p.Environment)
		if err != nil {
			return checkError(err)
		}
		report, err := runAudit(cmd.Context(), &loaded.Config, options)
		if err != nil {
			return checkError(err)
		}
		if err := output.Print(p.Stdout, report, func(w io.Writer) { printAudit(w, report) }); err != nil {
			return checkError(err)
		}
		if bad := report.Violations(); bad > 0 {
			return found("%d violations", bad)
		}
		if options.Quiescent && report.Late() > 0 {
			return found("%d findings of unfinished work", report.Late())
		}
		return nil
	}
	return cmd
}

// auditStore is a store that an audit can read.
type auditStore interface {
	audit.Store
	Close() error
}

// runAudit opens the configured store for reading and audits it.
func runAudit(ctx context.Context, cfg *config.Config, options audit.Options) (report *audit.Report, err error) {
	var store auditStore
	confirm := 0 // No other process has a local store open, so one read of a finding is enough.
	switch cfg.StorageBackend {
	case config.BackendMemory:
		return nil, errors.New("LUCIUS_STORAGE_BACKEND memory: it cannot be audited, because its data ends with its process")
	case config.BackendLocal:
		if store, err = pebblestore.Open(pebblestore.Options{Dir: cfg.DataDir, ReadOnly: true}); err != nil {
			return nil, fmt.Errorf("LUCIUS_DATA_DIR %s: %w", cfg.DataDir, err)
		}
	default:
		opened, err := openStore(ctx, cfg, slog.New(slog.DiscardHandler), nil)
		if err != nil {
			return nil, err
		}
		confirm = 3
		readable, ok := opened.(auditStore)
		if !ok {
			return nil, errors.Join(fmt.Errorf("LUCIUS_STORAGE_BACKEND %s cannot be audited", cfg.StorageBackend), opened.Close())
		}
		store = readable
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	options.KeyTTL, options.Retention = cfg.KeyTTL, cfg.Retention
	options.Clocks = max(cfg.ClockTolerance, audit.DefaultClocks)
	options.Tables = audit.Tables{
		Ledger: ledgerTables(cfg).Ledger, Schedule: cfg.Tables.Schedule,
		Idempotency: cfg.Tables.Idempotency, Index: cfg.Tables.Index, Queue: cfg.Tables.Queue,
		Cron: cfg.Tables.Cron,
	}
	return audit.Run(ctx, audit.Config{Store: store, Confirm: confirm, Options: options})
}

// printAudit prints each finding on a line, and then the sums.
func printAudit(w io.Writer, r *audit.Report) {
	for _, f := range r.Findings {
		fmt.Fprintln(w, f)
	}
	fmt.Fprintf(w, "%d jobs", r.Jobs)
	for _, state := range slices.Sorted(maps.Keys(r.States)) {
		fmt.Fprintf(w, ", %d %s", r.States[state], state)
	}
	fmt.Fprintf(w, "; %d rows: %d violations, %d late\n", r.Rows, r.Violations(), r.Late())
}
