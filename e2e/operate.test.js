import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import test from "node:test";

import { audit } from "./audit.js";
import { follow, openPage } from "./browser.js";
import { patience } from "./chromium.js";
import { desk, phone } from "./crawl.js";
import { eventually, serve } from "./server.js";

// act fills the reason of the dialog that is open, presses its button, and waits for the page that follows.
async function act(page, reason, button) {
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Reason").fill(reason);
  await follow(page, () => dialog.getByRole("button", { name: button }).click());
  assert.equal(await dialog.count(), 0, "the page that follows has no dialog");
}

const visit = (page, name) => follow(page, () => page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name }).click());

test("a failure is found, read and retried", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const job = await api.submit();
  await api.work("extract");
  await api.fail(await api.claim("ocr"), { code: "corrupt_pdf", message: "Page 3 cannot be read." });

  const page = await openPage(server);
  await page.goto("/ui/");
  await page.getByRole("article").filter({ hasText: "failed for good at ocr" }).getByRole("link", { name: "Retry 1…" }).waitFor();
  await visit(page, "Failures");
  const group = page.getByRole("article").filter({ hasText: "corrupt_pdf" });
  await group.getByText("Page 3 cannot be read.").waitFor();
  await group.getByRole("link", { name: "Retry 1…" }).click();
  await act(page, "the file was replaced", /^Rerun/);
  await page.getByText(/1 .*as requested|DONE/).first().waitFor();
  assert.match(new URL(page.url()).pathname, /^\/ui\/operations\/./);

  await api.work("ocr", "index");
  await visit(page, "Failures");
  await page.getByText("No matching job has failed for good.").waitFor();
  const rerun = (await api.job(job)).superseded_by;
  await eventually("the new job has ended", async () => (await api.job(rerun)).state === "SUCCEEDED");
});

test("a document is found, its failed job corrected, and a step done by hand", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const job = await api.submit({ tenant_id: "acme", doc_id: "doc-1", tags: { customer: "42" }, payload: { language: "en", pages: 3 } });
  await api.work("extract");
  await api.fail(await api.claim("ocr"), { code: "wrong_language", message: "This is not English." });

  const page = await openPage(server);
  await page.goto("/ui/jobs?tenant_id=acme");
  await page.getByLabel("document", { exact: true }).fill("doc-1");
  await page.getByText("More filters").click();
  await page.getByLabel("tag", { exact: true }).fill("customer=42");
  await follow(page, () => page.getByRole("button", { name: "Show" }).click());
  assert.equal(await page.locator("table.jobs tbody tr").count(), 1);
  await follow(page, () => page.locator("table.jobs tbody a.id").click());
  await page.getByRole("link", { name: "customer=42" }).waitFor();

  await page.getByRole("link", { name: "Rerun…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Change of the payload").fill('{"language": "de"}');
  await dialog.getByText(`--patch '{"language": "de"}'`).waitFor();
  await dialog.getByLabel("Or from the step").selectOption("ocr");
  assert.match(await dialog.locator(".command code").innerText(), /^(?!.*--from ).* --from-step ocr/, "the command takes one of both");
  await dialog.getByLabel("Or from the step").selectOption("");
  await dialog.getByText("--from failed").waitFor();
  await dialog.getByRole("button", { name: "Show what changes" }).click();
  const change = dialog.getByRole("listitem").filter({ hasText: "/payload/language" });
  await change.getByText('"en"').waitFor();
  await change.getByText('"de"').waitFor();
  assert.deepEqual(await dialog.locator(".plan .steps li").allInnerTexts(), ["extract\ntaken over", "ocr\nruns", "index\nruns"]);
  assert.equal((await api.job(job)).superseded_by, undefined, "nothing is done yet");
  await dialog.getByLabel("Callbacks").selectOption("none");
  assert.equal(await dialog.locator(".plan").count(), 0, "what is shown is of other corrections");
  await dialog.getByText("--no-callbacks").waitFor();
  await dialog.getByLabel("Callbacks").selectOption("keep");
  await dialog.getByRole("button", { name: "Show what changes" }).click();
  await change.waitFor();
  for (const [colorScheme, viewport] of [["light", desk], ["dark", phone]]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize(viewport);
    assert.deepEqual(await audit(page, `the difference (${colorScheme})`), []);
  }
  await page.setViewportSize(desk);
  await act(page, "it is German", "Rerun the job");
  await page.waitForURL((url) => url.pathname !== `/ui/jobs/${job}`);
  const rerun = await api.job((await api.job(job)).superseded_by);
  assert.deepEqual(rerun.rerun_edits, ["/payload/language"]);
  assert.deepEqual(rerun.steps[1].payload, { language: "de", pages: 3 });
  await api.fail(await api.claim("ocr"), { code: "wrong_language", message: "This is not German." });

  await page.goto(`/ui/jobs/${rerun.jobId}`);
  await page.getByRole("link", { name: "Rerun…" }).click();
  await dialog.getByText("Steps that were done by hand").click();
  await dialog.getByLabel("Output of ocr").fill("s3://acme/by-hand.json");
  await dialog.getByText("--resolve 'ocr=s3://acme/by-hand.json'").waitFor();
  await dialog.getByLabel("Change of the payload").fill('["de"]');
  await dialog.getByRole("button", { name: "Show what changes" }).click();
  await dialog.getByRole("alert").getByText(/^Change of the payload must be an object/).waitFor();
  await dialog.getByLabel("Change of the payload").fill("");
  await dialog.getByRole("button", { name: "Show what changes" }).click();
  await dialog.getByText("Nothing changes in the command.").waitFor();
  assert.deepEqual(await dialog.locator(".plan .steps li").allInnerTexts(), ["extract\ntaken over", "ocr\ndone by hand", "index\nruns"]);
  await act(page, "typed by a person", "Rerun the job");
  await page.waitForURL((url) => url.pathname !== `/ui/jobs/${rerun.jobId}`);
  await api.work("index");
  const last = (await api.call("GET", `/v1/jobs/${job}/lineage`)).jobs.at(-1);
  await eventually("the job has ended", async () => (await api.job(last.jobId)).state === "SUCCEEDED");
  assert.equal(last.first_step, "index");
  assert.equal(last.reason, "typed by a person");
});

test("a job that waits for its date is found and begun", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.submit({ doc_id: "doc-1" });
  const job = await api.submit({ doc_id: "doc-2", delay_seconds: 7200, not_after: new Date(Date.now() + 86_400_000).toISOString() });

  const page = await openPage(server);
  await page.goto("/ui/jobs");
  await page.getByLabel("waits for").selectOption("its date");
  await page.getByRole("button", { name: "Show" }).click();
  await page.waitForURL((url) => url.searchParams.get("waiting") === "scheduled");
  assert.equal(await page.locator("table.jobs tbody tr").count(), 1);
  await follow(page, () => page.locator("table.jobs tbody a.id").click());
  await page.getByText(/^The job begins at 2.*, in (2 h|1 h \d+ min)/).waitFor();
  for (const [colorScheme, viewport] of [["light", desk], ["dark", phone]]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize(viewport);
    assert.deepEqual(await audit(page, `a job that waits for its date (${colorScheme})`), []);
  }
  await page.setViewportSize(desk);
  await page.getByRole("link", { name: "Reschedule…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("New date").fill("tomorrow");
  await dialog.getByRole("button", { name: "Reschedule the job" }).click();
  await dialog.getByText("The new date is a time such as").waitFor();
  await dialog.getByLabel("New date").fill("");
  await dialog.getByLabel("Or begins after").fill("2d");
  await dialog.getByText("--in 2d").waitFor();
  await dialog.getByRole("button", { name: "Reschedule the job" }).click();
  await dialog.getByText("must be later than now and than not_before").first().waitFor(); // It would expire before.
  await dialog.getByLabel("Its expiry").selectOption("removed");
  await act(page, "the source is late", "Reschedule the job");
  await eventually("it is put off", async () => (await api.job(job)).not_after === undefined);

  await page.getByRole("link", { name: "Begin now…" }).click();
  await dialog.getByText("--now").waitFor();
  for (const [colorScheme, viewport] of [["light", desk], ["dark", phone]]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize(viewport);
    assert.deepEqual(await audit(page, `the new date (${colorScheme})`), []);
  }
  await page.setViewportSize(desk);
  await act(page, "the source is here", "Reschedule the job");
  await eventually("it has begun", async () => (await api.job(job)).state === "DISPATCHING");
  await page.getByText("rescheduled to now").first().waitFor();
});

// carries completes the work of the services until it is stopped.
function carries(api, ...services) {
  let running = true;
  const loop = (async () => {
    while (running) {
      const { items } = await api.call("POST", "/v1/work:claim",
        { owner: "carrier-1", services, max: 100, wait_seconds: 1, start: true, request_id: randomUUID() });
      await Promise.all(items.map((item) => api.complete(item)));
    }
  })();
  return () => { running = false; return loop; };
}

test("two hundred jobs that succeeded are repeated with a patch, after a look", async (t) => {
  let stop;
  t.after(() => stop?.()); // Before the server ends.
  const server = await serve(t);
  const api = server.client();
  const command = (n) => ({
    tenant_id: "acme", request_type: "doc.ingest", schema_version: "1", doc_id: `doc-${n}`,
    input_ref: { uri: `s3://in/${n}.pdf` }, output_ref: { uri: `s3://out/${n}.json` }, payload: { language: "en", model: "v2" },
  });
  for (const first of [0, 100]) {
    const commands = Array.from({ length: 100 }, (_, n) => command(first + n));
    const { results } = await api.call("POST", "/v1/commands:batch", { commands });
    assert.deepEqual([...new Set(results.map((one) => one.status))], [202]);
  }
  stop = carries(api, "extract", "ocr", "index");
  const succeeded = async () => (await api.call("POST", "/v1/admin/retries",
    { dry_run: true, tenant_id: "acme", state: "SUCCEEDED", from: "start", created_before: new Date().toISOString() })).matched;
  await eventually("all have succeeded", async () => await succeeded() === 200, 5 * patience);
  const before = new Date(Math.ceil(Date.now() / 1000) * 1000).toISOString().slice(0, 19);
  await eventually("that time is past", () => new Date().toISOString() > `${before}.000Z`);

  const page = await openPage(server, { viewport: desk });
  await page.goto("/ui/jobs?state=SUCCEEDED&tenant_id=acme");
  await page.getByText("More filters").click();
  await page.getByLabel("accepted before, UTC").fill(before);
  await follow(page, () => page.getByRole("button", { name: "Show" }).click());
  await page.getByRole("link", { name: "Rerun these…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("200 jobs match").waitFor();
  await dialog.getByText(`jobs accepted before ${before.replace("T", " ")} UTC`).waitFor();
  await dialog.getByLabel("Change of the payload").fill('{"model": "v3"}');
  await dialog.getByLabel("Jobs per second").fill("200");
  await dialog.getByLabel("Protocol").selectOption("current");
  await dialog.getByRole("button", { name: "Show what changes" }).click();
  const sample = dialog.getByRole("region", { name: "Some of the jobs" }).getByRole("row");
  await sample.filter({ hasText: "/payload/model" }).first().waitFor();
  assert.equal(await sample.filter({ hasText: /from extract.*"v2" → "v3"/s }).count(), 10);
  assert.deepEqual((await api.call("GET", "/v1/admin/operations")).operations, [], "nothing is done yet");
  for (const [colorScheme, viewport] of [["light", desk], ["dark", phone]]) {
    await page.emulateMedia({ colorScheme });
    await page.setViewportSize(viewport);
    assert.deepEqual(await audit(page, `the sample (${colorScheme})`), []);
  }
  await page.setViewportSize(desk);

  await dialog.getByLabel("Reason").fill("a new model");
  await follow(page, () => dialog.getByRole("button", { name: "Try three first" }).click());
  await page.getByText("Repeats 3 jobs that succeeded, from the first step, with the patch").waitFor();
  await eventually("three are done", async () => {
    await page.reload();
    return await page.getByText("Of its jobs 3 succeeded").count() === 1;
  });
  await page.getByRole("link", { name: "Go on with the jobs that follow…" }).click();
  await dialog.getByText("197 jobs match").waitFor();
  assert.equal(await dialog.getByLabel("Change of the payload").inputValue(), '{"model":"v3"}');
  await act(page, "the three are fine", "Rerun 197 jobs");
  await page.getByText('Repeats 197 jobs that succeeded, from the first step, with the patch {"model":"v3"}, on the current protocol.').waitFor();
  await eventually("all are done", async () => {
    await page.reload();
    return await page.getByText("Of its jobs 197 succeeded").count() === 1;
  }, 5 * patience);
  const operation = new URL(page.url()).pathname.split("/").at(-1);
  const { jobs } = await api.call("GET", `/v1/jobs?tenant_id=acme&limit=200&tag=${encodeURIComponent(`lucius.operation=${operation}`)}`);
  assert.deepEqual([...new Set(jobs.map((job) => job.rerun_edits.join()))], ["/payload/model,/protocol"]);

  await page.goto(`/ui/do/retry?state=SUCCEEDED&tenant_id=acme&created_before=${before}Z`);
  await page.getByText("No job matches.").waitFor(); // The reruns are not selected.
});

test("what one knows of is known to all, and the retry says whether it helped", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.submit();
  await api.fail(await api.claim("extract"), { code: "corrupt_pdf", message: "Page 3 cannot be read." });
  const page = await openPage(server);
  await page.goto("/ui/");
  const other = await page.context().newPage();
  await other.goto("/ui/services");
  const titled = (tab, title) => tab.waitForFunction((want) => document.title === want, title);
  await titled(other, "(1) Services · Lucius");

  const finding = page.getByRole("article").filter({ hasText: "corrupt_pdf" });
  await finding.getByText("Page 3 cannot be read.").waitFor();
  await finding.getByRole("link", { name: "Acknowledge…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Note").fill("the vendor has a ticket");
  await dialog.getByText('lucius attention mark error:extract:corrupt_pdf --as acknowledged --note \'the vendor has a ticket\'').waitFor();
  await follow(page, () => dialog.getByRole("button", { name: "Mark it" }).click());
  await page.getByRole("heading", { name: "Known" }).waitFor();
  await finding.getByText("the vendor has a ticket").waitFor();
  await titled(page, "Attention · Lucius");
  await titled(other, "Services · Lucius"); // Live, without another visit.

  await finding.getByRole("link", { name: "Retry 1…" }).click();
  await act(page, "the file was replaced", /^Rerun/);
  await api.fail(await api.claim("extract"), { code: "corrupt_pdf", message: "Page 3 cannot be read." });
  await eventually("it says that it did not help", async () => {
    await page.reload();
    return await page.getByText("Of its jobs 1 failed again.").count() === 1;
  });
  await visit(page, "Attention");
  await finding.getByText(/retried 1 job .* 1 failed again/).waitFor();
});

test("a service is paused with a reason, and resumed", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.submit();
  const page = await openPage(server);
  await page.goto("/ui/pauses");
  await page.getByRole("link", { name: "Pause dispatch…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Scope").selectOption("service");
  await dialog.getByLabel("Name").fill("extract");
  await act(page, "the disk is full", "Pause");
  const pause = page.getByRole("article").filter({ hasText: "the disk is full" });
  await pause.getByText("extract").first().waitFor();
  const claim = { owner: "extract-1", services: ["extract"], max: 1, start: true, request_id: "while-paused" };
  assert.deepEqual((await api.call("POST", "/v1/work:claim", claim)).items, [], "nothing is given out");

  await visit(page, "Flow");
  await page.getByRole("link", { name: /^extract: .*paused/ }).first().waitFor();
  await visit(page, "Pauses");
  await pause.getByRole("link", { name: "Resume…" }).click();
  await act(page, "there is room again", "Resume");
  await pause.getByText("is paused").waitFor({ state: "hidden" });
  await api.work("extract");
});

test("the count of a dialog that was left changes no other dialog", async (t) => {
  const server = await serve(t);
  await server.client().submit();
  const page = await openPage(server, { expected: /^htmx:(afterRequest|sendAbort)/ }); // The count that is given up.
  const held = {};
  for (const name of ["jobs-pause", "jobs-cancel"]) {
    const released = new Promise((resolve) => { held[name] = { release: resolve }; });
    held[name].asked = new Promise((resolve) => {
      page.route(`**/ui/do/${name}?*`, async (route) => {
        if (route.request().headers()["hx-target"] === "dialog") return route.continue();
        resolve();
        await released;
        await route.continue().catch(() => {}); // The page may have given it up.
      });
    });
  }
  await page.goto("/ui/jobs");
  const dialog = page.getByRole("dialog");
  await page.getByRole("link", { name: "Pause…" }).click();
  await held["jobs-pause"].asked;
  await dialog.getByRole("button", { name: "Leave it" }).click();
  const answered = page.waitForEvent("requestfinished", (request) => request.url().includes("/ui/do/jobs-pause?")).then(() => "answered");
  const ended = Promise.race([answered, page.waitForEvent("requestfailed")]);
  await page.getByRole("link", { name: "Cancel…" }).click();
  await held["jobs-cancel"].asked;
  held["jobs-pause"].release();
  await ended;
  assert.equal(await dialog.locator("#submit button").first().isDisabled(), true, "the jobs are not counted yet");
  held["jobs-cancel"].release();
  await dialog.getByRole("button", { name: "Cancel 1 job" }).waitFor();
  assert.equal(await dialog.getByText("Counting the jobs…").count(), 0);
});

test("a way back ticks no other jobs", async (t) => {
  const server = await serve(t);
  const api = server.client();
  for (let n = 0; n < 4; n++) await api.submit();
  const page = await openPage(server);
  await page.goto("/ui/jobs?state=DISPATCHING");
  const ticks = page.locator("input[name=job]");
  await ticks.first().check();
  await page.getByRole("button", { name: "Pause…" }).click();
  await act(page, "one is enough", "Pause 1 job");
  await page.getByText("DONE").waitFor();
  await page.goBack();
  await ticks.nth(2).waitFor();
  assert.equal(await ticks.and(page.locator(":checked")).count(), 0);
});

test("a form is left for the page that it was opened from", async (t) => {
  const server = await serve(t);
  const page = await openPage(server);
  await page.goto("/ui/pauses");
  const [tab] = await Promise.all([
    page.waitForEvent("popup"), page.evaluate(() => { window.open("/ui/do/dispatch-pause"); }),
  ]);
  await tab.waitForLoadState(); // Its button needs the script.
  await tab.getByRole("button", { name: "Leave it" }).click();
  await tab.getByRole("heading", { name: "Pauses" }).waitFor();
  await tab.goto("/ui/jobs");
  await tab.goto("/ui/do/dispatch-pause");
  await tab.getByRole("button", { name: "Leave it" }).click();
  await tab.getByRole("heading", { name: "Jobs" }).waitFor();
});

test("the command of a pause follows its form", async (t) => {
  const server = await serve(t);
  const page = await openPage(server);
  await page.goto("/ui/do/dispatch-pause");
  const command = page.locator("form.action .command code");
  await page.getByLabel("Name").fill("it's");
  assert.equal(await command.textContent(), "lucius pause --service 'it'\\''s' --reason WHY");
  await page.getByLabel("Scope").selectOption("tenant");
  await page.getByLabel("Resume by itself after").fill("2h");
  assert.equal(await command.textContent(), "lucius pause --tenant 'it'\\''s' --for 2h --reason WHY");
  await page.getByLabel("Scope").selectOption("all");
  await page.getByLabel("Resume by itself after").fill("");
  assert.equal(await command.textContent(), "lucius pause --all --reason WHY");
  await page.getByLabel("Scope").selectOption("lane");
  await page.getByLabel("Name").fill("7");
  await page.getByLabel("Reason").fill("maintenance");
  assert.equal(await command.textContent(), "lucius pause --lane 7 --reason maintenance");

  await page.goto("/ui/do/dispatch-resume?pause=service:ocr");
  await page.getByLabel("Ramp").fill("30");
  await page.getByLabel("Reason").fill("repaired");
  assert.equal(await command.textContent(), "lucius resume --service ocr --ramp 30s --reason repaired");
});

test("the command of a form quotes what a terminal would act on", async (t) => {
  const server = await serve(t);
  const page = await openPage(server);
  await page.goto("/ui/do/dispatch-pause?service=ocr");
  const command = page.locator("form.action .command code");
  const reason = page.getByLabel("Reason");
  for (const [entered, line] of [
    ["it's down", "--reason 'it'\\''s down'"], ["a\u001b[2J'b\\c ü", "--reason $'a\\x1b[2J\\x27b\\x5cc \\xc3\\xbc'"], ["down", "--reason down"],
  ]) {
    await reason.fill(entered);
    assert.equal(await command.textContent(), `lucius pause --service ocr ${line}`);
  }
});

test("the commands that the console teaches run as they are", async (t) => {
  const server = await serve(t);
  const strict = `protocol_id: strict_v1
request_types: [strict]
schema_versions: ["3"]
steps:
  - step_id: read
    step_type: READ
    service: read
    input: job
    payload: /read
    payload_schema:
      type: object
      additionalProperties: false
      required: [pages, "who's"]
      properties: {pages: {type: integer, minimum: 3}, "who's": {enum: ["it's <me>"]}}
`;
  const folder = path.join(server.dir, "protocols");
  mkdirSync(folder);
  writeFileSync(path.join(folder, "strict.yaml"), strict);
  await server.stop();
  server.flags = ["--protocols-dir", folder];
  await server.start();
  const page = await openPage(server);
  for (const address of ["/ui/jobs", "/ui/protocols"]) {
    await page.goto(address);
    const command = await page.locator("code", { hasText: "curl" }).first().textContent();
    const accepted = JSON.parse(execFileSync("bash", ["-c", `${command} --silent`], { encoding: "utf8" }));
    assert.ok(accepted.jobId, `${address}: ${command}: ${JSON.stringify(accepted)}`);
  }
});
