package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// CheckedBackup is the description in a backup that has been checked.
type CheckedBackup struct {
	Version string   `json:"version"`
	TakenAt api.Time `json:"taken_at"`
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"` // of the store
}

// backup returns lucius backup.
func (t *tool) backup() *cobra.Command {
	var to, reason string
	var force bool
	cmd := t.command(spec{
		use: "backup", short: "Back up a server's data folder",
		long: "Makes a consistent copy of the store in a running server's data folder, with everything acknowledged so\n" +
			"far. The server keeps running. The copy is verified as it arrives, and gets its final name only then;\n" +
			"lucius restore turns it into a data folder. This requires the role admin for all tenants. The backup has\n" +
			"the data of all tenants: protect it like the data folder.",
		example: "  lucius backup --to lucius-monday.backup\n  lucius backup --to - | ssh host 'cat > lucius.backup'",
	}, func(ctx context.Context, s *session, _ []string) error {
		if to == "" {
			return usagef("name the file of the backup with --to, or - for standard output")
		}
		out, err := s.backupFile(to, force)
		if err != nil {
			return err
		}
		defer out.discard()
		checked, err := s.receiveBackup(ctx, out, reason)
		if err != nil {
			return err
		}
		if err := out.keep(); err != nil {
			return err
		}
		if to == "-" {
			return nil
		}
		return show(s, checked, func(p *page, checked CheckedBackup) {
			p.line("%s holds the store as of %s: %d files with %s, from Lucius %s", to,
				checked.TakenAt.UTC().Format(time.RFC3339), checked.Files, Size(checked.Bytes), checked.Version)
		})
	})
	cmd.GroupID = GroupOperate
	flags := cmd.Flags()
	flags.StringVar(&to, "to", "", "file of the backup, or - for standard output")
	flags.BoolVar(&force, "force", false, "overwrite an existing file")
	flags.StringVar(&reason, "reason", "", "why, for the server's log")
	return t.calls(cmd)
}

// receiveBackup requests a backup from the server, writes it and checks it.
func (s *session) receiveBackup(ctx context.Context, out io.Writer, reason string) (CheckedBackup, error) {
	response, err := s.CreateBackup(ctx, api.ControlRequest{Reason: reason})
	if err != nil {
		return CheckedBackup{}, unreachable(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		if err != nil {
			return CheckedBackup{}, unreachable(err)
		}
		return CheckedBackup{}, refusal(response, body)
	}
	received := &receiver{from: response.Body, to: out}
	progress, end := s.Progress("backup")
	checked, err := s.CheckBackup(received, progress)
	end()
	switch {
	case received.failed != nil:
		return checked, fmt.Errorf("write the backup: %w", received.failed)
	case received.broke != nil:
		if errors.Is(received.broke, context.Canceled) {
			return checked, unreachable(received.broke)
		}
		return checked, &Error{Code: ExitUnavailable, Err: errors.New(
			"the server aborted the backup, and nothing was kept: see its log for the cause, then repeat the command")}
	case err != nil:
		return checked, &Error{Code: ExitFailed, Err: fmt.Errorf("the backup is damaged, and was not kept: %w", err)}
	}
	return checked, nil
}

// receiver copies to a writer what is read from the server.
type receiver struct {
	from   io.Reader
	to     io.Writer
	broke  error // why reading failed
	failed error // why writing failed
}

// Read implements [io.Reader].
func (r *receiver) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.broke = err
	}
	if _, failed := r.to.Write(p[:n]); failed != nil {
		r.failed = failed
		return n, failed
	}
	return n, err
}

// partial ends the name of an incomplete backup.
const partial = ".partial"

// backupFile is the destination of a backup.
type backupFile struct {
	io.Writer
	file *os.File // nil for standard output
	name string
}

// backupFile opens the file of a backup.
func (s *session) backupFile(name string, force bool) (*backupFile, error) {
	if name == "-" {
		if s.Terminal {
			return nil, usagef("a backup is not text for a terminal: name a file with --to, or redirect the output")
		}
		return &backupFile{Writer: s.Stdout}, nil
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return nil, usagef("%s is not a file that a backup can replace: name another", name)
	} else if err == nil && !force {
		return nil, usagef("%s already exists: name another file, or replace it with --force", name)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("the backup cannot be written: %w", err)
	}
	left, _ := os.ReadDir(filepath.Dir(name)) // If it fails, so does CreateTemp.
	for _, file := range left {
		if strings.HasPrefix(file.Name(), filepath.Base(name)+".") && strings.HasSuffix(file.Name(), partial) {
			fmt.Fprintf(s.Stderr, "%s is left over from an unfinished backup: remove it, unless that backup is still running\n",
				filepath.Join(filepath.Dir(name), file.Name()))
		}
	}
	// A unique name keeps another backup to the same file from writing into this one.
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*"+partial)
	if err != nil {
		return nil, usagef("the backup cannot be written: %w", err)
	}
	return &backupFile{Writer: file, file: file, name: name}, nil
}

// keep renames the file to its final name, durably.
func (b *backupFile) keep() error {
	if b.file == nil {
		return nil
	}
	err := errors.Join(b.file.Sync(), b.file.Close())
	if err == nil {
		err = os.Rename(b.file.Name(), b.name)
	}
	if err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	b.file = nil
	if dir, err := os.Open(filepath.Dir(b.name)); err == nil { // Not every system can sync a folder.
		_, _ = dir.Sync(), dir.Close()
	}
	return nil
}

// discard removes the file unless it was kept.
func (b *backupFile) discard() {
	if b.file != nil {
		_ = b.file.Close()
		_ = os.Remove(b.file.Name())
	}
}
