import { readFile } from "node:fs/promises";

import { NoAnswerError, ProblemError } from "./errors.js";
import { answers, type Link } from "./log.js";

/** A token, or a function that returns the current one. It is called for each request. */
export type Token = string | (() => string | Promise<string>);

export interface Connection {
  /** The server. Defaults to LUCIUS_URL, or http://127.0.0.1:8080. */
  url?: string;
  /** Defaults to LUCIUS_TOKEN, else to the file that LUCIUS_TOKEN_FILE names, which is read for each request. */
  token?: Token;
}

export interface CallOptions {
  /** The body, as JSON. */
  text?: string | undefined;
  headers?: Record<string, string>;
  /** How long one try may take, in milliseconds. */
  timeout?: number;
  /** How long the call is repeated while it has no answer, in milliseconds. */
  retryFor?: number;
  /** Whether the call is repeated after a problem. Defaults to whether it is transient. */
  passes?: (problem: ProblemError) => boolean;
  /** The longest wait between two tries, in milliseconds. */
  longestWait?: number;
  /** Ends the call, and its repetitions. */
  signal?: AbortSignal | undefined;
  /** Ends the repetitions, but not a try that is under way. */
  enough?: AbortSignal | undefined;
  /** Logs the failures of the call, under the name. */
  link?: Link | undefined;
  name?: string;
  /** Makes a try in the place of {@link Transport.once}. */
  once?: (() => Promise<Answer>) | undefined;
}

/** The answer to one try: its status, how long it asks to wait in milliseconds, and its body. */
export interface Answer {
  status: number;
  retryAfter: number;
  text: string;
}

// The first delay is so short that a restart of the server costs little; the longest
// limits the calls during an outage.
const firstDelay = 50;
const longestDelay = 2_000;
const callTimeout = 10_000;

/** The longest wait between two tries of a call, also if the server asks for more. */
export const longestPause = 60_000;

/** The least time between two polls that the server answers at once, as while it shuts down. */
export const shortestPoll = 500;

/** Calls one server. Calls are repeated: every call of this package is idempotent. */
export class Transport {
  readonly #base: string;
  /** The URL without a password, for people. */
  readonly address: string;
  readonly #token: Token;
  #sent = ""; // The last token that was sent.

  constructor({ url, token }: Connection) {
    const parsed = new URL(url || process.env["LUCIUS_URL"] || "http://127.0.0.1:8080");
    if (!/^https?:$/.test(parsed.protocol)) throw new TypeError(`${parsed.href} is no http or https URL`);
    this.#base = parsed.href.replace(/\/+$/, "");
    parsed.username = parsed.password = "";
    this.address = parsed.href.replace(/\/+$/, "");
    const file = process.env["LUCIUS_TOKEN_FILE"];
    const found = token ?? (process.env["LUCIUS_TOKEN"] || (file ? () => tokenOf(file) : ""));
    this.#token = typeof found === "function" ? found : checked(found);
  }

  /**
   * The text without the token, should a message have quoted it. One of fewer than 8
   * characters is kept, as words have such parts.
   */
  redact(text: string): string {
    return this.#sent.length >= 8 ? text.replaceAll(this.#sent, "[secret]") : text;
  }

  get tokenMayChange(): boolean {
    return typeof this.#token === "function";
  }

  /** Make one try of a request. It rejects if there is no answer. */
  async send(method: string, path: string, options: CallOptions): Promise<Response> {
    const headers: Record<string, string> = { accept: "application/json", "user-agent": "lucius-typescript", ...options.headers };
    this.#sent = typeof this.#token === "function" ? checked(await this.#token()) : this.#token;
    if (this.#sent) headers["authorization"] = `Bearer ${this.#sent}`;
    const request: RequestInit = { method, headers, redirect: "manual" }; // A POST would become a GET.
    if (options.text !== undefined) {
      headers["content-type"] = "application/json";
      request.body = options.text;
    }
    if (options.signal) request.signal = options.signal;
    return fetch(this.#base + path, request);
  }

  /** Make one try of a call. It rejects if there is no answer in time. */
  once(method: string, path: string, options: CallOptions): Promise<Answer> {
    return within(options.timeout ?? callTimeout, options.signal, async (signal) => {
      const response = await this.send(method, path, { ...options, signal });
      return { status: response.status, retryAfter: retryAfter(response), text: await textOf(response) };
    });
  }

  /**
   * Make a call and return its answer. It rejects with ProblemError or NoAnswerError, or with
   * TypeError if the body cannot be encoded.
   */
  async call<T>(method: string, path: string, { body, ...limits }: CallOptions & { body?: unknown } = {}): Promise<T> {
    const options: CallOptions = { ...limits, text: body === undefined ? undefined : JSON.stringify(body) };
    const { retryFor = 60_000, passes = (problem) => problem.transient, longestWait = longestPause } = options;
    const { signal, enough, link, name = "", once = () => this.once(method, path, options) } = options;
    const giveUp = performance.now() + retryFor;
    for (let delay = firstDelay, tries = 1; ; delay = Math.min(delay * 2, longestDelay), tries++) {
      let wait = delay * (0.5 + Math.random());
      let failure: Error;
      const asked = performance.now();
      try {
        const { status, retryAfter, text } = await once();
        if (status >= 200 && status < 300) {
          const answer = decoded(text) as T;
          link?.answered(asked);
          return answer;
        }
        const problem = ProblemError.parse(status, text);
        if (answers(problem)) link?.answered(asked);
        if (!passes(problem)) throw problem;
        failure = problem;
        wait = Math.max(wait, retryAfter);
      } catch (error) {
        if (error instanceof ProblemError) throw error;
        failure = new NoAnswerError(`${method} ${path}: ${reason(error)}`, { cause: error });
      }
      if (!signal?.aborted && !enough?.aborted) link?.failed(name, tries, failure);
      wait = Math.min(wait, longestWait);
      if (performance.now() + wait > giveUp || !(await sleep(wait, signal, enough))) throw failure;
    }
  }
}

/** The body, but none if it is an error that does not say it is the server's: a proxy may answer with JSON, too. */
export async function textOf(response: Response): Promise<string> {
  const text = await response.text();
  const kind = response.headers.get("content-type")?.split(";")[0];
  return response.ok || kind === "application/problem+json" ? text : "";
}

/** The object that the text is in JSON. */
function decoded(text: string): object {
  const answer: unknown = JSON.parse(text);
  if (typeof answer !== "object" || answer === null || Array.isArray(answer)) throw new Error("the answer is no JSON object");
  return answer;
}

/** The token without the line break with which a file often ends. */
function checked(token: string | undefined): string {
  const trimmed = (token ?? "").trim();
  // The error of fetch would quote it.
  if (!/^[\x20-\x7e]*$/.test(trimmed)) throw new TypeError("the token has characters that a header cannot hold");
  return trimmed;
}

/** The token in the file. */
async function tokenOf(file: string): Promise<string> {
  const token = (await readFile(file, "utf8")).trim();
  if (!token) throw new Error(`${file} is empty`);
  return token;
}

function reason(error: unknown): string {
  const { message, cause } = error as Error;
  return cause instanceof Error && cause.message ? `${message}: ${cause.message}` : message;
}

function retryAfter(response: Response): number {
  const seconds = Number(response.headers.get("retry-after") ?? 0);
  return Number.isFinite(seconds) ? Math.max(seconds * 1000, 0) : 0;
}

/**
 * Run with a signal that aborts after the time, or with the given one. (AbortSignal.any
 * would keep what it made for as long as the given one lives.)
 */
async function within<T>(ms: number, signal: AbortSignal | undefined, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const controller = new AbortController();
  const abort = () => controller.abort(signal?.reason);
  const timer = setTimeout(() => controller.abort(new Error(`no answer in ${ms} ms`)), ms);
  signal?.addEventListener("abort", abort);
  if (signal?.aborted) abort();
  try {
    return await run(controller.signal);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", abort);
  }
}

/** Wait, and return false if a signal ended the wait. */
export async function sleep(ms: number, ...signals: (AbortSignal | undefined)[]): Promise<boolean> {
  if (signals.some((signal) => signal?.aborted)) return false;
  return new Promise((resolve) => {
    const end = (slept: boolean) => {
      clearTimeout(timer);
      for (const signal of signals) signal?.removeEventListener("abort", aborted);
      resolve(slept);
    };
    const aborted = () => end(false);
    const timer = setTimeout(() => end(true), Math.min(Math.max(ms, 0), 2 ** 31 - 1));
    for (const signal of signals) signal?.addEventListener("abort", aborted);
  });
}
