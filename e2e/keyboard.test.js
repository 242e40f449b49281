import assert from "node:assert/strict";
import test from "node:test";

import { follow, openPage } from "./browser.js";
import { patience } from "./chromium.js";
import { eventually, serve } from "./server.js";

// watchCopies has the page keep what its buttons say of their copies, which they forget after a moment.
const watchCopies = (page) => page.addInitScript(() => {
  globalThis.said = [];
  new MutationObserver((changes) => globalThis.said.push(...changes.map(({ target }) => target.dataset.copied).filter(Boolean)))
    .observe(document, { subtree: true, attributeFilter: ["data-copied"] });
});

// says waits until a button says that of its copy.
const says = (page, word) => page.waitForFunction((wanted) => globalThis.said.includes(wanted), word);

const focused = (page) => page.evaluate(() => document.activeElement.getAttribute("name") ?? document.activeElement.textContent.trim());

test("the keyboard is enough", async (t) => {
  const server = await serve(t);
  const page = await openPage(server);
  await page.goto("/ui/pauses");
  await page.keyboard.press("Tab");
  assert.equal(await focused(page), "Skip to the content");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.activeElement.id === "main");
  await page.keyboard.press("/");
  assert.equal(await focused(page), "q", "the search has the focus");
  await page.keyboard.type("/no-such");
  assert.equal(await page.getByRole("searchbox").inputValue(), "/no-such", "a slash in a field is a slash");

  const opener = page.getByRole("link", { name: "Pause dispatch…" });
  await opener.focus();
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog");
  await dialog.waitFor();
  assert.ok(await page.evaluate(() => document.activeElement.closest("dialog") !== null), "the dialog has the focus");
  assert.equal(await focused(page), "name", "the first field to fill has the focus");
  for (let n = 0; n < 20; n++) { // Round and round: the focus stays in the dialog, or goes to the browser.
    await page.keyboard.press("Tab");
    assert.ok(await page.evaluate(() => document.activeElement === document.body || document.activeElement.closest("dialog")));
  }
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  assert.equal(await focused(page), "Pause dispatch…", "the focus is where it was");
});

test("keys lead through the pages and their rows", async (t) => {
  const server = await serve(t);
  const api = server.client();
  const jobs = [await api.submit(), await api.submit(), await api.submit()];
  const page = await openPage(server);
  await page.goto("/ui/");
  await page.keyboard.press("?");
  const dialog = page.getByRole("dialog", { name: "Keys" });
  await dialog.getByText("g f").waitFor();
  await page.keyboard.press("j"); // Of the dialog are only those of the browser.
  assert.equal(await focused(page), "Close");
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });

  for (const [key, heading] of [["f", "Flow"], ["j", "Jobs"], ["s", "Services"], ["j", "Jobs"]]) {
    // Two keys count together within two seconds, which a busy machine may exceed even if they are sent at once.
    await eventually(`g ${key} leads to ${heading}`, async () => {
      await Promise.all([page.keyboard.press("g"), page.keyboard.press(key)]);
      return page.getByRole("heading", { name: heading, level: 1, exact: true }).waitFor({ timeout: 20_000 }).then(() => true, () => false);
    }, 3 * patience);
    await page.waitForLoadState(); // Keys need the script.
  }
  const at = () => page.evaluate(() => [...document.querySelectorAll("tbody tr")].findIndex((row) => row.contains(document.activeElement)));
  for (const [key, row] of [["j", 0], ["j", 1], ["j", 2], ["j", 2], ["k", 1]]) {
    await page.keyboard.press(key);
    assert.equal(await at(), row, `after ${key}`);
  }
  await follow(page, () => page.keyboard.press("Enter"));
  await page.getByRole("heading", { name: /^Job / }).waitFor();
  assert.equal(new URL(page.url()).pathname, `/ui/jobs/${jobs[1]}`);
  await page.keyboard.press("/");
  await page.keyboard.type("gf?jk");
  assert.equal(await page.getByRole("searchbox").inputValue(), "gf?jk", "in a field they are letters");
  assert.match(await page.locator("#live").getAttribute("role"), /status/);
});

test("an id is copied whole", async (t) => {
  const server = await serve(t);
  const job = await server.client().submit();
  const page = await openPage(server, { permissions: ["clipboard-read", "clipboard-write"] });
  await watchCopies(page);
  await page.goto(`/ui/jobs/${job}`);
  await page.getByRole("button", { name: `Copy ${job}`, exact: true }).first().click();
  await says(page, "yes");
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), job);
});

// As over plain HTTP from another machine.
test("without a clipboard the text is copied, or is there to be copied", async (t) => {
  const server = await serve(t);
  const job = await server.client().submit();
  const page = await openPage(server);
  await watchCopies(page);
  await page.addInitScript(() => {
    Object.defineProperty(navigator, "clipboard", { value: undefined });
    globalThis.copies = [];
    document.execCommand = (verb) => { globalThis.copies.push([verb, getSelection().toString()]); return globalThis.able; };
  });
  await page.goto(`/ui/jobs/${job}`);
  const button = page.getByRole("button", { name: `Copy ${job}`, exact: true }).first();
  const text = page.getByLabel("Text to copy");
  await page.evaluate(() => { globalThis.able = true; });
  await button.click();
  await says(page, "yes");
  assert.deepEqual(await page.evaluate(() => globalThis.copies), [["copy", job]]);
  assert.equal(await text.count(), 0);

  await page.evaluate(() => { globalThis.able = false; });
  await button.click();
  await says(page, "no");
  assert.equal(await text.inputValue(), job);
  assert.ok(await text.evaluate((field) => field === document.activeElement && field.selectionEnd === field.value.length), "it is selected");
  await page.keyboard.press("Tab");
  await text.waitFor({ state: "detached" });
});
