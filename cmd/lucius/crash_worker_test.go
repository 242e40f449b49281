package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/worker"
)

// helpURL is the variable of a worker process that names the server's URL.
const helpURL = "LUCIUS_TEST_URL"

// helpWork is a worker process. It says when it has something in hand, which it
// takes a while to do, and ends when its input does.
func helpWork() {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // Until the test closes it.
		stop()
	}()
	client, err := api.NewClientWithResponses(os.Getenv(helpURL))
	if err != nil {
		panic(err)
	}
	w, err := worker.New(worker.Config{
		Client: client, Owner: "worker-process", Services: []string{"extract"}, ClaimWait: time.Second,
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Handle: func(context.Context, api.Directive) (json.RawMessage, error) {
			fmt.Fprintln(os.Stdout, "working")
			time.Sleep(500 * time.Millisecond)
			return json.RawMessage(`{"uri":"s3://from-the-process"}`), nil
		},
	})
	if err != nil {
		panic(err)
	}
	if err := w.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
