import assert from "node:assert/strict";
import test from "node:test";

import { openPage } from "./browser.js";
import { serve, tokens } from "./server.js";

// guarded starts a server with an operator, a reader, and an operator of tenant acme.
async function guarded(t) {
  const made = tokens(t, {
    ops: ["submit:*", "read:*", "platform:*", "admin:*"],
    reader: ["read:*"],
    bound: ["submit:acme", "read:acme", "admin:acme"],
  });
  const server = await serve(t, ...made.flags);
  return { server, made };
}

// signIn signs in at the page that asks for it.
async function signIn(page, token) {
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await page.getByRole("button", { name: "Sign out" }).waitFor();
}

test("a caller signs in with a token and out again", async (t) => {
  const { server, made } = await guarded(t);
  const page = await openPage(server, { expected: /status of 401/ });
  await page.goto("/ui/pauses");
  assert.equal(new URL(page.url()).pathname, "/ui/sign-in");
  await page.getByLabel("Token").fill("lucius_unknown");
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await page.getByRole("alert").getByText("No caller has this token.").waitFor();
  await signIn(page, made.ops);
  assert.equal(new URL(page.url()).pathname, "/ui/pauses", "the page that was asked for");
  await page.getByRole("heading", { name: "Pauses" }).waitFor();

  const [cookie] = await page.context().cookies();
  assert.ok(cookie.httpOnly && cookie.sameSite === "Lax" && cookie.path === "/ui/", JSON.stringify(cookie));
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("Token").waitFor();
  assert.deepEqual(await page.context().cookies(), []);
  await page.goto("/ui/");
  await page.getByLabel("Token").waitFor();
});

test("a reader sees no actions, and is refused them", async (t) => {
  const { server, made } = await guarded(t);
  const ops = server.client(made.ops);
  const job = await ops.submit();
  await ops.fail(await ops.claim("extract"), { code: "TIMEOUT", message: "no answer" });
  const page = await openPage(server, { expected: /status of 403/ });
  await page.goto("/ui/");
  await signIn(page, made.reader);
  const nav = page.getByRole("navigation", { name: "Pages" });
  await nav.getByRole("link", { name: "Failures" }).click();
  await page.getByText("TIMEOUT").first().waitFor();
  for (const path of ["/ui/failures", "/ui/", "/ui/flow", "/ui/jobs", `/ui/jobs/${job}`, "/ui/services/extract", "/ui/webhooks"]) {
    await page.goto(path);
    await page.locator("main h1").waitFor();
    assert.equal(await page.locator("main [href*='/ui/do/'], main [formaction*='/ui/do/']").count(), 0, `actions on ${path}`);
  }
  assert.equal(await nav.getByRole("link", { name: "Operations" }).count(), 0, "pages for operators");

  const refused = await page.evaluate(async (id) => (await fetch("/ui/do/job-cancel", {
    method: "POST", body: new URLSearchParams({ job: id, reason: "I may not" }),
  })).text(), job);
  assert.match(refused, /role admin|may not|not allowed|forbidden/i);
  assert.equal((await ops.job(job)).state, "FAILED_FINAL");
});

test("an operator of one tenant sees that tenant alone", async (t) => {
  const { server, made } = await guarded(t);
  const ops = server.client(made.ops);
  for (const [tenant, code] of [["acme", "OURS"], ["globex", "THEIRS"]]) {
    await ops.submit({ tenant_id: tenant, correlation_id: `${tenant}-1` });
    await ops.fail(await ops.claim("extract"), { code, message: `of ${tenant}` });
  }
  const page = await openPage(server);
  await page.goto("/ui/");
  await signIn(page, made.bound);
  const links = await page.getByRole("navigation", { name: "Pages" }).getByRole("link").evaluateAll(
    (all) => all.map((a) => a.getAttribute("href")).filter((href) => href.startsWith("/ui/")));
  for (const link of links) {
    const response = await page.goto(link);
    assert.ok(response.ok(), `${link} answers ${response.status()}`);
    assert.doesNotMatch(await page.locator("main").innerText(), /globex|THEIRS/, link);
  }
  await page.goto("/ui/failures");
  await page.getByText("OURS").first().waitFor();
});

test("a page of another origin cannot act for the user", async (t) => {
  const { server, made } = await guarded(t);
  const ops = server.client(made.ops);
  const job = await ops.submit();
  const page = await openPage(server);
  await page.goto("/ui/");
  await signIn(page, made.ops);
  // The same server under another name is another origin, but the same site's cookies are sent.
  const response = await page.request.post("/ui/do/job-cancel", {
    form: { job, reason: "not the user" }, headers: { Origin: "https://elsewhere.example", "Sec-Fetch-Site": "cross-site" },
  });
  assert.equal(response.status(), 403);
  assert.notEqual((await ops.job(job)).state, "CANCELLED");
});
