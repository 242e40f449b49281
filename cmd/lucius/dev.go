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
	"os/signal"
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
	workers, noOpen             bool
}

// dev returns lucius dev, which serves the protocols of the folder in memory, submits its
// commands and does the work of all services.
func (p *program) dev() *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use: "dev", GroupID: cli.GroupServer, Short: "Try protocols: a server in memory, with stand-in workers", Args: cli.Takes(0, 0),
		Long: "Serves the protocols of a folder in memory, submits its commands once, and shows the course of their\n" +
			"jobs. Stand-in workers end each step with success. Without protocol files it serves an example.",
		Example: "  lucius init && lucius dev\n  lucius dev --workers=false",
	}
	flags := cmd.Flags()
	flags.StringVar(&o.listen, "listen-addr", config.DefaultListenAddr, "loopback address; if the default one is taken, another port")
	flags.StringVar(&o.protocols, "protocols-dir", "./protocols", "folder of the protocol files")
	flags.StringVar(&o.commands, "commands-dir", "./commands", "folder of the commands to submit (*.json)")
	flags.BoolVar(&o.workers, "workers", true, "do the work of all services; false leaves it to your own workers")
	flags.BoolVar(&o.noOpen, "no-open", false, "do not open the API's page in a browser")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, end := context.WithCancel(cmd.Context())
		defer end()
		shown := *p
		shown.Stdout = endingWriter{p.Stdout, end}
		// Neither a closed pipe nor a closed terminal kills the process, which has files to delete.
		watched := make(chan os.Signal, 1)
		signal.Notify(watched, syscall.SIGPIPE) // Of connections as well: only a failed write to the output counts.
		defer signal.Stop(watched)
		if !signal.Ignored(syscall.SIGHUP) { // As it is by nohup.
			ctx, end = signal.NotifyContext(ctx, syscall.SIGHUP)
			defer end()
		}
		if err := shown.runDev(ctx, &o, !flags.Changed("listen-addr")); ctx.Err() == nil {
			return err
		}
		return nil // It was told to end, perhaps while it started.
	}
	return cmd
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

// runDev runs lucius dev. With anyPort it takes another port if that of the address is
// taken.
func (p *program) runDev(ctx context.Context, o *devOptions, anyPort bool) (err error) {
	if _, err := commands.LoadProtocols(o.protocols); missing(err) {
		dir, err := os.MkdirTemp("", "lucius-dev-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }() // The system empties its folder of temporary files.
		if _, err := writeProject(dir, false); err != nil {
			return err
		}
		fmt.Fprintf(p.Stdout, "%s has no protocol files: here is an example, which lucius init writes\n", o.protocols)
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
		fmt.Fprintf(p.Stdout, "%s is taken by another program\n", loaded.ListenAddr)
		loaded.ListenAddr = "127.0.0.1:0"
		err = serve()
	}
	return err
}

// missing reports whether there are no protocol files, by the error of [commands.LoadProtocols].
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, commands.ErrNoProtocols)
}

// try uses the server at the URL: it runs the stand-in workers until the context ends,
// submits the commands, and shows the course of their jobs.
func (p *program) try(ctx context.Context, o *devOptions, url string) {
	page := url + "/docs"
	fmt.Fprintf(p.Stdout, "lucius serves %s in memory, and keeps nothing\n\n  API        %s\n  protocols  %s\n", url, page, o.protocols)
	if name, args := browser(runtime.GOOS, os.Getenv); name != "" && p.Terminal && !o.noOpen {
		opener := exec.CommandContext(ctx, name, append(args, page)...) //nolint:gosec // It is one of three commands.
		if opener.Start() == nil {                                      // otherwise the user has the URL printed above
			go func() { _ = opener.Wait() }()
		}
	}
	var workers sync.WaitGroup
	defer workers.Wait()
	if o.workers {
		fmt.Fprintln(p.Stdout, "  workers    stand-ins for all services; --workers=false leaves the work to yours")
		workers.Go(func() { p.standIn(ctx, url) })
	} else {
		fmt.Fprintln(p.Stdout, "  workers    yours, which claim from this server")
	}
	files, _ := filepath.Glob(filepath.Join(o.commands, "*.json")) // The pattern is valid.
	for _, file := range files {
		p.follow(ctx, url, file)
	}
	if len(files) == 0 {
		fmt.Fprintf(p.Stdout, "\n%s has no commands: lucius submit FILE --wait\n", o.commands)
	}
	if ctx.Err() == nil {
		fmt.Fprintf(p.Stdout, "\nthe server keeps running at %s; Ctrl-C stops it\n", url)
	}
}

// follow submits a command and prints the course of its job.
func (p *program) follow(ctx context.Context, url, file string) {
	fmt.Fprintf(p.Stdout, "\n%s\n", filepath.Base(file))
	var receipt bytes.Buffer
	var accepted api.CommandAccepted
	err := p.call(ctx, &receipt, "submit", file, "--server", url, "-o", "json")
	if err == nil {
		err = json.Unmarshal(receipt.Bytes(), &accepted)
	}
	if err == nil {
		err = p.call(ctx, p.Stdout, "jobs", "watch", accepted.JobID, "--server", url)
		if err == nil {
			fmt.Fprintf(p.Stdout, "  job %s SUCCEEDED\n", accepted.JobID)
		}
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(p.Stdout, "  %s\n", config.Mask(err.Error()))
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
