/** The conformance worker: sdk/conformance/README.md says what it does. */

import { readFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";

import { anyStep, Final, jsonLogger, Retry, RetryAfter, type Task, Throttled, Worker } from "../src/index.js";

function say(event: string, task: Task, more: Record<string, unknown> = {}): void {
  process.stdout.write(JSON.stringify({ event, jobId: task.jobId, attempt: task.attempt, ...more }) + "\n");
}

function result(task: Task) {
  return { uri: `conformance://${task.jobId}/${task.attempt}`, ...(task.traceparent ? { traceparent: task.traceparent } : {}) };
}

async function sleep(task: Task): Promise<void> {
  const ms = (task.payload["seconds"] ?? 0) * 1000;
  task.pauseRequested.addEventListener("abort", () => say("pause_requested", task));
  if (task.payload["deaf"]) {
    await delay(ms);
    return;
  }
  try {
    await delay(ms, undefined, { signal: task.cancelled });
  } catch (error) {
    say("cancelled", task, { cause: task.cause });
    throw error;
  }
}

async function act(task: Task) {
  const what = task.payload["do"];
  const first = task.attempt === 1;
  if (what === "final") throw new Final("CONFORMANCE_FINAL", "told to fail");
  if (what === "quote_token") {
    const token = await readFile(process.env["LUCIUS_TOKEN_FILE"]!, "utf8");
    throw new Final("CONFORMANCE_FINAL", `refused: Bearer ${token.trim()}`);
  }
  if (what === "retry_once" && first) throw new Retry("CONFORMANCE_RETRY", "told to retry");
  if (what === "retry_after" && first) {
    throw new RetryAfter(task.payload["seconds"], "CONFORMANCE_RETRY_AFTER", "told to retry later");
  }
  if (what === "throttled" && first) {
    throw new Throttled(task.payload["seconds"], "CONFORMANCE_THROTTLED", "told that the service is throttled");
  }
  if (what === "throttled_tenant" && first) {
    throw new Throttled(task.payload["seconds"], "CONFORMANCE_THROTTLED", "told that the tenant is throttled", { scope: "tenant" });
  }
  if (what === "throw" && first) throw new TypeError("thrown in attempt 1");
  if (what === "too_large") return { ...result(task), filler: "x".repeat(9000) };
  if (what === "progress") task.progress(0.5, "half");
  if (["progress", "sleep", "refused"].includes(what)) await sleep(task);
  if (what === "refused") return { ...result(task), uri: result(task).uri + "x".repeat(3000) };
  return result(task);
}

const worker = new Worker({
  service: process.env["CONFORMANCE_SERVICE"]!,
  parallel: Number(process.env["CONFORMANCE_PARALLEL"]),
  grace: Number(process.env["CONFORMANCE_GRACE_SECONDS"]),
  lease: Number(process.env["CONFORMANCE_LEASE_SECONDS"]),
  logger: jsonLogger,
});
worker.step(process.env["CONFORMANCE_ANY_STEP"] ? anyStep : "CONFORM", async (task) => {
  say("started", task);
  try {
    return await act(task);
  } finally {
    say("ended", task);
  }
});
await worker.run();
