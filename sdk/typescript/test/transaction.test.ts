import assert from "node:assert/strict";
import test from "node:test";

import { type Command, submissionOf, submitTx } from "../src/index.js";

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
