// Package luciusotel gives each task of a worker a span of OpenTelemetry:
//
//	worker.Use(luciusotel.Middleware(otel.Tracer("extract")))
//
// The span is part of the trace of the job.
package luciusotel

import (
	"context"

	lucius "github.com/lucius-project/lucius/sdk/go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Middleware returns middleware that runs each handler in a span of the tracer, named
// "handle" and the step type. Its parent is the attempt that the directive names, if any. An
// error of the handler is recorded and is the status of the span.
//
// The handler's context has the span. Calls of a [lucius.Client] in it are part of the trace.
func Middleware(tracer trace.Tracer) func(lucius.Handler) lucius.Handler {
	return func(next lucius.Handler) lucius.Handler {
		return func(ctx context.Context, task *lucius.Task) (any, error) {
			carrier := propagation.MapCarrier{"traceparent": lucius.Traceparent(ctx)}
			ctx = propagation.TraceContext{}.Extract(ctx, carrier)
			ctx, span := tracer.Start(ctx, "handle "+task.StepType,
				trace.WithSpanKind(trace.SpanKindConsumer),
				trace.WithAttributes(
					attribute.String("lucius.job_id", task.JobID), attribute.String("lucius.tenant_id", task.TenantID),
					attribute.String("lucius.step_id", task.StepID), attribute.String("lucius.step_type", task.StepType),
					attribute.String("lucius.service", task.Service), attribute.Int("lucius.attempt_no", int(task.AttemptNo)),
				))
			defer span.End() // Deferred directly, it records a panic too.
			if span.SpanContext().IsValid() {
				propagation.TraceContext{}.Inject(ctx, carrier)
				ctx = lucius.WithTraceparent(ctx, carrier["traceparent"])
			}
			result, err := next(ctx, task)
			if err != nil {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			return result, err
		}
	}
}
