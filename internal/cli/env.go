package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Env is the environment of a command line. Tests replace it.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Environment has entries NAME=value, as from os.Environ. The last entry of a name counts.
	Environment []string
	// Terminal says that Stdout is a terminal, which can show colours and live views.
	Terminal bool
	// Size returns the columns and rows of the terminal. Optional. Defaults to 80 and 24.
	Size func() (columns, rows int)
	// Interactive says that Stdin and Stderr are terminals, so that the user can be asked.
	Interactive bool
	// DefaultURL is the server's URL if the user names none.
	DefaultURL string
	// CheckBackup reads and checks a backup, reports to progress how much of the store it has
	// read, and returns the description in the backup. Required for lucius backup.
	CheckBackup func(r io.Reader, progress func(done, total int64)) (CheckedBackup, error)
	// CheckFiles checks the protocol files and the data folder of a server on this host, each
	// unless its path is empty. Required for these flags of lucius doctor.
	CheckFiles func(protocolsDir, dataDir string) []Check
	// Now is the clock of relative times. Optional. Defaults to time.Now.
	Now func() time.Time
	// Sleep waits for a time, or until the context ends. Optional. Defaults to real time.
	Sleep func(context.Context, time.Duration)
}

// ProcessEnv returns the Env of this process.
func ProcessEnv(defaultURL string) Env {
	terminal := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
	return Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environment: os.Environ(), DefaultURL: defaultURL,
		Size: func() (int, int) {
			columns, rows, err := term.GetSize(int(os.Stdout.Fd()))
			if err != nil || columns < 1 || rows < 1 { // Some terminals do not report their size.
				return 80, 24
			}
			return columns, rows
		},
		Terminal: terminal(os.Stdout), Interactive: terminal(os.Stdin) && terminal(os.Stderr),
	}
}

// errInterrupted is wrapped in every error of a command that was interrupted.
var errInterrupted = errors.New("interrupted")

// interruptible is a reader whose reads end with its context, unlike those of a terminal.
type interruptible struct {
	ctx  context.Context //nolint:containedctx // Read takes none.
	from io.Reader
}

// Interruptible returns a reader whose Read fails with [ExitInterrupted] when the context
// ends. A read that is then still blocked discards its input.
func Interruptible(ctx context.Context, from io.Reader) io.Reader { return &interruptible{ctx, from} }

// Read implements [io.Reader].
func (r *interruptible) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, errInterrupted
	}
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data := make([]byte, len(p))
		n, err := r.from.Read(data)
		done <- result{data[:n], err}
	}()
	select {
	case <-r.ctx.Done():
		return 0, errInterrupted
	case read := <-done:
		return copy(p, read.data), read.err
	}
}

// get returns the value of an environment variable, "" if it is not set.
func (e *Env) get(name string) (value string) {
	for _, entry := range e.Environment {
		if text, ok := strings.CutPrefix(entry, name+"="); ok {
			value = text
		}
	}
	return value
}

// colours reports whether output may have colours. See no-color.org.
func (e *Env) colours() bool {
	return e.Terminal && e.get("NO_COLOR") == "" && e.get("TERM") != "dumb"
}

// pause waits. It returns an error if the command is interrupted.
func (e *Env) pause(ctx context.Context, d time.Duration) error {
	if e.Sleep != nil {
		e.Sleep(ctx, d)
	} else {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	if ctx.Err() != nil {
		return unreachable(context.Canceled)
	}
	return nil
}

func (e *Env) now() time.Time {
	if e.Now != nil {
		return e.Now()
	}
	return time.Now()
}
