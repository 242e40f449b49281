// What the console tells of a server is true: each test compares a page with what was done to the server.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import test from "node:test";

import { follow, openPage } from "./browser.js";
import { eventually, serve } from "./server.js";

const rowOf = (page, region, text) => page.getByRole("region", { name: region }).getByRole("row").filter({ hasText: text });

test("what a pause holds is counted as held, and nothing is forecast of it", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.call("POST", "/v1/admin/pauses", { service: "extract", reason: "the disk is full" });
  for (let n = 0; n < 3; n++) await api.submit();
  const page = await openPage(server);
  await page.goto("/ui/services");
  const row = rowOf(page, "Services", "EXTRACT");
  await row.getByText("paused").waitFor();
  await row.getByText("+ 3 held").waitFor();
  await page.goto("/ui/services/extract");
  const held = rowOf(page, "Work", "EXTRACT").getByRole("link", { name: "3", exact: true });
  await follow(page, () => held.click());
  assert.equal(await page.locator("table.jobs tbody tr").count(), 3);
  await page.locator("table.jobs").getByText(/pause/).first().waitFor();
  await page.goto("/ui/");
  const pause = page.getByRole("article").filter({ hasText: "the disk is full" });
  await pause.getByText("3").first().waitFor();
  assert.doesNotMatch(await page.getByRole("main").innerText(), /done in about|no worker/);
});

test("amber is held on purpose, and red needs a person", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.submit();
  await api.fail(await api.claim("extract"), { code: "corrupt_pdf", message: "Page 3 cannot be read." });
  await api.call("POST", "/v1/admin/pauses", { service: "index", reason: "the disk is full" });
  const page = await openPage(server);
  await page.goto("/ui/");
  const edge = (text) => page.getByRole("article").filter({ hasText: text })
    .evaluate((article) => getComputedStyle(article).borderLeftColor);
  const colour = (name) => page.evaluate((variable) => {
    const shown = document.body.appendChild(document.createElement("i"));
    shown.className = variable;
    const { color } = getComputedStyle(shown);
    shown.remove();
    return color;
  }, name);
  assert.equal(await edge("the disk is full"), await colour("warn"));
  assert.equal(await edge("corrupt_pdf"), await colour("bad"));
});

test("an error that is retried is found by its code", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const job = await api.submit();
  const item = await api.claim("extract");
  await api.call("POST", `/v1/work/${item.work_id}:fail`, {
    owner: item.owner, expected_rev: item.rev, request_id: randomUUID(), retryable: true, retry_after_seconds: 3600,
    error: { code: "vendor_503", message: "The vendor did not answer." },
  });
  const page = await openPage(server);
  await page.goto("/ui/failures");
  await page.getByText("No matching job has failed for good.").waitFor();
  await page.getByRole("heading", { name: "Retrying" }).waitFor();
  const group = page.getByRole("article").filter({ hasText: "vendor_503" });
  await group.getByText("The vendor did not answer.").waitFor();
  await group.getByRole("link", { name: "Show the jobs" }).click();
  await follow(page, () => page.locator(`table.jobs a[href="/ui/jobs/${job}"]`).click());
  await page.getByRole("link", { name: "Try again now…" }).click();
  await follow(page, () => page.getByRole("dialog").getByRole("button", { name: "Publish now" }).click());
  assert.equal(new URL(page.url()).pathname, `/ui/jobs/${job}`);
  assert.equal((await api.claim("extract")).directive.attempt_no, 2);
});

test("a worker's page shows what it holds, and how often it fails beside the others", async (t) => {
  const server = await serve(t);
  const api = server.client();
  for (let n = 0; n < 3; n++) await api.submit();
  await api.fail(await api.claim("extract", "eu/worker-1"), { code: "corrupt_pdf", message: "Page 3 cannot be read." });
  await api.complete(await api.claim("extract", "eu/worker-2"));
  const held = await api.claim("extract", "eu/worker-1");
  const page = await openPage(server);
  await page.goto("/ui/workers");
  await page.getByRole("link", { name: "eu/worker-1" }).click();
  await rowOf(page, "Shares", "this worker").getByText("100 %").waitFor();
  await rowOf(page, "Shares", "all others").getByText(/^0(\.0)? %/).first().waitFor();
  await rowOf(page, "Its last attempts", "corrupt_pdf").waitFor();
  await page.getByRole("region", { name: "What it holds" }).getByRole("link").click();
  await page.waitForURL(`/ui/jobs/${held.directive.jobId}`);
});

test("a protocol shows where the time of its jobs goes, and how they end", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const job = await api.submit();
  await api.work("extract", "ocr", "index");
  const page = await openPage(server);
  await page.goto("/ui/flow?protocol=doc_ingest_v1");
  await rowOf(page, "Where the time goes", "extract").getByText("p95").first().waitFor();
  await page.getByText("the median of the last hour").waitFor();
  await page.getByRole("link", { name: "last day" }).click();
  await page.getByText("the median of the last day").waitFor();
  await page.getByText(/Of its jobs, 1 succeeded, 0 failed for good and 0 were cancelled in the last day/).waitFor();
  await rowOf(page, "Where the time goes", "extract").getByText("p95").first().waitFor();
  await follow(page, () => page.getByRole("link", { name: /^Succeeded: .*1 in 1 h/ }).click());
  await page.locator(`table.jobs a[href="/ui/jobs/${job}"]`).waitFor();
  assert.equal(await page.locator("table.jobs tbody tr").count(), 1);
});

// A server that has just begun knows nothing of the minutes before, and little of the present one.
test("charts hold only what was measured, and say when a pause began", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.submit();
  await api.call("POST", "/v1/admin/pauses", { service: "ocr", reason: "the vendor is down" });
  const page = await openPage(server);
  await page.goto("/ui/services");
  await page.locator("figure.chart canvas").first().waitFor();
  const drawn = () => page.locator("figure.chart").evaluateAll((all) => all.map((one) => JSON.parse(one.dataset.chart)));
  const paused = ({ marks }) => marks?.some(({ text }) => /^pause service:ocr /.test(text));
  // One that is made while a minute ends may begin after the pause.
  await eventually("all have a mark of the pause", async () => (await drawn()).every(paused));
  const charts = await drawn();
  for (const { series } of charts) {
    for (const { label, values } of series) assert.ok(values.length < 30, `${label}: ${values.length} minutes of a server that has just begun`);
  }
  assert.ok(charts.some(({ open }) => open), "the running minute is drawn as unfinished");
});

test("the audit trail says who did what, why, and to what", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const job = await api.submit();
  await api.call("POST", `/v1/jobs/${job}:cancel`, { reason: "sent twice" });
  const page = await openPage(server);
  await page.goto("/ui/audit");
  const row = page.getByRole("row").filter({ hasText: "sent twice" });
  await row.getByText("local").first().waitFor();
  await row.locator(`a[href="/ui/jobs/${job}"]`).click();
  await page.getByRole("heading", { name: /^Job / }).waitFor();
});

test("the environment is named on each page", async (t) => {
  const server = await serve(t, "--environment", "staging:violet");
  const page = await openPage(server);
  for (const [target, title] of [["/ui/", "Attention"], ["/ui/jobs", "Jobs"]]) {
    await page.goto(target);
    await page.getByRole("banner").getByText("staging").waitFor();
    assert.equal(await page.title(), `staging · ${title} · Lucius`);
  }
});
