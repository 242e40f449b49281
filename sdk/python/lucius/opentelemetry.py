"""Spans of OpenTelemetry for handlers: the extra ``lucius[opentelemetry]``.

::

    worker = Worker("extract", middleware=[spans()])
"""

from __future__ import annotations

import inspect
from typing import Any, Awaitable, Optional

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .task import Task
from .worker import Handler, Middleware

__all__ = ["spans"]

_W3C = TraceContextTextMapPropagator()


def spans(tracer: Optional[trace.Tracer] = None) -> Middleware:
    """Middleware that runs each handler in a span, named ``handle`` and the step type.

    Its parent is the attempt that the directive names, so it is part of the trace of the job.
    An exception of the handler is recorded and is the status of the span. ``tracer`` defaults
    to that of the global provider.
    """
    if tracer is None:
        tracer = trace.get_tracer("lucius")
    opened = tracer

    def middleware(task: Task, next: Handler) -> Any:
        span = opened.start_span(
            f"handle {task.step_type}", kind=trace.SpanKind.CONSUMER,
            context=_W3C.extract({"traceparent": task.traceparent}) if task.traceparent else None,
            attributes={
                "lucius.job_id": task.job_id, "lucius.tenant_id": task.tenant_id, "lucius.step_id": task.step_id,
                "lucius.step_type": task.step_type, "lucius.service": task.service, "lucius.attempt_no": task.attempt})
        awaited = False
        try:
            with trace.use_span(span):  # It records an exception.
                result = next(task)
            awaited = inspect.isawaitable(result)
        finally:
            if not awaited:
                span.end()
        return _awaited(span, result) if awaited else result
    return middleware


async def _awaited(span: trace.Span, result: Awaitable[Any]) -> Any:
    """Await in the span what an async handler returned."""
    with trace.use_span(span, end_on_exit=True):
        return await result
