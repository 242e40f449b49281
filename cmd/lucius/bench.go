package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lucius-project/lucius/internal/bench"
)

// bench measures a server that it starts as a process of its own, so that the server's
// CPU time is separate from the clients'.
func (p *program) bench(ctx context.Context, args []string) (err error) {
	options := bench.Options{Out: p.stdout, Progress: p.stderr}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(p.stderr)
	steps := flags.String("steps", "both", "1, 3 or both: the steps of a job")
	flags.IntVar(&options.Submitters, "submitters", 64, "clients, and so jobs in flight")
	flags.IntVar(&options.Pullers, "pullers", 4, "claims that wait for work side by side")
	flags.IntVar(&options.PayloadBytes, "payload-bytes", 256, "size of a command's payload")
	flags.DurationVar(&options.Duration, "duration", 10*time.Second, "how long each run is measured")
	flags.DurationVar(&options.WarmUp, "warm-up", 2*time.Second, "how long each run goes on before that")
	flags.BoolVar(&options.JSON, "json", false, "write the results as JSON")
	flags.StringVar(&options.Dir, "dir", "", "folder for the data; default is a temporary one, removed afterwards")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if options.Steps, err = bench.ParseSteps(*steps); err != nil {
		return err
	}
	if options.Dir == "" {
		if options.Dir, err = os.MkdirTemp("", "lucius-bench-"); err != nil {
			return fmt.Errorf("make a folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(options.Dir)) }()
	}
	server, url, err := p.startServer(ctx, options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopServer(server)) }()
	options.BaseURL, options.ServerPID = url, server.Process.Pid
	return bench.Run(ctx, options)
}

// startServer starts this program as a server on the folder.
func (p *program) startServer(ctx context.Context, dir string) (server *exec.Cmd, url string, err error) {
	protocols := filepath.Join(dir, "protocols")
	if err := os.MkdirAll(protocols, 0o750); err != nil {
		return nil, "", fmt.Errorf("make a folder: %w", err)
	}
	if err := bench.WriteProtocols(protocols); err != nil {
		return nil, "", err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("find this program: %w", err)
	}
	server = exec.CommandContext(context.WithoutCancel(ctx), self, "serve", //nolint:gosec // It is this program.
		"--listen-addr", "127.0.0.1:0", "--data-dir", filepath.Join(dir, "data"),
		"--protocols-dir", protocols, "--log-level", "warn")
	server.Stderr = p.stderr
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		return nil, "", fmt.Errorf("start the server: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "lucius serves ")
	if err != nil || !ok {
		return nil, "", errors.Join(errors.New("the server did not come up"), stopServer(server))
	}
	return server, url, nil
}

// stopServer asks the server to stop and waits for it.
func stopServer(server *exec.Cmd) error {
	if err := server.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop the server: %w", err)
	}
	if err := server.Wait(); err != nil {
		return fmt.Errorf("the server failed: %w", err)
	}
	return nil
}
