// Command conformance is the conformance worker of the Go SDK, and with the argument client
// its conformance client: sdk/conformance/README.md says what they do.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	lucius "github.com/lucius-project/lucius/sdk/go"
	"github.com/lucius-project/lucius/sdk/go/internal/conformance/handler"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	run := func() error { return work(ctx, os.Stdout, os.Getenv) }
	if slices.Equal(os.Args[1:], []string{"client"}) {
		run = func() error { return tell(ctx) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// work works until the context ends.
func work(ctx context.Context, out io.Writer, variable func(string) string) error {
	parallel, err := strconv.Atoi(variable("CONFORMANCE_PARALLEL"))
	if err != nil {
		return fmt.Errorf("CONFORMANCE_PARALLEL: %w", err)
	}
	grace, err := strconv.ParseFloat(variable("CONFORMANCE_GRACE_SECONDS"), 64)
	if err != nil {
		return fmt.Errorf("CONFORMANCE_GRACE_SECONDS: %w", err)
	}
	lease, err := strconv.ParseFloat(variable("CONFORMANCE_LEASE_SECONDS"), 64)
	if err != nil {
		return fmt.Errorf("CONFORMANCE_LEASE_SECONDS: %w", err)
	}
	w := lucius.NewWorker(lucius.WorkerConfig{
		Service: variable("CONFORMANCE_SERVICE"), Parallel: parallel, Grace: handler.Seconds(grace), Lease: handler.Seconds(lease),
		Log: slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	})
	stepType := "CONFORM"
	if variable("CONFORMANCE_ANY_STEP") != "" {
		stepType = lucius.AnyStep
	}
	w.Handle(stepType, handler.New(out))
	return w.Run(ctx)
}
