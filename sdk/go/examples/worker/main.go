// Command worker does the three steps of the project that lucius init writes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	w := lucius.NewWorker(lucius.WorkerConfig{Parallel: 4}) // of LUCIUS_URL, with LUCIUS_TOKEN
	w.Handle("EXTRACT", extract)
	w.Handle("SUMMARIZE", summarize)
	w.Handle("PUBLISH", publish)
	if err := w.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func extract(_ context.Context, task *lucius.Task) (any, error) {
	return lucius.URI(task.InputRef.URI() + ".txt"), nil
}

func summarize(_ context.Context, task *lucius.Task) (any, error) {
	var payload struct{ Words int }
	if err := task.Decode(&payload); err != nil {
		return nil, err
	}
	if payload.Words > 10_000 {
		return nil, lucius.Final("TOO_LONG", "%d words are no summary", payload.Words)
	}
	return map[string]any{"uri": task.InputRef.URI() + ".summary", "words": payload.Words}, nil
}

func publish(_ context.Context, task *lucius.Task) (any, error) {
	return lucius.URI(task.OutputRef.URI()), nil
}
