import assert from "node:assert/strict";
import test from "node:test";

import { openPage } from "./browser.js";
import { serve } from "./server.js";

test("a page that is live follows what happens, and a restart of the server", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const page = await openPage(server, { expected: /ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET/ });
  await page.goto("/ui/pauses");
  await page.evaluate(() => { globalThis.sameDocument = true; });
  await page.getByText("Nothing is paused.").waitFor();
  await api.call("POST", "/v1/admin/pauses", { service: "ocr", reason: "OCR is down" });
  await page.getByText("OCR is down").waitFor();

  const status = page.locator("#live");
  await status.getByText("live", { exact: true }).waitFor();
  await server.stop();
  await status.getByText("not connected").waitFor();
  assert.ok(await page.getByText("OCR is down").isVisible(), "what was shown is still there");
  await server.start();
  await status.getByText("live", { exact: true }).waitFor();
  await api.call("POST", "/v1/admin/pauses", { service: "index", reason: "a full disk" });
  await page.getByText("a full disk").waitFor();
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
