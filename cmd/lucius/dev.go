package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/commands"
	lucius "github.com/lucius-project/lucius/sdk/go"
)

type devOptions struct {
	listen, protocols, commands string
	workers, noOpen, verbose    bool
	// note ends the first line: why it serves something else than the user may expect. Optional.
	note string
}

// dev returns lucius dev, which serves the protocols of the folder in memory, submits its
// commands and does the work of all services.
func (p *program) dev() *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use: "dev", GroupID: cli.GroupServer, Short: "Try protocols: a server in memory, with stand-in workers", Args: cli.Takes(0, 0),
		Long: "Serves the protocols of a folder in memory, submits its commands once, and says what to do next. Stand-in\n" +
			"workers end each step with success. Without protocol files it serves an example.",
		Example: "  lucius init && lucius dev\n  lucius dev --workers=false",
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen-addr", config.DefaultListenAddr, "loopback address; if the default one is taken, another port")
	flags.StringVar(&o.protocols, "protocols-dir", "./protocols", "folder of the protocol files")
	flags.StringVar(&o.commands, "commands-dir", "./commands", "folder of the commands to submit (*.json)")
	flags.BoolVar(&o.workers, "workers", true, "do the work of all services; false leaves it to your own workers")
	flags.BoolVar(&o.noOpen, "no-open", false, "do not open the API's page in a browser")
	flags.BoolVar(&o.verbose, "verbose", false, "also show the pages of the server, and the course of the jobs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		shown, ctx, end := p.withReader(cmd.Context())
		defer end()
		if err := shown.runDev(ctx, &o, !flags.Changed("listen-addr")); ctx.Err() == nil {
			return err
		}
		return nil // It was told to end, perhaps while it started.
	}
	return cmd
}

// runDev runs lucius dev. With anyPort it takes another port if that of the address is
// taken.
func (p *program) runDev(ctx context.Context, o *devOptions, anyPort bool) (err error) {
	if _, err := commands.LoadProtocols(o.protocols); missing(err) {
		dir, err := os.MkdirTemp("", "lucius-dev-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // The system empties its folder of temporary files.
		if _, err := writeProject(dir, defaultLanguage, false); err != nil {
			return err
		}
		o.note = fmt.Sprintf(" (%s has no protocol files: this is the example of lucius init)", o.protocols)
		o.protocols, o.commands = filepath.Join(dir, "protocols"), filepath.Join(dir, "commands")
	}
	// The environment of a real server has no influence.
	loaded, err := config.LoadArgs([]string{
		"--storage-backend", config.BackendMemory, "--listen-addr", o.listen, "--protocols-dir", o.protocols,
		"--log-level", "warn", "--log-format", "text",
	}, nil)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	serve := func() error {
		return p.runServer(ctx, &loaded.Config, func(url string) error {
			group.Go(func() { p.try(ctx, o, url) })
			return nil
		})
	}
	if err = serve(); anyPort && errors.Is(err, syscall.EADDRINUSE) {
		o.note = fmt.Sprintf(" (%s is taken by another program)", loaded.ListenAddr) + o.note
		loaded.ListenAddr = "127.0.0.1:0"
		err = serve()
	}
	return err
}

// missing reports whether there are no protocol files, by the error of [commands.LoadProtocols].
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, commands.ErrNoProtocols)
}

// try uses the server at the URL: it runs the stand-in workers until the context ends, submits
// the commands, and says what serves which protocols, what to do next, and how to stop.
func (p *program) try(ctx context.Context, o *devOptions, url string) {
	page := url + "/docs"
	if name, args := browser(runtime.GOOS, os.Getenv); name != "" && p.Terminal && !o.noOpen {
		opener := exec.CommandContext(ctx, name, append(args, page)...) //nolint:gosec // It is one of three commands.
		if opener.Start() == nil {                                      // otherwise the user has the URL printed below
			go func() { _ = opener.Wait() }()
		}
	}
	workers := "for your own workers"
	var working sync.WaitGroup
	defer working.Wait()
	if o.workers {
		workers = "with stand-in workers"
		working.Go(func() { p.standIn(ctx, url) })
	}
	fmt.Fprintf(p.Stdout, "lucius serves %s in memory, %s%s\n", url, workers, o.note)
	fmt.Fprintf(p.Stdout, "  protocols  %s\n", protocolsLine(o.protocols))
	jobs := p.submitAll(ctx, o, url)
	next := "lucius submit FILE --wait"
	switch {
	case len(jobs) > 0 && o.workers:
		next = "lucius jobs get " + jobs[0]
	case len(jobs) > 0:
		next = "lucius why " + jobs[0]
	}
	if target, err := p.TargetURL(); err != nil || target != url {
		next = "export LUCIUS_URL=" + url + "; " + next
	}
	if ctx.Err() != nil {
		return
	}
	fmt.Fprintf(p.Stdout, "  next       %s\n  stop       Ctrl-C\n", next)
	if o.verbose {
		fmt.Fprintf(p.Stdout, "\n  console    %s/ui/\n  API        %s\n", url, page)
		for _, job := range jobs {
			p.follow(ctx, url, job, p.Stdout)
		}
	}
}

// protocolsLine says which protocols the folder has, and the steps of a single one.
func protocolsLine(dir string) string {
	loaded, err := commands.LoadProtocols(dir)
	if err != nil { // The files have changed since the server has loaded them.
		return dir
	}
	protocols := loaded.Protocols()
	names := make([]string, len(protocols))
	for i, protocol := range protocols {
		names[i] = protocol.ID
	}
	if len(protocols) == 1 {
		steps := make([]string, len(protocols[0].Steps))
		for i := range steps {
			steps[i] = protocols[0].Steps[i].ID
		}
		names[0] += ": " + strings.Join(steps, ", ")
	}
	return strings.Join(names, ", ") + " in " + dir
}

// submitAll submits the commands and returns their jobs, which have ended if stand-in workers
// do their steps, except those that have a date, and those after them in their lines.
func (p *program) submitAll(ctx context.Context, o *devOptions, url string) (jobs []string) {
	files, _ := filepath.Glob(filepath.Join(o.commands, "*.json")) // The pattern is valid.
	later := map[string]bool{}                                     // ids of lines that have a job with a date
	for _, file := range files {
		var accepted api.CommandAccepted
		if err := p.ask(ctx, url, &accepted, "submit", file); err != nil {
			if ctx.Err() == nil {
				fmt.Fprintf(p.Stdout, "  %s: %s\n", filepath.Base(file), config.Mask(err.Error()))
			}
			continue
		}
		jobs = append(jobs, accepted.JobID)
		if !o.workers {
			continue
		}
		var job api.Job
		switch err := p.ask(ctx, url, &job, "jobs", "get", accepted.JobID); {
		case err != nil || later[job.LineID]:
		case job.NotBefore.IsZero():
			p.follow(ctx, url, job.JobID, io.Discard)
		case job.LineID != "":
			later[job.LineID] = true
		}
	}
	return jobs
}

// ask runs a command line that calls the server, and decodes what it prints.
func (p *program) ask(ctx context.Context, url string, answer any, args ...string) error {
	var out bytes.Buffer
	if err := p.call(ctx, &out, append(args, "--url", url, "-o", "json")...); err != nil {
		return err
	}
	return json.Unmarshal(out.Bytes(), answer)
}

// follow prints the course of the job until it has ended.
func (p *program) follow(ctx context.Context, url, job string, out io.Writer) {
	fmt.Fprintf(out, "\njob %s\n", job)
	if err := p.call(ctx, out, "jobs", "watch", job, "--url", url); err != nil && ctx.Err() == nil {
		fmt.Fprintf(out, "  %s\n", config.Mask(err.Error()))
	}
}

// call runs a command line that calls the server, with none of the caller's settings.
func (p *program) call(ctx context.Context, out io.Writer, args ...string) error {
	env := p.Env
	env.Stdout, env.Terminal, env.Environment = out, false, nil
	return cli.Run(ctx, cli.Root(&env), args)
}

// standIn does the work of all services until the context ends: it reports success.
func (p *program) standIn(ctx context.Context, url string) {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client, err := lucius.NewClient(lucius.ClientConfig{URL: url, HTTPClient: &http.Client{Transport: transport}})
	if err == nil {
		w := lucius.NewWorker(lucius.WorkerConfig{
			Client: client, Owner: "stand-in", Grace: time.Second, Log: slog.New(slog.DiscardHandler),
		})
		w.Handle(lucius.AnyStep, func(_ context.Context, task *lucius.Task) (any, error) {
			return lucius.URI(strings.Join([]string{"dev:", task.JobID, task.StepID}, "/")), nil
		})
		err = w.Run(ctx)
	}
	if err != nil {
		fmt.Fprintln(p.Stderr, "lucius:", err)
	}
}

// browser returns the command that opens a page on a desktop, empty if there is none.
func browser(system string, variable func(string) string) (name string, args []string) {
	switch {
	case system == "darwin":
		return "open", nil
	case system == "windows":
		return "rundll32", []string{"url.dll,FileProtocolHandler"}
	case variable("SSH_CONNECTION") == "" && variable("DISPLAY")+variable("WAYLAND_DISPLAY") != "":
		return "xdg-open", nil
	}
	return "", nil
}
