// The browser of the tests, and pages that tell when something is amiss in them.

import assert from "node:assert/strict";
import path from "node:path";
import { after } from "node:test";

import { chromium } from "playwright-core";

import { unpack, unpacked } from "./unpack.js";

// patience is how long a page may take to show what a test waits for, in milliseconds. The
// machine may be busy with other things.
export const patience = 60_000;

// launch starts a browser: that of the npm package, or else Debian's.
export async function launch() {
  unpack();
  const options = { args: ["--disable-gpu", "--font-render-hinting=none"], chromiumSandbox: false, timeout: patience };
  const own = {
    executablePath: path.join(unpacked, "chromium"),
    env: { ...process.env, LD_LIBRARY_PATH: path.join(unpacked, "lib"), FONTCONFIG_FILE: path.join(unpacked, "fonts.conf") },
  };
  // A start in some fifty crashes in getenv, while another thread of Chromium calls setenv.
  const candidates = [own, own, own, { executablePath: "/usr/bin/chromium" }];
  const faults = [];
  for (const candidate of candidates) {
    try {
      return await chromium.launch({ ...options, ...candidate });
    } catch (error) {
      faults.push(error.message);
    }
  }
  throw new Error("No browser starts. That of the npm package is for Linux on x86-64 with glibc 2.34 or later; " +
    `elsewhere install the package chromium of Debian.\n${faults.join("\n")}`);
}

// shared is the browser of one file's tests. It ends with them.
let shared;
after(async () => (await shared)?.close());

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
