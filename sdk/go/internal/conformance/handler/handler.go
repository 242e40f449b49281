// Package handler does the tasks of the conformance workers: sdk/conformance/README.md says how.
package handler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// New returns the handler, which writes its lines to out.
func New(out io.Writer) lucius.Handler {
	c := &conformance{lines: json.NewEncoder(out)}
	return func(ctx context.Context, task *lucius.Task) (any, error) {
		c.say("started", task, "")
		defer c.say("ended", task, "")
		return c.conform(ctx, task)
	}
}

// Seconds returns the duration.
func Seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

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

// Payload says what a task does.
type Payload struct {
	Do      string
	Seconds float64
	Deaf    bool
}

// conform does what the payload says.
func (c *conformance) conform(ctx context.Context, task *lucius.Task) (any, error) {
	var p Payload
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
		return nil, lucius.RetryAfter(Seconds(p.Seconds), "CONFORMANCE_RETRY_AFTER", "told to retry later")
	case p.Do == "throttled" && first:
		return nil, lucius.Throttled(Seconds(p.Seconds), "CONFORMANCE_THROTTLED", "told that the service is throttled")
	case p.Do == "throttled_tenant" && first:
		return nil, lucius.ThrottledTenant(Seconds(p.Seconds), "CONFORMANCE_THROTTLED", "told that the tenant is throttled")
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
func (c *conformance) sleep(ctx context.Context, task *lucius.Task, p Payload) error {
	over := time.NewTimer(Seconds(p.Seconds))
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
