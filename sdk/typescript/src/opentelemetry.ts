// Spans of OpenTelemetry for handlers. It needs the package @opentelemetry/api.
import { context, ROOT_CONTEXT, SpanKind, SpanStatusCode, trace, type Context, type Tracer } from "@opentelemetry/api";

import type { Middleware } from "./worker.js";

/**
 * Middleware that runs each handler in a span, named "handle" and the step type. Its parent is
 * the attempt that the directive names, so it is part of the trace of the job. An error of the
 * handler is recorded and is the status of the span. The tracer defaults to that of the global
 * provider.
 */
export function spans(tracer: Tracer = trace.getTracer("lucius")): Middleware {
  return (task, next) =>
    tracer.startActiveSpan(`handle ${task.stepType}`, {
      kind: SpanKind.CONSUMER,
      attributes: {
        "lucius.job_id": task.jobId, "lucius.tenant_id": task.tenantId, "lucius.step_id": task.stepId,
        "lucius.step_type": task.stepType, "lucius.service": task.service, "lucius.attempt_no": task.attempt,
      },
    }, parentOf(task.traceparent), async (span) => {
      try {
        return await next(task);
      } catch (error) {
        const exception = error instanceof Error ? error : String(error);
        span.recordException(exception);
        span.setStatus({ code: SpanStatusCode.ERROR, message: String(exception instanceof Error ? exception.message : exception) });
        throw error;
      } finally {
        span.end();
      }
    });
}

/** The context with the span that a W3C traceparent names; without one, the current context. */
function parentOf(traceparent: string | null): Context {
  const [, traceId, spanId, flags] = /^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$/.exec(traceparent ?? "") ?? [];
  if (!traceId || !spanId || !flags) return context.active();
  return trace.setSpanContext(ROOT_CONTEXT, { traceId, spanId, traceFlags: parseInt(flags, 16), isRemote: true });
}
