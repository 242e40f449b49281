// Tests lucius/testing with the program that LUCIUS_BINARY names. sdk/conformance runs it.
import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client, LuciusError, RetryAfter, Worker, type Logger } from "../src/index.js";
import { Server } from "../src/testing.js";

const protocols = fileURLToPath(new URL("../../../conformance/testdata/protocols", import.meta.url));
const silent: Logger = { info() {}, warn() {}, error() {} };
const ref = { uri: "s3://bucket/x" };

test("a worker does a job whose first attempt fails", async () => {
  const worker = new Worker({ service: "conformance", url: "http://127.0.0.1:1", logger: silent })
    .step("CONFORM", (task) => {
      if (task.attempt === 1) throw new RetryAfter(0.001, "BUSY");
      return { uri: `${task.inputRef?.uri}.${task.payload["extension"]}` };
    });
  const server = await Server.start({ protocols });
  server.run(worker);
  const job = await server.do({
    tenant_id: "tenant_a", request_type: "sdk.conform", schema_version: "1", payload: { extension: "txt" },
    input_ref: ref, output_ref: ref,
  });
  assert.equal(job.state, "SUCCEEDED");
  assert.equal(job.attempts_total, 2);
  assert.deepEqual(job.final_output, { uri: "s3://bucket/x.txt" });
  await server.stop();
  await assert.rejects(new Client({ url: server.url, retryFor: 0 }).get(job.jobId), LuciusError);
});

test("protocols that are wrong are named", async () => {
  const folder = await mkdtemp(join(tmpdir(), "lucius-"));
  await writeFile(join(folder, "wrong.yaml"), "protocol_id: x\nstepz: []\n");
  await assert.rejects(Server.start({ protocols: folder }), /stepz.*steps/s);
  await rm(folder, { recursive: true });
});

test("a program that does not exist is named", async () => {
  await assert.rejects(Server.start({ protocols, binary: "/no-such-program" }), /no-such-program was not found/);
});

test("a server that ends fails the test soon", async () => {
  const folder = await mkdtemp(join(tmpdir(), "lucius-"));
  const program = join(folder, "lucius"); // It serves nothing, and ends when it is told to.
  await writeFile(program, "#!/bin/sh\necho lucius serves http://127.0.0.1:1\nexec sleep 60\n", { mode: 0o755 });
  const begun = performance.now();
  const server = await Server.start({ protocols, binary: program });
  await assert.rejects(server.client.get("01a217f7-1a03-73a9-aaf5-74d72c07465d"), LuciusError);
  await server.stop();
  assert.ok(performance.now() - begun < 50_000); // A client outside of tests goes on for a minute.
  await rm(folder, { recursive: true });
});

test("a worker's failure is the test's", async () => {
  const server = await Server.start({ protocols });
  server.run(new Worker({ service: "conformance", logger: silent }));
  await assert.rejects(server.do({
    tenant_id: "tenant_a", request_type: "sdk.conform", schema_version: "1", payload: {}, input_ref: ref, output_ref: ref,
  }, { timeout: Infinity }), /no handler/);
  await assert.rejects(server.stop(), /no handler/);
});
