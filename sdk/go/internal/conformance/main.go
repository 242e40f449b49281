// Command conformance is the conformance worker of the Go SDK, and with the argument client
// its conformance client: sdk/conformance/README.md says what they do.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
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
	c := &conformance{lines: json.NewEncoder(out)}
	w := lucius.NewWorker(lucius.WorkerConfig{Service: "conformance", Parallel: parallel, Grace: seconds(grace), Lease: seconds(lease)})
	stepType := "CONFORM"
	if variable("CONFORMANCE_ANY_STEP") != "" {
		stepType = lucius.AnyStep
	}
	w.Handle(stepType, func(ctx context.Context, task *lucius.Task) (any, error) {
		c.say("started", task, "")
		defer c.say("ended", task, "")
		return c.conform(ctx, task)
	})
	return w.Run(ctx)
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// conformance does the tasks.
type conformance struct {
	mu    sync.Mutex
	lines *json.Encoder
}

// say writes a line.
func (c *conformance) say(event string, task *lucius.Task, cause string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.lines.Encode(struct { // The test misses a line that cannot be written.
		Event   string `json:"event"`
		JobID   string `json:"jobId"`
		Attempt int32  `json:"attempt"`
		Cause   string `json:"cause,omitempty"`
	}{event, task.JobID, task.AttemptNo, cause})
}

// payload says what a task does.
type payload struct {
	Do      string
	Seconds float64
	Deaf    bool
}

// conform does what the payload says.
func (c *conformance) conform(ctx context.Context, task *lucius.Task) (any, error) {
	var p payload
	if err := task.Decode(&p); err != nil {
		return nil, err
	}
	result := map[string]string{"uri": fmt.Sprintf("conformance://%s/%d", task.JobID, task.AttemptNo)}
	if parent := lucius.Traceparent(ctx); parent != "" {
		result["traceparent"] = parent
	}
	first := task.AttemptNo == 1
	switch {
	case p.Do == "final":
		return nil, lucius.Final("CONFORMANCE_FINAL", "told to fail")
	case p.Do == "quote_token":
		token, err := os.ReadFile(os.Getenv("LUCIUS_TOKEN_FILE")) //nolint:gosec // The test names the file.
		if err != nil {
			return nil, err
		}
		return nil, lucius.Final("CONFORMANCE_FINAL", "refused: Bearer %s", strings.TrimSpace(string(token)))
	case p.Do == "retry_once" && first:
		return nil, lucius.Retry("CONFORMANCE_RETRY", "told to retry")
	case p.Do == "retry_after" && first:
		return nil, lucius.RetryAfter(seconds(p.Seconds), "CONFORMANCE_RETRY_AFTER", "told to retry later")
	case p.Do == "throw" && first:
		return nil, errors.New("thrown in attempt 1")
	case p.Do == "too_large":
		result["filler"] = strings.Repeat("x", 9000)
	case p.Do == "refused":
		result["uri"] += strings.Repeat("x", 3000)
		return result, c.sleep(ctx, task, p)
	case p.Do == "progress":
		task.Progress(0.5, "half")
		return result, c.sleep(ctx, task, p)
	case p.Do == "sleep":
		return result, c.sleep(ctx, task, p)
	}
	return result, nil
}

// sleep waits until the time of the payload is over or the task is cancelled.
func (c *conformance) sleep(ctx context.Context, task *lucius.Task, p payload) error {
	over := time.NewTimer(seconds(p.Seconds))
	defer over.Stop()
	if p.Deaf {
		<-over.C
		return nil
	}
	paused := task.PauseRequested()
	for {
		select {
		case <-over.C:
			return nil
		case <-paused:
			c.say("pause_requested", task, "")
			paused = nil
		case <-ctx.Done():
			cause := context.Cause(ctx)
			c.say("cancelled", task, word(cause))
			return cause
		}
	}
}

// word returns the word for the cause of a cancellation.
func word(cause error) string {
	switch {
	case errors.Is(cause, lucius.ErrCancelled):
		return "cancelled"
	case errors.Is(cause, lucius.ErrLeaseLost):
		return "lease_lost"
	}
	return "stopping"
}
