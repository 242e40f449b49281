import { ProblemError } from "./errors.js";
import type { Report } from "./lease.js";
import type { Task } from "./task.js";

/** The fields of a line. */
export type Fields = Record<string, string | number>;

/**
 * Receives the lines of a worker: a constant message, and its fields. The messages and fields
 * are the same in all SDKs: sdk/README.md lists them.
 */
export interface Logger {
  info(message: string, fields: Fields): void;
  warn(message: string, fields: Fields): void;
  error(message: string, fields: Fields): void;
}

/** The logger that writes each line with this function. */
function logger(write: (level: string, message: string, fields: Fields) => void): Logger {
  return {
    info: (message, fields) => write("INFO", message, fields),
    warn: (message, fields) => write("WARN", message, fields),
    error: (message, fields) => write("ERROR", message, fields),
  };
}

/** Writes lines for people to standard error. */
export const textLogger = logger((level, message, { stack, ...fields }) => {
  const time = new Date();
  const two = (n: number) => String(n).padStart(2, "0");
  const date = [time.getFullYear(), two(time.getMonth() + 1), two(time.getDate())].join("/");
  const clock = [two(time.getHours()), two(time.getMinutes()), two(time.getSeconds())].join(":");
  const texts = Object.entries(fields).map(([name, value]) => ` ${name}=${quoted(String(value))}`);
  console.error(`${date} ${clock} ${level} ${message}${texts.join("")}${stack ? `\n${stack}` : ""}`);
});

/** Writes lines of JSON to standard error, with the keys `time`, `level` and `msg` and those of the fields. */
export const jsonLogger = logger((level, msg, fields) => {
  console.error(JSON.stringify({ time: new Date().toISOString(), level, msg, ...fields }));
});

function quoted(value: string): string {
  return /^[^\s"=\p{C}]+$/u.test(value) ? value : JSON.stringify(value);
}

/** The duration in milliseconds as 38.7s, and one of less than a second as 0.012s. */
export function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(ms < 1000 ? 3 : 1)}s`;
}

/** The names of services or step types. None are all. */
export function names(of: string[]): string {
  return of.join(",") || "*";
}

/** The fields that name an attempt. */
export function named({ directive }: Task): Fields {
  return { job_id: directive.jobId, step_id: directive.stepId, step_type: directive.step_type, attempt: directive.attempt_no };
}

/** The outcome and the reason of an attempt whose report was taken. */
export function outcomeOf({ verb, body: { error, retryable } }: Report): [outcome: string, reason: string] {
  if (verb === "complete" || !error) return ["succeeded", ""];
  const { code, message } = error;
  const own: Record<string, string> = { cancelled: "cancelled", worker_stopped: "stopped" };
  return [own[code] ?? (retryable ? "retry" : "failed"), message ? `${code}: ${message}` : code];
}

/**
 * Whether the error is an answer of the server, and not one of a proxy in its place. The
 * server's own have a code, except to a request that cannot be read or is too large.
 */
export function answers(error: Error): boolean {
  return error instanceof ProblemError && (error.code !== "" || error.status === 400 || error.status === 413);
}

/** Logs once that the server does not answer, and once that it answers again. */
export class Link {
  #lostAt: number | undefined; // Undefined while the server answers.

  constructor(readonly server: string, readonly logger: Logger) {}

  /** Whether the last call had no answer. */
  get down(): boolean {
    return this.#lostAt !== undefined;
  }

  /** Note that a call that was made at that time had an answer. */
  answered(asked: number): void {
    if (this.#lostAt === undefined || asked < this.#lostAt) return;
    const duration = seconds(performance.now() - this.#lostAt);
    this.#lostAt = undefined;
    this.logger.info("server reachable", { server: this.server, duration });
  }

  /** Note that a call failed for the nth time, and is repeated. */
  failed(call: string, tries: number, error: Error): void {
    if (answers(error)) {
      // The first, and then ever fewer.
      if ((tries & (tries - 1)) === 0) this.logger.warn("call repeated", { call, tries, error: error.message });
      return;
    }
    if (this.#lostAt !== undefined) return;
    this.#lostAt = performance.now();
    this.logger.warn("server unreachable", { server: this.server, error: error.message });
  }
}
