import assert from "node:assert/strict";
import test from "node:test";

import { audit } from "./audit.js";
import { openPage } from "./browser.js";
import { crawl, desk, forms, phone, picture } from "./crawl.js";
import { seed, seeded } from "./seed.js";
import { serve } from "./server.js";

test("each page suits a phone, a screen reader and either colour scheme", async (t) => {
  const server = await serve(t, ...seeded);
  await seed(server);
  const page = await openPage(server, { viewport: desk });
  const targets = await crawl(page);
  t.diagnostic(`${targets.length} pages: ${targets.join(" ")}`);
  for (const name of ["flow", "lines", "lines/.+", "schedules", "schedules/.+", "limits", "workers", "workers/.+", "operations/.+", "webhooks", "audit"]) {
    assert.ok(targets.some((target) => new RegExp(`^/ui/${name}([?]|$)`).test(target)), `no page of ${name} is found`);
  }
  const faults = [];
  for (const target of targets) {
    const response = await page.goto(target);
    if (!response.ok()) faults.push(`${target} answers ${response.status()}`);
    for (const form of forms) {
      const [viewport, colorScheme] = form;
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize(viewport);
      // Each viewport and each scheme is checked once, and all four are there to be looked at.
      if ((viewport === desk) === (colorScheme === "light")) faults.push(...await audit(page, `${target} (${colorScheme}, ${viewport.width} px)`));
      await picture(page, target, form);
    }
  }
  assert.deepEqual(faults, []);
});

test("what matters is seen without scrolling", async (t) => {
  const server = await serve(t, ...seeded);
  const jobs = await seed(server);
  const page = await openPage(server, { viewport: desk });
  for (const [target, viewport, last] of [
    ["/ui/flow", desk, page.locator(".flow")],
    [`/ui/jobs/${jobs.retried}`, desk, page.getByRole("region", { name: "Course of the job" })],
    ["/ui/", phone, page.getByRole("article").nth(2)],
  ]) {
    await page.setViewportSize(viewport);
    await page.goto(target);
    const end = await last.evaluate((element) => element.getBoundingClientRect().bottom);
    assert.ok(end <= viewport.height, `${target} goes on to ${end} px of ${viewport.height}`);
  }
});

test("the list of jobs fits a phone", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.submit();
  const page = await openPage(server, { viewport: phone });
  await page.goto("/ui/jobs");
  const row = page.getByRole("row").filter({ hasText: "DISPATCHING" });
  await row.getByText("DISPATCHING").waitFor();
  const [shown, wide] = await page.getByRole("region", { name: "Jobs" }).evaluate((list) => [list.clientWidth, list.scrollWidth]);
  assert.ok(wide <= shown, `the list is ${wide} px wide, and ${shown} px of it are shown`);
  assert.ok(await row.getByRole("cell").last().isVisible(), "what the job waits for is shown");
});

test("a phone shows times with their zone, and the last polls of workers with long names", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const job = await api.submit();
  await api.claim("extract", "w".repeat(100));
  const page = await openPage(server, { viewport: phone });
  await page.goto(`/ui/jobs/${job}`);
  const zone = await page.locator(".history time").first().evaluate((time) => getComputedStyle(time, "::after").content);
  assert.equal(zone, '" UTC"');
  await page.goto("/ui/services/extract");
  const [shown, wide] = await page.getByRole("region", { name: "Workers" }).evaluate((list) => [list.clientWidth, list.scrollWidth]);
  assert.ok(wide <= shown, `the list is ${wide} px wide, and ${shown} px of it are shown`);
});

test("a first visit takes no more than 60 KiB", async (t) => {
  const server = await serve(t, ...seeded);
  await seed(server);
  for (const target of ["/ui/", "/ui/flow", "/ui/services", "/ui/jobs"]) {
    const page = await openPage(server, { viewport: desk }); // With an empty cache.
    const ended = [];
    page.on("requestfinished", (request) => ended.push(request));
    await page.goto(target, { waitUntil: "load" });
    if (target === "/ui/services") await page.locator("figure.chart canvas").first().waitFor();
    const sizes = await Promise.all(ended.map(async (request) => [(await request.sizes()).responseBodySize, new URL(request.url()).pathname]));
    const sum = sizes.reduce((total, [size]) => total + size, 0);
    assert.ok(sum > 0 && sum <= 60 * 1024, `${target} takes ${sum} bytes: ${JSON.stringify(sizes)}`);
    t.diagnostic(`${target}: ${sum} bytes`);
  }
});
