/** The conformance client: sdk/conformance/README.md says what it does. */

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

import {
  type Accepted, Client, type Command, ended, type Event, Final, type JobState, type Line, type OrderMode, ProblemError, type RerunRequest,
  type Task, TimedOutError, Worker,
} from "../src/index.js";

const tenant = `tenant_${randomUUID().slice(0, 8)}`;
let asked = () => {};
let waits = new Promise<void>((resolve) => (asked = resolve)); // Until a handler waits.
const client = new Client();
const worker = new Worker({ service: "conformance", claimWait: 1 });

worker.step("CONFORM", async (task: Task) => {
  if (task.payload["do"] === "fail") throw new Final("CONFORMANCE_FINAL", "told to fail");
  if (task.payload["do"] === "wait") {
    asked();
    await new Promise((resolve) => task.cancelled.addEventListener("abort", resolve));
    task.cancelled.throwIfAborted();
  }
  return { uri: `conformance://${task.jobId}/${task.attempt}` };
});

function command(payload: Record<string, unknown>, request_type = "sdk.conform"): Command {
  return {
    tenant_id: tenant, request_type, schema_version: "1", payload,
    input_ref: { uri: "conformance://in" }, output_ref: { uri: "conformance://out" },
  };
}

async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const item of items) list.push(item);
  return list;
}

const ends = (events: Event[]) =>
  events.filter((e) => e.object === "job" && ended({ state: e.to as JobState })).map((e) => e.to);

async function story(): Promise<void> {
  // 1
  const first = await client.submit(command({ do: "succeed" }));
  const second = await client.submit(command({ do: "succeed" }));
  assert.deepEqual([second.replayed, second.jobId], [true, first.jobId]);
  const job = await client.wait(first.jobId, { timeout: 60 });
  assert.equal(job.state, "SUCCEEDED");
  assert.deepEqual(job.final_output, { uri: `conformance://${job.jobId}/1` });
  const history = await all(client.history(job.jobId));
  assert.deepEqual((await all(client.watch(job.jobId))).map((e) => e.event_id), history.map((e) => e.event_id));
  assert.deepEqual(ends(history), ["SUCCEEDED"]);

  // 2
  const by = { doc_id: "conformance doc", tags: { env: "test", "a.key": "4=2 & more" } };
  const [good, bad] = await client.submitBatch([{ ...command({ do: "succeed", n: 2 }), ...by }, command({ do: "succeed" }, "unknown")]);
  assert.ok(bad instanceof ProblemError && bad.code === "unknown_request_type");
  assert.ok(good && !(good instanceof ProblemError));
  assert.equal((await client.wait(good.jobId, { timeout: 60 })).state, "SUCCEEDED");

  // 3
  const waiting = (await client.submit(command({ do: "wait" }))).jobId;
  const watch = client.watch(waiting);
  assert.equal((await watch.next()).value?.type, "job.accepted");
  await waits;
  waits = new Promise<void>((resolve) => (asked = resolve));
  await assert.rejects(client.wait(waiting, { timeout: 0.2 }), TimedOutError);
  assert.equal((await client.pause(waiting, "to see")).state, "PAUSING");
  assert.equal((await client.resume(waiting)).state, "IN_PROGRESS");
  assert.equal((await client.cancel(waiting, "seen")).state, "CANCELLING");
  assert.deepEqual(ends(await all(watch)), ["CANCELLED"]);
  assert.equal((await client.get(waiting)).state, "CANCELLED");

  // 4
  const again = await client.rerun(waiting, { from: "start", reason: "once more" });
  assert.notEqual(again.jobId, waiting);
  await waits;
  await client.cancel(again.jobId);
  assert.equal((await client.wait(again.jobId, { timeout: 60 })).state, "CANCELLED");

  // 5
  const listed = (await all(client.list({ tenant_id: tenant, pageSize: 2 }))).map((j) => j.jobId);
  assert.deepEqual(listed, [again.jobId, waiting, good.jobId, first.jobId]);
  for (const filter of [{ doc_id: by.doc_id }, { tags: by.tags }]) {
    const found = await all(client.list({ tenant_id: tenant, ...filter }));
    assert.deepEqual(found.map(({ jobId, doc_id, tags }) => ({ jobId, doc_id, tags })), [{ jobId: good.jobId, ...by }]);
  }
  assert.deepEqual(await all(client.list({ tenant_id: tenant, doc_id: by.doc_id, tags: { env: "prod" } })), []);

  // 6
  await assert.rejects(client.get(randomUUID()), (error) =>
    error instanceof ProblemError && error.status === 404 && error.code === "job_not_found");

  // 7
  await assert.rejects(client.submit({ ...command({}, "sdk.strict"), payload: { wrods: 3 } }), refused("misspelt"));
}

/** Print the refusal of a payload with a misspelt key. */
const refused = (what: string) => (error: unknown) => {
  assert.ok(error instanceof ProblemError);
  assert.deepEqual(error.violations.map((v) => v.pointer), ["/payload/words", "/payload/wrods"]);
  console.log(`${what}:`, error.message);
  return true;
};

/** Compare the lineage of a job. */
async function descends(jobId: string, ...jobs: object[]): Promise<void> {
  const lineage = await client.lineage(jobId);
  const found = lineage.jobs.map(({ protocol_id: _, caller: __, created_at: ___, completed_at: ____, ...job }) => job);
  assert.deepEqual({ ...lineage, jobs: found }, { jobs, truncated: false });
}

/** Compare the plan of the rerun of part 9. */
async function plans(jobId: string, request: RerunRequest, existing: object): Promise<void> {
  const { protocol_version: _, ...plan } = await client.planRerun(jobId, request);
  const step = { step_type: "CONFORM", service: "conformance" };
  assert.deepEqual(plan, {
    dry_run: true, jobId, live: false, protocol_id: "corrected_v1", ...existing,
    steps: [{ step_id: "scan", ...step, outcome: "resolved" }, { step_id: "print", ...step }],
    changes: [{ pointer: "/payload/do", before: "fail", after: "succeed" }],
  });
}

async function corrections(): Promise<void> {
  // 8
  const submitted = { ...command({ do: "fail", words: 3 }, "sdk.corrected"), tags: { env: "test" } };
  const failed = await client.wait((await client.submit(submitted)).jobId, { timeout: 60 });
  assert.equal(failed.state, "FAILED_FINAL");
  await assert.rejects(client.rerun(failed.jobId, { payload_patch: { words: null, wrods: 3 } }), refused("wrong patch"));
  const first = { jobId: failed.jobId, purged: false, first_step: "scan", state: "FAILED_FINAL", error_code: "CONFORMANCE_FINAL" };
  await descends(failed.jobId, first);

  // 9
  const byHand = { uri: "conformance://by-hand" };
  const request: RerunRequest = {
    payload_patch: { do: "succeed" }, resolve: [{ step_id: "scan", output_ref: byHand }],
    tags: { run: "second" }, reason: "scanned by hand",
  };
  await plans(failed.jobId, request, {});
  await descends(failed.jobId, first);
  const job = await client.wait((await client.rerun(failed.jobId, request)).jobId, { timeout: 60 });
  assert.deepEqual([job.state, job.tags], ["SUCCEEDED", { env: "test", run: "second" }]);
  const [scan, print] = job.steps;
  assert.deepEqual([scan?.outcome, scan?.output_ref, print?.input_ref], ["resolved", byHand, byHand]);
  const again = await client.rerun(failed.jobId, request);
  assert.deepEqual([again.replayed, again.jobId], [true, job.jobId]);
  await plans(failed.jobId, request, { existing_job_id: job.jobId });
  await descends(failed.jobId, first, {
    jobId: job.jobId, purged: false, rerun_of: failed.jobId, first_step: "print", rerun_edits: ["/payload/do"],
    state: "SUCCEEDED", reason: request.reason,
  });
}

async function dates(): Promise<void> {
  // 10
  const submit = async (when: Partial<Command>) => {
    const accepted = await client.submit({ ...command({ do: "succeed", n: randomUUID() }), ...when });
    assert.equal(accepted.state, "QUEUED");
    return client.get(accepted.jobId);
  };
  const inHours = (n: number) => new Date(Date.now() + n * 3_600_000);

  const delayed = await submit({ delay_seconds: 2 });
  assert.equal((await client.wait(delayed.jobId, { timeout: 60 })).state, "SUCCEEDED");
  const begun = (await all(client.history(delayed.jobId))).find((e) => e.type === "step.dispatching");
  assert.ok(begun && begun.at >= delayed.not_before!, `${begun?.at} ${delayed.not_before}`);

  const later = await submit({ not_before: inHours(1) });
  assert.equal(later.waiting?.reason, "scheduled");
  const putOff = await client.reschedule(later.jobId, { not_before: inHours(2), reason: "not yet" });
  assert.ok(putOff.state === "QUEUED" && new Date(putOff.not_before!) > inHours(1), putOff.not_before);
  assert.equal((await client.prioritize(later.jobId, "bulk", "it can wait")).priority, "bulk");
  await client.reschedule(later.jobId, { delay_seconds: 0 });
  assert.equal((await client.wait(later.jobId, { timeout: 60 })).state, "SUCCEEDED");

  const doomed = await submit({ not_before: inHours(1), not_after: inHours(2) });
  assert.equal((await client.pause(doomed.jobId)).state, "PAUSED");
  const expire = (seconds: number) => client.reschedule(doomed.jobId, { delay_seconds: 0, not_after: new Date(Date.now() + 1000 * seconds) });
  await expire(1).catch((error) => { // The second may be over before the server has the request.
    if (error instanceof ProblemError && error.status < 500) return expire(30);
    throw error;
  });
  assert.equal((await client.wait(doomed.jobId, { timeout: 60 })).error_code, "expired");
}

async function order(): Promise<void> {
  // 11
  const ordered = (what: string, key = "customer-42", mode?: OrderMode): Command => ({
    ...command({ do: what, n: randomUUID() }), order_key: key, ...(mode && { order_mode: mode }),
  });
  const waitsAs = async (jobId: string, reason: string, blocker: string) => {
    const job = await client.get(jobId);
    assert.deepEqual([job.state, job.waiting?.reason, job.waiting?.blocked_by?.id], ["QUEUED", reason, blocker]);
    return job;
  };

  const inAnHour = new Date(Date.now() + 3_600_000);
  const first = (await client.submit({ ...ordered("succeed"), not_before: inAnHour })).jobId;
  const second = await waitsAs((await client.submit(ordered("succeed"))).jobId, "behind", first);
  assert.deepEqual([second.order_key, second.order_mode], ["customer-42", "fifo"]);
  assert.ok(second.line_id);
  assert.equal(second.line_id, (await client.get(first)).line_id);
  await assert.rejects(client.submit(ordered("succeed", undefined, "reject")), (error) =>
    error instanceof ProblemError && error.status === 409 && error.code === "line_busy");
  const older = await client.submit(ordered("succeed", undefined, "newest"));
  const newer = await client.submit(ordered("succeed", undefined, "newest"));
  assert.equal((await client.wait(older.jobId, { timeout: 60 })).error_code, "superseded");
  assert.equal((await client.cancel(second.jobId, "no longer wanted")).state, "CANCELLED");
  await client.reschedule(first, { delay_seconds: 0 });
  assert.equal((await client.wait(newer.jobId, { timeout: 60 })).state, "SUCCEEDED");

  const results = await client.submitBatch([ordered("fail", "customer-43"), ordered("succeed", "customer-43")]);
  const [failed, after] = results.map((accepted) => (accepted as Accepted).jobId) as [string, string];
  assert.equal((await client.wait(failed, { timeout: 60 })).state, "FAILED_FINAL");
  await waitsAs(after, "line_blocked", failed);
  const rerun = await client.wait((await client.rerun(failed, { payload_patch: { do: "succeed" } })).jobId, { timeout: 60 });
  assert.equal(rerun.state, "SUCCEEDED");
  assert.equal((await client.wait(after, { timeout: 60 })).state, "SUCCEEDED");
  const began = (await all(client.history(after))).find((e) => e.type === "step.dispatching");
  assert.ok(began && began.at >= rerun.completed_at!, `${began?.at} ${rerun.completed_at}`);
}

async function lines(): Promise<void> {
  // 12
  const key = { tenant_id: tenant, order_key: "customer-44" };
  const ordered = (what: string): Command => ({ ...command({ do: what, n: randomUUID() }), ...key });
  const results = await client.submitBatch([ordered("fail"), ordered("succeed"), ordered("succeed")]);
  const jobs = results.map((accepted) => (accepted as Accepted).jobId);
  const [failed, ...waiting] = jobs as [string, ...string[]];
  assert.equal((await client.wait(failed, { timeout: 60 })).state, "FAILED_FINAL");
  const [line] = (await all(client.lines(key))) as [Line];
  const blocked = await all(client.lines({ tenant_id: tenant, state: "blocked", pageSize: 1 }));
  assert.deepEqual(blocked.map((one) => one.line_id), [line.line_id]);
  assert.equal((await client.get(failed)).line_id, line.line_id);
  assert.deepEqual([line.state, line.waiting, line.head?.jobId, line.head?.error_code], ["blocked", 2, failed, "CONFORMANCE_FINAL"]);
  assert.deepEqual((await all(client.lineJobs(line.line_id))).map((job) => job.jobId), jobs);

  await client.cancelLine(line.line_id, "no longer wanted");
  for (const jobId of waiting) assert.equal((await client.get(jobId)).state, "CANCELLED");
  const left = await client.line(line.line_id);
  assert.deepEqual([left.state, left.waiting, left.head?.jobId], ["blocked", 0, failed]);
  const last = (await client.submit(ordered("succeed"))).jobId;
  assert.equal((await client.get(last)).waiting?.reason, "line_blocked");
  assert.equal((await client.releaseLine(line.line_id, failed, "done by hand")).state, "moving");
  assert.equal((await client.wait(last, { timeout: 60 })).state, "SUCCEEDED");
  assert.equal((await client.releaseLine(line.line_id, failed)).head, undefined);
  await assert.rejects(client.releaseLine(line.line_id, last), (error) =>
    error instanceof ProblemError && ["not_blocking", "line_not_found"].includes(error.code));
}

async function schedules(): Promise<void> {
  // 13
  const name = [tenant, "hourly"] as const;
  const made = await client.putSchedule(...name, {
    every: "1h", time_zone: "Europe/Berlin", overlap: "allow",
    command: {
      request_type: "sdk.conform", schema_version: "1", payload: { do: "succeed", n: "${scheduled_for}" },
      input_ref: { uri: "conformance://in" }, output_ref: { uri: "conformance://out" },
    },
  });
  assert.deepEqual([made.state, made.next?.length], ["active", 10]);
  const [first, second] = await client.previewSchedule({ every: "1h", time_zone: "Europe/Berlin", count: 2 });
  assert.equal(Date.parse(second!.at) - Date.parse(first!.at), 3_600_000);
  assert.equal((await client.pauseSchedule(...name, "to see")).state, "paused");
  const paused = await all(client.schedules(tenant, { state: "paused", pageSize: 1 }));
  assert.deepEqual(paused.map((one) => one.schedule_id), [made.schedule_id]);
  assert.equal((await client.resumeSchedule(...name)).next?.length, 10);

  const run = await client.runSchedule(...name, "by hand");
  assert.equal(run.outcome, "fired");
  assert.equal((await client.runSchedule(...name, "by hand")).jobId, run.jobId);
  assert.equal((await client.wait(run.jobId!, { timeout: 60 })).state, "SUCCEEDED");
  assert.ok((await all(client.scheduleFires(...name))).some((fire) => fire.jobId === run.jobId));

  const from = new Date(Date.now() - 3 * 3_600_000);
  const begun = await client.backfillSchedule(...name, { from, reason: "they were missed" });
  assert.ok(begun.total >= 3, JSON.stringify(begun));
  let [backfill] = await client.scheduleBackfills(...name);
  for (let n = 0; n < 600 && backfill?.state === "running"; n++) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    [backfill] = await client.scheduleBackfills(...name);
  }
  assert.deepEqual([backfill?.backfill_id, backfill?.state, backfill?.fired], [begun.backfill_id, "done", begun.total]);
  assert.equal((await client.cancelBackfill(...name, begun.backfill_id, "too late")).state, "done");

  await client.deleteSchedule(...name);
  await assert.rejects(client.schedule(...name), (error) => error instanceof ProblemError && error.code === "schedule_not_found");
}

const working = worker.run();
try {
  await story();
  await corrections();
  await dates();
  await order();
  await lines();
  await schedules();
} finally {
  worker.stop();
  await working;
}
