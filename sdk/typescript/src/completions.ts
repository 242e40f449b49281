import type { components } from "./api.gen.js";
import { ProblemError } from "./errors.js";
import type { Answer, Transport } from "./transport.js";

// How many requests with completions are made at once.
const maxRequests = 16;
// The server's limit of a batch, and how many bytes of results one holds before it is sent.
const largestBatch = 100;
const batchBytes = 256 << 10;
const timeout = 10_000;
const batchTimeout = 30_000;

/** One try to complete a task. */
interface Completion {
  workId: string;
  body: Record<string, unknown>;
  headers: Record<string, string>;
  size: number;
  resolve(answer: Answer): void;
  reject(error: unknown): void;
}

/**
 * Makes one try to complete a task, together with the others that are ready. One that is
 * alone is sent at once.
 */
export class Completions {
  #waiting: Completion[] = [];
  #requests = 0;
  #scheduled = false;

  constructor(readonly transport: Transport, readonly finished: AbortSignal) {}

  /** The answer to one try. It rejects as {@link Transport.once} does. */
  once(workId: string, body: Record<string, unknown>, headers: Record<string, string>): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ workId, body, headers, size: JSON.stringify(body).length, resolve, reject });
      this.#schedule();
    });
  }

  /** Send what waits after the handlers that end at the same time. */
  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      while (this.#requests < maxRequests && this.#waiting.length > 0) void this.#send(this.#take());
    });
  }

  /** The first of those that wait, as many as one request takes. */
  #take(): Completion[] {
    let size = 0;
    const end = this.#waiting.findIndex((one, index) => index === largestBatch || (size += one.size) - one.size >= batchBytes);
    return this.#waiting.splice(0, end < 0 ? this.#waiting.length : end);
  }

  async #send(batch: Completion[]): Promise<void> {
    this.#requests++;
    try {
      if (batch.length === 1) await this.#alone(batch[0]!);
      else await this.#together(batch);
    } catch (error) {
      for (const one of batch) one.reject(error);
    }
    this.#requests--;
    if (this.#waiting.length > 0) this.#schedule();
  }

  async #alone({ workId, body, headers, resolve }: Completion): Promise<void> {
    const path = `/v1/work/${encodeURIComponent(workId)}:complete`;
    resolve(await this.transport.once("POST", path, { text: JSON.stringify(body), headers, timeout, signal: this.finished }));
  }

  async #together(batch: Completion[]): Promise<void> {
    const text = JSON.stringify({ items: batch.map(({ workId, body }) => ({ work_id: workId, ...body })) });
    const answer = await this.transport.once("POST", "/v1/work:complete", { text, timeout: batchTimeout, signal: this.finished });
    if (ProblemError.parse(answer.status, "").transient || answer.status === 401) {
      for (const one of batch) one.resolve(answer);
      return;
    }
    const { results } = answer.status === 200 ? (JSON.parse(answer.text) as components["schemas"]["WorkCompletionResults"]) : { results: [] };
    if (results.length !== batch.length) { // One of them may be at fault.
      await Promise.all(batch.map((one) => this.#alone(one).catch(one.reject)));
      return;
    }
    for (const [index, one] of batch.entries()) {
      const { status, error, ...completed } = results[index]!;
      one.resolve({ status, retryAfter: 0, text: JSON.stringify(error ?? completed) });
    }
  }
}
