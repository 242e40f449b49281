import assert from "node:assert/strict";
import test from "node:test";

import { openPage } from "./browser.js";
import { seed, seeded } from "./seed.js";
import { serve } from "./server.js";

test("one search finds jobs, names and pages", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const job = await api.submit({ correlation_id: "corr-7", tenant_id: "acme", doc_id: "contracts/7 & 8.pdf", tags: { customer: "42" } });
  const page = await openPage(server);
  for (const [sought, path] of [
    [job, `/ui/jobs/${job}`],
    [`${job.slice(0, 8)}…${job.slice(-4)}`, `/ui/jobs/${job}`],
    ["corr-7", "/ui/jobs?correlation_id=corr-7"],
    ["contracts/7 & 8.pdf", "/ui/document?doc_id=contracts%2F7+%26+8.pdf&tenant_id=acme"],
    ["customer=42", "/ui/jobs?tag=customer%3D42&tenant_id=acme"],
    ["extract", "/ui/services/extract"],
    ["audit", "/ui/audit"],
  ]) {
    await page.goto("/ui/");
    await page.keyboard.press("/");
    await page.keyboard.type(sought);
    await page.keyboard.press("Enter");
    await page.waitForURL((url) => url.pathname + url.search === path);
  }
  await page.keyboard.press("/");
  await page.keyboard.type("nothing-like-it");
  await page.keyboard.press("Enter");
  await page.getByText("Nothing matches nothing-like-it.").waitFor();
});

// Each number in the table of services links to exactly that many jobs. The numbers of ocr are left
// out: they change when the seeded retry is due.
test("a number leads to the jobs that it counts", async (t) => {
  const server = await serve(t, ...seeded);
  await seed(server);
  const page = await openPage(server);
  await page.goto("/ui/services");
  const links = (await page.locator("main table td.r a").evaluateAll((all) =>
    all.map((link) => ({ href: link.getAttribute("href"), count: Number(link.textContent.replaceAll(",", "")) }))))
    .filter(({ href }) => !href.includes("service=ocr&"));
  assert.ok(links.length >= 3, `${links.length} numbers are links`);
  assert.ok(links.some(({ count }) => count > 1));
  for (const { href, count } of links) {
    await page.goto(href);
    assert.equal(await page.locator("table.jobs tbody tr").count(), count, href);
  }
});
