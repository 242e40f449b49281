import { randomUUID } from "node:crypto";
import { setMaxListeners } from "node:events";
import { hostname } from "node:os";

import { Completions } from "./completions.js";
import { Final, LuciusError, ProblemError, Retry, RetryAfter, Throttled } from "./errors.js";
import { failure, fitted, Lease, type Report } from "./lease.js";
import { answers, Link, type Logger, named, names, textLogger } from "./log.js";
import { type Output, type Schema, validate } from "./schema.js";
import { type Payload, Task, type Warning, type WorkItem } from "./task.js";
import { type Connection, shortestPoll, sleep, Transport } from "./transport.js";

/** The reference of a result: any JSON object with a `uri`. */
export type Result = { uri: string } | ({ uri: string } & Record<string, unknown>);

/** Does one task, which has such a payload, and returns such a result. Nothing returned is no result. */
export type Handler<P = Payload, R extends Result | void = Result | void> = (task: Task<P>) => Promise<R> | R;

/** How a step type is handled. */
export interface StepOptions<S extends Schema> {
  /** Validates the payload of each task, and says its type: a schema of zod, valibot or another library. */
  payload: S;
}

/** The answer to a claim. */
interface Claimed {
  items?: WorkItem[];
  warnings?: Warning[];
}

/** Wraps every handler: it calls next(task), and returns what that does. */
export type Middleware = (task: Task<any>, next: Handler<any, any>) => ReturnType<Handler<any, any>>;

export interface WorkerOptions extends Connection {
  service: string;
  /** More services whose steps the worker does. */
  services?: string[];
  /** Limits the tasks in hand, 1 to 100. Defaults to 4. */
  parallel?: number;
  /** Names the worker, uniquely among those that run. */
  owner?: string;
  /** The version of the program, which the server's list of workers shows beside the host. */
  version?: string;
  /** How many seconds tasks in hand may still take after a stop. Defaults to 10. */
  grace?: number;
  /** How many seconds a claim waits for work, up to 60. Defaults to 20. */
  claimWait?: number;
  /**
   * How many seconds the server waits for a heartbeat before it gives a step to another worker,
   * 3 to 86400, at most the step's own lease. A heartbeat is sent after a third of it, at least
   * every 30 seconds. Defaults to 90.
   */
  lease?: number;
  /** The first is the outermost. */
  middleware?: Middleware[];
  /** Receives what the worker says. Defaults to lines on standard error, see also {@link jsonLogger}. */
  logger?: Logger;
}

/** What is reported of a task: its result, or the code and the message of a failure. */
export interface Outcome {
  result?: Result;
  /** Undefined if the task succeeded. */
  code?: string;
  message?: string;
  /** Whether the step is tried again, and after how many seconds if not as the protocol says. */
  retryable: boolean;
  after?: number;
  /** Of a {@link Throttled}. */
  scope?: "service" | "tenant";
}

/** The body of a report. */
interface Reported {
  result_ref?: Result;
  error?: { code: string; message: string };
  retryable?: boolean;
  retry_after_seconds?: number;
  scope?: "service" | "tenant";
}

// The server's limit of a reference, in bytes of JSON.
const maxResult = 8 << 10;
// What handlers get to end after the cancellation at the end of the grace.
const lastMilliseconds = 2_000;

/** Stands for all step types, see {@link Worker.step}. */
export const anyStep = "*";

/**
 * Does the steps of one service, or of several. Register a handler for each step type with
 * {@link Worker.step}, then call {@link Worker.run}. Delivery is at least once: a handler
 * may see a step again, and must be idempotent.
 */
export class Worker {
  readonly owner: string;
  readonly #options: Required<Pick<WorkerOptions, "parallel" | "grace" | "claimWait" | "lease" | "middleware">>;
  readonly #logger: Logger;
  #link!: Link;
  readonly #services: string[];
  readonly #version: string | undefined;
  #transport!: Transport;
  readonly #handlers = new Map<string, Handler<any, any>>();
  readonly #leases = new Set<Lease>();
  #ran = false;
  #welcome = false; // The server has answered a claim.
  #warnings: Warning[] = []; // Those of the last claim.
  readonly #stopping = new AbortController();
  readonly #finished = new AbortController(); // Nothing is reported after it.
  #completions!: Completions;
  readonly #inHand = new Map<Task, Promise<void>>();
  #freed = new AbortController(); // Aborts when a task ends.

  constructor(options: WorkerOptions) {
    const { parallel = 4, grace = 10, claimWait = 20, lease = 90, middleware = [], logger = textLogger } = options;
    if (!(parallel >= 1 && parallel <= 100)) throw new RangeError(`parallel is ${parallel}, it must be from 1 to 100`);
    if (!(claimWait >= 0 && claimWait <= 60)) throw new RangeError(`claimWait is ${claimWait}, it must be from 0 to 60`);
    if (!(lease >= 3 && lease <= 86_400)) throw new RangeError(`lease is ${lease}, it must be from 3 to 86400`);
    if (!(grace >= 0)) throw new RangeError(`grace is ${grace}, it must not be negative`);
    this.#options = { parallel, grace, claimWait, lease, middleware };
    this.#logger = logger;
    this.#version = options.version;
    this.#services = [options.service, ...(options.services ?? [])];
    setMaxListeners(0, this.#stopping.signal, this.#finished.signal); // Each call in progress is one.
    this.connect(options);
    this.owner = options.owner ?? `${hostname().slice(0, 64)}-${process.pid}-${randomUUID().slice(0, 8)}`;
  }

  /** @internal Take work from this server, before the worker runs. */
  connect(to: Connection): void {
    this.#transport = new Transport(to);
    this.#link = new Link(this.#transport.address, this.#logger);
    this.#completions = new Completions(this.#transport, this.#finished.signal);
  }

  /**
   * Register the handler of a step type. That of {@link anyStep} does the steps of all types
   * of the worker's services that have no handler of their own.
   */
  step(stepType: string, handler: Handler): this;
  /** Register a handler that says what its payload is, which is not checked, and its result. */
  step<P, R extends Result | void = Result | void>(stepType: string, handler: Handler<P, R>): this;
  /**
   * Register a handler whose payloads a schema validates. One that does not fit fails the step
   * for good with the code payload_invalid, and names what is wrong.
   */
  step<S extends Schema>(stepType: string, options: StepOptions<S>, handler: Handler<Output<S>>): this;
  step(stepType: string, ...given: [Handler<any, any>] | [StepOptions<Schema>, Handler<any, any>]): this {
    if (this.#handlers.has(stepType)) throw new Error(`step type ${stepType} has a handler already`);
    if (given.length === 1) {
      this.#handlers.set(stepType, given[0]);
      return this;
    }
    const [{ payload }, handler] = given;
    this.#handlers.set(stepType, async (task: Task<any>) => {
      await validate(task, payload);
      return handler(task);
    });
    return this;
  }

  /**
   * Run the handler of the task as {@link Worker.run} does, without a server: for tests.
   * {@link Task.of} makes a task, and its cancel() cancels it.
   */
  async do(task: Task<any>): Promise<Outcome> {
    const { body } = fitted(await this.#handle(task), (text) => this.#transport.redact(text));
    const { error, retryable, retry_after_seconds: after, scope, result_ref: result } = body as Reported;
    if (!error) return { ...(result ? { result } : {}), retryable: false };
    return { ...error, retryable: retryable === true, ...(after === undefined ? {} : { after }), ...(scope ? { scope } : {}) };
  }

  /** Make {@link Worker.run} finish what is in hand and return. */
  stop(): void {
    this.#stopping.abort();
  }

  /**
   * Work until {@link Worker.stop}, SIGTERM or SIGINT, then finish what is in hand. It
   * rejects with ProblemError if the server refuses a claim, as with a wrong token. Once the
   * server has answered a claim, the worker waits instead while a proxy answers in its place,
   * and for another token if that is from a function or a file. A worker runs once.
   */
  async run(): Promise<void> {
    if (this.#handlers.size === 0) throw new Error("no handler is registered: call worker.step(type, handler)");
    if (this.#ran) throw new Error("a worker runs once: create another one");
    this.#ran = true;
    this.#logger.info("worker started", {
      owner: this.owner, services: names(this.#services), steps: names(this.#stepTypes()), server: this.#transport.address,
      parallel: this.#options.parallel,
    });
    const stop = () => this.stop();
    process.on("SIGTERM", stop).on("SIGINT", stop);
    try {
      await this.#claimUntilStopped();
    } finally {
      this.stop();
      await this.#drain();
      process.off("SIGTERM", stop).off("SIGINT", stop);
    }
  }

  async #claimUntilStopped(): Promise<void> {
    while (!this.#stopping.signal.aborted) {
      const free = this.#options.parallel - this.#inHand.size;
      if (free > 0) {
        const begun = performance.now();
        const welcome = this.#welcome;
        const { items, since } = await this.#claim(free);
        for (const item of items) this.#begin(item, since);
        if (items.length === 0 && welcome) await sleep(shortestPoll + begun - performance.now(), this.#stopping.signal);
        continue;
      }
      await sleep(60_000, this.#stopping.signal, this.#freed.signal);
    }
  }

  /** The step types that have a handler, or none if a handler does all. */
  #stepTypes(): string[] {
    return this.#handlers.has(anyStep) ? [] : [...this.#handlers.keys()].sort();
  }

  /**
   * Claim and start up to most items, and wait for the first. It returns also since when they may
   * be claimed: the first try of a claim that was repeated may have claimed them.
   */
  async #claim(most: number): Promise<{ items: WorkItem[]; since: number }> {
    const body = {
      owner: this.owner, services: this.#services, max: most, wait_seconds: this.#options.claimWait,
      lease_seconds: this.#options.lease, start: true, host: hostname().slice(0, 128), version: this.#version,
      ...(this.#handlers.has(anyStep) ? {} : { step_types: this.#stepTypes() }), request_id: randomUUID(),
    };
    const path = "/v1/work:claim";
    const begun = performance.now();
    let tries = 0;
    const signal = this.#stopping.signal;
    try {
      const timeout = (this.#options.claimWait + 10) * 1000;
      // Before the first answer the URL or the token may be wrong for good.
      const passesLater = (problem: ProblemError) => !answers(problem) || (problem.status === 401 && this.#transport.tokenMayChange);
      const passes = (problem: ProblemError) => problem.transient || (this.#welcome && passesLater(problem));
      const once = () => {
        tries++;
        // An answer at once says what is wrong with the first claim, and that the server is back.
        if (this.#link.down || !this.#welcome) body.wait_seconds = 0;
        return this.#transport.once("POST", path, { text: JSON.stringify(body), timeout, signal });
      };
      const options = { once, retryFor: Infinity, passes, signal, link: this.#link, name: "claim" };
      const { items = [], warnings = [] } = await this.#transport.call<Claimed>("POST", path, options);
      this.#welcome = true;
      this.#warn(warnings);
      return { items, since: tries > 1 ? begun : performance.now() };
    } catch (error) {
      if (!signal.aborted) throw error;
    }
    try { // The interrupted claim may have succeeded: its items would stay claimed.
      const again = { ...body, wait_seconds: 0 };
      const { items = [] } = await this.#transport.call<Claimed>("POST", path, { body: again, timeout: 2000, retryFor: 2000 });
      return { items, since: begun };
    } catch (error) {
      this.#logger.warn("last claim unanswered", { error: (error as Error).message });
      return { items: [], since: begun };
    }
  }

  /** Log those warnings of a claim that the last one did not have. */
  #warn(warnings: Warning[]): void {
    for (const { code, message } of warnings) {
      const known = this.#warnings.some((before) => before.code === code && before.message === message);
      if (!known) this.#logger.warn("claim warning", { code, warning: message });
    }
    this.#warnings = warnings;
  }

  #begin(item: WorkItem, since: number): void {
    const task = new Task(item);
    const attended = this.#attend(task, item, since)
      .catch((error: unknown) => this.#logger.error("task dropped", { ...named(task), ...described(error) }))
      .finally(() => {
        this.#inHand.delete(task);
        this.#freed.abort();
        this.#freed = new AbortController();
      });
    this.#inHand.set(task, attended);
  }

  /** Do one task and report its end. */
  async #attend(task: Task, item: WorkItem, since: number): Promise<void> {
    const lease = new Lease(this.#transport, this.#completions, this.owner, task, this.#link, item, since);
    this.#leases.add(lease);
    const begun = performance.now();
    let took = 0;
    let end: Report;
    try {
      end = await this.#handle(task);
      took = performance.now() - begun;
    } finally {
      await lease.stop();
      this.#leases.delete(lease);
    }
    await lease.report(end, took, this.#finished.signal);
  }

  async #handle(task: Task): Promise<Report> {
    let handler = this.#handlers.get(task.stepType) ?? this.#handlers.get(anyStep);
    if (!handler) return failure("step_type_unknown", `this worker has no handler for ${task.stepType}`, true);
    for (const middleware of [...this.#options.middleware].reverse()) {
      const next: Handler<any, any> = handler;
      handler = (task: Task<any>) => middleware(task, next);
    }
    try {
      return completion(await handler(task));
    } catch (error) {
      return this.#failed(task, error);
    }
  }

  /** The report of a handler that threw. */
  #failed(task: Task, error: unknown): Report {
    const { error: message, ...more } = described(error);
    if (task.cause === "cancelled") return failure("cancelled", message, false);
    if (task.cause === "stopping") return failure("worker_stopped", message, true, 1); // Another worker gets the step at once.
    if (error instanceof Final) return failure(error.code, error.message, false);
    if (error instanceof Retry) {
      const after = error instanceof RetryAfter ? error.seconds : undefined;
      return failure(error.code, error.message, true, after, error instanceof Throttled ? error.scope : undefined);
    }
    if (task.cause === undefined) this.#logger.error("handler crashed", { ...named(task), error: message, ...more });
    return failure("work_failed", message, true);
  }

  /** Wait for the tasks in hand; cancel those that outlast the grace. */
  async #drain(): Promise<void> {
    const over = new AbortController();
    const all = Promise.all(this.#inHand.values()).then(() => over.abort());
    if (await sleep(this.#options.grace * 1000, over.signal)) {
      for (const task of this.#inHand.keys()) task.cancel("stopping");
      if (await sleep(lastMilliseconds, over.signal)) {
        this.#finished.abort(new LuciusError("the worker has stopped"));
        for (const lease of this.#leases) void lease.stop();
        for (const task of this.#inHand.keys()) this.#logger.warn("task abandoned", named(task));
        return;
      }
    }
    await all;
  }
}

/** What was thrown, as fields of the log. */
function described(error: unknown): { error: string; stack?: string } {
  try {
    if (!(error instanceof Error)) return { error: String(error) };
    return { error: `${error.name}: ${error.message}`, ...(error.stack ? { stack: error.stack } : {}) };
  } catch {
    return { error: "the handler failed" }; // It has no text.
  }
}

function completion(result: unknown): Report {
  if (result === undefined || result === null) return { verb: "complete", body: {} };
  const uri = typeof result === "object" ? (result as Record<string, unknown>)["uri"] : undefined;
  if (typeof uri !== "string" || !uri.trim()) {
    return failure("result_invalid", "the handler must return an object with a uri, or nothing", false);
  }
  let encoded: string;
  try {
    encoded = JSON.stringify(result);
  } catch (error) {
    return failure("result_invalid", `the result is no JSON: ${(error as Error).message}`, false);
  }
  if (/(?<!\\)(\\\\)*\\ud[89a-f]/.test(encoded)) { // JSON.stringify escapes only halves.
    return failure("result_invalid", "the result is no JSON: a text of it has half of a surrogate pair", false);
  }
  const size = Buffer.byteLength(encoded);
  if (size > maxResult) {
    const message = `the result has ${size} bytes, at most ${maxResult} are taken: store it, and return its uri`;
    return failure("result_too_large", message, false);
  }
  return { verb: "complete", body: { result_ref: result } };
}
