// Command lucius carries commands through their steps: the server, a demo and a
// benchmark of it, and tools for its operators.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/seqledger"
)

// program holds what a command line uses of the process, so that tests can replace it.
type program struct {
	stdout io.Writer
	stderr io.Writer
	// environment has entries NAME=value, as os.Environ has them.
	environment []string
	// hangups makes the server reload its files at each value. Optional: without it
	// they are reloaded only when they change.
	hangups <-chan os.Signal
}

// command is a subcommand.
type command struct {
	name string
	help string
	run  func(p *program, ctx context.Context, args []string) error
}

// subcommands is a function because a variable would refer to itself through the help.
func subcommands() []command {
	return []command{
		{"serve", "run the server", (*program).serve},
		{"demo", "watch documents go through a three-step pipeline", (*program).demo},
		{"bench", "measure jobs per second on this machine", (*program).bench},
		{"protocols", "check protocol files", (*program).protocols},
		{"audit", "hold a store against the invariants", (*program).audit},
		{"azure", "check or create what a server needs on Azure", (*program).azure},
		{"token", "make a bearer token", (*program).token},
		{"webhook-secret", "print the secret that a tenant's receivers verify with", (*program).webhookSecret},
		{"version", "print the version", (*program).version},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if name, err := os.Executable(); err == nil && strings.Contains(name, "go-build") { // By go run, in Go's build cache.
		ctx = withParent(ctx, time.Second)
	}
	p := &program{stdout: os.Stdout, stderr: os.Stderr, environment: os.Environ()}
	if err := p.run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lucius:", config.Mask(err.Error()))
		stop()
		os.Exit(exitCode(err))
	}
}

// withParent returns a context that also ends when the parent of this process has ended,
// at which it looks at each interval. go run passes signals on, but not its own kill -9:
// its program would keep the port and the data directory. On Windows, where the parent's
// id never changes, the context does not end.
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

// The exit codes of a check: it found something, or could not be done.
const (
	exitFindings  = 1
	exitUnchecked = 2
)

// exitDefect is the exit code of a server that found a defect of its own, and stopped
// with no regard to what it had in hand.
const exitDefect = 70

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	error
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.error }

// checkError gives the error of a check the code exitUnchecked, unless it has one.
func checkError(err error) error {
	if _, ok := errors.AsType[*exitError](err); ok || err == nil || errors.Is(err, flag.ErrHelp) {
		return err
	}
	return &exitError{exitUnchecked, err}
}

// exitCode returns the program's exit code after an error.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code
	}
	if _, ok := errors.AsType[*seqledger.IllegalTransitionError](err); ok {
		return exitDefect
	}
	return 1
}

// errUsage is returned for a command line without a known subcommand.
var errUsage = errors.New("name one of the commands above")

// run runs one command line.
func (p *program) run(ctx context.Context, args []string) error {
	for _, c := range subcommands() {
		if len(args) > 0 && c.name == args[0] {
			err := c.run(p, ctx, args[1:])
			if errors.Is(err, flag.ErrHelp) {
				return nil
			}
			return err
		}
	}
	fmt.Fprintln(p.stderr, "usage: lucius <command> [flags]")
	for _, c := range subcommands() {
		fmt.Fprintf(p.stderr, "  %-9s %s\n", c.name, c.help)
	}
	switch {
	case len(args) == 0:
		return errUsage
	case args[0] == "help" || args[0] == "-h" || args[0] == "--help":
		return nil
	}
	return fmt.Errorf("%q is no command: %w", args[0], errUsage)
}

// version prints the version of the module that the binary was built from.
func (p *program) version(context.Context, []string) error {
	_, err := fmt.Fprintf(p.stdout, "lucius %s\n", moduleVersion())
	return err
}

func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "development build"
}
