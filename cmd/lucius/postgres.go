package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/tablestore/pgstore"
)

// postgres returns lucius postgres. Its commands take the settings of a server.
func (p *program) postgres() *cobra.Command {
	cmd := &cobra.Command{
		Use: "postgres", GroupID: cli.GroupOperate, Short: "Migrate or check the schema in PostgreSQL",
		Example: "  lucius postgres migrate\n  lucius postgres check",
	}
	config.Flags(cmd.PersistentFlags())
	verb := func(use, short, long string, run func(ctx context.Context, url string) error) *cobra.Command {
		sub := &cobra.Command{Use: use, Short: short, Long: long, Example: "  lucius postgres " + use, Args: cli.Takes(0, 0)}
		sub.RunE = func(sub *cobra.Command, _ []string) error {
			loaded, err := config.Load(sub.Flags(), p.Environment)
			if err != nil {
				return checkError(err)
			}
			if loaded.PostgresURL == "" {
				return checkError(errors.New("LUCIUS_POSTGRES_URL is not set"))
			}
			return checkError(run(sub.Context(), loaded.PostgresURL))
		}
		return sub
	}
	cmd.AddCommand(
		verb("migrate", "Bring the schema to the version of this program",
			"Brings the schema to the version of this program, by the rights of LUCIUS_POSTGRES_URL, which has to own it\n"+
				"or to be allowed to create it. One process migrates at a time; a migration is applied whole or not at all.",
			func(ctx context.Context, url string) error {
				from, to, err := pgstore.Migrate(ctx, url)
				if err != nil {
					return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
				}
				if from == to {
					return p.say("the schema has version %d already\n", to)
				}
				return p.say("migrated the schema from version %d to %d\n", from, to)
			}),
		verb("check", "Check whether the schema is that of this program",
			"Checks whether the schema is that of this program. The exit code is 1 if it is not.",
			func(ctx context.Context, url string) error {
				current, _, err := pgstore.CheckSchema(ctx, url)
				if errors.Is(err, pgstore.ErrOlderSchema) || errors.Is(err, pgstore.ErrNewerSchema) {
					return found("%w", err)
				}
				if err != nil {
					return fmt.Errorf("LUCIUS_POSTGRES_URL: %w", err)
				}
				return p.say("the schema has version %d, as this program needs\n", current)
			}),
	)
	return cmd
}

// say prints a line to the standard output.
func (p *program) say(format string, args ...any) error {
	if _, err := fmt.Fprintf(p.Stdout, format, args...); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
