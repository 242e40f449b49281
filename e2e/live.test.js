import assert from "node:assert/strict";
import test from "node:test";

import { away, openPage } from "./browser.js";
import { serve } from "./server.js";

test("a page that is live follows what happens, and a restart of the server", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const page = await openPage(server, { expected: away });
  await page.goto("/ui/pauses");
  await page.evaluate(() => { globalThis.sameDocument = true; });
  await page.getByText("Nothing is paused.").waitFor();
  await api.call("POST", "/v1/admin/pauses", { service: "ocr", reason: "OCR is down" });
  await page.getByText("OCR is down").waitFor();

  const status = page.locator("#live");
  await status.getByText("live", { exact: true }).waitFor();
  await server.stop();
  await status.getByText(/^not connected since \d\d:\d\d:\d\d UTC$/).waitFor();
  const opacity = () => page.getByRole("main").evaluate((main) => getComputedStyle(main).opacity);
  assert.equal(await opacity(), "0.6", "what may be old is dim");
  assert.ok(await page.getByText("OCR is down").isVisible(), "what was shown is still there");
  await server.start();
  await status.getByText("live", { exact: true }).waitFor();
  await api.call("POST", "/v1/admin/pauses", { service: "index", reason: "a full disk" });
  await page.getByText("a full disk").waitFor();
  assert.equal(await opacity(), "1");
  assert.ok(await page.evaluate(() => globalThis.sameDocument), "the page was not loaded again");
});

test("a job is watched from its command to its end", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const job = await api.submit();
  const page = await openPage(server);
  await page.goto(`/ui/jobs/${job}`);
  await page.evaluate(() => { globalThis.sameDocument = true; });
  const main = page.getByRole("main");
  await main.getByText(/worker/i).first().waitFor();
  await api.work("extract");
  const item = await api.claim("ocr", "ocr-7");
  await main.getByText("ocr-7").first().waitFor();
  await api.fail(item, { code: "corrupt_pdf", message: "Page 3 <b>cannot</b> be read." }, true);
  await main.getByText("Page 3 <b>cannot</b> be read.").first().waitFor();
  await api.work("ocr", "index");
  await main.getByText("SUCCEEDED").first().waitFor();
  assert.ok(await page.evaluate(() => globalThis.sameDocument), "the page was not loaded again");
});

test("a live page says since when it is not current", async (t) => {
  const server = await serve(t);
  const page = await openPage(server, { timezoneId: "Asia/Kolkata" });
  await page.addInitScript(() => {
    globalThis.said = [];
    addEventListener("DOMContentLoaded", () => {
      const sign = document.getElementById("live");
      new MutationObserver(() => globalThis.said.push(sign.textContent)).observe(sign, { childList: true });
    });
  });
  // The server's own streams are those of a server whose store answers.
  await page.route("**/ui/pauses", (route) => route.request().headers().accept === "text/event-stream"
    ? route.fulfill({ contentType: "text/event-stream", body: "event: stale\ndata: 2026-01-27T10:02:30Z\n\nevent: stale\ndata:\n\n" })
    : route.continue());
  await page.goto("/ui/pauses");
  await page.waitForFunction(() => globalThis.said.some((text) => text.startsWith("not current since ")));
  const said = await page.evaluate(() => globalThis.said);
  const at = said.findIndex((text) => text.startsWith("not current since "));
  assert.equal(said[at], "not current since 10:02:30 UTC");
  await page.waitForFunction((after) => globalThis.said[after] === "live", at + 1);
});

test("what a user has opened, selected or focused stays when a page changes", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.call("POST", "/v1/admin/pauses", { service: "extract", reason: "no room" });
  const job = await api.submit();
  const page = await openPage(server);
  await page.goto(`/ui/jobs/${job}`);
  const open = () => page.locator("details[open] summary").allTextContents();
  await page.getByText("extract: extract, EXTRACT").click();
  await page.evaluate(() => {
    const row = [...document.querySelectorAll(".history tr")].find((tr) => tr.textContent.includes("job accepted"));
    getSelection().selectAllChildren(row.cells[1]);
  });
  await api.call("POST", "/v1/admin/pauses/service:extract:resume", { ramp_seconds: 0 });
  await page.getByText("Directive of extract").waitFor(); // It comes before the step.
  assert.deepEqual(await open(), ["extract: extract, EXTRACT"]);
  assert.equal(await page.evaluate(() => getSelection().toString()), "job accepted");

  await api.call("POST", "/v1/admin/pauses", { service: "validate", reason: "a full disk" });
  await page.goto("/ui/");
  const focused = () => page.evaluate(() => document.activeElement.closest("article")?.querySelector(".lead b").textContent);
  await page.getByRole("article").filter({ hasText: "a full disk" }).getByRole("link", { name: "Resume…" }).focus();
  assert.equal(await focused(), "Service validate");
  await api.call("POST", "/v1/admin/pauses", { service: "extract", reason: "no room" });
  await api.submit();
  // Some wait for it, so it comes first. What says for a while that no worker polls for them is another article.
  await page.getByRole("article").first().filter({ hasText: /^\s*Service extract.*[1-9] directives? wait/s }).waitFor();
  assert.equal(await focused(), "Service validate");
});

test("the focus goes on to what is beside it when what has it is gone", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.submit();
  const page = await openPage(server);
  await page.goto("/ui/services");
  const row = page.locator("main tbody tr").filter({ hasText: "EXTRACT" });
  await row.locator("[data-label=ready] a").focus();
  await api.work("extract");
  await page.waitForFunction(() => document.activeElement.textContent === "extract");
  assert.equal(await row.locator("[data-label=ready] a").count(), 0, "a count of 0 is no link");

  // A link that is hidden takes no focus, so it goes on to another one.
  await api.submit();
  await row.locator("[data-label=ready] a").focus();
  await page.evaluate(() => {
    const hidden = new CSSStyleSheet();
    hidden.replaceSync('main a[href="/ui/services/extract"] { display: none }');
    document.adoptedStyleSheets.push(hidden);
    globalThis.ready = document.activeElement;
  });
  await api.work("extract");
  await page.waitForFunction(() => document.activeElement !== globalThis.ready);
  assert.ok(await page.evaluate(() => document.activeElement.matches("main a")), "another link has the focus");
});

// Over HTTP/1 a browser opens six connections to a server.
test("pages that are not seen leave the connections to those that are", async (t) => {
  const server = await serve(t);
  const page = await openPage(server);
  await page.context().addInitScript(() => {
    globalThis.unseen = false;
    Object.defineProperty(document, "hidden", { get: () => globalThis.unseen });
  });
  const turn = (tab, unseen) => tab.evaluate((now) => {
    globalThis.unseen = now;
    document.dispatchEvent(new Event("visibilitychange"));
  }, unseen);
  await page.goto("/ui/pauses");
  await page.getByText("Nothing is paused.").waitFor();
  for (let n = 0, last = page; n < 7; n++) {
    await turn(last, true);
    last = await page.context().newPage();
    await last.goto("/ui/");
    await last.getByRole("heading", { name: "Needs attention" }).waitFor();
  }
  await server.client().call("POST", "/v1/admin/pauses", { service: "ocr", reason: "OCR is down" });
  await turn(page, false);
  await page.getByText("OCR is down").waitFor();
});

test("a chart takes the colours of the scheme", async (t) => {
  const server = await serve(t);
  await server.client().submit();
  const page = await openPage(server);
  await page.emulateMedia({ colorScheme: "light" });
  await page.goto("/ui/services");
  const charts = page.locator("figure.chart canvas");
  await charts.first().waitFor();
  const drawn = () => charts.first().evaluate((canvas) => canvas.toDataURL());
  const light = await drawn();
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForFunction((before) => document.querySelector("figure.chart canvas").toDataURL() !== before, light);
  const count = await charts.count();
  assert.equal(count, await page.locator("figure.chart").count(), "each chart is drawn once");
});

// Jobs come and go all the while, so that each page is rendered again each second.
test("live pages lose no click and no focus", async (t) => {
  const server = await serve(t);
  const api = server.client();
  await api.call("POST", "/v1/admin/pauses", { service: "index", reason: "a full disk" });
  const job = await api.submit();
  const page = await openPage(server);
  let over = false;
  const traffic = (async () => {
    while (!over) {
      await api.submit();
      await api.work("extract");
    }
  })();
  server.pages.push(async () => { over = true; await traffic; }); // Before the server ends.
  for (const path of ["/ui/", "/ui/flow", "/ui/services", "/ui/services/ocr", "/ui/pauses", `/ui/jobs/${job}`]) {
    await page.goto(path);
    await page.evaluate(() => {
      globalThis.clicks = 0;
      globalThis.links = [...document.querySelectorAll("#nav a")];
      // Only the click is of interest.
      document.addEventListener("click", (event) => { event.preventDefault(); event.stopPropagation(); globalThis.clicks += event.target.closest("#nav a") ? 1 : 0; }, true);
    });
    const box = await page.locator("#nav a", { hasText: "Jobs" }).boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    for (let n = 1; n <= 25; n++) {
      await page.mouse.down();
      await new Promise((resolve) => setTimeout(resolve, n === 25 ? 2500 : 40)); // The last one is held over two renderings.
      await page.mouse.up();
      assert.equal(await page.evaluate(() => globalThis.clicks), n, `${path}: a click was lost`);
    }
    assert.ok(await page.evaluate(() => globalThis.links.every((link) => link.isConnected)), `${path}: the navigation was replaced`);
    // Round the page, for more than two renderings: the focus is lost only where the page ends.
    let lost = 0, rounds = 0;
    for (const end = Date.now() + 4000; Date.now() < end;) {
      await page.keyboard.press("Tab");
      if (await page.evaluate(() => document.activeElement === document.body)) { rounds++; continue; }
      await new Promise((resolve) => setTimeout(resolve, 50));
      if (await page.evaluate(() => document.activeElement === document.body)) lost++;
    }
    assert.equal(lost, 0, `${path}: the focus was lost, in ${rounds} rounds`);
  }
});

// What is pressed stays, although another element loses the focus at that moment; a press whose
// release the browser keeps, as that of its context menu, holds nothing back for long.
test("a press ends with its release, however that is told", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const page = await openPage(server);
  await page.goto("/ui/pauses");
  await page.locator("#live").getByText("live", { exact: true }).waitFor();
  await page.locator(".search input").focus();
  const box = await page.getByRole("heading", { level: 1 }).boundingBox();
  await page.mouse.move(box.x + 5, box.y + 5);
  await page.mouse.down();
  await api.call("POST", "/v1/admin/pauses", { service: "index", reason: "a full disk" });
  await new Promise((resolve) => setTimeout(resolve, 2500)); // More than two renderings.
  assert.equal(await page.getByText("a full disk").count(), 0, "the page changed under the press");
  await page.mouse.up();
  await page.getByText("a full disk").waitFor();

  for (const [service, reason, release] of [
    ["ocr", "a full bucket", () => page.evaluate(() => document.body.dispatchEvent(new MouseEvent("contextmenu", { bubbles: true })))],
    ["extract", "a full moon", () => page.mouse.move(box.x + 9, box.y + 9)],
  ]) {
    await page.evaluate(() => document.body.dispatchEvent(new PointerEvent("pointerdown", { bubbles: true })));
    await api.call("POST", "/v1/admin/pauses", { service, reason });
    await new Promise((resolve) => setTimeout(resolve, 2500));
    assert.equal(await page.getByText(reason).count(), 0, "the page changed under the press");
    await release();
    await page.getByText(reason).waitFor();
  }
});
