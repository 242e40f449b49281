import assert from "node:assert/strict";
import test from "node:test";

import { openPage } from "./browser.js";
import { orderKey, seed, seeded } from "./seed.js";
import { serve } from "./server.js";

test("without script, pages are read and actions are plain forms", async (t) => {
  const server = await serve(t, ...seeded);
  const jobs = await seed(server);
  const page = await openPage(server, { javaScriptEnabled: false });
  await page.goto("/ui/");
  for (const link of await page.getByRole("navigation", { name: "Pages" }).getByRole("link").all()) {
    assert.ok((await page.request.get(await link.getAttribute("href"))).ok());
  }
  await page.goto(`/ui/jobs/${jobs.waiting}`);
  await page.getByText("What is stored").waitFor();
  assert.equal(await page.locator("#live:visible, .copy:visible, [data-copy]:visible").count(), 0, "what only script makes work");
  await page.goto("/ui/failures");
  await page.getByText("TIMEOUT").first().waitFor();
  await page.goto(`/ui/do/job-cancel?job=${jobs.waiting}`);
  await page.getByLabel("Reason").fill("entered by hand");
  await page.getByRole("button", { name: "Cancel the job" }).click();
  await page.waitForURL(`**/ui/jobs/${jobs.waiting}`);
  assert.equal((await server.client().job(jobs.waiting)).state, "CANCELLED");

  await page.goto("/ui/lines");
  await page.getByRole("link", { name: orderKey }).click();
  await page.getByText("2 jobs wait after it").waitFor();
  await page.getByRole("link", { name: "Release the line…" }).click();
  await page.getByLabel("Reason").fill("corrected by hand");
  await page.getByRole("button", { name: "Release the line" }).click();
  await page.waitForURL("**/ui/lines/*");
  await page.getByText("1 job waits after it").waitFor();
  assert.notEqual((await server.client().job(jobs.blocked)).state, "QUEUED");

  await page.goto(`/ui/do/job-rerun?job=${jobs.cancelled}`);
  await page.getByLabel("Change of the payload").fill('{"language": "fr"}');
  await page.getByRole("button", { name: "Show what changes" }).click();
  await page.getByRole("listitem").filter({ hasText: "/payload/language" }).getByText('"fr"').waitFor();
  await page.getByRole("button", { name: "Rerun the job" }).click();
  await page.waitForURL((url) => url.pathname.startsWith("/ui/jobs/"));
  assert.equal((await server.client().job(jobs.cancelled)).superseded_by, new URL(page.url()).pathname.split("/").at(-1));
});
