package lucius_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	lucius "github.com/lucius-project/lucius/sdk/go"
)

// A handler's error decides what becomes of its step.
func ExampleHandler() {
	errTooMany := errors.New("429 Too Many Requests")
	convert := func(context.Context, lucius.Reference) (string, error) { return "s3://bucket/page.png", nil }
	handler := lucius.Handler(func(ctx context.Context, task *lucius.Task) (any, error) {
		var payload struct{ Language string }
		if err := task.Decode(&payload); err != nil {
			return nil, err // final, with the code payload_invalid
		}
		if payload.Language == "" {
			return nil, lucius.Final("NO_LANGUAGE", "the payload names no language")
		}
		uri, err := convert(ctx, task.InputRef)
		switch {
		case errors.Is(context.Cause(ctx), lucius.ErrCancelled):
			return nil, err // No result is needed.
		case errors.Is(err, context.DeadlineExceeded):
			return nil, lucius.RetryAfter(time.Minute, "OVERLOADED", "convert: %w", err)
		case errors.Is(err, errTooMany):
			return nil, lucius.Throttled(30*time.Second, "TOO_MANY", "convert: %w", err) // spends no retry
		case err != nil:
			return nil, err // tried again after the delay of the protocol
		}
		return lucius.URI(uri), nil
	})
	task := &lucius.Task{Directive: lucius.Directive{Payload: []byte(`{"language":"en"}`)}}
	result, err := handler(context.Background(), task)
	fmt.Printf("%s %v\n", result, err)
	_, err = handler(context.Background(), &lucius.Task{Directive: lucius.Directive{Payload: []byte(`{}`)}})
	fmt.Println(err)
	// Output:
	// {"uri":"s3://bucket/page.png"} <nil>
	// the payload names no language
}

// A typed handler gets its payload decoded.
func ExampleHandle() {
	type Summarize struct {
		Words int `json:"words"`
	}
	type Summary struct {
		URI   string `json:"uri"`
		Words int    `json:"words"`
	}
	w := lucius.NewWorker(lucius.WorkerConfig{Service: "summarize"})
	lucius.Handle(w, "SUMMARIZE", func(_ context.Context, task *lucius.Task, payload Summarize) (Summary, error) {
		return Summary{URI: task.OutputRef.URI(), Words: payload.Words}, nil
	})
	_, failure := w.Do(context.Background(), &lucius.Task{Directive: lucius.Directive{
		StepType: "SUMMARIZE", Payload: []byte(`{"words":"many"}`),
	}})
	fmt.Println(failure.Code, failure, failure.Retryable)
	// Output: payload_invalid /words: must be int, is string false
}

// Middleware sees every task of a worker.
func ExampleWorker_Use() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	w := lucius.NewWorker(lucius.WorkerConfig{Service: "ocr", Log: log})
	w.Use(func(next lucius.Handler) lucius.Handler {
		return func(ctx context.Context, task *lucius.Task) (any, error) {
			begun := time.Now()
			result, err := next(ctx, task)
			log.InfoContext(ctx, "task done", "step", task.StepID, "took", time.Since(begun), "error", err)
			return result, err
		}
	})
	w.Handle(lucius.AnyStep, func(context.Context, *lucius.Task) (any, error) { return nil, nil })
	fmt.Println("Run does the work.")
	// Output: Run does the work.
}

// A rerun corrects what was wrong with a job, and goes on at the step that failed.
func ExampleClient_Rerun() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Method, r.URL.Path)
		_, _ = io.Copy(os.Stdout, r.Body)          // The example prints what the server gets,
		_, _ = io.WriteString(w, `{"jobId":"j2"}`) // and fails if it gets no answer.
	}))
	defer server.Close()
	client, err := lucius.NewClient(lucius.ClientConfig{URL: server.URL})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	ctx, failed := context.Background(), "j1"

	rerun, err := client.Rerun(ctx, failed, lucius.RerunRequest{
		PayloadPatch: map[string]any{"words": 500},
		Reason:       "20000 words are no summary",
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(rerun.JobID)
	// Output:
	// POST /v1/jobs/j1:rerun
	// {"payload_patch":{"words":500},"reason":"20000 words are no summary"}
	// j2
}

// The code of a refusal is stable, its text is for people.
func ExampleHasCode() {
	err := fmt.Errorf("submit: %w", &lucius.Error{Problem: lucius.Problem{
		Status: 422, Code: lucius.ProblemCodePayloadInvalid,
		Errors: []lucius.Violation{{Pointer: "/payload/language", Message: "must be one of en, de"}},
	}})
	if lucius.HasCode(err, lucius.ProblemCodePayloadInvalid) {
		fmt.Println(err)
	}
	// Output: submit: the server answered 422 payload_invalid; /payload/language: must be one of en, de
}
