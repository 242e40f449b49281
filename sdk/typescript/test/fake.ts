/** A server for tests: it answers by a script, and keeps what it was asked. */

import { createServer, type IncomingHttpHeaders } from "node:http";
import type { AddressInfo } from "node:net";

export interface Asked {
  method: string;
  path: string;
  query: URLSearchParams;
  headers: IncomingHttpHeaders;
  body: any;
}

/** Status 0 breaks the connection, and so does an answer that is broken, after its body. */
export interface Answer {
  status: number;
  broken?: boolean;
  body?: unknown;
  headers?: Record<string, string>;
}

export async function fake(answer: (asked: Asked) => Answer | Promise<Answer>) {
  const asked: Asked[] = [];
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const chunk of request) text += chunk;
    const url = new URL(request.url ?? "", "http://fake");
    const one: Asked = {
      method: request.method ?? "", path: url.pathname, query: url.searchParams, headers: request.headers,
      body: text ? JSON.parse(text) : undefined,
    };
    asked.push(one);
    const { status, body, broken, headers = {} } = await answer(one);
    if (status === 0) {
      request.socket.destroy();
      return;
    }
    const content = typeof body === "string" ? body : JSON.stringify(body);
    // An error is a problem by default.
    const problem = status >= 400 && typeof body === "object" ? { "content-type": "application/problem+json" } : {};
    response.writeHead(status, { ...problem, ...headers });
    if (broken) response.write(content, () => request.socket.destroy());
    else response.end(content);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return { url, asked, close };
}

/** Refuses a completion, or a whole batch of them. */
export type Refuse = (body: any) => { status: number; body: object } | undefined;

/** Says whether the token of a request is accepted. */
export type Accepts = (asked: Asked) => boolean;

/** Answers a request in the queue's place, unless it returns nothing. */
export type Instead = (asked: Asked) => Answer | undefined;

const everything = {
  seconds: 60, beat: {} as object, refuse: (() => undefined) as Refuse, accepts: (() => true) as Accepts,
  instead: (() => undefined) as Instead,
};

/** A server with a queue: each payload is one task, handed out once. */
export async function queue(payloads: unknown[], options: Partial<typeof everything> = {}) {
  const { seconds, beat, refuse, accepts, instead } = { ...everything, ...options };
  const item = (index: number) => ({
    work_id: `w${index}`, rev: 2, updated_at: "2026-01-27T10:00:00.000Z",
    lease: { expires_at: new Date(Date.parse("2026-01-27T10:00:00Z") + seconds * 1000).toISOString() },
    directive: {
      jobId: `job${index}`, stepId: "extract", tenant_id: "tenant_a", step_type: "EXTRACT", service: "extract", attempt_no: 1,
      payload: payloads[index], traceparent: null, input_ref: { uri: "s3://bucket/in.pdf" },
    },
  });
  const waiting = payloads.map((_, index) => item(index));
  const reports: { verb: string; body: any }[] = [];
  const batches: number[] = [];
  let done = () => {};
  const reported = new Promise<void>((resolve) => (done = resolve));
  const report = (verb: string, body: any) => {
    reports.push({ verb, body });
    if (reports.length >= payloads.length) done();
    return { status: 200, body: { rev: body.expected_rev + 1 } };
  };
  const result = (item: any) => {
    const { status, body } = refuse(item) ?? report("complete", item);
    return { work_id: item.work_id, status, ...(status >= 400 ? { error: body } : body) };
  };
  const server = await fake(async (asked) => {
    const { path, body } = asked;
    const scripted = instead(asked);
    if (scripted) return scripted;
    if (!accepts(asked)) return { status: 401, body: { code: "unauthenticated", detail: "The token has expired." } };
    if (path === "/v1/work:complete") {
      batches.push(body.items.length);
      return refuse(body) ?? { status: 200, body: { results: body.items.map(result) } };
    }
    if (path === "/v1/work:claim") {
      const items = waiting.splice(0, body.max);
      if (items.length === 0) await new Promise((resolve) => setTimeout(resolve, 20));
      return { status: 200, body: { items } };
    }
    const [, , , workId = "", verb = ""] = path.split(/[/:]/);
    if (verb === "heartbeat") return { status: 200, body: { ...item(0), work_id: workId, ...beat } };
    return (verb === "complete" && refuse(body)) || report(verb, body);
  });
  return { ...server, reports, batches, reported };
}
