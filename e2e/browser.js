// Pages of the tests, which tell when something is amiss in them.

import assert from "node:assert/strict";
import { after } from "node:test";

import { launch, patience } from "./chromium.js";

// shared is the browser of one file's tests. It ends with them.
let shared;
after(async () => (await shared)?.close());

// away is what pages report of a server that stops, is away, and starts again.
export const away = /ERR_CONNECTION|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|status of 503/;

// follow does what leads to another page, and waits until that and its script are there: links and
// buttons that are used before do what they do without script.
export async function follow(page, act) {
  await page.evaluate(() => { globalThis.left = true; });
  await act();
  await page.waitForFunction(() => !globalThis.left && document.readyState === "complete");
}

// openPage opens a page with an empty profile. The test fails if the page reports an error,
// asks another host for something, or breaks its content security policy. Options are those
// of a browser context, and `expected`: what errors may say that belong to the test. The
// page is closed before its server ends.
export async function openPage(server, { expected = /^$/, ...options } = {}) {
  const browser = await (shared ??= launch());
  const context = await browser.newContext({ baseURL: server.url, locale: "en-GB", ...options });
  context.setDefaultTimeout(patience);
  const faults = [];
  const report = (page, text) => { if (!expected.test(text)) faults.push(`${page?.url()}: ${text}`); };
  context.on("console", (message) => {
    // A stream that ends is an event that htmx logs; the browser then connects again.
    if (["error", "warning"].includes(message.type()) && message.text() !== "[object Event]") report(message.page(), message.text());
  });
  context.on("weberror", (error) => report(error.page(), String(error.error())));
  context.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.origin !== server.url) faults.push(`a request to ${url.origin}`);
  });
  server.pages.push(async () => {
    await context.close();
    assert.deepEqual(faults, [], "what the pages reported");
  });
  return context.newPage();
}
