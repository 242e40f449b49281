// Command lucius carries commands through their steps: the server, and a demo
// of it, and a bench.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/lucius-project/lucius/pkg/servicebus/topology"
)

// program is what the command line runs against, so that tests can put their
// own in its place.
type program struct {
	stdout io.Writer
	stderr io.Writer
	lookup func(string) (string, bool)
	// hangups asks the server with each value to read its files again. Without it
	// they are read again only when they change.
	hangups <-chan os.Signal
	// namespace is managed instead of the configured one. Optional.
	namespace topology.Admin
}

// command is one word of the command line.
type command struct {
	name string
	help string
	run  func(p *program, ctx context.Context, args []string) error
}

// words lists the command words; it is a function so that help can name them.
func words() []command {
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
	p := &program{stdout: os.Stdout, stderr: os.Stderr, lookup: os.LookupEnv}
	if err := p.run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "lucius:", err)
		stop()
		os.Exit(exitCode(err))
	}
}

// exitCode is the code that the program ends with after an error.
func exitCode(err error) int {
	if exit, ok := errors.AsType[*exitError](err); ok {
		return exit.code
	}
	return 1
}

// errUsage is returned for a command line that names no command.
var errUsage = errors.New("name one of the commands above")

// run carries out one command line.
func (p *program) run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		p.usage()
		return errUsage
	}
	for _, c := range words() {
		if c.name != args[0] {
			continue
		}
		err := c.run(p, ctx, args[1:])
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	p.usage()
	if args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		return nil
	}
	return fmt.Errorf("%q is no command: %w", args[0], errUsage)
}

// usage lists the commands.
func (p *program) usage() {
	fmt.Fprintln(p.stderr, "usage: lucius <command> [flags]")
	for _, c := range words() {
		fmt.Fprintf(p.stderr, "  %-9s %s\n", c.name, c.help)
	}
}
