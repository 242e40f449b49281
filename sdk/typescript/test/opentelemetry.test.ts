import assert from "node:assert/strict";
import { test } from "node:test";

import { context, SpanKind, SpanStatusCode, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";

import { Final, Task, Worker, type Logger, type Result } from "../src/index.js";
import { spans } from "../src/opentelemetry.js";

const traceId = "4bf92f3577b34da6a3ce929d0e0e4736";
const spanId = "00f067aa0ba902b7";
const silent: Logger = { info() {}, warn() {}, error() {} };

context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());

/** Run a handler in the middleware, and return its span. */
async function span(handler: () => Promise<Result | void>, traceparent: string | null) {
  const exporter = new InMemorySpanExporter();
  const provider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] });
  const worker = new Worker({ service: "extract", logger: silent, middleware: [spans(provider.getTracer("test"))] })
    .step("EXTRACT", handler);
  await worker.do(Task.of("EXTRACT", {}, { traceparent, jobId: "job-1", attempt_no: 3 }));
  const [ended, ...more] = exporter.getFinishedSpans();
  assert.ok(ended);
  assert.equal(more.length, 0);
  return ended;
}

test("a span is part of the job's trace", async () => {
  let inside: string | undefined;
  const ended = await span(async () => {
    await null;
    inside = trace.getActiveSpan()?.spanContext().spanId;
  }, `00-${traceId}-${spanId}-01`);
  assert.equal(ended.spanContext().traceId, traceId);
  assert.equal(ended.parentSpanContext?.spanId, spanId);
  assert.equal(inside, ended.spanContext().spanId);
  assert.equal(ended.name, "handle EXTRACT");
  assert.equal(ended.kind, SpanKind.CONSUMER);
  assert.equal(ended.status.code, SpanStatusCode.UNSET);
  assert.deepEqual(ended.attributes, {
    "lucius.job_id": "job-1", "lucius.tenant_id": "tenant", "lucius.step_id": "step",
    "lucius.step_type": "EXTRACT", "lucius.service": "service", "lucius.attempt_no": 3,
  });
});

test("a failure is the status of its span", async () => {
  const ended = await span(async () => { throw new Final("TOO_LONG", "that is no summary"); }, null);
  assert.equal(ended.parentSpanContext, undefined);
  assert.deepEqual(ended.status, { code: SpanStatusCode.ERROR, message: "that is no summary" });
  assert.deepEqual(ended.events.map((event) => event.name), ["exception"]);
});

test("a traceparent that is none begins a trace", async () => {
  for (const wrong of ["", "00-zz-1-01", `00-${traceId}-${spanId}`]) {
    assert.equal((await span(async () => undefined, wrong)).parentSpanContext, undefined);
  }
});
