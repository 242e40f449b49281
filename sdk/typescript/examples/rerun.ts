import { Client } from "lucius";

const client = new Client();
const failed = process.argv[2] ?? "";
const { jobId } = await client.rerun(failed, {
  payload_patch: { words: 500 }, reason: "20000 words are no summary",
});
for (const job of (await client.lineage(jobId)).jobs) console.log(job.jobId, job.state, job.rerun_edits);
