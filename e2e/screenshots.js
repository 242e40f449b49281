// Screenshots of every page of a busy server, into the folder bin/screenshots: on a desk and on
// a phone, light and dark. Arguments select pages whose URL matches one of them.

import { rmSync } from "node:fs";

import { launch } from "./chromium.js";
import { crawl, forms, picture, screenshots } from "./crawl.js";
import { invoice, seed, seeded, timeout } from "./seed.js";
import { serve } from "./server.js";

const wanted = process.argv.slice(2).map((pattern) => new RegExp(pattern));
const pause = (ms) => new Promise((resume) => { setTimeout(resume, ms); });

// busy keeps services at work, and commands coming, until it is stopped. Nobody works for
// ocr, and fields often runs into a timeout.
function busy(server) {
  let running = true;
  const loops = [];
  const every = (ms, act) => loops.push((async () => {
    while (running) {
      await act();
      await pause(ms * (0.5 + Math.random()));
    }
  })());
  const api = server.client();
  let number = 100;
  every(25, () => api.submit({ tenant_id: ["acme", "globex", "initech"][number++ % 3], request_type: "page.scan" }));
  every(120, () => api.submit(invoice(["acme", "globex"][number % 2], number++)));
  const works = { scan: 4, clean: 2, store: 2, extract: 1, classify: 1, fields: 1, index: 1 };
  for (const [service, workers] of Object.entries(works)) {
    for (let n = 1; n <= workers; n++) {
      const worker = server.client();
      every(10, async () => {
        const item = await worker.tryClaim(service, `${service}-${n}`);
        if (!item) return;
        await pause(60 * Math.random());
        const fails = (service === "fields" && Math.random() < 0.4) || Math.random() < 0.002;
        await (fails ? worker.fail(item, timeout) : worker.complete(item));
      });
    }
  }
  return async () => {
    running = false;
    await Promise.all(loops);
  };
}

async function main(t) {
  const server = await serve(t, ...seeded);
  await seed(server);
  const stop = busy(server);
  t.after(stop);
  const browser = await launch();
  t.after(() => browser.close());
  await pause(Number(process.env.WARM_UP ?? 75) * 1000);

  if (wanted.length === 0) rmSync(screenshots, { recursive: true, force: true });
  const page = await browser.newPage({ baseURL: server.url, locale: "en-GB" });
  const targets = (await crawl(page)).filter((target) => wanted.length === 0 || wanted.some((pattern) => pattern.test(target)));
  for (const target of targets) {
    for (const form of forms) {
      const [viewport, colorScheme] = form;
      await page.setViewportSize(viewport);
      await page.emulateMedia({ colorScheme });
      await page.goto(target);
      await pause(500); // Charts are drawn.
      await picture(page, target, form);
    }
  }
  console.log(`${targets.length} pages are in ${screenshots}`);
}

const closing = [];
try {
  await main({ after: (close) => closing.unshift(close) });
} finally {
  for (const close of closing) await close();
}
