import assert from "node:assert/strict";
import test from "node:test";

import { away, follow, openPage } from "./browser.js";
import { phone } from "./crawl.js";
import { serve, tokens } from "./server.js";

// askToPause opens the form of a pause and fills it.
async function askToPause(page) {
  await page.getByRole("link", { name: "Pause dispatch…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name").fill("ocr");
  await dialog.getByLabel("Reason").fill("the disk is full");
  return dialog;
}

// keeps checks that the form has what was entered.
async function keeps(dialog) {
  assert.equal(await dialog.getByLabel("Name").inputValue(), "ocr");
  assert.equal(await dialog.getByLabel("Reason").inputValue(), "the disk is full");
}

test("a form outlives the sign-in", async (t) => {
  const made = tokens(t, { ops: ["submit:*", "read:*", "admin:*"] });
  const server = await serve(t, ...made.flags);
  const page = await openPage(server, { expected: /status of 401/ });
  const signIn = async (at) => {
    await at.getByLabel("Token").fill(made.ops);
    await follow(at, () => at.getByRole("button", { name: "Sign in", exact: true }).click());
    await at.getByRole("button", { name: "Sign out" }).waitFor();
  };
  await page.goto("/ui/pauses");
  await signIn(page);
  const dialog = await askToPause(page);
  await page.context().clearCookies();
  await dialog.getByRole("button", { name: "Pause", exact: true }).click();
  await dialog.getByRole("alert").getByText("Your sign-in has ended, so nothing was done.").waitFor();
  await keeps(dialog);

  const [other] = await Promise.all([page.waitForEvent("popup"), dialog.getByRole("link", { name: "Sign in" }).click()]);
  await other.waitForLoadState();
  await signIn(other);
  await dialog.getByRole("button", { name: "Pause", exact: true }).click();
  await page.getByRole("article").filter({ hasText: "the disk is full" }).waitFor();
});

test("a form says that the server does not answer", async (t) => {
  const server = await serve(t);
  const page = await openPage(server, { expected: new RegExp(`${away.source}|htmx:(afterRequest|sendError)`) });
  await page.goto("/ui/pauses");
  const dialog = await askToPause(page);
  await server.stop();
  await dialog.getByRole("button", { name: "Pause", exact: true }).click();
  await dialog.getByRole("alert").getByText("The server did not answer").waitFor();
  await keeps(dialog);

  await dialog.getByRole("button", { name: "Leave it" }).click();
  await page.getByRole("link", { name: "Pause dispatch…" }).click();
  await dialog.getByRole("alert").getByText("The server did not answer. Try again.").waitFor();
  await dialog.getByRole("button", { name: "Close" }).click();
  await dialog.waitFor({ state: "hidden" });
  await server.start();
  await (await askToPause(page)).getByRole("button", { name: "Pause", exact: true }).click();
  await page.getByRole("article").filter({ hasText: "the disk is full" }).waitFor();
});

test("the page of a proxy does not take the place of a form", async (t) => {
  const server = await serve(t);
  const page = await openPage(server, { expected: /status of 502/ });
  await page.route("**/ui/do/dispatch-pause", (route) => route.request().method() === "POST"
    ? route.fulfill({ status: 502, contentType: "text/html", body: "<h1>Bad gateway</h1>" })
    : route.continue());
  await page.goto("/ui/pauses");
  const dialog = await askToPause(page);
  await dialog.getByRole("button", { name: "Pause", exact: true }).click();
  await dialog.getByRole("alert").getByText("The server did not answer").waitFor();
  await keeps(dialog);
  assert.equal(await page.getByText("Bad gateway").count(), 0);
});

test("a refusal is closed without a keyboard", async (t) => {
  const server = await serve(t);
  await server.client().submit();
  const page = await openPage(server, { viewport: phone, expected: /status of 400/ });
  await page.goto("/ui/jobs");
  await page.getByRole("button", { name: "Pause…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("Tick the jobs first.").waitFor();
  await dialog.getByRole("button", { name: "Close" }).click();
  await dialog.waitFor({ state: "hidden" });
});
