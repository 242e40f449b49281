//go:build !nodrivers

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/inbox/pginbox"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// postgres returns lucius postgres. Its commands take the settings of a server.
func (p *program) postgres() *cobra.Command {
	cmd := &cobra.Command{
		Use: "postgres", GroupID: cli.GroupOperate, Short: "Migrate the schema in PostgreSQL, or check the database",
		Example: "  lucius postgres migrate\n  lucius postgres check",
	}
	config.Flags(cmd.PersistentFlags())
	verb := func(use, short, long string, run func(ctx context.Context, cfg *config.Config) error) *cobra.Command {
		sub := &cobra.Command{Use: use, Short: short, Long: long, Example: "  lucius postgres " + use, Args: cli.Takes(0, 0)}
		sub.RunE = func(sub *cobra.Command, _ []string) error {
			loaded, err := config.Load(sub.Flags(), p.Environment)
			if err != nil {
				return checkError(err)
			}
			if loaded.PostgresURL == "" {
				return checkError(errors.New("LUCIUS_POSTGRES_URL is not set"))
			}
			return checkError(run(sub.Context(), &loaded.Config))
		}
		return sub
	}
	var server string
	var options pgstore.MigrateOptions
	var show bool
	migrate := verb("migrate", "Bring the schema to the version of this program",
		"Brings the schema to the version of this program. The role of LUCIUS_POSTGRES_URL must own the schema, or be\n"+
			"allowed to create it. One process migrates at a time; all migrations are applied, or none. While servers are\n"+
			"connected it needs --online, and refuses if one of them would not work on the new schema.",
		func(ctx context.Context, cfg *config.Config) error {
			if show {
				options.Print = func(sql string) error { return p.say("%s", sql) }
			}
			return p.migratePostgres(ctx, cfg.PostgresURL, server, options)
		})
	migrate.Flags().StringVar(&server, "grant", "", "a role that gets the rights that serve needs, also if the schema has the version")
	migrate.Flags().BoolVar(&show, "print", false, "print the SQL instead of running it; nothing if the schema has the version")
	migrate.Flags().BoolVar(&options.All, "all", false, "with --print, the SQL of every migration, also of those that were applied")
	migrate.Flags().BoolVar(&options.Down, "down", false, "undo the newest migration, for the program before it")
	migrate.Flags().BoolVar(&options.Online, "online", false, "migrate under servers that also work on the schema after it")
	migrate.MarkFlagsMutuallyExclusive("print", "grant")
	migrate.MarkFlagsMutuallyExclusive("all", "down")
	migrate.MarkFlagsMutuallyExclusive("down", "grant")
	cmd.AddCommand(
		migrate,
		verb("check", "Check whether this program can serve on the database",
			"Checks the database as serve does when it starts: the settings of the server and the session, the version of the\n"+
				"schema, the rights of the role of LUCIUS_POSTGRES_URL and, with the role api, whether the inbox belongs to this\n"+
				"ledger. The exit code is 1 if serve would refuse it, and the error says what to do.", p.checkPostgres),
	)
	return cmd
}

// migratePostgres migrates the schema, and gives the server's role its rights if one is named.
func (p *program) migratePostgres(ctx context.Context, url, server string, options pgstore.MigrateOptions) error {
	if options.All && options.Print == nil {
		return errors.New("--all needs --print")
	}
	from, to, err := pgstore.Migrate(ctx, url, options)
	if errors.Is(err, pgstore.ErrUnusable) || errors.Is(err, pgstore.ErrNoWayDown) || errors.Is(err, pgstore.ErrInUse) {
		return found("LUCIUS_POSTGRES_URL: %w", err)
	}
	if err != nil {
		return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
	}
	switch {
	case options.Print != nil:
		return nil
	case from == to:
		err = p.say("the schema already has version %d\n", to)
	default:
		err = p.say("migrated the schema from version %d to %d\n", from, to)
	}
	if err != nil || server == "" {
		return err
	}
	if err := pgstore.Grant(ctx, url, server); err != nil {
		return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
	}
	return p.say("the role %s has the rights that serve needs\n", server)
}

// checkPostgres checks the database as serve does with these settings.
func (p *program) checkPostgres(ctx context.Context, cfg *config.Config) error {
	store, err := pgstore.Open(ctx, postgresOptions(cfg))
	if errors.Is(err, pgstore.ErrUnusable) {
		return found("LUCIUS_POSTGRES_URL: %w", err)
	}
	if err != nil {
		return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
	}
	defer func() { _ = store.Close() }() // It never fails.
	err = p.say("the schema has version %d, which this program can use\n", store.SchemaVersion())
	if err != nil || !cfg.Has(config.RoleAPI) {
		return err
	}
	inbox, err := pginbox.Open(ctx, pginbox.Options{URL: cfg.PostgresURL, Table: ledgerTables(cfg).Ledger})
	if err != nil {
		return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
	}
	defer inbox.Close()
	if err := inbox.Check(ctx); errors.Is(err, pginbox.ErrUnusable) {
		return found("LUCIUS_POSTGRES_URL: %w", err)
	} else if err != nil {
		return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
	}
	return p.say("the inbox can be used\n")
}

// say prints a line to the standard output.
func (p *program) say(format string, args ...any) error {
	if _, err := fmt.Fprintf(p.Stdout, format, args...); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
