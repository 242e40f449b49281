import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

import { Client, type Command, type LineOptions, NoAnswerError, ProblemError, type RerunRequest, TimedOutError } from "../src/index.js";
import { type Answer, fake } from "./fake.js";

const command: Command = {
  tenant_id: "tenant_a", request_type: "doc.ingest", schema_version: "1", payload: { language: "en" },
  input_ref: { uri: "s3://bucket/in.pdf" }, output_ref: { uri: "s3://bucket/out.json" },
};
const receipt = { jobId: "j1", state: "DISPATCHING", replayed: false, correlation_id: "c" };

/** A client of a server that gives these answers, the last one for ever. */
async function serve(t: { after(f: () => void): void }, answers: Answer[]) {
  const left = [...answers];
  const server = await fake(() => (left.length > 1 ? left.shift()! : left[0]!));
  t.after(server.close);
  return { client: new Client({ url: server.url, token: async () => "t" }), asked: server.asked, url: server.url };
}

function event(number: number, to = "IN_PROGRESS") {
  return { event_id: `e${number}`, rev: number, type: "job.changed", at: "", actor: "worker", object: "job", to };
}

const stream = (...events: unknown[]) => `: open\n\n${events.map((e) => `id: x\nevent: y\ndata: ${JSON.stringify(e)}\n\n`).join("")}`;

test("calls without an answer are repeated", async (t) => {
  const { client, asked } = await serve(t, [
    { status: 0 }, { status: 503, body: {}, headers: { "retry-after": "0" } }, { status: 429, body: {} },
    { status: 500, body: "oops" }, { status: 202, body: receipt },
  ]);
  assert.deepEqual(await client.submit(command), receipt);
  assert.equal(asked.length, 5);
  assert.equal(new Set(asked.map((a) => JSON.stringify(a.body))).size, 1);
  assert.equal(asked[0]?.headers.authorization, "Bearer t");
});

test("the code of a proxy is not the server's", async (t) => {
  const { client } = await serve(t, [{ status: 404, body: { code: 404, message: "no route" }, headers: { "content-type": "application/json" } }]);
  for (const call of [client.get("j1"), client.watch("j1").next()]) {
    await assert.rejects(call, (error) => error instanceof ProblemError && error.status === 404 && error.code === "");
  }
});

test("retries end", async (t) => {
  const { url } = await serve(t, [{ status: 503, body: { code: "store_unavailable" } }]);
  await assert.rejects(new Client({ url, retryFor: 0.01 }).get("j1"), /503 store_unavailable/);
  await assert.rejects(new Client({ url: "http://127.0.0.1:1", retryFor: 0.01 }).get("j1"), NoAnswerError);
});

test("a token is trimmed", async (t) => {
  const { url, asked } = await serve(t, [{ status: 200, body: {} }]);
  await new Client({ url, token: () => " t\n" }).get("j1");
  assert.equal(asked[0]?.headers.authorization, "Bearer t");
});

test("a token is read for each request", async (t) => {
  const { url, asked } = await serve(t, [{ status: 200, body: {} }]);
  const folder = await mkdtemp(join(tmpdir(), "lucius-"));
  t.after(() => rm(folder, { recursive: true }));
  const file = join(folder, "token");
  const before = { ...process.env };
  t.after(() => (process.env = before));
  Object.assign(process.env, { LUCIUS_TOKEN: "", LUCIUS_TOKEN_FILE: file });
  const client = new Client({ url, retryFor: 0 });
  for (const token of ["first\n", "\n", "second"]) {
    await writeFile(file, token);
    if (token === "\n") await assert.rejects(client.get("j1"), NoAnswerError);
    else await client.get("j1");
  }
  assert.deepEqual(asked.map(({ headers }) => headers.authorization), ["Bearer first", "Bearer second"]);
});

test("a token that no header can hold is not sent, and not quoted", async (t) => {
  const { url, asked } = await serve(t, [{ status: 200, body: {} }]);
  assert.throws(() => new Client({ url, token: "two\nlines" }), /^TypeError: the token has characters/);
  await assert.rejects(new Client({ url, token: () => "two\nlines", retryFor: 0 }).get("j1"), (error) => {
    assert.ok(error instanceof NoAnswerError);
    assert.equal(error.message, "GET /v1/jobs/j1: the token has characters that a header cannot hold");
    return true;
  });
  assert.equal(asked.length, 0);
});

test("a request that cannot be encoded is not sent", async (t) => {
  const { client, asked } = await serve(t, [{ status: 202, body: receipt }]);
  const wrong = { ...command, payload: { n: 1n } };
  await assert.rejects(client.submit(wrong), TypeError);
  await assert.rejects(client.submitBatch([wrong]), TypeError);
  assert.equal(asked.length, 0);
});

test("an answer that is no JSON object is none", async (t) => {
  const { client } = await serve(t, [...["<html>", "", '"ok"', "[]"].map((body) => ({ status: 200, body })), { status: 202, body: receipt }]);
  assert.deepEqual(await client.submit(command), receipt);
});

test("a wait ends in time without a server", async (t) => {
  const { url } = await serve(t, [{ status: 503, body: { code: "store_unavailable" } }]);
  const begun = performance.now();
  await assert.rejects(new Client({ url, retryFor: 600 }).wait("j1", { timeout: 0.1 }), /503 store_unavailable/);
  assert.ok(performance.now() - begun < 300_000);
});

test("a watch ends with its signal", async (t) => {
  const controller = new AbortController();
  const server = await fake(({ path }) => {
    if (path.endsWith("/events")) return { status: 503, body: {} };
    setTimeout(() => {
      const timer = setTimeout(late, 5_000, new Error("the watch went on")); // Sooner than the call times out.
      t.after(() => clearTimeout(timer));
      controller.abort();
    }, 50);
    return new Promise(() => {}); // The job is never answered.
  });
  t.after(server.close);
  let late: (error: Error) => void;
  const goesOn = new Promise<never>((_, reject) => (late = reject));
  const watch = new Client({ url: server.url }).watch("j1", { signal: controller.signal });
  await assert.rejects(Promise.race([watch.next(), goesOn]), (error) => error === controller.signal.reason);
});

test("a wait ends with its signal", async (t) => {
  const { client } = await serve(t, [{ status: 200, body: { state: "IN_PROGRESS" } }]);
  const signal = AbortSignal.timeout(100);
  await assert.rejects(client.wait("j1", { signal }), (error) => error === signal.reason);
  await assert.rejects(client.wait("j1", { signal }), (error) => error === signal.reason);
});

test("redirects are not followed", async (t) => {
  const { client, asked } = await serve(t, [{ status: 301, body: "", headers: { location: "/elsewhere" } }]);
  await assert.rejects(client.submit(command), /the server answered 301/);
  assert.equal(asked.length, 1);
});

test("a server that shuts down is not asked all the time", async (t) => {
  const { client, asked } = await serve(t, [{ status: 200, body: { state: "IN_PROGRESS" } }]);
  await assert.rejects(client.wait("j1", { timeout: 0.4 }), TimedOutError);
  assert.ok(asked.length <= 2);
});

test("a batch of any size is split", async () => {
  const server = await fake(({ body }) => ({
    status: 200, body: { results: body.commands.map((c: { idempotency_key: string }) => ({ status: 202, jobId: c.idempotency_key })) },
  }));
  const client = new Client({ url: server.url });
  const keys = Array.from({ length: 201 }, (_, n) => String(n));
  const results = await client.submitBatch(keys.map((idempotency_key) => ({ ...command, idempotency_key })));
  assert.deepEqual(results.map((one) => "jobId" in one && one.jobId), keys);
  assert.deepEqual(await client.submitBatch([]), []);
  server.close();
  assert.deepEqual(server.asked.map(({ body }) => body.commands.length), [100, 100, 1]);
});

test("a batch repeats the commands without a decision", async (t) => {
  const busy = { status: 503, error: { code: "store_unavailable" } };
  const taken = { status: 202, ...receipt };
  const met = { status: 409, error: { code: "conflict" } };
  const answers = [{ results: [busy, { status: 422, error: { code: "c" } }, met] }, { results: [busy] }, { results: [taken, busy] }, { results: [taken] }];
  const { client, asked } = await serve(t, answers.map((body) => ({ status: 200, body })));
  const results = await client.submitBatch(["a", "b", "c"].map((idempotency_key) => ({ ...command, idempotency_key })));
  assert.deepEqual(results.map((one) => (one instanceof ProblemError ? one.code : one.jobId)), ["j1", "c", "j1"]);
  assert.deepEqual(asked.map(({ body }) => body.commands.map((c: Command) => c.idempotency_key).join("")), ["abc", "ac", "ac", "c"]);
});

test("a batch repeats the rest of a line", async (t) => {
  const [busy, left] = [{ status: 503, error: { code: "store_unavailable" } }, { status: 409, error: { code: "predecessor_refused" } }];
  const taken = { status: 202, ...receipt };
  const { client, asked } = await serve(t, [{ results: [busy, taken, left] }, { results: [taken, taken] }].map((body) => ({ status: 200, body })));
  const results = await client.submitBatch(["a", "b", "c"].map((idempotency_key) => ({ ...command, idempotency_key, order_key: "k" })));
  assert.deepEqual(results.map((one) => "jobId" in one && one.jobId), ["j1", "j1", "j1"]);
  assert.deepEqual(asked.map(({ body }) => body.commands.map((c: Command) => c.idempotency_key).join("")), ["abc", "ac"]);
});

test("a batch overtakes nothing that is undecided", async () => {
  const busy = { status: 503, error: { code: "store_unavailable" } };
  const server = await fake(({ body }) => ({ status: 200, body: { results: body.commands.map(() => busy) } }));
  const commands = Array.from({ length: 101 }, (_, n) => ({ ...command, idempotency_key: String(n) }));
  await assert.rejects(new Client({ url: server.url, retryFor: 0.2 }).submitBatch(commands), ProblemError);
  server.close();
  assert.ok(server.asked.every(({ body }) => body.commands.length === 100));
});

test("a command has an order", async (t) => {
  const order = { order_key: "k", order_mode: "newest" } as const;
  const { client, asked } = await serve(t, [{ status: 202, body: receipt }, { status: 200, body: { jobId: "j1", ...order, line_id: "ab12" } }]);
  await client.submit({ ...command, ...order });
  assert.deepEqual(asked[0]!.body, { ...command, ...order });
  const { order_key, order_mode, line_id } = await client.get("j1");
  assert.deepEqual([order_key, order_mode, line_id], ["k", "newest", "ab12"]);
});

test("a batch that stays undecided says so of each", async (t) => {
  const results = [{ status: 503, error: { code: "store_unavailable" } }, { status: 202, ...receipt }];
  const { url } = await serve(t, [{ status: 200, body: { results } }, { status: 503, body: {} }]);
  const [waiting, taken] = await new Client({ url, retryFor: 0.2 }).submitBatch([command, command]);
  assert.deepEqual([(waiting as ProblemError).code, (taken as { jobId: string }).jobId], ["store_unavailable", "j1"]);
});

test("refusals are problems", async (t) => {
  const body = { code: "c", detail: "d", errors: [{ pointer: "/p", message: "m" }] };
  const { client, asked } = await serve(t, [{ status: 422, body }]);
  await assert.rejects(client.get("j/1"), (error) => {
    assert.ok(error instanceof ProblemError);
    assert.equal(error.message, "the server answered 422 c: d; /p: m");
    return true;
  });
  assert.deepEqual(asked.map((a) => a.path), ["/v1/jobs/j%2F1"]);
});

test("only the caller names a command", async (t) => {
  const { client, asked } = await serve(t, [{ status: 202, body: receipt }]);
  await client.submit(command);
  await client.submit({ ...command, idempotency_key: "k" });
  assert.deepEqual(asked.map((a) => a.body.idempotency_key), [undefined, "k"]);
});

test("a wait ends with the job, or in time", async (t) => {
  const busy = { status: 200, body: { state: "IN_PROGRESS" } };
  const { client } = await serve(t, [busy, { status: 200, body: { state: "SUCCEEDED" } }]);
  assert.equal((await client.wait("j1")).state, "SUCCEEDED");
  await assert.rejects((await serve(t, [busy])).client.wait("j1", { timeout: 0 }), TimedOutError);
});

test("lists are read page by page", async (t) => {
  const { client, asked } = await serve(t, [
    { status: 200, body: { jobs: [{ jobId: "a" }], next_page_token: "t" } }, { status: 200, body: { jobs: [{ jobId: "b" }] } },
  ]);
  const found: string[] = [];
  for await (const { jobId } of client.list({ state: "SUCCEEDED", created_after: new Date(0) })) found.push(jobId);
  assert.deepEqual(found, ["a", "b"]);
  assert.deepEqual(asked.map((a) => a.query.get("page_token")), [null, "t"]);
  assert.deepEqual([asked[1]?.query.get("state"), asked[1]?.query.get("created_after")], ["SUCCEEDED", "1970-01-01T00:00:00.000Z"]);
});

test("jobs are found by their document and tags", async (t) => {
  const tags = { env: "prod", customer: "4=2" };
  const { client, asked } = await serve(t, [
    { status: 202, body: receipt }, { status: 200, body: { jobs: [{ jobId: "j1", doc_id: "d 1", tags }], next_page_token: "t" } },
    { status: 200, body: { jobs: [] } },
  ]);
  await client.submit({ ...command, doc_id: "d 1", tags });
  for await (const job of client.list({ tenant_id: "a", doc_id: "d 1", tags })) assert.deepEqual([job.doc_id, job.tags], ["d 1", tags]);
  const [submitted, ...pages] = asked;
  assert.deepEqual([submitted?.body.doc_id, submitted?.body.tags], ["d 1", tags]);
  assert.deepEqual(pages.map(({ query }) => [query.get("doc_id"), query.getAll("tag")]), Array(2).fill(["d 1", ["env=prod", "customer=4=2"]]));
});

test("a rerun sends its corrections", async (t) => {
  const { client, asked } = await serve(t, [{ status: 202, body: receipt }]);
  const all: RerunRequest = {
    from: "start", from_step: "embed", payload: { language: "de" }, payload_patch: { model: "v3", pages: null },
    input_ref: { uri: "s3://b/in" }, output_ref: { uri: "s3://b/out" }, workspace_ref: { uri: "s3://b/w" },
    resolve: [{ step_id: "ocr", output_ref: { uri: "s3://b/ocr" } }], protocol: "current", newest: true, callbacks: "none",
    tags: { run: "november" }, reason: "the scan was bad",
  };
  assert.equal((await client.rerun("j/1", all)).jobId, "j1");
  await client.rerun("j1");
  assert.deepEqual(asked.map((a) => [a.method, a.path, a.body]), [
    ["POST", "/v1/jobs/j%2F1:rerun", all], ["POST", "/v1/jobs/j1:rerun", {}],
  ]);
});

test("dates are sent", async (t) => {
  const { client, asked } = await serve(t, [{ status: 202, body: receipt }, { status: 202, body: { jobId: "j1", state: "QUEUED" } }]);
  const tonight = new Date("2026-01-28T02:00:00Z");
  const refs = { input_ref: { uri: "s3://b/in" }, output_ref: { uri: "s3://b/out" } };
  const command = { tenant_id: "t", request_type: "r", schema_version: "1", payload: {}, ...refs };
  await client.submit({ ...command, not_before: tonight, not_after: "2026-01-28T06:00:00Z" });
  await client.submit({ ...command, delay_seconds: 90 });
  assert.equal((await client.reschedule("j/1", { delay_seconds: 0, not_after: tonight, reason: "why" })).state, "QUEUED");
  await client.reschedule("j1", { never_expires: true });
  await client.prioritize("j/1", "bulk", "why");
  await client.prioritize("j1", "normal");
  assert.deepEqual(asked.map((a) => [a.path, a.body]), [
    ["/v1/commands", { ...command, not_before: "2026-01-28T02:00:00.000Z", not_after: "2026-01-28T06:00:00Z" }],
    ["/v1/commands", { ...command, delay_seconds: 90 }],
    ["/v1/jobs/j%2F1:reschedule", { delay_seconds: 0, not_after: "2026-01-28T02:00:00.000Z", reason: "why" }],
    ["/v1/jobs/j1:reschedule", { never_expires: true }],
    ["/v1/jobs/j%2F1:prioritize", { priority: "bulk", reason: "why" }],
    ["/v1/jobs/j1:prioritize", { priority: "normal" }],
  ]);
});

test("a planned rerun is read", async (t) => {
  const preview = {
    dry_run: true, jobId: "j/1", live: false, existing_job_id: "j2", protocol_id: "ingest", protocol_version: "3",
    steps: [{ step_id: "ocr", step_type: "OCR", service: "scans", outcome: "carried" }, { step_id: "embed", step_type: "EMBED", service: "ai" }],
    changes: [{ pointer: "/payload/model", before: null, after: "v3" }, { pointer: "/payload/pages", before: [1, 2] }],
  };
  const { client, asked } = await serve(t, [{ status: 200, body: preview }, { status: 409, body: { code: "nothing_to_run" } }]);
  const request: RerunRequest = { from: "start", payload_patch: { model: "v3", pages: null } };
  assert.deepEqual(await client.planRerun("j/1", request), preview);
  await assert.rejects(client.planRerun("j1"), (error) => error instanceof ProblemError && error.code === "nothing_to_run");
  assert.deepEqual(asked.map((a) => [a.method, a.path, a.body]), [
    ["POST", "/v1/jobs/j%2F1:rerun", { ...request, dry_run: true }], ["POST", "/v1/jobs/j1:rerun", { dry_run: true }],
  ]);
  // @ts-expect-error The answer would be no receipt.
  const dry: RerunRequest = { dry_run: true };
  assert.ok(dry);
});

test("a refused rerun names each fault", async (t) => {
  const errors = [{ pointer: "/payload/words", message: "is required" }, { pointer: "/payload/wrods", message: "is not allowed here" }];
  const { client } = await serve(t, [{ status: 422, body: { code: "payload_invalid", errors } }]);
  await assert.rejects(client.rerun("j1", { payload_patch: { wrods: 3 } }), (error) => {
    assert.ok(error instanceof ProblemError && error.code === "payload_invalid");
    assert.deepEqual(error.violations, errors);
    return true;
  });
});

test("a lineage is read", async (t) => {
  const lineage = { truncated: false, jobs: [{ jobId: "j0", purged: true }, { jobId: "j1", purged: false, rerun_of: "j0" }] };
  const { client, asked } = await serve(t, [{ status: 200, body: lineage }]);
  assert.deepEqual(await client.lineage("j/1"), lineage);
  assert.deepEqual(asked.map((a) => [a.method, a.path]), [["GET", "/v1/jobs/j%2F1/lineage"]]);
});

const line = {
  line_id: "ab12", tenant_id: "tenant_a", order_key: "customer-42", state: "blocked", waiting: 2,
  head: { jobId: "j1", state: "FAILED_FINAL", error_code: "bad_scan" },
};

test("lines are listed", async (t) => {
  const { client, asked } = await serve(t, [
    { status: 200, body: { lines: [line], next_page_token: "p2" } }, { status: 200, body: { lines: [] } }, { status: 200, body: line },
    { status: 200, body: { jobs: [{ jobId: "j1" }], next_page_token: "2" } }, { status: 200, body: { jobs: [{ jobId: "j2" }] } },
  ]);
  const found: unknown[] = [];
  const filter: LineOptions = { tenant_id: "tenant_a", order_key: "customer-42", state: "blocked", pageSize: 9 };
  for await (const one of client.lines(filter)) found.push(one);
  found.push(await client.line("a/b"));
  for await (const { jobId } of client.lineJobs("ab12")) found.push(jobId);
  assert.deepEqual(found, [line, line, "j1", "j2"]);
  const query = "tenant_id=tenant_a&order_key=customer-42&state=blocked&limit=9";
  assert.deepEqual(asked.map((a) => [a.path, a.query.toString()]), [
    ["/v1/lines", query], ["/v1/lines", `${query}&page_token=p2`], ["/v1/lines/a%2Fb", ""],
    ["/v1/lines/ab12/jobs", ""], ["/v1/lines/ab12/jobs", "page_token=2"],
  ]);
});

test("a line is released", async (t) => {
  const { client, asked } = await serve(t, [
    { status: 200, body: { ...line, state: "moving" } }, { status: 409, body: { code: "not_blocking" } },
  ]);
  assert.equal((await client.releaseLine("ab12", "j1", "known")).state, "moving");
  await assert.rejects(client.releaseLine("ab12", "j2"), (error) => error instanceof ProblemError && error.code === "not_blocking");
  assert.deepEqual(asked.map((a) => [a.method, a.path, a.body]), [
    ["POST", "/v1/lines/ab12:release", { jobId: "j1", reason: "known" }], ["POST", "/v1/lines/ab12:release", { jobId: "j2" }],
  ]);
});

test("a line is cancelled", async (t) => {
  const many = { status: 200, body: { cancelled: 1000, more: true } };
  const missing = { status: 404, body: { code: "line_not_found" } };
  for (const [answers, cancelled] of [
    [[many, { status: 200, body: { cancelled: 7, more: false } }], 1007],
    [[many, { status: 200, body: { cancelled: 0, more: true } }], 1000],
    [[many, missing], 1000],
  ] as const) {
    const { client, asked } = await serve(t, [...answers]);
    assert.equal(await client.cancelLine("ab12", "why"), cancelled);
    assert.deepEqual(asked.map((a) => [a.path, a.body]), Array(2).fill(["/v1/lines/ab12:cancel", { reason: "why" }]));
  }
  const { client } = await serve(t, [missing]);
  await assert.rejects(client.cancelLine("ab12", "why"), (error) => error instanceof ProblemError && error.code === "line_not_found");
});

const schedule = {
  schedule_id: "s1", tenant_id: "tenant_a", name: "nightly", rev: 3, version: 2, state: "active", cron: "30 2 * * *", overlap: "skip",
  catch_up: { policy: "last", window: "1h" }, command: { request_type: "doc.index" }, failures_in_row: 0,
  next: [{ at: "2026-01-28T01:30:00.000Z", local: "2026-01-28T02:30:00+01:00" }],
};
const fire = { scheduled_for: "2026-01-27T01:30:00.000Z", outcome: "fired", jobId: "j1", version: 2, late_seconds: 0.4 };
const backfill = { backfill_id: "b1", state: "running", version: 2, total: 72, fired: 20, left_alone: 3, refused: 1 };
const nightly = "/v1/schedules/tenant_a/nightly";

test("schedules are listed, read and previewed", async (t) => {
  const { client, asked } = await serve(t, [
    { status: 200, body: { schedules: [schedule], next_page_token: "p2" } }, { status: 200, body: { schedules: [] } },
    { status: 200, body: schedule }, { status: 200, body: { times: schedule.next } },
    { status: 200, body: { fires: [fire], next_page_token: "2" } }, { status: 200, body: { fires: [] } },
  ]);
  const found: unknown[] = [];
  for await (const one of client.schedules("tenant_a", { state: "active", pageSize: 9 })) found.push(one);
  found.push(await client.schedule("tenant_a", "a/b"));
  found.push(await client.previewSchedule({ cron: "@daily", after: new Date(0), count: 1 }));
  for await (const one of client.scheduleFires("tenant_a", "nightly")) found.push(one);
  assert.deepEqual(found, [schedule, schedule, schedule.next, fire]);
  const query = "tenant_id=tenant_a&state=active&limit=9";
  assert.deepEqual(asked.map((a) => [a.method, a.path, a.query.toString(), a.body]), [
    ["GET", "/v1/schedules", query, undefined], ["GET", "/v1/schedules", `${query}&page_token=p2`, undefined],
    ["GET", "/v1/schedules/tenant_a/a%2Fb", "", undefined],
    ["POST", "/v1/schedules:preview", "", { cron: "@daily", after: "1970-01-01T00:00:00.000Z", count: 1 }],
    ["GET", `${nightly}/fires`, "", undefined], ["GET", `${nightly}/fires`, "page_token=2", undefined],
  ]);
});

test("a schedule that another request creates is put again", async (t) => {
  const { client, asked } = await serve(t, [
    { status: 409, body: { code: "conflict" } }, { status: 200, body: schedule }, { status: 409, body: { code: "rev_conflict" } },
  ]);
  const definition = { cron: "30 2 * * *", command: { request_type: "doc.index" } };
  assert.equal((await client.putSchedule("tenant_a", "nightly", definition)).version, 2);
  await assert.rejects(client.putSchedule("tenant_a", "nightly", { ...definition, expected_rev: 2 }), /rev_conflict/);
  assert.equal(asked.length, 3);
});

test("a schedule is changed", async (t) => {
  const gone = { status: 404, body: { code: "schedule_not_found" } };
  const { client, asked } = await serve(t, [
    { status: 201, body: schedule }, { status: 200, body: schedule }, { status: 200, body: schedule }, { status: 200, body: schedule },
    gone, { status: 404, body: { code: "not_found" } }, { status: 422, body: { code: "schedule_invalid" } },
  ]);
  const definition = { cron: "30 2 * * *", start_at: new Date(0), command: { request_type: "doc.index" }, expected_rev: 2 };
  assert.equal((await client.putSchedule("tenant_a", "nightly", definition)).version, 2);
  await client.pauseSchedule("tenant_a", "nightly", "why");
  await client.resumeSchedule("tenant_a", "nightly");
  await client.deleteSchedule("tenant_a", "nightly");
  await client.deleteSchedule("tenant_a", "nightly");
  await assert.rejects(client.deleteSchedule("tenant_a", "nightly"), (error) => error instanceof ProblemError && error.code === "not_found");
  await assert.rejects(client.putSchedule("tenant_a", "nightly", definition), ProblemError);
  const put = ["PUT", nightly, { ...definition, start_at: "1970-01-01T00:00:00.000Z" }];
  assert.deepEqual(asked.map((a) => [a.method, a.path, a.body]), [
    put, ["POST", `${nightly}:pause`, { reason: "why" }], ["POST", `${nightly}:resume`, {}],
    ...Array(3).fill(["DELETE", nightly, undefined]), put,
  ]);
});

test("a schedule is run and backfilled once for each key, also if answers are lost", async (t) => {
  const { client, asked } = await serve(t, [
    { status: 503, body: {} }, { status: 202, body: fire }, { status: 200, body: fire },
    { status: 503, body: {} }, { status: 202, body: backfill }, { status: 200, body: { backfills: [backfill] } },
    { status: 200, body: { ...backfill, state: "cancelling" } },
  ]);
  assert.equal((await client.runSchedule("tenant_a", "nightly")).jobId, "j1");
  assert.equal((await client.runSchedule("tenant_a", "nightly", "k")).jobId, "j1");
  const request = { from: new Date(0), to: "1970-01-02T00:00:00Z", rate_per_second: 2, repeat: true };
  assert.equal((await client.backfillSchedule("tenant_a", "nightly", request, "k2")).total, 72);
  assert.deepEqual((await client.scheduleBackfills("tenant_a", "nightly")).map((one) => one.fired), [20]);
  assert.equal((await client.cancelBackfill("tenant_a", "nightly", "b1", "why")).state, "cancelling");
  const keys = asked.map((a) => a.headers["idempotency-key"]);
  assert.ok(keys[0] && keys[0] === keys[1] && keys[0] !== "k", String(keys));
  assert.deepEqual(keys.slice(2), ["k", "k2", "k2", undefined, undefined]);
  const filled = ["POST", `${nightly}:backfill`, { ...request, from: "1970-01-01T00:00:00.000Z" }];
  assert.deepEqual(asked.slice(2).map((a) => [a.method, a.path, a.body]), [
    ["POST", `${nightly}:run`, {}], filled, filled, ["GET", `${nightly}/backfills`, undefined],
    ["POST", `${nightly}/backfills/b1:cancel`, { reason: "why" }],
  ]);
});

test("a watch continues where it was", async (t) => {
  const { client, asked } = await serve(t, [
    { status: 200, body: stream(event(1), event(2)) }, { status: 503, body: {} }, { status: 200, body: { state: "IN_PROGRESS" } },
    { status: 200, body: stream(event(3, "SUCCEEDED"), event(4)) },
  ]);
  const found: string[] = [];
  for await (const { event_id } of client.watch("j1")) found.push(event_id);
  assert.deepEqual(found, ["e1", "e2", "e3", "e4"]);
  const streams = asked.filter((a) => a.path.endsWith("/events"));
  assert.deepEqual(streams.map((a) => a.headers["last-event-id"]), [undefined, "e2", "e2"]);
});

test("a watch has the entries of a job that ends while its server stops", async (t) => {
  const { client } = await serve(t, [
    { status: 200, body: stream(event(1)) }, { status: 200, body: stream() }, { status: 200, body: { state: "SUCCEEDED" } },
    { status: 200, body: stream(event(2, "SUCCEEDED")) },
  ]);
  const found: string[] = [];
  for await (const { event_id } of client.watch("j1")) found.push(event_id);
  assert.deepEqual(found, ["e1", "e2"]);
});

test("a watch of a quiet job goes on however often its stream breaks", async (t) => {
  const quiet = [{ status: 200, body: ": waiting\n\n", broken: true }, { status: 200, body: { state: "IN_PROGRESS" } }];
  const { client, asked } = await serve(t, [...Array(10).fill(quiet).flat(), { status: 200, body: stream(event(1, "SUCCEEDED")) }]);
  const found: string[] = [];
  for await (const { event_id } of client.watch("j1")) found.push(event_id);
  assert.deepEqual(found, ["e1"]);
  assert.equal(asked.length, 21);
});

test("a watch of what is not there fails", async (t) => {
  const { client } = await serve(t, [{ status: 404, body: { code: "job_not_found" } }]);
  await assert.rejects(client.watch("j1").next(), /404 job_not_found/);
});
