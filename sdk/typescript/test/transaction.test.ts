import assert from "node:assert/strict";
import test from "node:test";

import { type Command, ProblemError, submissionOf, submitTx } from "../src/index.js";

const command: Command = {
  tenant_id: "tenant_a", request_type: "doc.ingest", schema_version: "1", payload: { language: "en" },
  input_ref: { uri: "s3://bucket/in.pdf" }, output_ref: { uri: "s3://bucket/out.json" },
};

/** A database that gives one answer, and notes what it is asked. */
function database(value: string | null) {
  const asked: [string, unknown[]][] = [];
  return {
    asked,
    query: async (text: string, values: unknown[]) => {
      asked.push([text, values]);
      return { rows: [{ value }] };
    },
  };
}

test("a command is submitted in a transaction", async () => {
  const db = database("c-1");
  assert.equal(await submitTx(db, command), "c-1");
  assert.match(db.asked[0]![0], /lucius\.submit\(\$1/);
  assert.deepEqual(JSON.parse(db.asked[0]![1][0] as string), command);
});

test("a command that can never be a job is refused", async () => {
  const detail = JSON.stringify({ code: "invalid_envelope", status: 400, errors: [{ pointer: "/payload", message: "is required" }] });
  const refusing = (error: unknown) => ({ query: () => Promise.reject(error) });
  const refused = Object.assign(new Error("refused"), { code: "LC002", detail });
  await assert.rejects(submitTx(refusing(refused), command), (error) => {
    assert.ok(error instanceof ProblemError);
    assert.equal(error.status, 400);
    assert.equal(error.code, "invalid_envelope");
    assert.deepEqual(error.violations, [{ pointer: "/payload", message: "is required" }]);
    assert.equal(error.cause, refused);
    return true;
  });
  for (const other of [Object.assign(new Error("rights"), { code: "42501", detail }), Object.assign(new Error("odd"), { code: "LC002", detail: "none" }), "away"]) {
    await assert.rejects(submitTx(refusing(other), command), (error) => error === other);
  }
});

test("what became of a command", async () => {
  const submission = {
    state: "refused", problem: { code: "payload_invalid", detail: "No." }, job_id: null, job_state: null,
    final_output: null, error_code: null, error_message: null,
  };
  const db = database(JSON.stringify(submission));
  assert.deepEqual(await submissionOf(db, "c-1"), submission);
  assert.deepEqual(db.asked[0]![1], ["c-1"]);
  assert.equal(await submissionOf(database(null), "c-1"), undefined);
});
