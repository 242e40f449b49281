import { randomUUID } from "node:crypto";

import type { Completions } from "./completions.js";
import { ProblemError } from "./errors.js";
import { answers, type Link, type Logger, named, outcomeOf, seconds } from "./log.js";
import { cut, type Task, type WorkItem } from "./task.js";
import { longestPause, sleep, type Transport } from "./transport.js";

const longestBeat = 30_000;
const shortestBeat = 10;
// Progress is sent early, but no more often than this: each heartbeat is a write to the ledger.
const progressBeat = 5_000;
const callTimeout = 10_000;
const shortestTimeout = 200;
const shortestWait = 50;
const maxCode = 128;

/** How a task ended: the verb, and the body of its request. */
export interface Report {
  verb: "complete" | "fail";
  body: Record<string, unknown> & { error?: { code: string; message: string } };
}

/** The report of a failure, whose texts {@link fitted} makes fit to be sent. */
export function failure(code: string, message: string, retryable: boolean, after?: number, scope?: string): Report {
  const body: Report["body"] = { retryable, error: { code: String(code), message: String(message) } };
  if (after !== undefined) body["retry_after_seconds"] = after > 0 ? Math.min(after, 604_800) : 0;
  if (scope !== undefined) { // The server refuses a throttle without a time.
    body["scope"] = scope;
    body["retry_after_seconds"] = Math.max(Number(body["retry_after_seconds"]), 0.001);
  }
  return { verb: "fail", body };
}

/** The report with the texts of its error redacted, and cut to the lengths that the server takes. */
export function fitted({ verb, body }: Report, redact: (text: string) => string): Report {
  if (!body.error) return { verb, body };
  const { code, message } = body.error;
  return { verb, body: { ...body, error: { code: cut(redact(code), maxCode), message: cut(redact(message)) } } };
}

/** How long the lease is, by the server's clock alone: this one's may be wrong. */
function leaseLength(item: WorkItem): number {
  if (!item.lease) return Infinity;
  return Math.max(Date.parse(item.lease.expires_at) - Date.parse(item.updated_at), 0);
}

/** Whether the problem is not the server's answer about the attempt: a token can be replaced. */
function passes(problem: ProblemError): boolean {
  return problem.transient || problem.status === 401 || !answers(problem);
}

/** Whether the server does not take the result, so that another attempt would fail in the same way. */
function refusesResult({ status, code }: ProblemError): boolean {
  return status === 413 || status === 422 || code === "invalid_envelope";
}

/**
 * Keeps the lease of one task by heartbeats until {@link Lease.stop}, and reports its end. Only
 * an answer of the server ends the lease. While the server is away the handler goes on: the
 * server may have extended the lease.
 */
export class Lease {
  readonly #logger: Logger;
  #rev: number;
  readonly #attempt: number;
  // In milliseconds, and by this clock: they say when to send heartbeats.
  #length: number;
  #ends: number;
  #lost = ""; // Why it is, once it is.
  readonly #stopped = new AbortController();
  #wake = new AbortController();
  readonly #beating: Promise<void>;

  constructor(
    readonly transport: Transport,
    readonly completions: Completions,
    readonly owner: string,
    readonly task: Task,
    readonly link: Link,
    item: WorkItem,
    since: number, // When the lease began, or earlier, by performance.now().
  ) {
    this.#logger = link.logger;
    this.#rev = item.rev;
    this.#attempt = item.attempt;
    this.#length = leaseLength(item);
    this.#ends = since + this.#length;
    task.progressed = () => this.#wake.abort();
    this.#beating = this.#beat();
  }

  /** End the heartbeats, and wait for the one in flight: it may raise the rev. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    await this.#beating;
  }

  /**
   * Report and log the end of the task, unless its lease is lost. Call it after stop(). A result
   * that the server does not take fails the step: the next attempt would return the same.
   */
  async report(end: Report, took: number, finished: AbortSignal): Promise<void> {
    if (this.#lost) return this.#ended(took, "lease_lost", this.#lost);
    const { verb, body } = fitted(end, (text) => this.transport.redact(text));
    try {
      await this.#verb(verb, body, { timeout: callTimeout, signal: finished });
    } catch (error) {
      const why = (error as Error).message;
      if (finished.aborted) {
        this.#logger.warn("result not sent", { ...named(this.task), error: why });
        return this.#ended(took, "not_sent", why);
      }
      this.#logger.warn("result refused", { ...named(this.task), error: why });
      if (verb === "complete" && error instanceof ProblemError && refusesResult(error)) {
        return this.report(failure("result_refused", why, false), took, finished);
      }
      return this.#ended(took, "refused", why);
    }
    this.#ended(took, ...outcomeOf({ verb, body }));
  }

  /** Log how the task ended. */
  #ended(took: number, outcome: string, reason: string): void {
    const fields = { ...named(this.task), duration: seconds(took), outcome, ...(reason ? { error: reason } : {}) };
    this.#logger.info("task ended", fields);
  }

  #left(): number {
    return this.#ends - performance.now();
  }

  #lose(why: string): void {
    this.#lost = why;
    this.#logger.warn("lease lost", { ...named(this.task), error: why });
    this.task.cancel("lease_lost");
  }

  async #beat(): Promise<void> {
    let beaten = -Infinity;
    while (this.#ends !== Infinity) {
      const woken = !(await sleep(this.#pause(), this.#wake.signal, this.#stopped.signal));
      if (woken && !this.#stopped.signal.aborted) {
        this.#wake = new AbortController();
        await sleep(beaten + Math.min(progressBeat, this.#left() / 3) - performance.now(), this.#stopped.signal);
      }
      if (this.#stopped.signal.aborted) return;
      beaten = performance.now();
      if (!(await this.#extend())) return;
    }
  }

  #pause(): number {
    return Math.min(Math.max(this.#left() / 3, shortestBeat), longestBeat);
  }

  /** Make one heartbeat, and return false if the lease is lost. */
  async #extend(): Promise<boolean> {
    const sent = performance.now();
    const progress = this.task.takeProgress();
    const timeout = Math.min(Math.max(this.#length / 3, shortestTimeout), callTimeout);
    let item: WorkItem;
    try {
      item = await this.#verb("heartbeat", progress ? { progress } : {}, { timeout, enough: this.#stopped.signal });
    } catch (error) {
      if (error instanceof ProblemError && !passes(error)) this.#lose(error.message);
      return false; // Else it had no answer until stop().
    }
    if (!item.lease || item.attempt !== this.#attempt) { // The heartbeat is remembered from before.
      this.#lose("the item was taken from the worker");
      return false;
    }
    this.#length = leaseLength(item);
    this.#ends = sent + this.#length;
    if (item.cancel_requested) this.task.cancel("cancelled");
    if (item.pause_requested) this.task.pause();
    return true;
  }

  /** Make a call for the task until it is answered, and adopt the rev that the answer has. */
  async #verb(
    verb: string,
    body: Record<string, unknown>,
    limits: { timeout: number; signal?: AbortSignal; enough?: AbortSignal },
  ): Promise<WorkItem> {
    const path = `/v1/work/${encodeURIComponent(this.task.workId)}:${verb}`;
    // After an outage the server extends the lease by a third: the call must be made by then.
    const longestWait = Math.min(Math.max(this.#length / 6, shortestWait), longestPause);
    const headers: Record<string, string> = this.task.traceparent ? { traceparent: this.task.traceparent } : {};
    for (;;) {
      const named = { owner: this.owner, expected_rev: this.#rev, request_id: randomUUID(), ...body };
      const once = verb === "complete" ? () => this.completions.once(this.task.workId, named, headers) : undefined;
      try {
        const options = { body: named, headers, once, passes, retryFor: Infinity, longestWait, link: this.link, name: verb, ...limits };
        const item = await this.transport.call<WorkItem>("POST", path, options);
        this.#rev = item.rev;
        return item;
      } catch (error) {
        const current = error instanceof ProblemError && error.code === "rev_conflict" ? error.currentRev : undefined;
        if (current === undefined || current === this.#rev) throw error;
        this.#rev = current;
      }
    }
  }
}
