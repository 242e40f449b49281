// Servers of the tests, and their clients over the API.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";

import { patience } from "./chromium.js";

const binary = process.env.LUCIUS;

// loopback is an address of this process alone, from 127.0.0.0/8. A server that starts again needs its port,
// which on 127.0.0.1 another server or a connection may have taken.
// Other systems than Linux have 127.0.0.1 alone.
const loopback = process.platform === "linux"
  ? [127, (process.pid >> 16) + 1, (process.pid >> 8) & 255, process.pid & 255].join(".") : "127.0.0.1";

// serve starts a server on a folder of its own, with more flags than the usual ones. It
// ends with the test.
export async function serve(t, ...flags) {
  const server = new Server(mkdtempSync(path.join(tmpdir(), "server-")), flags);
  t.after(async () => {
    try {
      for (const close of server.pages) await close();
    } finally {
      await server.stop();
      rmSync(server.dir, { recursive: true });
    }
  });
  await server.start();
  return server;
}

// Server is a server process, which may be stopped and started again on the same address.
class Server {
  constructor(dir, flags) {
    Object.assign(this, { dir, flags, address: `${loopback}:0`, log: "", pages: [] });
  }

  get url() {
    return `http://${this.address}`;
  }

  async start() {
    const args = ["serve", "--listen-addr", this.address, "--data-dir", path.join(this.dir, "data"),
      "--protocols-dir", path.join(import.meta.dirname, "protocols"), "--audit-log", "off", ...this.flags];
    this.process = spawn(binary, args, { cwd: this.dir, stdio: ["ignore", "pipe", "pipe"] });
    this.ended = once(this.process, "exit");
    const lines = createInterface(this.process.stderr);
    lines.on("line", (line) => { this.log += `${line}\n`; });
    createInterface(this.process.stdout).on("line", (line) => { this.log += `${line}\n`; });
    await eventually("the server is up", () => {
      assert.equal(this.process.exitCode, null, `the server ended:\n${this.log}`);
      return this.log.match(/lucius serves http:\/\/(\S+)\n(?![^]*lucius serves)/);
    }).then((match) => { this.address = match[1]; });
  }

  async stop() {
    if (this.process.exitCode !== null) return;
    this.process.kill("SIGTERM");
    await this.ended;
    this.log = "";
  }

  client(token) {
    return new Client(this, token);
  }
}

// tokens makes callers of the server that is to be started with the flags returned, and
// returns their tokens by name. Callers are roles by name.
export function tokens(t, callers) {
  const dir = mkdtempSync(path.join(tmpdir(), "tokens-"));
  t.after(() => rmSync(dir, { recursive: true }));
  const file = path.join(dir, "tokens.yaml");
  const made = {};
  for (const [name, roles] of Object.entries(callers)) {
    const flags = roles.flatMap((role) => ["--role", role]);
    made[name] = execFileSync(binary, ["token", "new", "--name", name, ...flags, "--file", file],
      { encoding: "utf8", stdio: "pipe" }).trim();
  }
  return { flags: ["--auth-file", file], ...made };
}

// eventually returns what the function returns as soon as that is true. Work in bulk may be given more time.
export async function eventually(what, look, within = patience) {
  for (const end = Date.now() + within; Date.now() < end;) {
    const found = await look();
    if (found) return found;
    await new Promise((resume) => { setTimeout(resume, 50); });
  }
  throw new Error(`not so after ${within / 1000} s: ${what}`);
}

// Client calls the API as applications, workers and operators do.
class Client {
  constructor(server, token) {
    Object.assign(this, { server, token, submitted: 0 });
  }

  async call(method, target, body) {
    const response = await fetch(this.server.url + target, {
      method,
      headers: { "Content-Type": "application/json", ...(this.token && { Authorization: `Bearer ${this.token}` }) },
      body: body && JSON.stringify(body),
    });
    const text = await response.text();
    assert.ok(response.ok, `${method} ${target} answers ${response.status}: ${text}`);
    return text && JSON.parse(text);
  }

  // submit submits a command for a document of its own, and returns the id of its job.
  async submit(command = {}) {
    const accepted = await this.call("POST", "/v1/commands", {
      tenant_id: "acme", request_type: "doc.ingest", schema_version: "1",
      input_ref: { uri: `s3://in/contract-${this.submitted++}.pdf` }, output_ref: { uri: "s3://out/contract.json" },
      payload: { language: "en" }, ...command,
    });
    return accepted.jobId;
  }

  job(id) {
    return this.call("GET", `/v1/jobs/${id}`);
  }

  // tryClaim begins the next work of the service, if there is some before long.
  async tryClaim(service, owner) {
    const claimed = await this.call("POST", "/v1/work:claim",
      { owner, services: [service], max: 1, wait_seconds: 2, start: true, request_id: randomUUID() });
    return claimed.items[0];
  }

  // claim begins the next work of the service, as soon as there is some.
  claim(service, owner = `${service}-1`) {
    return eventually(`${service} has work`, () => this.tryClaim(service, owner));
  }

  complete(item) {
    return this.call("POST", `/v1/work/${item.work_id}:complete`, {
      owner: item.owner, expected_rev: item.rev, request_id: randomUUID(),
      output_ref: { uri: `s3://out/${item.work_id}.json` },
    });
  }

  fail(item, error, retryable = false) {
    return this.call("POST", `/v1/work/${item.work_id}:fail`,
      { owner: item.owner, expected_rev: item.rev, request_id: randomUUID(), error, retryable });
  }

  // work carries the job of the services' next items to its end.
  async work(...services) {
    for (const service of services) await this.complete(await this.claim(service));
  }
}
