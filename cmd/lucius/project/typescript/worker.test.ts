// Tests of the worker's handlers, without a server: npm test
import assert from "node:assert/strict";
import { test } from "node:test";

import { Task } from "lucius";

import { worker } from "./worker.js";

test("extract", async () => {
  const outcome = await worker.do(Task.of("EXTRACT", {}, { input_ref: { uri: "s3://bucket/report.pdf" } }));
  assert.deepEqual(outcome.result, { uri: "s3://bucket/report.pdf.txt" });
});

test("summarize", async () => {
  const outcome = await worker.do(Task.of("SUMMARIZE", { words: 100 }, { input_ref: { uri: "s3://bucket/text" } }));
  assert.deepEqual(outcome.result, { uri: "s3://bucket/text.summary", words: 100 });
});

test("a long summary fails for good", async () => {
  const outcome = await worker.do(Task.of("SUMMARIZE", { words: 20_000 }, { input_ref: { uri: "s3://bucket/text" } }));
  assert.equal(outcome.code, "TOO_LONG");
  assert.equal(outcome.retryable, false);
});

test("publish", async () => {
  const outcome = await worker.do(Task.of("PUBLISH", {}, { output_ref: { uri: "s3://bucket/out" } }));
  assert.deepEqual(outcome.result, { uri: "s3://bucket/out" });
});
