/** Errors: the server's refusals, and those that handlers throw. */

/** The base of all errors of this package. */
export class LuciusError extends Error {
  constructor(message?: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** One thing that is wrong with a request: a JSON pointer, and a sentence. */
export interface Violation {
  pointer: string;
  message: string;
}

/**
 * The server refused a request, with a problem of RFC 9457. `code` is stable and meant for
 * programs; it is empty if the answer was no problem, as from a proxy.
 */
export class ProblemError extends LuciusError {
  readonly code: string;
  readonly detail: string;
  readonly violations: readonly Violation[];
  /** For `rev_conflict`, the rev of the item. */
  readonly currentRev: number | undefined;

  constructor(readonly status: number, body: Record<string, unknown>) {
    const code = String(body["code"] ?? "");
    const detail = String(body["detail"] ?? body["title"] ?? "");
    const violations = Array.isArray(body["errors"]) ? (body["errors"] as Violation[]) : [];
    const more = violations.map((v) => `; ${v.pointer}: ${v.message}`).join("");
    super(`the server answered ${status}${code && ` ${code}: ${detail}`}${more}`);
    this.code = code;
    this.detail = detail;
    this.violations = violations;
    this.currentRev = typeof body["current_rev"] === "number" ? body["current_rev"] : undefined;
  }

  static parse(status: number, text: string): ProblemError {
    try {
      const body: unknown = JSON.parse(text);
      if (typeof body === "object" && body !== null) return new ProblemError(status, body as Record<string, unknown>);
    } catch {
      // It is no problem, but the answer of something in between.
    }
    return new ProblemError(status, {});
  }

  /** Whether the call may succeed if it is repeated. */
  get transient(): boolean {
    return this.status >= 500 || this.status === 408 || this.status === 429 || this.code === "conflict";
  }
}

/** The server was not reached, or did not answer, to the end of the retries. */
export class NoAnswerError extends LuciusError {}

/** What was waited for did not happen in time. */
export class TimedOutError extends LuciusError {}

/** Thrown by a handler: the step has failed, and no other attempt can succeed. */
export class Final extends LuciusError {
  constructor(readonly code: string, message = "") {
    super(message);
  }
}

/**
 * Thrown by a handler: this attempt has failed, another one may succeed. The protocol's
 * schedule says when it is made.
 */
export class Retry extends LuciusError {
  constructor(readonly code: string, message = "") {
    super(message);
  }
}

/** A {@link Retry} that says after how many seconds the next attempt is made. */
export class RetryAfter extends Retry {
  constructor(readonly seconds: number, code = "retry_after", message = "") {
    super(code, message);
  }
}

/**
 * A {@link RetryAfter} of a service that has no capacity, as with HTTP status 429. The next
 * attempt is made exactly after so many seconds, which count as a millisecond if they are fewer.
 * The first 100 such attempts of a step spend no retry. The scope is `tenant` if the service takes
 * no work of the job's tenant, but of others.
 */
export class Throttled extends RetryAfter {
  readonly scope: "service" | "tenant";

  constructor(after: number, code = "throttled", message = "", options: { scope?: "service" | "tenant" } = {}) {
    super(after, code, message);
    this.scope = options.scope ?? "service";
  }
}

/**
 * Why a task should end soon: the job is being cancelled; the lease is lost, and another
 * worker may have the task, so that nothing is reported for it; or the worker is stopping,
 * and its grace period is over.
 */
export type CancelCause = "cancelled" | "lease_lost" | "stopping";

/** The reason of `task.cancelled`, which `task.cancelled.throwIfAborted()` throws. */
export class Cancelled extends LuciusError {
  constructor(override readonly cause: CancelCause) {
    super(cause);
  }
}
