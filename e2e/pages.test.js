import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import test from "node:test";

import { openPage } from "./browser.js";
import { seed, seeded } from "./seed.js";
import { serve } from "./server.js";

const axe = readFileSync(path.join(import.meta.dirname, "node_modules/axe-core/axe.min.js"), "utf8");
const phone = { width: 390, height: 844 };
const desk = { width: 1440, height: 900 };

// kind names what pages of different jobs and filters have in common.
const kind = (url) => url.pathname.replace(/(\/(?:jobs|operations|services|protocols)\/).+/, "$1*") +
  ` ${[...url.searchParams.keys()].sort().join(" ")}`;

// crawl returns one URL of each kind of page that links lead to.
async function crawl(page) {
  const queue = ["/ui/", "/docs"];
  const found = new Map(queue.map((target) => [target, target]));
  for (const target of queue) {
    await page.goto(target);
    const links = await page.locator("a[href]").evaluateAll((all) => all.map((a) => a.href));
    for (const link of links) {
      const url = new URL(link);
      if (url.pathname.startsWith("/ui/jobs")) continue; // These pages are still to come.
      if (!url.pathname.startsWith("/ui/") || found.has(kind(url))) continue;
      found.set(kind(url), url.pathname + url.search);
      queue.push(url.pathname + url.search);
    }
  }
  return [...found.values()];
}

// audit returns what keeps people from using the page as it is shown.
async function audit(page, shown) {
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, { preload: false, resultTypes: ["violations"] }));
  const faults = violations.filter((found) => ["serious", "critical"].includes(found.impact)).map((found) =>
    `${shown}: ${found.help}: ${found.nodes.slice(0, 3).map((node) => `${node.html} (${node.failureSummary})`).join("; ")}`);
  const wide = await page.evaluate(() => {
    const room = document.documentElement.clientWidth;
    return document.documentElement.scrollWidth <= room ? [] : [...document.querySelectorAll("body *")]
      .filter((element) => element.getBoundingClientRect().right > room + 1 && !element.closest(".scroll, nav, .skip"))
      .slice(-3).map((element) => element.outerHTML.slice(0, 120));
  });
  if (wide.length > 0) faults.push(`${shown}: the page scrolls sideways because of ${wide.join(" and ")}`);
  return faults;
}

test("each page suits a phone, a screen reader and either colour scheme", async (t) => {
  const server = await serve(t, ...seeded);
  await seed(server);
  const page = await openPage(server, { viewport: desk });
  const targets = await crawl(page);
  t.diagnostic(`${targets.length} pages: ${targets.join(" ")}`);
  const faults = [];
  for (const target of targets) {
    const response = await page.goto(target);
    if (!response.ok()) faults.push(`${target} answers ${response.status()}`);
    await page.evaluate(axe);
    for (const [colorScheme, viewport] of [["light", desk], ["dark", phone]]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize(viewport);
      faults.push(...await audit(page, `${target} (${colorScheme}, ${viewport.width} px)`));
    }
  }
  assert.deepEqual(faults, []);
});
