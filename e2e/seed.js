// A server with something on every page: jobs in each state, failures of several kinds,
// pauses, limits, closures, an operation, a schedule, and a webhook that was not delivered.

import { eventually } from "./server.js";

export const timeout = { code: "TIMEOUT", message: "embedding-v3 did not answer within 30 s (gateway eu-west-1b)" };
const corrupt = { code: "corrupt_pdf", message: "Page 3 cannot be read: the cross-reference table ends early." };

// orderKey is that of a line which a failed job blocks.
export const orderKey = "customer@example.com";

// invoice is a command for the second protocol.
export const invoice = (tenant, number, more) => ({
  tenant_id: tenant, request_type: "invoice.extract", schema_version: "2",
  input_ref: { uri: `s3://${tenant}/invoices/${number}.pdf` }, output_ref: { uri: `s3://${tenant}/fields/${number}.json` },
  payload: { pages: 3, currency: "EUR" }, correlation_id: `${tenant}-invoice-${number}`, ...more,
});

// seeded are the flags of a server that is to be filled.
export const seeded = ["--webhook-networks", "127.0.0.0/8"];

// seed fills the server, which serves without access control. It returns the ids of jobs by
// what became of them.
export async function seed(server) {
  const api = server.client();
  const jobs = {};
  jobs.succeeded = await api.submit({ correlation_id: "acme-contract-1" });
  await api.work("extract", "ocr", "index");

  jobs.failed = await api.submit({ tenant_id: "globex", callback_urls: ["https://127.0.0.1:9/lucius"] });
  await api.work("extract");
  await api.fail(await api.claim("ocr"), corrupt);
  for (const [tenant, number] of [["acme", 4711], ["globex", 17], ["globex", 18]]) {
    // The failure of the first one blocks the line of its key.
    const blocks = tenant === "acme" && { order_key: orderKey };
    jobs[`failed${number}`] = await api.submit(invoice(tenant, number, blocks));
    await api.work("classify", "ocr");
    await api.fail(await api.claim("fields"), timeout);
  }

  jobs.blocked = await api.submit(invoice("acme", 4713, { order_key: orderKey }));
  await api.submit(invoice("acme", 4714, { order_key: orderKey }));

  jobs.retried = await api.submit(invoice("acme", 4712));
  await api.work("classify");
  await api.fail(await api.claim("ocr", "ocr-7"), timeout, true);

  jobs.cancelled = await api.submit({ tenant_id: "initech" });
  await api.call("POST", `/v1/jobs/${jobs.cancelled}:cancel`, { reason: "sent twice" });
  jobs.paused = await api.submit({ tenant_id: "initech" });
  await api.call("POST", `/v1/jobs/${jobs.paused}:pause`, { reason: "the customer asked us to wait" });

  jobs.running = await api.submit(invoice("globex", 19));
  await api.claim("classify", "classify-2");
  for (let n = 0; n < 6; n++) jobs.waiting = await api.submit({ doc_id: `doc-${n}` });

  await api.call("POST", "/v1/admin/pauses", { service: "validate", reason: "the ledger of the tax office is down" });
  // A limit alone, a closure alone, and both for one scope. None holds back what the seed has to do.
  const limits = "/v1/admin/limits";
  await api.call("PUT", `${limits}/service:extract`, { starts: { count: 600, window: "1m" }, reason: "the vendor's quota" });
  await api.call("POST", `${limits}/service:index:close`, { for_seconds: 3600, reason: "the vendor answers 503" });
  await api.call("PUT", `${limits}/service:fields,tenant:hooli`, { starts: { count: 50, window: "5s" }, reason: "a fair share" });
  await api.call("POST", `${limits}/service:fields,tenant:hooli:close`, { for_seconds: 600, reason: "429 from the vendor" });
  // Words that are longer than a line.
  const tenant = "t".repeat(128);
  await api.call("POST", "/v1/admin/pauses", { tenant_id: tenant, reason: "r".repeat(300) });
  jobs.long = await api.submit({ tenant_id: tenant, doc_id: "d".repeat(128), correlation_id: "c".repeat(128) });
  // It does not fire while the tests run.
  await api.call("PUT", "/v1/schedules/acme/new-year", {
    cron: "30 2 1 1 *", time_zone: "America/Argentina/ComodRivadavia",
    command: {
      request_type: "doc.ingest", schema_version: "1", payload: { language: "en" },
      input_ref: { uri: "s3://in/${scheduled_date}.pdf" }, output_ref: { uri: "s3://out/${scheduled_date}.json" },
    },
  });
  const retry = await api.call("POST", "/v1/admin/retries",
    { service: "ocr", error_code: corrupt.code, reason: "a new version of the reader" });
  await eventually("the retry has ended", async () =>
    (await api.call("GET", `/v1/admin/operations/${retry.operation_id}`)).state === "DONE");
  return jobs;
}
