package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// helpURL is the variable of a worker process that names the server's URL.
const helpURL = "LUCIUS_TEST_URL"

// helpWork runs a worker process. It prints a word when it holds an item, which it ends once the
// process has stood still and goes on, and exits when its standard input ends.
func helpWork() {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // Until the test closes it.
		stop()
	}()
	client, err := lucius.NewClient(lucius.ClientConfig{URL: os.Getenv(helpURL)})
	if err != nil {
		panic(err)
	}
	w := lucius.NewWorker(lucius.WorkerConfig{
		Client: client, Owner: "worker-process", Service: "extract", ClaimWait: time.Second,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	w.Handle(lucius.AnyStep, func(ctx context.Context, _ *lucius.Task) (any, error) {
		fmt.Fprintln(os.Stdout, "working")
		select {
		case <-continued:
		case <-ctx.Done():
		}
		return lucius.URI("s3://from-the-process"), nil
	})
	if err := w.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
