// The pages of the console, found by the links to them, and pictures of them.

import { mkdirSync } from "node:fs";
import path from "node:path";

export const phone = { width: 390, height: 844 };
export const desk = { width: 1440, height: 900 };

// forms are those in which each page is shown.
export const forms = [[desk, "light"], [desk, "dark"], [phone, "light"], [phone, "dark"]];

// screenshots is the folder of the pictures, for CI to keep. It stays when a test ends.
export const screenshots = path.join(import.meta.dirname, "../bin/screenshots");

// alone are pages of a seeded server to which no link of a page that crawl visits leads.
const alone = [
  "/ui/document?tenant_id=acme&doc_id=doc-1", "/ui/schedules?tenant_id=acme", "/ui/schedules/acme/new-year",
  "/ui/flow?protocol=doc_ingest_v1&over=day",
];

// picture takes a picture of the page that is shown in that form.
export async function picture(page, target, [viewport, colorScheme]) {
  mkdirSync(screenshots, { recursive: true });
  const name = target.replace(/[^a-z]+/gi, "-").slice(1, 60);
  await page.screenshot({ path: path.join(screenshots, `${name}-${viewport.width}-${colorScheme}.png`), fullPage: target !== "/docs" });
}

// kind names what pages of different jobs and filters have in common.
const kind = (url) => url.pathname.replace(/(\/(?:jobs|lines|operations|services|workers|protocols)\/).+/, "$1*") +
  (url.search === "" || url.pathname.startsWith("/ui/do/") ? "" : " filtered");

// crawl returns one URL of each kind of page of a seeded server.
export async function crawl(page) {
  const queue = ["/ui/"];
  const found = new Map([["/ui/", "/ui/"], ["/docs", "/docs"]]);
  for (const target of queue) {
    await page.goto(target);
    const links = await page.locator("a[href]").evaluateAll(
      (all) => all.map((a) => new URL(a.getAttribute("href"), document.baseURI).href)); // An SVG has links too.
    for (const link of links) {
      const url = new URL(link);
      if (!url.pathname.startsWith("/ui/") || found.has(kind(url))) continue;
      found.set(kind(url), url.pathname + url.search);
      queue.push(url.pathname + url.search);
    }
  }
  return [...new Set([...found.values(), ...alone])];
}
