import assert from "node:assert/strict";
import test from "node:test";

import { type Handler, type Middleware, RetryAfter, type Schema, Task, Worker } from "../src/index.js";
import { queue } from "./fake.js";

interface Extract {
  words: number;
}

interface Extracted {
  uri: string;
  words: number;
}

/** A schema as those of zod and valibot: an object with a number of words, given as text or not. */
const schema: Schema<Extract> = {
  "~standard": {
    version: 1, vendor: "test",
    async validate(value) {
      const words = Number((value as Record<string, unknown>)["words"]);
      if (words >= 0) return { value: { words } };
      return { issues: [{ message: "must be a number", path: ["words"] }, { message: "no", path: [{ key: "a/b" }, 0] }, { message: "wrong" }] };
    },
  },
};

const silent = { info() {}, warn() {}, error() {} };

/** The report of a worker that does one task. */
async function report(payload: unknown, register: (worker: Worker) => Worker, middleware: Middleware[] = []) {
  const server = await queue([payload]);
  const worker = register(new Worker({ service: "extract", url: server.url, logger: silent, middleware }));
  const running = worker.run();
  await server.reported;
  worker.stop();
  await running;
  server.close();
  return server.reports[0]!;
}

test("a handler says what its payload and its result are", async () => {
  const { body } = await report({ words: 3 }, (worker) => worker.step<Extract, Extracted>("EXTRACT", (task) => {
    const words: number = task.payload.words;
    // @ts-expect-error A payload has what its type has.
    void task.payload.pages;
    return { uri: "u", words };
  }));
  assert.deepEqual(body.result_ref, { uri: "u", words: 3 });
  const extract: Handler<Extract, Extracted> = ({ payload }) => ({ uri: "u", words: payload.words });
  // @ts-expect-error A result has a uri.
  new Worker({ service: "extract" }).step("EXTRACT", extract).step<Extract>("OTHER", () => ({ words: 1 }));
  new Worker({ service: "extract" }).step("EXTRACT", async (task: Task<Extract>) => ({ uri: "u", more: task.payload.words }));
});

test("a schema validates the payload and says its type", async () => {
  const { body } = await report({ words: "3" }, (worker) => {
    worker.step("EXTRACT", { payload: schema }, async ({ payload }) => {
      const words: number = payload.words;
      return { uri: "u", words };
    });
    return worker;
  });
  assert.deepEqual(body.result_ref, { uri: "u", words: 3 });
});

test("a payload that does not fit fails the step for good", async () => {
  const { verb, body } = await report({}, (worker) => worker.step("EXTRACT", { payload: schema }, () => {}));
  assert.deepEqual([verb, body.retryable, body.error], [
    "fail", false, { code: "payload_invalid", message: "/words: must be a number; /a~1b/0: no; wrong" },
  ]);
});

test("middleware sees the task before it is validated", async () => {
  const seen: unknown[] = [];
  const middleware: Middleware = async (task, next) => {
    seen.push(task.payload);
    return next(task);
  };
  await report({ words: "3" }, (worker) => worker.step("EXTRACT", { payload: schema }, (task) => void seen.push(task.payload)), [middleware]);
  assert.deepEqual(seen, [{ words: "3" }, { words: 3 }]);
});

test("a task is done without a server", async () => {
  const worker = new Worker({ service: "extract", logger: silent });
  worker.step("EXTRACT", (task) => {
    task.cancelled.throwIfAborted();
    if (task.attempt === 1) throw new RetryAfter(30, "BUSY", "It is busy.");
    return { uri: `${task.jobId}/${task.payload["n"]}` };
  });
  worker.step("TYPED", { payload: schema }, ({ payload }) => ({ uri: `${payload.words}` }));
  assert.deepEqual(await worker.do(Task.of("EXTRACT", {})), { code: "BUSY", message: "It is busy.", retryable: true, after: 30 });
  assert.deepEqual(await worker.do(Task.of("EXTRACT", { n: 1 }, { attempt_no: 2, jobId: "j1" })), { result: { uri: "j1/1" }, retryable: false });
  assert.deepEqual(await worker.do(Task.of("TYPED", { words: "3" })), { result: { uri: "3" }, retryable: false });
  const late = Task.of("EXTRACT", {});
  late.cancel("cancelled");
  assert.deepEqual(await worker.do(late), { code: "cancelled", message: "Cancelled: cancelled", retryable: false });
  assert.equal((await worker.do(Task.of("OCR", {}))).code, "step_type_unknown");
});
