"""The middleware of spans, on a stand-in for the package opentelemetry-api, which is not among the
requirements of these tests: it has the calls that the middleware makes, with their parameters."""

import contextlib
import contextvars
import enum
import logging
import sys
import types
import unittest

from lucius import Final, Task, Worker

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
current = contextvars.ContextVar("current", default=None)


class SpanKind(enum.Enum):
    INTERNAL = 0
    CONSUMER = 4


class Span:
    def __init__(self, name, context, kind, attributes):
        self.name, self.context, self.kind, self.attributes = name, context, kind, attributes
        self.exceptions, self.ends = [], 0

    def end(self):
        self.ends += 1


class Tracer:
    def __init__(self):
        self.spans = []

    def start_span(self, name, context=None, kind=SpanKind.INTERNAL, attributes=None):
        self.spans.append(Span(name, context, kind, attributes))
        return self.spans[-1]


@contextlib.contextmanager
def use_span(span, end_on_exit=False, record_exception=True, set_status_on_exception=True):
    token = current.set(span)
    try:
        yield span
    except Exception as error:
        if record_exception and set_status_on_exception:
            span.exceptions.append(error)
        raise
    finally:
        current.reset(token)
        if end_on_exit:
            span.end()


class TraceContextTextMapPropagator:
    def extract(self, carrier, context=None):
        return {"remote": carrier["traceparent"]}


def stand_in():
    """The modules of the package."""
    default = Tracer()
    trace = types.ModuleType("opentelemetry.trace")
    trace.Span, trace.Tracer, trace.SpanKind, trace.use_span = Span, Tracer, SpanKind, use_span
    trace.get_tracer = lambda name: default
    tracecontext = types.ModuleType("opentelemetry.trace.propagation.tracecontext")
    tracecontext.TraceContextTextMapPropagator = TraceContextTextMapPropagator
    package = types.ModuleType("opentelemetry")
    package.trace = trace
    return {"opentelemetry": package, "opentelemetry.trace": trace,
            "opentelemetry.trace.propagation": types.ModuleType("opentelemetry.trace.propagation"),
            "opentelemetry.trace.propagation.tracecontext": tracecontext}


class Spans(unittest.TestCase):
    def setUp(self):
        modules = stand_in()
        sys.modules.update(modules)
        self.addCleanup(lambda: [sys.modules.pop(name, None) for name in [*modules, "lucius.opentelemetry"]])
        logging.getLogger("lucius").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("lucius").setLevel, logging.NOTSET)

    def span(self, handler, **directive):
        """The span of a handler, and what is reported."""
        from lucius.opentelemetry import spans
        tracer = Tracer()
        worker = Worker("extract", middleware=[spans(tracer)])
        worker.step("EXTRACT")(handler)
        outcome = worker.do(Task.of("EXTRACT", attempt=3, **directive))
        [span] = tracer.spans
        self.assertEqual(span.ends, 1)
        return span, outcome

    def test_a_span_is_part_of_the_jobs_trace(self):
        inside = []
        span, outcome = self.span(lambda task: inside.append(current.get()), traceparent=PARENT)
        self.assertEqual(span.context, {"remote": PARENT})
        self.assertEqual(inside, [span])
        self.assertEqual((span.name, span.kind), ("handle EXTRACT", SpanKind.CONSUMER))
        self.assertEqual(span.attributes, {
            "lucius.job_id": "job", "lucius.tenant_id": "tenant", "lucius.step_id": "step",
            "lucius.step_type": "EXTRACT", "lucius.service": "service", "lucius.attempt_no": 3})
        self.assertEqual((span.exceptions, outcome.code), ([], ""))

    def test_an_async_handler_has_its_span_until_it_ends(self):
        inside = []

        async def handler(task):
            inside.append((current.get(), current.get().ends))
            return {"uri": "x"}
        span, outcome = self.span(handler)
        self.assertEqual(inside, [(span, 0)])
        self.assertEqual(outcome.result, {"uri": "x"})

    def test_a_failure_is_recorded(self):
        def fail(task):
            raise Final("TOO_LONG", "that is no summary")

        async def fail_later(task):
            fail(task)
        for handler in (fail, fail_later):
            with self.subTest(handler.__name__):
                span, outcome = self.span(handler)
                self.assertIsNone(span.context)
                self.assertEqual([str(error) for error in span.exceptions], [str(Final("TOO_LONG", "that is no summary"))])
                self.assertEqual(outcome.code, "TOO_LONG")


if __name__ == "__main__":
    unittest.main()
