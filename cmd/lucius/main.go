// Command lucius carries commands through their steps: the server, a demo and a
// benchmark of it, and tools for its operators.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/outbox/seqledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// program is a running command line.
type program struct {
	cli.Env

	// hangups makes the server reload its files at each value. Optional: without it
	// they are reloaded only when they change.
	hangups <-chan os.Signal
}

// commands returns the commands of the program itself: those that run a server, and those
// that read a server's data.
func (p *program) commands() []*cobra.Command {
	return append([]*cobra.Command{
		p.serve(), p.dev(), p.demo(), p.bench(), p.audit(), p.token(), p.webhookSecret(), p.initialize(), p.protocols(), p.restore(),
		p.version(),
	}, p.driverCommands()...)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if name, err := os.Executable(); err == nil && strings.Contains(name, "go-build") { // started by go run, in Go's build cache
		ctx = withParent(ctx, time.Second)
	}
	p := &program{Env: cli.ProcessEnv("http://" + config.DefaultListenAddr)}
	if err := p.run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lucius:", strings.Map(cli.Visible, config.Mask(err.Error())))
		stop()
		os.Exit(exitCode(err))
	}
}

// withParent returns a context that also ends when the parent of this process has ended,
// which it checks at each interval. go run passes signals on, but not its own kill -9: its
// program would keep the port and the data directory. On Windows, where the parent's id
// never changes, the context does not end.
func withParent(ctx context.Context, interval time.Duration) context.Context {
	ctx, end := context.WithCancelCause(ctx)
	parent := os.Getppid()
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for os.Getppid() == parent {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
		end(errors.New("the parent process has ended"))
	}()
	return ctx
}

// withReader returns p and a context that also ends when the reader of the output or the terminal
// has gone, for a command that has files to delete or a process to stop: neither kills it.
func (p *program) withReader(ctx context.Context) (shown *program, reading context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	reader := *p
	reader.Stdout = endingWriter{p.Stdout, cancel}
	watched := make(chan os.Signal, 1)
	signal.Notify(watched, syscall.SIGPIPE) // Of connections as well: only a failed write to the output counts.
	stop := func() {}
	if !signal.Ignored(syscall.SIGHUP) { // As it is by nohup.
		ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
	}
	return &reader, ctx, func() {
		signal.Stop(watched)
		stop()
		cancel()
	}
}

// endingWriter calls end when a write fails: the reader of the output has gone.
type endingWriter struct {
	to  io.Writer
	end func()
}

func (w endingWriter) Write(text []byte) (int, error) {
	n, err := w.to.Write(text)
	if err != nil {
		w.end()
	}
	return n, err
}

// checkError gives the error of a check that could not be done the code [cli.ExitUsage]:
// [cli.ExitFailed] would say that the check found something.
func checkError(err error) error {
	if _, ok := errors.AsType[*cli.Error](err); ok || err == nil {
		return err
	}
	return &cli.Error{Code: cli.ExitUsage, Err: err}
}

// found returns the error of a check that found something.
func found(format string, args ...any) error {
	return &cli.Error{Code: cli.ExitFailed, Err: fmt.Errorf(format, args...)}
}

// exitCode returns the program's exit code after an error.
func exitCode(err error) int {
	if _, ok := errors.AsType[*seqledger.IllegalTransitionError](err); ok {
		return cli.ExitDefect
	}
	if errors.Is(err, tablestore.ErrLost) {
		return cli.ExitLost
	}
	return cli.ExitCode(err)
}

// run runs one command line.
func (p *program) run(ctx context.Context, args []string) error {
	p.Stdin = cli.Interruptible(ctx, p.Stdin)
	p.CheckBackup, p.CheckFiles = checkBackup, checkFiles
	root := cli.Root(&p.Env, p.commands()...)
	root.Version = thisBuild().String()
	root.SetVersionTemplate("lucius {{.Version}}\n")
	err := cli.Run(ctx, root, args)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return &cli.Error{Code: cli.ExitInterrupted, Err: err}
	}
	return err
}

// version returns lucius version, which prints the version of the module that the binary
// was built from.
func (p *program) version() *cobra.Command {
	var output cli.Output
	cmd := &cobra.Command{
		Use: "version", GroupID: cli.GroupSetUp, Short: "Print the version, and the commit that it was built from",
		Example: "  lucius version\n  lucius version -o json", Args: cli.Takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if err := output.Check(); err != nil {
				return err
			}
			built := thisBuild()
			return output.Print(p.Stdout, built, func(w io.Writer) { fmt.Fprintf(w, "lucius %s\n", built) })
		},
	}
	output.Register(cmd)
	return cmd
}

// buildInfo says what the binary was built from.
type buildInfo struct {
	Version string `json:"version"`
	// Commit and CommittedAt are empty if the binary was built outside a clone. Modified
	// reports whether the clone had changes.
	Commit      string `json:"commit,omitempty"`
	CommittedAt string `json:"committed_at,omitempty"`
	Modified    bool   `json:"modified,omitempty"`
	Go          string `json:"go"`
}

// buildOf reads what the linker noted; info may be nil.
func buildOf(info *debug.BuildInfo) buildInfo {
	built := buildInfo{Version: "development build", Go: runtime.Version()}
	if info == nil {
		return built
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		built.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			built.Commit = setting.Value
		case "vcs.time":
			built.CommittedAt = setting.Value
		case "vcs.modified":
			built.Modified = setting.Value == "true"
		}
	}
	return built
}

// String returns the version and, in brackets, the commit.
func (b buildInfo) String() string {
	if b.Commit == "" {
		return b.Version
	}
	changed := ""
	if b.Modified {
		changed = ", with changes"
	}
	return fmt.Sprintf("%s (commit %.12s of %s%s)", b.Version, b.Commit, b.CommittedAt, changed)
}

// thisBuild says what this binary was built from.
func thisBuild() buildInfo {
	info, _ := debug.ReadBuildInfo()
	return buildOf(info)
}

// digits are the parts of a version that are compared as numbers.
var digits = regexp.MustCompile(`\d+`)

// order returns a text that is greater for a newer build: the Go release, whose time zones the program has, and then the time of
// the commit, if it is known.
func (b buildInfo) order() string {
	release := digits.ReplaceAllStringFunc(b.Go, func(number string) string {
		return strings.Repeat("0", max(0, 4-len(number))) + number
	})
	return strings.TrimSpace(release + " " + b.CommittedAt)
}

func moduleVersion() string { return thisBuild().Version }
