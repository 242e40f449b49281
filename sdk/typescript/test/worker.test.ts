import assert from "node:assert/strict";
import test from "node:test";

import { anyStep, type Fields, Final, type Handler, type Middleware, ProblemError, Retry, RetryAfter, Throttled, Worker, type WorkerOptions } from "../src/index.js";
import { type Accepts, type Answer, type Asked, fake, queue, type Refuse } from "./fake.js";

const warnings: Error[] = [];
process.on("warning", (warning) => warnings.push(warning));
test.after(() => assert.deepEqual(warnings, []));

const silent = { info() {}, warn() {}, error() {} };

/** The answer of a proxy without a way to the server. */
const noRoute = { status: 404, body: { code: 404, message: "no route" }, headers: { "content-type": "application/json" } };

/** Run a worker until all tasks are reported, and return the reports. */
async function run(payloads: unknown[], handler: Handler, options: Partial<WorkerOptions> = {}, lease = {}) {
  const server = await queue(payloads, lease);
  const worker = new Worker({ service: "extract", url: server.url, token: "secret-token", logger: silent, ...options });
  const running = worker.step("EXTRACT", handler).run();
  await Promise.race([server.reported, running]);
  worker.stop();
  await running;
  server.close();
  return server.reports;
}

const claims = (asked: Asked[]) => asked.filter(({ path }) => path === "/v1/work:claim").map(({ body }) => body.step_types);

async function report(handler: Handler, options: Partial<WorkerOptions> = {}) {
  const [one, ...more] = await run([{ language: "en" }], handler, options);
  assert.equal(more.length, 0);
  assert.ok(one);
  return one;
}

test("a result is reported", async () => {
  const { verb, body } = await report((task) => ({ uri: `${task.inputRef?.uri}.json` }));
  assert.equal(verb, "complete");
  assert.deepEqual([body.result_ref, body.expected_rev], [{ uri: "s3://bucket/in.pdf.json" }, 2]);
});

test("nothing is a result", async () => {
  const { verb, body } = await report(() => {});
  assert.deepEqual([verb, body.result_ref], ["complete", undefined]);
});

test("errors say what comes next", async () => {
  const cases: [unknown, unknown[]][] = [
    [new Final("NO_LANGUAGE", "which?"), [false, "NO_LANGUAGE", "which?", undefined]],
    [new Retry("BUSY"), [true, "BUSY", "", undefined]],
    [new RetryAfter(30, "BUSY"), [true, "BUSY", "", 30]],
    [new TypeError("no page"), [true, "work_failed", "TypeError: no page", undefined]],
    [new Error("401 for secret-token"), [true, "work_failed", "Error: 401 for [secret]", undefined]],
    [new Final("of secret-token", "401 for secret-token"), [false, "of [secret]", "401 for [secret]", undefined]],
    [new Retry("BUSY", "x".repeat(996) + "secret-token"), [true, "BUSY", "x".repeat(996) + "[sec", undefined]],
    ["thrown text", [true, "work_failed", "thrown text", undefined]],
    [Object.create(null), [true, "work_failed", "the handler failed", undefined]],
    [new Final(404 as any, 5 as any), [false, "404", "5", undefined]],
    [new Final("é".repeat(100)), [false, "é".repeat(64), "", undefined]],
    [new RetryAfter(NaN), [true, "retry_after", "", 0]],
  ];
  for (const [error, want] of cases) {
    const { verb, body } = await report(() => { throw error; });
    assert.equal(verb, "fail");
    assert.deepEqual([body.retryable, body.error.code, body.error.message, body.retry_after_seconds], want);
  }
});

test("a throttle says for whom", async () => {
  const cases: [RetryAfter, unknown[]][] = [
    [new Throttled(30), ["throttled", "service", 30]],
    [new Throttled(30, "HTTP_429", "", { scope: "tenant" }), ["HTTP_429", "tenant", 30]],
    [new Throttled(0), ["throttled", "service", 0.001]],
    [new Throttled(NaN), ["throttled", "service", 0.001]],
    [new Throttled(1e9), ["throttled", "service", 604_800]],
    [new RetryAfter(30), ["retry_after", undefined, 30]],
  ];
  for (const [error, want] of cases) {
    const { verb, body } = await report(() => { throw error; });
    assert.deepEqual([verb, body.retryable], ["fail", true]);
    assert.deepEqual([body.error.code, body.scope, body.retry_after_seconds], want);
  }
});

test("a short token is no secret", async () => {
  const { body } = await report(() => { throw new Error("not a token"); }, { token: "t" });
  assert.equal(body.error.message, "Error: not a token");
});

test("a failure after the cancellation says so", async () => {
  for (const error of [new Final("GIVEN_UP"), new Retry("BUSY"), new TypeError("no page")]) {
    const [one] = await run([{}], (task) => new Promise((_, reject) => {
      task.cancelled.addEventListener("abort", () => reject(error));
    }), {}, { seconds: 1, beat: { cancel_requested: true } });
    assert.deepEqual([one?.body.retryable, one?.body.error.code], [false, "cancelled"]);
  }
});

test("another worker gets the step soon after the grace", async () => {
  for (const error of [new Final("GIVEN_UP"), new RetryAfter(600), new TypeError("no page")]) {
    let one: { body: any } | undefined;
    // A machine that pauses for the last two seconds of the worker leaves no time for its report.
    for (let tries = 0; !one && tries < 20; tries++) {
      const server = await queue([{}]);
      const worker = new Worker({ service: "extract", url: server.url, logger: silent, grace: 0 });
      await worker.step("EXTRACT", (task) => new Promise((_, reject) => {
        worker.stop();
        task.cancelled.addEventListener("abort", () => reject(error));
      })).run();
      server.close();
      [one] = server.reports;
    }
    assert.deepEqual([one?.body.retryable, one?.body.error.code, one?.body.retry_after_seconds], [true, "worker_stopped", 1]);
  }
});

test("a worker claims the step types that it has handlers for", async () => {
  const server = await queue([{}]); // It gives the worker another one.
  const worker = new Worker({ service: "extract", url: server.url, logger: silent }).step("SCAN", () => {}).step("OCR", () => {});
  const running = worker.run();
  await server.reported;
  worker.stop();
  await running;
  server.close();
  assert.deepEqual(claims(server.asked)[0], ["OCR", "SCAN"]);
  const { verb, body } = server.reports[0]!;
  assert.deepEqual([verb, body.retryable, body.error], [
    "fail", true, { code: "step_type_unknown", message: "this worker has no handler for EXTRACT" },
  ]);
});

test("the handler of any step does what has no other", async () => {
  const server = await queue([{}]);
  const worker = new Worker({ service: "extract", url: server.url, logger: silent });
  worker.step("SCAN", () => { throw new Final("ANOTHERS_STEP"); });
  worker.step(anyStep, (task) => {
    worker.stop();
    return { uri: task.stepType };
  });
  await worker.run();
  server.close();
  assert.equal(claims(server.asked)[0], undefined);
  assert.deepEqual(server.reports.map(({ verb, body }) => [verb, body.result_ref]), [["complete", { uri: "EXTRACT" }]]);
});

test("an answer of another program does not end the worker", async () => {
  const answers: unknown[] = [{}, [], "", '"ok"'];
  const server = await fake(() => ({ status: 200, body: answers.length > 0 ? answers.pop() : { items: [] } }));
  const worker = new Worker({ service: "extract", url: server.url, logger: silent }).step("EXTRACT", () => {});
  const running = worker.run();
  while (server.asked.length < 6) await new Promise((resolve) => setTimeout(resolve, 20));
  worker.stop();
  await running;
  server.close();
});

test("a worker runs once", async () => {
  const worker = new Worker({ service: "extract", url: "http://127.0.0.1:1", logger: silent }).step("EXTRACT", () => {});
  worker.stop();
  await worker.run();
  await assert.rejects(worker.run(), /a worker runs once/);
});

test("a result that cannot be taken is final", async () => {
  const cases: [any, string][] = [
    ["s3://bucket/out.json", "result_invalid"], [{ pages: 3 }, "result_invalid"], [{ uri: " " }, "result_invalid"],
    [{ uri: "u", n: 1n }, "result_invalid"], [{ uri: "u", text: "ä".repeat(4096) }, "result_too_large"],
  ];
  for (const [result, code] of cases) {
    const { verb, body } = await report(() => result);
    assert.deepEqual([verb, body.retryable, body.error.code], ["fail", false, code]);
  }
});

test("middleware wraps handlers from outside in", async () => {
  const marks = (name: string): Middleware => async (task, next) => {
    const result = await next(task);
    return { uri: `${name}(${result?.uri})` };
  };
  const { body } = await report(() => ({ uri: "x" }), { middleware: [marks("a"), marks("b")] });
  assert.deepEqual(body.result_ref, { uri: "a(b(x))" });
});

test("long messages are cut between letters", async () => {
  const { body } = await report(() => { throw new Error("ä".repeat(5000)); });
  assert.match(body.error.message, /^Error: ä+$/);
  assert.ok(Buffer.byteLength(body.error.message) <= 1000);
});

/** Run a worker of 20 tasks that end together, and return what was reported, and the batches. */
async function together(refuse: Refuse = () => undefined) {
  const payloads = Array.from({ length: 20 }, (_, n) => ({ uri: `s3://${n}` }));
  const server = await queue(payloads, { refuse });
  let inHand = 0;
  let go = () => {};
  const all = new Promise<void>((resolve) => (go = resolve));
  const worker = new Worker({ service: "extract", url: server.url, logger: silent, parallel: 20 }).step("EXTRACT", async (task) => {
    if (++inHand === payloads.length) go();
    await all;
    return { uri: task.payload["uri"] };
  });
  const running = worker.run();
  await server.reported;
  worker.stop();
  await running;
  server.close();
  const reports = server.reports.map(({ verb, body }) => `${verb} ${body.result_ref?.uri ?? body.error.code}`).sort();
  return { reports, batches: server.batches };
}

const allCompleted = Array.from({ length: 20 }, (_, n) => `complete s3://${n}`).sort();

test("completions that are ready share a request", async () => {
  const { reports, batches } = await together();
  assert.deepEqual(reports, allCompleted);
  assert.deepEqual(batches, [20]);
});

test("a refusal is that of one completion", async () => {
  const refusal = { status: 413, body: { code: "too_large", detail: "It is." } };
  const { reports } = await together((body) => (body.result_ref?.uri === "s3://7" ? refusal : undefined));
  assert.deepEqual(reports, [...allCompleted.filter((one) => one !== "complete s3://7"), "fail result_refused"]);
});

test("a result that is no valid envelope fails the step", async () => {
  const refuse = () => ({ status: 400, body: { code: "invalid_envelope", detail: "It has half of a pair." } });
  const [one] = await run([{}], () => ({ uri: "u" }), {}, { refuse });
  assert.deepEqual([one?.verb, one?.body.error.code, one?.body.retryable], ["fail", "result_refused", false]);
});

test("a result has no halves of surrogate pairs", async () => {
  for (const [uri, verb] of [["s3://😀", "complete"], ["s3://\\ud83d", "complete"], ["s3://\ud83d", "fail"]]) {
    const { verb: said, body } = await report(() => ({ uri: uri! }));
    assert.deepEqual([said, body.error?.code], [verb, verb === "fail" ? "result_invalid" : undefined]);
  }
});

test("the completions of a refused batch are sent alone", async () => {
  const { reports, batches } = await together((body) => (body.items ? { status: 413, body: {} } : undefined));
  assert.deepEqual(reports, allCompleted);
  assert.deepEqual(batches, [20]);
});

test("each completion of a batch is repeated by itself", async () => {
  const left = [0, 503, 429];
  const { reports } = await together((body) => (body.items && left.length > 0 ? { status: left.pop()!, body: {} } : undefined));
  assert.deepEqual(reports, allCompleted);
});

test("a cancelled task aborts its signal", async () => {
  const causes: unknown[] = [];
  const [one] = await run([{}], (task) => new Promise((_, reject) => {
    task.cancelled.addEventListener("abort", () => {
      causes.push(task.cause);
      reject(task.cancelled.reason);
    });
  }), {}, { seconds: 1, beat: { cancel_requested: true } });
  assert.deepEqual(causes, ["cancelled"]);
  assert.deepEqual([one?.verb, one?.body.error.code, one?.body.retryable], ["fail", "cancelled", false]);
});

test("a refused claim ends the worker", async () => {
  const server = await fake(() => ({ status: 401, body: { code: "unauthenticated", detail: "The token is not known." } }));
  const worker = new Worker({ service: "extract", url: server.url, logger: silent }).step("EXTRACT", () => {});
  await assert.rejects(worker.run(), (error) => {
    assert.ok(error instanceof ProblemError);
    assert.equal(error.message, "the server answered 401 unauthenticated: The token is not known.");
    return true;
  });
  server.close();
});

test("a refused token is no lost lease", async () => {
  for (const [verb, error] of [["complete", undefined], ["fail", new TypeError("no page")]] as const) {
    let token = "old";
    let told = () => {};
    const warned = new Promise<void>((resolve) => (told = resolve)); // Of the refused heartbeat.
    const accepts: Accepts = ({ headers, path }) => {
      if (headers.authorization !== "Bearer expired") return true;
      if (path.endsWith(verb)) token = "new"; // It is reported again with the new token.
      return false;
    };
    const logged: string[] = [];
    const logger = { ...silent, warn: (message: string, fields: Fields) => {
      logged.push(`${message} ${JSON.stringify(fields)}`);
      told();
    } };
    const [one] = await run([{}], async (task) => {
      token = "expired";
      task.progress(0.5);
      await warned;
      await new Promise((resolve) => setTimeout(resolve, 100));
      if (task.cause) throw new Final(`CANCELLED ${task.cause}`);
      if (error) throw error;
    }, { token: () => token, logger }, { accepts });
    assert.deepEqual([one?.verb, one?.body.error?.code], [verb, error && "work_failed"]);
    assert.match(logged.join("\n"), /call repeated {"call":"heartbeat","tries":1,"error":"the server answered 401 unauthenticated/);
  }
});

test("a server that is away ends no work", async () => {
  const answers: Answer[] = [
    { status: 0 }, { status: 404, body: "<html>no route</html>" }, { status: 302 }, { status: 503, headers: { "retry-after": "60" } },
    { status: 401, body: { code: "unauthenticated" } }, noRoute,
  ];
  await Promise.all(answers.map(async (answer) => {
    const refused = { heartbeat: 0, complete: 0 };
    const instead = ({ path }: Asked) => {
      if (path.endsWith(":heartbeat")) return refused.heartbeat++, answer;
      // A report waits as long as it is asked to.
      if (path.endsWith(":complete") && refused.complete < 2) return refused.complete++, { ...answer, headers: { ...answer.headers, "retry-after": "0" } };
      return undefined;
    };
    let cause: unknown;
    const [one] = await run([{}], async (task) => {
      // The lease ends after one second.
      for (const end = performance.now() + 2500; performance.now() < end || refused.heartbeat < 3;) {
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      cause = task.cause;
    }, {}, { seconds: 1, instead });
    assert.deepEqual([one?.verb, cause, refused.complete], ["complete", undefined, 2]);
  }));
});

test("a lease counts from the first try of its claim", async (t) => {
  let now = performance.now(); // Only the server moves it: the delays follow from it.
  t.mock.method(performance, "now", () => now);
  const timers = t.mock.method(globalThis, "setTimeout");
  let tries = 0;
  const instead = ({ path }: Asked) => {
    if (path !== "/v1/work:claim" || tries++ > 0) return undefined;
    now += 59_000;
    return { status: 0 };
  };
  await run([{}], () => {}, {}, { seconds: 60, instead });
  const delays = timers.mock.calls.map(({ arguments: [, ms] }) => Math.round(ms ?? 0));
  assert.ok(delays.includes(333), `the first heartbeat is not after a third of the last second: ${delays}`);
});

test("an item that was taken is lost", async () => {
  for (const beat of [{ lease: undefined }, { attempt: 2 }]) {
    const server = await queue([{}], { seconds: 1, beat });
    const worker = new Worker({ service: "extract", url: server.url, logger: silent });
    let cause: unknown;
    worker.step("EXTRACT", (task) => new Promise((resolve) => {
      task.cancelled.addEventListener("abort", () => {
        cause = task.cause;
        worker.stop();
        resolve();
      });
    }));
    await worker.run();
    server.close();
    assert.deepEqual([cause, server.reports], ["lease_lost", []]);
  }
});

test("a claim asks for a lease", async () => {
  for (const [options, want] of [[{}, 90], [{ lease: 30 }, 30]] as const) {
    let asked: unknown;
    const instead = ({ path, body }: Asked) => {
      if (path === "/v1/work:claim") asked ??= body.lease_seconds;
      return undefined;
    };
    await run([{}], () => {}, options, { instead });
    assert.equal(asked, want);
  }
});

test("a claim says where the worker runs, and its version", async () => {
  for (const version of [undefined, "2.4.1"]) {
    let asked: Asked | undefined;
    const instead = (request: Asked) => {
      if (request.path === "/v1/work:claim") asked ??= request;
      return undefined;
    };
    await run([{}], () => {}, version ? { version } : {}, { instead });
    assert.equal(asked?.body.version, version);
    assert.ok(asked?.body.host);
  }
});

test("a claim is repeated until the token is replaced", async () => {
  let token = "old";
  const claims: unknown[] = [];
  const accepts: Accepts = ({ headers, path }) => {
    if (path === "/v1/work:claim" && claims.push(headers.authorization) === 4) token = "new";
    return ![2, 3, 4].includes(claims.length) || !path.endsWith(":claim");
  };
  const reports = await run([{}, {}], () => {}, { token: async () => token, parallel: 1 }, { accepts });
  assert.deepEqual(reports.map(({ verb }) => verb), ["complete", "complete"]);
  assert.deepEqual([claims[0], claims[4]], ["Bearer old", "Bearer new"]);
});

test("a claim outlasts the answers of a proxy", async () => {
  const page = { status: 404, headers: { "content-type": "text/plain" }, body: "no route" };
  for (const answer of [page, { status: 302 }, { status: 403, body: "<html>denied</html>" }, noRoute]) {
    let claims = 0;
    const instead = ({ path }: Asked) => (path === "/v1/work:claim" && [2, 3].includes(++claims) ? answer : undefined);
    const reports = await run([{}, {}], () => {}, { parallel: 1 }, { instead });
    assert.deepEqual(reports.map(({ verb }) => verb), ["complete", "complete"]);
  }
  const server = await fake(() => page); // The URL may be wrong.
  const worker = new Worker({ service: "extract", url: server.url, logger: silent }).step("EXTRACT", () => {});
  await assert.rejects(worker.run(), /the server answered 404/);
  server.close();
});

test("a fixed token that is refused ends the worker", async () => {
  let claims = 0;
  const server = await fake(() => (claims++ ? { status: 401, body: { code: "unauthenticated" } } : { status: 200, body: { items: [] } }));
  const worker = new Worker({ service: "extract", url: server.url, token: "t", logger: silent }).step("EXTRACT", () => {});
  await assert.rejects(worker.run(), /401 unauthenticated/);
  server.close();
});

test("the lease of an abandoned task is not extended", async () => {
  const instead = ({ path }: Asked) => {
    if (path.endsWith(":heartbeat")) worker.stop(); // The lease is kept until then.
    return undefined;
  };
  const server = await queue([{}], { seconds: 1, instead });
  const worker = new Worker({ service: "extract", url: server.url, logger: silent, grace: 0 });
  await worker.step("EXTRACT", () => new Promise(() => {})).run();
  const beats = () => server.asked.filter(({ path }) => path.endsWith(":heartbeat")).length;
  const before = beats();
  await new Promise((resolve) => setTimeout(resolve, 1000)); // Another two or three would be sent.
  assert.ok(beats() <= before + 1, `${beats() - before} heartbeats after the end`);
  server.close();
});

test("a server that shuts down is not asked all the time", async () => {
  const times: number[] = [];
  const server = await fake(() => {
    if (times.push(performance.now()) === 4) worker.stop();
    return { status: 200, body: { items: [] } };
  });
  const worker = new Worker({ service: "extract", url: server.url, logger: silent }).step("EXTRACT", () => {});
  const begun = performance.now();
  await worker.run();
  server.close();
  // The second claim follows the first at once, and each other one after half a second. A timer may be a little early.
  assert.ok(times[3]! - begun >= 990, `four claims in ${times[3]! - begun} ms`);
});

test("progress is made fit for a heartbeat", async () => {
  const shown: unknown[] = [];
  await run([{}], (task) => {
    task.progress(NaN, "ä".repeat(600));
    shown.push(task.takeProgress());
  });
  assert.deepEqual(shown, [{ fraction: 0, message: "ä".repeat(500) }]);
});

test("settings are checked", async () => {
  for (const options of [{ parallel: 0 }, { parallel: 101 }, { claimWait: 61 }, { grace: -1 }, { lease: 2 }, { lease: 86_401 }, { url: "ftp://host" }]) {
    assert.throws(() => new Worker({ service: "extract", ...options }), JSON.stringify(options));
  }
  const worker = new Worker({ service: "extract" });
  await assert.rejects(worker.run(), /no handler/);
  assert.throws(() => worker.step("EXTRACT", () => {}).step("EXTRACT", () => {}), /has a handler already/);
});
