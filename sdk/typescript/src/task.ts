import type { components } from "./api.gen.js";
import { Cancelled, type CancelCause } from "./errors.js";

export type Directive = components["schemas"]["Directive"];
export type WorkItem = Omit<components["schemas"]["WorkItem"], "directive"> & { directive: Directive };
export type Ref = components["schemas"]["Ref"];
export type Warning = components["schemas"]["ClaimWarning"];
export type Progress = components["schemas"]["Progress"];

const maxMessage = 1000;

/** @internal The text, cut between characters to so many bytes. */
export function cut(text: string, length = maxMessage): string {
  return Buffer.from(String(text)).subarray(0, length).toString("utf8").replace(/\uFFFD+$/, "");
}

/** The payload of a handler that does not say what it takes. */
export type Payload = Record<string, any>;

/** One attempt of a step, as its handler gets it. */
export class Task<P = Payload> {
  readonly directive: Directive;
  readonly workId: string;
  readonly #cancelled = new AbortController();
  readonly #paused = new AbortController();
  #progress: Progress | undefined;
  #leaseLost = false;
  #payload: { value: P } | undefined;
  /** @internal */
  progressed = (): void => {};

  /** @internal */
  constructor(item: Pick<WorkItem, "directive" | "work_id">) {
    this.directive = item.directive;
    this.workId = item.work_id;
  }

  /** A task for a test of a handler, see Worker.do. The directive has what the handler needs. */
  static of<P = Payload>(stepType: string, payload: P, directive: Partial<Directive> = {}): Task<P> {
    return new Task<P>({ work_id: "work", directive: {
      type: "DIRECTIVE", jobId: "job", stepId: "step", tenant_id: "tenant", service: "service", step_type: stepType,
      protocol_id: "protocol", mode: "DEFAULT", lane: 0, routing_key_used: "", attempt_no: 1, lease_id: "lease", lease_expires_at: null,
      correlation_id: null, traceparent: null,
      input_ref: null, output_ref: null, workspace_ref: null, payload: payload as Directive["payload"], ...directive,
    } });
  }

  /**
   * Aborts when the task should end soon; its reason is a {@link Cancelled}. Pass it to any API
   * that accepts a signal.
   */
  get cancelled(): AbortSignal {
    return this.#cancelled.signal;
  }

  /** Why the task is cancelled. */
  get cause(): CancelCause | undefined {
    if (this.#leaseLost) return "lease_lost";
    return this.cancelled.aborted ? (this.cancelled.reason as Cancelled).cause : undefined;
  }

  /**
   * Aborts when the job is being paused. Finish, or throw Retry if a later attempt can
   * continue.
   */
  get pauseRequested(): AbortSignal {
    return this.#paused.signal;
  }

  get jobId(): string {
    return this.directive.jobId;
  }

  get stepId(): string {
    return this.directive.stepId;
  }

  get stepType(): string {
    return this.directive.step_type;
  }

  get service(): string {
    return this.directive.service;
  }

  get tenantId(): string {
    return this.directive.tenant_id;
  }

  /** The number of the attempt, from 1. */
  get attempt(): number {
    return this.directive.attempt_no;
  }

  /** The step's part of the command's payload, or what the schema of the handler made of it. */
  get payload(): P {
    return this.#payload ? this.#payload.value : ((this.directive.payload ?? {}) as P);
  }

  /** @internal */
  set validated(value: P) {
    this.#payload = { value };
  }

  get inputRef(): Ref | null {
    return this.directive.input_ref;
  }

  get outputRef(): Ref | null {
    return this.directive.output_ref;
  }

  get workspaceRef(): Ref | null {
    return this.directive.workspace_ref;
  }

  /** The W3C trace context: the parent of the handler's spans. */
  get traceparent(): string | null {
    return this.directive.traceparent;
  }

  get correlationId(): string | null {
    return this.directive.correlation_id;
  }

  /** Show the task's progress on its step: the next heartbeat sends the newest. */
  progress(fraction: number, message?: string): void {
    this.#progress = { fraction: fraction > 0 ? Math.min(fraction, 1) : 0, ...(message ? { message: cut(message) } : {}) };
    this.progressed();
  }

  /** @internal */
  takeProgress(): Progress | undefined {
    const shown = this.#progress;
    this.#progress = undefined;
    return shown;
  }

  /** Cancel the task. The first cause stays, but a lost lease replaces any. */
  cancel(cause: CancelCause): void {
    this.#leaseLost ||= cause === "lease_lost";
    this.#cancelled.abort(new Cancelled(cause));
  }

  /** @internal */
  pause(): void {
    this.#paused.abort();
  }
}
