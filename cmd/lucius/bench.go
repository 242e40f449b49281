package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/bench"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// bench returns lucius bench, which measures servers that it starts as processes of their
// own, so that what a server uses is separate from what the clients use.
func (p *program) bench() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", GroupID: cli.GroupServer, Short: "Measure jobs per second on this machine", Args: cli.Takes(0, 0),
		Example: `  lucius bench
  lucius bench --load "one step" --duration 20s -o json
  lucius bench --load "one step" --load retention
  lucius bench --load bulk --bulk 1000000
  lucius bench --load schedules`,
	}
	options := bench.Options{Start: p.startServer, DiskBytes: diskBytes, Progress: p.Stderr}
	flags := cmd.Flags()
	flags.StringArrayVar(&options.Loads, "load", nil,
		"one load to measure, repeatable: "+strings.Join(slices.Concat(bench.Loads(), bench.ByName()), ", ")+
			"; default is all but the last three")
	flags.IntVar(&options.Submitters, "submitters", 64, "number of clients, and so of jobs in flight in a closed loop")
	flags.IntVar(&options.Pullers, "pullers", 4, "number of claims that wait for work in parallel")
	flags.IntVar(&options.PayloadBytes, "payload-bytes", 256, "size of a command's payload")
	flags.IntVar(&options.Rate, "rate", 50, "jobs per second of the open loop")
	flags.IntVar(&options.Finished, "finished", 2000, "finished jobs of the prefilled server")
	flags.IntVar(&options.Live, "live", 200, "jobs of the prefilled server with a running step")
	flags.IntVar(&options.Waiting, "waiting", 2000, "jobs of the prefilled server that wait for a service without a worker")
	flags.IntVar(&options.InLine, "in-line", 0, "jobs of the prefilled server that wait in one line of that service")
	flags.IntVar(&options.Bulk, "bulk", 20_000, "bulk jobs of the load bulk")
	flags.IntVar(&options.Rounds, "rounds", 5, "how often the load bulk measures a server with bulk jobs and one without, in turn")
	flags.IntVar(&options.Schedules, "schedules", 10_000, "schedules of the load schedules, which are due at the same time")
	flags.DurationVar(&options.Duration, "duration", 5*time.Second, "how long each row is measured")
	flags.DurationVar(&options.RetentionDuration, "retention-duration", 20*time.Minute,
		"how long the load retention is measured, on a server that keeps ended jobs for 20s")
	flags.DurationVar(&options.WarmUp, "warm-up", time.Second, "how long each load runs before it is measured")
	flags.StringVar(&options.Dir, "dir", "", "folder on the disk to measure; default is a temporary one")
	output := flags.StringP("output", "o", "text", "text or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		shown, ctx, end := p.withReader(cmd.Context())
		defer end()
		err := shown.runBench(ctx, options, *output)
		if err != nil && ctx.Err() != nil {
			return &cli.Error{Code: cli.ExitInterrupted, Err: errors.New("interrupted, and nothing was measured")}
		}
		return err
	}
	return cmd
}

func (p *program) runBench(ctx context.Context, options bench.Options, output string) (err error) {
	if output != "text" && output != "json" {
		return &cli.Error{Code: cli.ExitUsage, Err: fmt.Errorf("output is %q, it must be text or json", output)}
	}
	if options.Dir == "" {
		if options.Dir, err = os.MkdirTemp("", "lucius-bench-"); err != nil {
			return fmt.Errorf("create a folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(options.Dir)) }()
	}
	report, err := bench.Measure(ctx, options)
	if err != nil {
		return err
	}
	text := []byte(report.String())
	if output == "json" {
		if text, err = json.MarshalIndent(report, "", "  "); err != nil {
			return fmt.Errorf("encode the results: %w", err)
		}
		text = append(text, '\n')
	}
	if _, err := p.Stdout.Write(text); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// startServer starts this program as a server on the folders.
func (p *program) startServer(ctx context.Context, dataDir, protocolsDir string, retention time.Duration) (bench.Server, error) {
	self, err := os.Executable()
	if err != nil {
		return bench.Server{}, fmt.Errorf("find this program: %w", err)
	}
	args := []string{
		"serve", "--listen-addr", "127.0.0.1:0", "--data-dir", dataDir, "--protocols-dir", protocolsDir,
		"--log-level", "warn", "--audit-log", "off", // Each change of a schedule would be a line.
	}
	if retention > 0 {
		args = append(args, "--retention", retention.String(), "--idempotency-ttl", "0")
	}
	server := exec.CommandContext(context.WithoutCancel(ctx), self, args...) //nolint:gosec // It is this program.
	server.Stderr = p.Stderr
	// The environment of a real server has no influence.
	server.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "OTEL_") ||
			strings.HasPrefix(variable, "LUCIUS_") && !strings.HasPrefix(variable, "LUCIUS_TEST_")
	})
	out, err := server.StdoutPipe()
	if err == nil {
		err = server.Start()
	}
	if err != nil {
		return bench.Server{}, fmt.Errorf("start the server: %w", err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "lucius serves ")
	if err != nil || !ok {
		return bench.Server{}, errors.Join(errors.New("the server did not start"), stopServer(server))
	}
	return bench.Server{URL: url, Stop: func() error { return stopServer(server) }}, nil
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

// diskBytes compacts the store of a stopped server, and returns the size of its tables.
func diskBytes(ctx context.Context, dataDir string) (int64, error) {
	store, err := pebblestore.Open(pebblestore.Options{Dir: dataDir, Reserve: -1})
	if err != nil {
		return 0, fmt.Errorf("open the server's store: %w", err)
	}
	bytes, err := store.Compact(ctx)
	return bytes, errors.Join(err, store.Close())
}
