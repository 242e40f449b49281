import { Client } from "lucius";

const client = new Client(); // LUCIUS_URL, LUCIUS_TOKEN
const { jobId } = await client.submit({
  tenant_id: "tenant_a", request_type: "doc.summarize", schema_version: "1", payload: { words: 100 },
  input_ref: { uri: "s3://bucket/in.pdf" }, output_ref: { uri: "s3://bucket/out.json" },
  idempotency_key: "order-4711",
});
const job = await client.wait(jobId, { timeout: 300 });
console.log(job.state, job.final_output?.uri);
