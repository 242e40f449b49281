import assert from "node:assert/strict";
import test from "node:test";

import { audit } from "./audit.js";
import { follow, openPage } from "./browser.js";
import { desk, phone } from "./crawl.js";
import { eventually, serve } from "./server.js";

test("a schedule is previewed, seen in its calendar, run, paused and resumed", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const path = "/v1/schedules/acme/often";
  const command = {
    request_type: "doc.ingest", schema_version: "1", payload: { language: "en" },
    input_ref: { uri: "s3://in/${scheduled_date}.pdf" }, output_ref: { uri: "s3://out/${scheduled_date}.json" },
  };
  await api.call("PUT", path, { every: "10s", time_zone: "Europe/Berlin", overlap: "skip", command });

  const page = await openPage(server, { viewport: desk });
  const fits = async (what) => {
    for (const [colorScheme, viewport] of [["light", desk], ["dark", phone]]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize(viewport);
      assert.deepEqual(await audit(page, `${what} (${colorScheme}, ${viewport.width} px)`), []);
    }
    await page.setViewportSize(desk);
  };

  await page.goto("/ui/schedules?tenant_id=acme");
  const preview = page.getByRole("button", { name: "Preview" });
  await page.getByLabel("cron expression, or interval").fill("30 2 * * *");
  await page.getByLabel("time zone").fill("Europe/Berlin");
  await follow(page, () => preview.click());
  const times = page.getByRole("region", { name: "Times to come" });
  await times.getByText(/T0[23]:[03]0:00\+0[12]:00/).first().waitFor();
  assert.equal(await times.locator("tbody tr").count(), 10);
  await fits("a preview");
  await page.getByLabel("cron expression, or interval").fill("30 2 * *");
  await preview.click();
  await page.getByRole("alert").filter({ hasText: "4 fields" }).waitFor();

  // The first job is never done, so the times after it are skipped.
  await eventually("two times have passed", async () => {
    const outcomes = (await api.call("GET", `${path}/fires`)).fires.map((one) => one.outcome);
    return outcomes.includes("fired") && outcomes.includes("skipped");
  });
  await follow(page, () => page.getByRole("region", { name: "Schedules of acme" }).getByRole("link", { name: "often" }).click());
  const calendar = page.getByRole("region", { name: "Calendar" });
  await calendar.getByRole("cell", { name: /✓/ }).first().waitFor();
  await calendar.getByRole("cell", { name: /–/ }).first().waitFor();
  await calendar.getByRole("cell", { name: /○360/ }).first().waitFor();
  assert.equal(await calendar.getByRole("row").count(), 10);
  await fits("a schedule");

  const dialog = page.getByRole("dialog");
  await page.getByRole("link", { name: "Pause…" }).click();
  await dialog.getByText("lucius schedules pause acme/often").waitFor();
  await dialog.getByLabel("Reason").fill("the source is down");
  await fits("the form");
  await follow(page, () => dialog.getByRole("button", { name: "Pause" }).click());
  await page.getByText("There is no further time while it is paused.").waitFor();
  assert.equal((await api.call("GET", path)).state, "paused");
  await page.getByRole("link", { name: "Resume…" }).click();
  await follow(page, () => dialog.getByRole("button", { name: "Resume" }).click());
  await page.getByRole("link", { name: "Pause…" }).waitFor();

  await page.getByRole("link", { name: "Run now…" }).click();
  await dialog.getByRole("button", { name: "Run now" }).click();
  await dialog.getByRole("alert").filter({ hasText: "It was not run, but skipped" }).waitFor(); // The first job is in its way.
  await dialog.getByRole("button", { name: "Leave it" }).click();
  const [{ jobId }] = (await api.call("GET", `${path}/fires`)).fires.filter((one) => one.outcome === "fired").slice(-1);
  await api.call("POST", `/v1/jobs/${jobId}:cancel`, { reason: "it is in the way" });
  await api.call("PUT", path, { cron: "0 0 1 1 *", overlap: "skip", command }); // Nothing comes in between.
  for (const { jobId: id } of (await api.call("GET", "/v1/jobs?tenant_id=acme")).jobs) {
    if (!(await api.job(id)).completed_at) await api.call("POST", `/v1/jobs/${id}:cancel`, { reason: "it is in the way" });
  }
  await page.getByRole("link", { name: "Run now…" }).click();
  await dialog.getByRole("button", { name: "Run now" }).click();
  await page.waitForURL("**/ui/jobs/*");
});
