package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/audit"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// checkBackup reads a backup to its end for lucius backup.
func checkBackup(r io.Reader, progress func(done, total int64)) (cli.CheckedBackup, error) {
	manifest, err := pebblestore.VerifyBackup(r, progress)
	if err != nil {
		return cli.CheckedBackup{}, err
	}
	return cli.CheckedBackup{
		Version: manifest.Version, TakenAt: api.NewTime(manifest.TakenAt), Files: len(manifest.Files), Bytes: manifest.Bytes(),
	}, nil
}

// restore returns lucius restore, which creates a data folder from a backup.
func (p *program) restore() *cobra.Command {
	cmd := &cobra.Command{
		Use: "restore FILE", GroupID: cli.GroupOperate, Short: "Restore a backup to a data folder", Args: cli.Takes(1, 1),
		Long: "Turns a backup made by lucius backup into a data folder; FILE - is standard input. It verifies the backup,\n" +
			"opens its store, checks it against the invariants, and reports what it contains. No server starts on the\n" +
			"folder, which must be missing or empty, until all of that is done. The backup has nothing that was\n" +
			"acknowledged after it: read \"Back up and restore\" in docs/run/backup.md before you start a server on it.",
		Example: "  lucius restore lucius-monday.backup --data-dir /var/lib/lucius\n  lucius restore lucius-monday.backup --check",
	}
	dir := cmd.Flags().String("data-dir", "", "folder to create")
	check := cmd.Flags().Bool("check", false, "verify the file without restoring it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (*dir == "") != *check {
			return checkError(errors.New("name the folder to create with --data-dir, or verify the file with --check"))
		}
		file := p.Stdin
		if args[0] != "-" {
			opened, err := os.Open(args[0])
			if err != nil {
				return checkError(fmt.Errorf("read the backup: %w", err))
			}
			defer func() { _ = opened.Close() }() // It was only read.
			if info, err := opened.Stat(); err == nil && info.IsDir() {
				return checkError(fmt.Errorf("read the backup: %s is a folder; name a file written by lucius backup", args[0]))
			}
			file = cli.Interruptible(cmd.Context(), opened)
		}
		if *check {
			return p.checkFile(args[0], file)
		}
		return p.runRestore(cmd.Context(), args[0], file, *dir)
	}
	return cmd
}

// checkFile checks a backup and prints its content.
func (p *program) checkFile(name string, file io.Reader) error {
	progress, end := p.Progress("check")
	manifest, err := pebblestore.VerifyBackup(file, progress)
	end()
	if cli.ExitCode(err) == cli.ExitInterrupted {
		return &cli.Error{Code: cli.ExitInterrupted, Err: errors.New("interrupted")}
	} else if err != nil {
		return found("%s: %w", name, err)
	}
	return p.describe(name+" is whole", manifest)
}

// describe prints the description in a backup.
func (p *program) describe(what string, m *pebblestore.BackupManifest) error {
	_, err := fmt.Fprintf(p.Stdout, "%s: a store made %s, as of %s, %d files with %s, backed up by Lucius %q\n",
		what, m.StoreCreated.Format(time.RFC3339), m.TakenAt.Format(time.RFC3339), len(m.Files), cli.Size(m.Bytes()), m.Version)
	return err
}

// runRestore restores a backup, unless the store in it cannot be read.
func (p *program) runRestore(ctx context.Context, name string, file io.Reader, dir string) (err error) {
	loaded, err := config.LoadArgs([]string{"--storage-backend", config.BackendLocal, "--data-dir", dir}, p.Environment)
	if err != nil {
		return checkError(err)
	}
	interrupted := &cli.Error{Code: cli.ExitInterrupted, Err: errors.New("interrupted, and nothing was restored")}
	progress, end := p.Progress("restore")
	unpacked, err := pebblestore.Unpack(file, pebblestore.RestoreOptions{Dir: dir, Progress: progress})
	end()
	switch {
	case cli.ExitCode(err) == cli.ExitInterrupted:
		return interrupted
	case errors.Is(err, fs.ErrExist), errors.Is(err, pebblestore.ErrLocked):
		return &cli.Error{Code: cli.ExitRefused, Err: err}
	case err != nil:
		return found("%s: %w", name, err)
	}
	defer func() {
		if unpacked != nil {
			err = errors.Join(err, unpacked.Close())
		}
	}()
	cfg := loaded.Config
	cfg.DataDir = unpacked.Dir
	report, err := runAudit(ctx, &cfg, audit.Options{})
	if err != nil && ctx.Err() != nil {
		return interrupted
	} else if err != nil {
		return found("%s: the store in it cannot be read, and nothing was restored: %w", name, err)
	}
	manifest := unpacked.Manifest
	err = errors.Join(unpacked.Commit(), unpacked.Close())
	if unpacked = nil; err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	err = p.describe("restored "+dir, manifest)
	err = errors.Join(err, new(cli.Output).Print(p.Stdout, report, func(w io.Writer) { printAudit(w, report) }))
	if err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if bad := report.Violations(); bad > 0 {
		return found("the store was restored as it was backed up, with %d violations", bad)
	}
	return nil
}
