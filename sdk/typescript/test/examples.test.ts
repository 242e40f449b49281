import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import test from "node:test";
import { fileURLToPath } from "node:url";

import { fake, queue } from "./fake.js";

const folder = new URL("../../", import.meta.url); // From dist/test.

/** Run a compiled example until it ends, or until it is told to stop. */
async function example(name: string, url: string, { until, args = [] }: { until?: Promise<void>; args?: string[] } = {}): Promise<string> {
  const child = spawn(process.execPath, [fileURLToPath(new URL(`dist/examples/${name}.js`, folder)), ...args], {
    env: { ...process.env, LUCIUS_URL: url, LUCIUS_TOKEN: "t" }, stdio: ["ignore", "pipe", "inherit"],
  });
  let printed = "";
  child.stdout.on("data", (chunk) => (printed += chunk));
  const closed = once(child, "close");
  await Promise.race([until, closed]);
  if (until) child.kill("SIGTERM");
  assert.deepEqual(await closed, [0, null]);
  return printed;
}

test("the first worker works", async () => {
  const server = await queue([{ words: 100 }, {}]);
  await example("first-worker", server.url, { until: server.reported });
  server.close();
  const found = server.reports.map(({ verb, body }) => [verb, body.result_ref ?? body.error]);
  assert.deepEqual(found.sort(), [
    ["complete", { uri: "s3://bucket/in.pdf.txt" }],
    ["fail", { code: "NO_WORDS", message: "the payload does not say how many words" }],
  ]);
});

test("the client's example works", async () => {
  const body = { jobId: "j1", state: "SUCCEEDED", final_output: { uri: "s3://bucket/out.json" } };
  const server = await fake(() => ({ status: 200, body }));
  assert.equal(await example("client", server.url), "SUCCEEDED s3://bucket/out.json\n");
  server.close();
  assert.equal(server.asked[0]?.body.idempotency_key, "order-4711");
});

test("the example of a rerun works", async () => {
  const jobs = [{ jobId: "j1", purged: true }, { jobId: "j2", state: "DISPATCHING", rerun_edits: ["/payload/words"] }];
  const server = await fake(() => ({ status: 200, body: { jobId: "j2", jobs, truncated: false } }));
  const printed = "j1 undefined undefined\nj2 DISPATCHING [ '/payload/words' ]\n";
  assert.equal(await example("rerun", server.url, { args: ["j1"] }), printed);
  server.close();
  assert.deepEqual(server.asked.map((a) => a.path), ["/v1/jobs/j1:rerun", "/v1/jobs/j2/lineage"]);
  assert.deepEqual(server.asked[0]?.body.payload_patch, { words: 500 });
});
