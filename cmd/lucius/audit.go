package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// exitViolations and exitUnaudited are the exit codes of an audit that found
// something wrong, and of one that could not be done.
const (
	exitViolations = 1
	exitUnaudited  = 2
)

// exitError is an error that ends the program with a code of its own.
type exitError struct {
	code int
	error
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.error }

// auditOptions are the flags of an audit.
type auditOptions struct {
	dataDir   string
	quiescent bool
	json      bool
	slack     time.Duration
}

// audit holds a store against the invariants.
func (p *program) audit(ctx context.Context, args []string) error {
	var o auditOptions
	flags := flag.NewFlagSet("audit", flag.ContinueOnError)
	flags.SetOutput(p.stderr)
	flags.StringVar(&o.dataDir, "data-dir", "", "audit the local store in this folder, which no server may have open;\n"+
		"without it, the store that the LUCIUS_ variables name")
	flags.BoolVar(&o.quiescent, "quiescent", false, "expect that every job has ended and nothing is left to do")
	flags.DurationVar(&o.slack, "slack", 0, "how long past its time work may be undone (default 10m)")
	flags.BoolVar(&o.json, "json", false, "print the report as JSON")
	if err := flags.Parse(args); err != nil {
		return unaudited(err)
	}
	if flags.NArg() > 0 {
		return unaudited(fmt.Errorf("audit takes no argument, and was given %q", flags.Arg(0)))
	}
	report, err := p.runAudit(ctx, &o)
	if err != nil {
		return unaudited(err)
	}
	if err := p.showAudit(report, o.json); err != nil {
		return unaudited(err)
	}
	if bad := report.Violations(); bad > 0 {
		return &exitError{exitViolations, fmt.Errorf("%d violations", bad)}
	}
	if o.quiescent && report.Late() > 0 {
		return &exitError{exitViolations, fmt.Errorf("%d things are left to do", report.Late())}
	}
	return nil
}

// unaudited is the error of an audit that could not be done.
func unaudited(err error) error { return endWith(exitUnaudited, err) }

// endWith is the error that ends the program with the code. Help is no error.
func endWith(code int, err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return &exitError{code, err}
}

// runAudit opens the store for reading and audits it.
func (p *program) runAudit(ctx context.Context, o *auditOptions) (*audit.Report, error) {
	lookup := p.lookup
	if o.dataDir != "" {
		lookup = func(name string) (string, bool) {
			switch name {
			case "LUCIUS_STORAGE_BACKEND":
				return config.BackendLocal, true
			case "LUCIUS_DATA_DIR":
				return o.dataDir, true
			}
			return p.lookup(name)
		}
	}
	loaded, _, err := config.Load(nil, lookup, p.stderr)
	if err != nil {
		return nil, err
	}
	store, confirm, err := openForAudit(ctx, &loaded.Config)
	if err != nil {
		return nil, err
	}
	auditor, err := audit.New(audit.Config{
		Store: store, Confirm: confirm,
		Options: audit.Options{
			Tables: auditTables(&loaded.Config), KeyTTL: loaded.KeyTTL, Retention: loaded.Retention, Slack: o.slack,
			Quiescent: o.quiescent,
		},
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	report, err := auditor.Run(ctx)
	return report, errors.Join(err, store.Close())
}

// auditStore is a store that an audit can read.
type auditStore interface {
	audit.Store
	Close() error
}

// openForAudit opens the configured store, and says how often a finding in it is
// to be seen again: a folder belongs to the audit alone, an account may be in use.
func openForAudit(ctx context.Context, cfg *config.Config) (auditStore, int, error) {
	switch cfg.StorageBackend {
	case config.BackendMemory:
		return nil, 0, errors.New("LUCIUS_STORAGE_BACKEND memory: nothing of it is left to audit")
	case config.BackendLocal:
		store, err := pebblestore.Open(pebblestore.Options{Dir: cfg.DataDir, ReadOnly: true})
		if err != nil {
			return nil, 0, fmt.Errorf("LUCIUS_DATA_DIR %s: %w", cfg.DataDir, err)
		}
		return store, 0, nil
	}
	store, err := openStore(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, 0, err
	}
	readable, ok := store.(auditStore)
	if !ok {
		return nil, 0, errors.Join(fmt.Errorf("LUCIUS_STORAGE_BACKEND %s cannot be audited", cfg.StorageBackend), store.Close())
	}
	return readable, 3, nil
}

// auditTables are the names of the tables to audit.
func auditTables(cfg *config.Config) audit.Tables {
	return audit.Tables{
		Ledger: ledgerTables(cfg).Ledger, Schedule: cfg.Tables.Schedule, Inflight: cfg.Tables.Inflight,
		Idempotency: cfg.Tables.Idempotency, Index: cfg.Tables.Index, Queue: cfg.Tables.Queue,
	}
}

// showAudit prints the report: each finding on a line, then the sums.
func (p *program) showAudit(r *audit.Report, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(p.stdout)
		encoder.SetIndent("", "  ")
		if err := encoder.Encode(r); err != nil {
			return fmt.Errorf("print the report: %w", err)
		}
		return nil
	}
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintln(&b, f)
	}
	fmt.Fprintf(&b, "%d jobs", r.Jobs)
	for _, state := range slices.Sorted(maps.Keys(r.States)) {
		fmt.Fprintf(&b, ", %d %s", r.States[state], state)
	}
	fmt.Fprintf(&b, "; %d rows: %d violations, %d late\n", r.Rows, r.Violations(), r.Late())
	if _, err := fmt.Fprint(p.stdout, b.String()); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}
