import assert from "node:assert/strict";
import test from "node:test";

import { Final, type Fields, type Handler, jsonLogger, type Logger, textLogger, Worker } from "../src/index.js";
import { seconds } from "../src/log.js";
import { type Answer, type Asked, queue, type Refuse } from "./fake.js";

const task = { job_id: "job0", step_id: "extract", step_type: "EXTRACT", attempt: 1 };
type Line = [level: string, message: string, fields: Fields];

/** What the worker says after its start, until the queue is done, and its claims. */
async function logged(handler: Handler, options: Parameters<typeof queue>[1] = {}, { grace = 10, until = undefined as Promise<void> | undefined } = {}) {
  const lines: Line[] = [];
  const keep = (level: string) => (message: string, { duration, stack, ...fields }: Fields) => {
    assert.match(String(duration ?? "1.0s"), /^(\d\.\d{3}|\d+\.\d)s$/);
    for (const [name, value] of Object.entries(fields)) if (value === server.url) fields[name] = "SERVER";
    if (message === "last claim unanswered") return; // On a machine that pauses while the worker stops.
    lines.push([level, message, { ...fields, ...(stack ? { stack: String(stack).split("\n")[0]! } : {}) }]);
  };
  const logger: Logger = { info: keep("info"), warn: keep("warn"), error: keep("error") };
  const server = await queue([{}], options);
  const worker = new Worker({ service: "extract", url: server.url, owner: "worker-7", logger, grace });
  const running = worker.step("EXTRACT", handler).run();
  await (until ?? server.reported);
  worker.stop();
  await running;
  await new Promise((resolve) => setTimeout(resolve, 50)); // What is abandoned may say more.
  server.close();
  assert.deepEqual(lines.shift(), ["info", "worker started", {
    owner: "worker-7", services: "extract", steps: "EXTRACT", server: "SERVER", parallel: 4,
  }]);
  return { lines, waits: server.asked.filter(({ path }) => path.endsWith(":claim")).map(({ body }) => body.wait_seconds) };
}

/** Answers the first requests for a path in the queue's place. */
function first(times: number, verb: string, answer: Answer): (asked: Asked) => Answer | undefined {
  return ({ path }) => (path.endsWith(`:${verb}`) && times-- > 0 ? answer : undefined);
}

test("a task", async () => {
  const { lines } = await logged(() => ({ uri: "u" }));
  assert.deepEqual(lines, [["info", "task ended", { ...task, outcome: "succeeded" }]]);
});

test("a failure", async () => {
  const { lines } = await logged(() => { throw new Final("NO_PAGES", "it has no pages"); });
  assert.deepEqual(lines, [["info", "task ended", { ...task, outcome: "failed", error: "NO_PAGES: it has no pages" }]]);
});

test("an error", async () => {
  const { lines } = await logged(() => { throw new TypeError("no page"); });
  assert.deepEqual(lines, [
    ["error", "handler crashed", { ...task, error: "TypeError: no page", stack: "TypeError: no page" }],
    ["info", "task ended", { ...task, outcome: "retry", error: "work_failed: TypeError: no page" }],
  ]);
});

test("a refused result", async () => {
  const body = { code: "ref_invalid", detail: "It is not taken." };
  let times = 1;
  const { lines } = await logged(() => ({ uri: "u" }), { refuse: () => (times-- > 0 ? { status: 422, body } : undefined) });
  const error = "the server answered 422 ref_invalid: It is not taken.";
  assert.deepEqual(lines, [
    ["warn", "result refused", { ...task, error }],
    ["info", "task ended", { ...task, outcome: "failed", error: `result_refused: ${error}` }],
  ]);
});

test("a refused report", async () => {
  let told = () => {};
  const until = new Promise<void>((resolve) => (told = resolve));
  const refuse: Refuse = () => (told(), { status: 409, body: { code: "stale_attempt", detail: "It is not taken." } });
  const { lines } = await logged(() => ({ uri: "u" }), { refuse }, { until });
  const error = "the server answered 409 stale_attempt: It is not taken.";
  assert.deepEqual(lines, [
    ["warn", "result refused", { ...task, error }],
    ["info", "task ended", { ...task, outcome: "refused", error }],
  ]);
});

test("a lost lease", async () => {
  let lost = () => {};
  const until = new Promise<void>((resolve) => (lost = resolve));
  const { lines } = await logged((task) => new Promise((resolve) => {
    task.cancelled.addEventListener("abort", () => (lost(), resolve()));
    task.progress(0.5); // It is sent at once, with a heartbeat.
  }), { beat: { lease: undefined } }, { until });
  const error = "the item was taken from the worker";
  assert.deepEqual(lines, [
    ["warn", "lease lost", { ...task, error }],
    ["info", "task ended", { ...task, outcome: "lease_lost", error }],
  ]);
});

test("an outage", async () => {
  const { lines, waits } = await logged(() => {}, { instead: first(5, "claim", { status: 0 }) });
  const [[, , { error }]] = lines as [Line];
  assert.match(String(error), /^POST \/v1\/work:claim: fetch failed: /);
  assert.deepEqual(lines, [
    ["warn", "server unreachable", { server: "SERVER", error }],
    ["info", "server reachable", { server: "SERVER" }],
    ["info", "task ended", { ...task, outcome: "succeeded" }],
  ]);
  assert.deepEqual(waits.slice(0, 6), [0, 0, 0, 0, 0, 0]);
});

test("a warning is logged once", async () => {
  const unknown = { code: "service_unknown", message: "no protocol has service extract (services: ocr)" };
  const denied = { code: "service_not_allowed", message: "the token does not cover extract" };
  const warnings = [[unknown], [unknown, denied], [denied], [], [unknown], [unknown]];
  const instead = ({ path }: Asked): Answer | undefined =>
    path.endsWith(":claim") && warnings.length > 0 ? { status: 200, body: { items: [], warnings: warnings.shift() } } : undefined;
  const { lines, waits } = await logged(() => {}, { instead }); // It goes on polling.
  assert.deepEqual(waits.slice(0, 3), [0, 20, 20]);
  const line = ["warn", "claim warning", { code: "service_unknown", warning: unknown.message }];
  assert.deepEqual(lines, [
    line, ["warn", "claim warning", { code: "service_not_allowed", warning: denied.message }], line,
    ["info", "task ended", { ...task, outcome: "succeeded" }],
  ]);
});

test("a busy server", async () => {
  const instead = first(3, "complete", { status: 503, body: { code: "store_unavailable", detail: "The disk is full." } });
  const { lines } = await logged(() => {}, { instead });
  const error = "the server answered 503 store_unavailable: The disk is full.";
  assert.deepEqual(lines, [
    ["warn", "call repeated", { call: "complete", tries: 1, error }],
    ["warn", "call repeated", { call: "complete", tries: 2, error }],
    ["info", "task ended", { ...task, outcome: "succeeded" }],
  ]);
});

test("a stop without a server", async () => {
  let tried = () => {};
  const until = new Promise<void>((resolve) => (tried = resolve));
  let tries = 0;
  const instead = ({ path }: Asked): Answer | undefined => {
    if (!path.endsWith(":complete")) return undefined;
    if (++tries > 1) tried(); // So the worker has noticed that the first one had no answer.
    return { status: 0 };
  };
  const { lines } = await logged(() => {}, { instead }, { until, grace: 0.1 });
  const said = lines.map(([level, message, { error: _, ...fields }]) => [level, message, fields]);
  assert.deepEqual(said, [
    ["warn", "server unreachable", { server: "SERVER" }],
    ["warn", "task abandoned", task],
    ["warn", "result not sent", task],
    ["info", "task ended", { ...task, outcome: "not_sent" }],
  ]);
});

test("durations are for people", () => {
  assert.deepEqual([12.3, 950, 1000, 38_710, 412_300].map(seconds), ["0.012s", "0.950s", "1.0s", "38.7s", "412.3s"]);
});

test("lines are for people or JSON", (t) => {
  const { mock } = t.mock.method(console, "error", () => {});
  textLogger.warn("result refused", { step_id: "extract", attempt: 1, error: 'no "uri"', stack: "Error\n    at f" });
  jsonLogger.info("task ended", { step_id: "extract", attempt: 1 });
  const [text, json] = mock.calls.map((call) => String((call.arguments as unknown[])[0]));
  assert.match(text ?? "", /^\d{4}\/\d\d\/\d\d \d\d:\d\d:\d\d WARN result refused step_id=extract attempt=1 error="no \\"uri\\""\nError\n    at f$/);
  const { time, ...line } = JSON.parse(json ?? "");
  assert.deepEqual([new Date(time).toISOString(), line], [time, { level: "INFO", msg: "task ended", step_id: "extract", attempt: 1 }]);
});
