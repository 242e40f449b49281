// What is wrong with pages for people with a screen reader or a phone.

import { readFileSync } from "node:fs";
import path from "node:path";

import { phone } from "./crawl.js";

const axe = readFileSync(path.join(import.meta.dirname, "node_modules/axe-core/axe.min.js"), "utf8");

// audit returns what keeps people from using the page as it is shown.
export async function audit(page, shown) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, { preload: false, resultTypes: ["violations"], rules: { "target-size": { enabled: true } } }));
  const faults = violations.map((found) =>
    `${shown}: ${found.help}: ${found.nodes.slice(0, 3).map((node) => `${node.html} (${node.failureSummary})`).join("; ")}`);
  const wide = await page.evaluate(() => {
    const room = document.documentElement.clientWidth;
    return document.documentElement.scrollWidth <= room ? [] : [...document.querySelectorAll("body *")]
      .filter((element) => element.getBoundingClientRect().right > room + 1 && !element.closest(".scroll, nav, .skip"))
      .slice(-3).map((element) => element.outerHTML.slice(0, 120));
  });
  const lists = await page.evaluate((width) => document.documentElement.clientWidth > width ? [] :
    [...document.querySelectorAll(".scroll:has(.stack)")].filter((list) => list.scrollWidth > list.clientWidth + 1)
      .map((list) => list.getAttribute("aria-label")), phone.width);
  if (lists.length > 0) faults.push(`${shown}: these lists scroll sideways: ${lists}`);
  if (wide.length > 0) faults.push(`${shown}: the page scrolls sideways because of ${wide.join(" and ")}`);
  return faults;
}
