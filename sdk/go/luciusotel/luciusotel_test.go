package luciusotel_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	lucius "github.com/lucius-project/lucius/sdk/go"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lucius-project/lucius/sdk/go/luciusotel"
)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
	parent  = "00-" + traceID + "-" + spanID + "-01"
)

// do runs a handler in the middleware for a task with the traceparent, and returns the span.
func do(t *testing.T, traceparent *string, handler lucius.Handler) sdktrace.ReadOnlySpan {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	client, err := lucius.NewClient(lucius.ClientConfig{URL: "http://localhost"})
	if err != nil {
		t.Fatal(err)
	}
	worker := lucius.NewWorker(lucius.WorkerConfig{Client: client, Service: "extract", Log: slog.New(slog.DiscardHandler)})
	worker.Use(luciusotel.Middleware(provider.Tracer("test")))
	worker.Handle("EXTRACT", handler)
	var directive lucius.Directive
	directive.JobID, directive.TenantID, directive.StepID = "job-1", "tenant_a", "extract"
	directive.StepType, directive.Service, directive.AttemptNo = "EXTRACT", "extract", 3
	directive.Traceparent = traceparent
	_, _ = worker.Do(t.Context(), lucius.NewTask(directive, nil))
	ended := spans.Ended()
	if len(ended) != 1 {
		t.Fatalf("%d spans ended, want 1", len(ended))
	}
	return ended[0]
}

func TestASpanIsPartOfTheJobsTrace(t *testing.T) {
	t.Parallel()
	var inside trace.SpanContext
	var sent string
	given := parent
	span := do(t, &given, func(ctx context.Context, _ *lucius.Task) (any, error) {
		inside, sent = trace.SpanContextFromContext(ctx), lucius.Traceparent(ctx)
		return nil, nil
	})
	if span.Parent().TraceID().String() != traceID || span.Parent().SpanID().String() != spanID || !span.Parent().IsRemote() {
		t.Errorf("the parent is %v, want %s", span.Parent(), parent)
	}
	if inside.SpanID() != span.SpanContext().SpanID() {
		t.Error("the handler's context does not have the span")
	}
	if want := "00-" + traceID + "-" + span.SpanContext().SpanID().String() + "-01"; sent != want {
		t.Errorf("calls of the handler send the traceparent %s, want %s", sent, want)
	}
	if span.Name() != "handle EXTRACT" || span.SpanKind() != trace.SpanKindConsumer || span.Status().Code != codes.Unset {
		t.Errorf("the span is %s, %v, %v", span.Name(), span.SpanKind(), span.Status())
	}
	var about []string
	for _, attribute := range span.Attributes() {
		about = append(about, string(attribute.Key)+"="+attribute.Value.String())
	}
	want := "lucius.job_id=job-1 lucius.tenant_id=tenant_a lucius.step_id=extract lucius.step_type=EXTRACT lucius.service=extract lucius.attempt_no=3"
	if got := strings.Join(about, " "); got != want {
		t.Errorf("attributes:\n got %s\nwant %s", got, want)
	}
}

func TestAFailureIsTheStatusOfItsSpan(t *testing.T) {
	t.Parallel()
	span := do(t, nil, func(context.Context, *lucius.Task) (any, error) { return nil, errors.New("no such page") })
	if span.Parent().IsValid() {
		t.Errorf("a task without a trace has the parent %v", span.Parent())
	}
	if status := span.Status(); status.Code != codes.Error || status.Description != "no such page" {
		t.Errorf("the status is %v", status)
	}
	if len(span.Events()) != 1 || span.Events()[0].Name != "exception" {
		t.Errorf("the events are %v", span.Events())
	}
}

func TestAPanicEndsItsSpan(t *testing.T) {
	t.Parallel()
	span := do(t, nil, func(context.Context, *lucius.Task) (any, error) { panic("the drawer is open") })
	if span.Name() != "handle EXTRACT" || len(span.Events()) != 1 {
		t.Errorf("%s, %v", span.Name(), span.Events())
	}
}
