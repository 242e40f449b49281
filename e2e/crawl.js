// The pages of the console, found by the links to them.

export const phone = { width: 390, height: 844 };
export const desk = { width: 1440, height: 900 };

// kind names what pages of different jobs and filters have in common.
const kind = (url) => url.pathname.replace(/(\/(?:jobs|lines|operations|services|protocols)\/).+/, "$1*") +
  (url.search === "" || url.pathname.startsWith("/ui/do/") ? "" : " filtered");

// crawl returns one URL of each kind of page that links lead to.
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
  return [...found.values()];
}
