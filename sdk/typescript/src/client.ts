import { randomUUID } from "node:crypto";

import type { components } from "./api.gen.js";
import { LuciusError, NoAnswerError, ProblemError, TimedOutError } from "./errors.js";
import { type Answer, type Connection, shortestPoll, sleep, textOf, Transport } from "./transport.js";

type Schemas = components["schemas"];
export type Job = Schemas["Job"];
export type JobState = Schemas["JobState"];
export type OrderMode = Schemas["OrderMode"];
export type Event = Schemas["Event"];
export type Accepted = Schemas["CommandAccepted"];
/** Where a rerun starts, and what it corrects. */
export type RerunRequest = Omit<Schemas["RerunRequest"], "dry_run">;
export type RerunPreview = Schemas["RerunPreview"];
export type PlannedStep = Schemas["PlannedStep"];
export type CommandChange = Schemas["CommandChange"];
export type Lineage = Schemas["Lineage"];
export type LineageJob = Schemas["LineageJob"];
/** The jobs of one tenant and order key, which run one after the other. */
export type Line = Schemas["Line"];
export type LineState = Schemas["LineState"];
/** A schedule submits a command at times. */
export type Schedule = Schemas["Schedule"];
export type ScheduleState = Schemas["ScheduleState"];
export type ScheduleTime = Schemas["ScheduleTime"];
/** What became of an occurrence or a run of a schedule. */
export type ScheduleFire = Schemas["ScheduleFire"];
/** The firing of past occurrences of a schedule. */
export type ScheduleBackfill = Schemas["ScheduleBackfill"];
/** When a command is submitted, and which. */
export type ScheduleRequest = WithTimes<Schemas["ScheduleRequest"], "start_at" | "end_at">;
export type SchedulePreviewRequest = WithTimes<Schemas["SchedulePreviewRequest"], "start_at" | "end_at" | "after">;
/** Which past occurrences are fired, and how fast. */
export type BackfillRequest = WithTimes<Omit<Schemas["BackfillRequest"], "from">, "to"> & { from: Date | string };
type WithTimes<T, Names extends string> = Omit<T, Names> & { [name in Names]?: Date | string };
/**
 * A command of an application. `idempotency_key` names the command: the same key in the
 * same tenant is the same job, however often it is submitted. Without one, commands of the
 * same request type, schema version, references and payload are one job. The job does not begin
 * before `not_before`, or until `delay_seconds` have passed since the server got the command. It
 * ends with the error code `expired` if no worker has started it by `not_after`. A repeated
 * command keeps its first dates. The jobs of one tenant and `order_key` run one after the other.
 */
export type Command = WithDates<Schemas["Command"]>;
/** The class of a job's work: bulk work yields to all other work of its service and step type. */
export type Priority = Schemas["Priority"];
/** Which dates of a job to change. `delay_seconds: 0` begins it. */
export type RescheduleRequest = WithDates<Schemas["RescheduleRequest"]>;
type WithDates<T> = WithTimes<T, "not_before" | "not_after">;

export interface ClientOptions extends Connection {
  /** How many seconds a call without an answer is repeated. Defaults to 60. */
  retryFor?: number;
}

export interface ListOptions {
  tenant_id?: string;
  state?: JobState;
  request_type?: string;
  correlation_id?: string;
  /** Only jobs of this document; `tenant_id` is then required. */
  doc_id?: string;
  /** Only jobs that have all of these tags; `tenant_id` is then required. */
  tags?: Record<string, string>;
  created_after?: Date | string;
  created_before?: Date | string;
  pageSize?: number;
}

export interface LineOptions {
  tenant_id?: string;
  /** Only the line of this key, also if no job waits in it; `tenant_id` is then required. */
  order_key?: string;
  state?: LineState;
  pageSize?: number;
}

// The longest wait that one request asks for, in milliseconds.
const longestPoll = 30_000;
const batchTimeout = 30_000;
// The server works on it for up to 10 seconds.
const cancelLineTimeout = 30_000;
// The server's limit.
const largestBatch = 100;
// A stream has a comment about every 15 seconds.
const streamSilence = 60_000;

/** Whether the job has ended: it never changes again. */
export function ended({ state }: { state: JobState }): boolean {
  return state === "SUCCEEDED" || state === "FAILED_FINAL" || state === "CANCELLED";
}

/** Calls one server. Refusals are {@link ProblemError}. */
export class Client {
  readonly #transport: Transport;
  readonly #retryFor: number;

  constructor(options: ClientOptions = {}) {
    this.#transport = new Transport(options);
    this.#retryFor = (options.retryFor ?? 60) * 1000;
  }

  /** Submit a command. Its job is durable once this resolves. */
  submit(command: Command): Promise<Accepted> {
    return this.#call("POST", "/v1/commands", command);
  }

  /**
   * Submit any number of commands. Each is accepted or refused by itself; those with the same
   * order key in their order. Those on which the server could not decide are repeated. A request
   * has up to 100 of them: if one of the requests fails, or leaves some without a decision while
   * others follow, those before it have been submitted, and the same call again gets the same jobs.
   */
  async submitBatch(commands: Command[]): Promise<(Accepted | ProblemError)[]> {
    const results: (Accepted | ProblemError)[] = [];
    for (let first = 0; first < commands.length; first += largestBatch) {
      const last = first + largestBatch >= commands.length;
      results.push(...(await this.#submitPart(commands.slice(first, first + largestBatch), last)));
    }
    return results;
  }

  /** Submit as many commands as one request takes. */
  async #submitPart(commands: Command[], last: boolean): Promise<(Accepted | ProblemError)[]> {
    const path = "/v1/commands:batch";
    const bodies = commands.map((command) => JSON.stringify(command));
    const results: (Schemas["BatchItem"] | undefined)[] = commands.map(() => undefined);
    const isTransient = (one?: Schemas["BatchItem"]) => !one || new ProblemError(one.status, { ...one.error }).transient;
    // A command that was left for one before it in its line is submitted again after that one.
    const isUndecided = (one?: Schemas["BatchItem"]) => isTransient(one) || one?.error?.code === "predecessor_refused";
    const once = async (): Promise<Answer> => {
      const asked = [...commands.keys()].filter((index) => isUndecided(results[index]));
      const text = `{"commands":[${asked.map((index) => bodies[index]).join()}]}`;
      const answer = await this.#transport.once("POST", path, { text, timeout: batchTimeout });
      if (answer.status !== 200) return answer;
      const said = JSON.parse(answer.text) as Schemas["BatchResult"];
      if (said.results.length !== asked.length) throw new LuciusError("it answered another number of commands");
      asked.forEach((index, at) => (results[index] = said.results[at]));
      const undecided = results.find(isTransient);
      return undecided ? { ...answer, status: undecided.status, text: JSON.stringify(undecided.error) } : { ...answer, text: "{}" };
    };
    try {
      await this.#transport.call("POST", path, { retryFor: this.#retryFor, once });
    } catch (error) {
      if (results.includes(undefined) || !last) throw error; // What follows must not overtake those without a decision.
    }
    return results.map((one) => {
      const { status, error, ...accepted } = one!;
      return error ? new ProblemError(status, { ...error }) : (accepted as Accepted);
    });
  }

  /** The job with its steps. */
  get(jobId: string): Promise<Job> {
    return this.#call("GET", path(jobId));
  }

  /**
   * Wait until the job has ended, and return it. After the timeout, in seconds, it rejects
   * with {@link TimedOutError}, or with the error of the last call if the server does not
   * answer.
   */
  async wait(jobId: string, { timeout = Infinity, signal }: { timeout?: number; signal?: AbortSignal } = {}): Promise<Job> {
    const end = performance.now() + timeout * 1000;
    for (;;) {
      const begun = performance.now();
      const left = Math.max(end - begun, 0);
      const ms = Math.min(left, longestPoll);
      const options = { timeout: ms + 10_000, retryFor: Math.min(this.#retryFor, Math.max(left, 1000)), signal };
      const job = await this.#transport.call<Job>("GET", `${path(jobId)}?wait=${Math.round(ms)}ms`, options).catch((error) => {
        signal?.throwIfAborted();
        throw error;
      });
      if (ended(job)) return job;
      if (performance.now() >= end) throw new TimedOutError(`job ${jobId} is ${job.state} after ${timeout} seconds`);
      await sleep(Math.min(shortestPoll + begun, end) - performance.now(), signal);
      signal?.throwIfAborted();
    }
  }

  /** The jobs that match, newest first, read page by page. */
  async *list({ pageSize = 100, tags = {}, ...filter }: ListOptions = {}): AsyncGenerator<Job> {
    const tag = Object.entries(tags).map(([key, value]) => `${key}=${value}`);
    for await (const page of this.#pages<Schemas["JobPage"]>("/v1/jobs", { ...filter, tag, limit: pageSize })) {
      yield* page.jobs as Job[];
    }
  }

  /** The job's history so far. */
  async *history(jobId: string): AsyncGenerator<Event> {
    for await (const page of this.#pages<Schemas["EventPage"]>(`${path(jobId)}/events`, { limit: 1000 })) {
      yield* page.events;
    }
  }

  /**
   * The job's history so far, then each entry as it happens, until the job has ended. It
   * reconnects, and continues after the last entry.
   */
  async *watch(jobId: string, { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<Event> {
    let last = "";
    let over = false; // The job has ended.
    let failures = 0; // in a row, of streams over which the server said nothing
    const heard = () => {
      failures = 0; // A quiet job has comments only.
    };
    for (;;) {
      const seen = last;
      let broken = false;
      try {
        for await (const event of this.#stream(jobId, last, heard, signal)) {
          last = event.event_id;
          over ||= event.object === "job" && ended({ state: event.to as JobState });
          yield event;
        }
      } catch (error) {
        broken = true;
        signal?.throwIfAborted();
        if (error instanceof ProblemError && !error.transient) throw error;
        if (++failures > 8) throw new NoAnswerError(`the stream of job ${jobId}: ${(error as Error).message}`, { cause: error });
      }
      // A server that stops may end the stream before the last entries of a job.
      if (over && !broken) return;
      if (last !== seen) continue;
      over ||= ended(await this.#transport.call<Job>("GET", path(jobId), { retryFor: this.#retryFor, signal }).catch((error) => {
        signal?.throwIfAborted();
        throw error;
      }));
      if (!(await sleep(Math.min(100 * 2 ** failures, 5000), signal))) signal?.throwIfAborted();
    }
  }

  cancel(jobId: string, reason?: string): Promise<Job> {
    return this.#control(jobId, "cancel", reason);
  }

  pause(jobId: string, reason?: string): Promise<Job> {
    return this.#control(jobId, "pause", reason);
  }

  resume(jobId: string, reason?: string): Promise<Job> {
    return this.#control(jobId, "resume", reason);
  }

  /**
   * Change the dates of a job that has not begun; one that the request does not name stays. A job
   * that has begun is refused with the code `illegal_transition`. The call may be repeated.
   */
  reschedule(jobId: string, request: RescheduleRequest): Promise<Job> {
    return this.#call("POST", `${path(jobId)}:reschedule`, request);
  }

  /**
   * Make a job that has not ended normal or bulk, which yields to all other work of its kind. A job
   * that has ended is refused with the code `illegal_transition`. The call may be repeated.
   */
  prioritize(jobId: string, priority: Priority, reason?: string): Promise<Job> {
    return this.#call("POST", `${path(jobId)}:prioritize`, reason ? { priority, reason } : { priority });
  }

  /**
   * Create a new job from one that has ended, with the same steps: from the step that failed, or
   * from another one. The request may correct the payload and the references, give the outputs of
   * steps that were done by hand, and take the current protocol. There is one rerun for each job,
   * starting point and set of corrections: a repeat returns it, `replayed`. Corrections that the
   * server refuses are a {@link ProblemError} with a violation for each fault.
   *
   * With `newest`, the call reruns the last rerun of the job. If an answer is lost and the rerun
   * has ended before the call is repeated, the repeat reruns that one.
   */
  rerun(jobId: string, request: RerunRequest = {}): Promise<Accepted> {
    return this.#call("POST", `${path(jobId)}:rerun`, request);
  }

  /**
   * What `rerun` would do with the same request; nothing is done. It has the steps of the new job,
   * how its command would differ, and the job that the same rerun made before. Its errors are
   * those of `rerun`, but for the tenant's limit of jobs.
   */
  planRerun(jobId: string, request: RerunRequest = {}): Promise<RerunPreview> {
    return this.#call("POST", `${path(jobId)}:rerun`, { ...request, dry_run: true });
  }

  /**
   * The chain of reruns that the job is in, oldest first: at most 100 jobs. Of a job that was
   * purged it has only the id.
   */
  lineage(jobId: string): Promise<Lineage> {
    return this.#call("GET", `${path(jobId)}/lineage`);
  }

  /** The lines in which a job waits or that a failed job blocks, in no particular order, read page by page. */
  async *lines({ pageSize = 100, ...filter }: LineOptions = {}): AsyncGenerator<Line> {
    for await (const page of this.#pages<Schemas["LinePage"]>("/v1/lines", { ...filter, limit: pageSize })) {
      yield* page.lines;
    }
  }

  /** The line that the `line_id` of a job names. It is refused with `line_not_found` if no job is in it. */
  line(lineId: string): Promise<Line> {
    return this.#call("GET", linePath(lineId));
  }

  /** The jobs of a line in the order in which they run. A failed job that blocks the line is the first. */
  async *lineJobs(lineId: string): AsyncGenerator<Job> {
    for await (const page of this.#pages<Schemas["LineJobPage"]>(`${linePath(lineId)}/jobs`, {})) {
      yield* page.jobs;
    }
  }

  /**
   * Let a line go on past the failed job that blocks it, without a rerun: its next job begins. A job
   * that does not block the line, as when its rerun took its place, is refused with the code
   * `not_blocking`. The call may be repeated: then it returns the line as it is.
   */
  releaseLine(lineId: string, jobId: string, reason?: string): Promise<Line> {
    return this.#call("POST", `${linePath(lineId)}:release`, reason ? { jobId, reason } : { jobId });
  }

  /**
   * Cancel the jobs of a line that have not begun, the last first, and return how many. A job that
   * has begun and a failed job that blocks the line stay. The call may be repeated. Not counted are
   * jobs that a request without an answer cancelled; if these were all jobs of the line, the call is
   * refused with the code `line_not_found`.
   */
  async cancelLine(lineId: string, reason: string): Promise<number> {
    for (let cancelled = 0; ; ) {
      const options = { body: { reason }, timeout: cancelLineTimeout, retryFor: this.#retryFor };
      const call = this.#transport.call<Schemas["LineCancellation"]>("POST", `${linePath(lineId)}:cancel`, options);
      const some = await call.catch((error) => {
        if (cancelled === 0 || !(error instanceof ProblemError) || error.code !== "line_not_found") throw error;
        return { cancelled: 0, more: false }; // The jobs before have ended.
      });
      cancelled += some.cancelled;
      if (!some.more || some.cancelled === 0) return cancelled;
    }
  }

  /** The schedules of a tenant by name, each with its next occurrence, read page by page. */
  async *schedules(tenantId: string, { pageSize = 100, state }: { state?: ScheduleState; pageSize?: number } = {}): AsyncGenerator<Schedule> {
    for await (const page of this.#pages<Schemas["SchedulePage"]>("/v1/schedules", { tenant_id: tenantId, state, limit: pageSize })) {
      yield* page.schedules;
    }
  }

  /** A schedule with its next occurrences and its last. It is refused with `schedule_not_found` if there is none. */
  schedule(tenantId: string, name: string): Promise<Schedule> {
    return this.#call("GET", schedulePath(tenantId, name));
  }

  /**
   * Create a schedule, or replace its definition: then the next occurrence is the first after now.
   * Times or a command that make no sense are refused with the code `schedule_invalid`, and a
   * violation for each fault. The call may be repeated, but not one with an `expected_rev` whose
   * answer was lost: that is refused with `rev_conflict`.
   */
  putSchedule(tenantId: string, name: string, definition: ScheduleRequest): Promise<Schedule> {
    return this.#call("PUT", schedulePath(tenantId, name), definition);
  }

  /** Delete a schedule. Its jobs go on. One that does not exist is no error, so the call may be repeated. */
  async deleteSchedule(tenantId: string, name: string): Promise<void> {
    await this.#call("DELETE", schedulePath(tenantId, name)).catch((error) => {
      if (!(error instanceof ProblemError) || error.code !== "schedule_not_found") throw error;
    });
  }

  /** Stop a schedule; what is due until it is resumed is not caught up. The call may be repeated. */
  pauseSchedule(tenantId: string, name: string, reason?: string): Promise<Schedule> {
    return this.#call("POST", `${schedulePath(tenantId, name)}:pause`, reason ? { reason } : {});
  }

  /** Start a paused schedule with the first occurrence after now. The call may be repeated. */
  resumeSchedule(tenantId: string, name: string, reason?: string): Promise<Schedule> {
    return this.#call("POST", `${schedulePath(tenantId, name)}:resume`, reason ? { reason } : {});
  }

  /**
   * Submit the command of a schedule now, also while it is paused. Calls with the same key run it
   * once, and return what the first one did: the job, or why there is none. Without a key each call
   * runs it once.
   */
  runSchedule(tenantId: string, name: string, key?: string): Promise<ScheduleFire> {
    return this.#once(`${schedulePath(tenantId, name)}:run`, {}, key);
  }

  /** The next times of a cron expression or an interval, at most 100. */
  async previewSchedule(request: SchedulePreviewRequest): Promise<ScheduleTime[]> {
    return (await this.#call<Schemas["SchedulePreview"]>("POST", "/v1/schedules:preview", request)).times;
  }

  /** What became of the occurrences and runs of a schedule, newest first, read page by page. */
  async *scheduleFires(tenantId: string, name: string): AsyncGenerator<ScheduleFire> {
    for await (const page of this.#pages<Schemas["ScheduleFirePage"]>(`${schedulePath(tenantId, name)}/fires`, {})) {
      yield* page.fires;
    }
  }

  /**
   * Begin to fire occurrences of the past: those without a job, unless `repeat` is set. The server
   * goes on by itself; `scheduleBackfills` has its progress. Calls with the same key begin one
   * backfill, and return it as it is then; another request with that key is refused with
   * `idempotency_mismatch`. While another backfill of the schedule goes on, it is refused with
   * `illegal_transition`.
   */
  backfillSchedule(tenantId: string, name: string, request: BackfillRequest, key?: string): Promise<ScheduleBackfill> {
    return this.#once(`${schedulePath(tenantId, name)}:backfill`, request, key);
  }

  /** The backfills of a schedule with their progress, newest first. */
  async scheduleBackfills(tenantId: string, name: string): Promise<ScheduleBackfill[]> {
    return (await this.#call<Schemas["ScheduleBackfills"]>("GET", `${schedulePath(tenantId, name)}/backfills`)).backfills;
  }

  /** Stop a backfill; its jobs go on. It may be `cancelling` for a moment. The call may be repeated. */
  cancelBackfill(tenantId: string, name: string, backfillId: string, reason?: string): Promise<ScheduleBackfill> {
    const path = `${schedulePath(tenantId, name)}/backfills/${encodeURIComponent(backfillId)}:cancel`;
    return this.#call("POST", path, reason ? { reason } : {});
  }

  /** A call with an idempotency key: the given one, or one of this call and its repetitions. */
  #once<T>(path: string, body: unknown, key?: string): Promise<T> {
    const headers = { "idempotency-key": key || randomUUID() };
    return this.#transport.call<T>("POST", path, { body, headers, retryFor: this.#retryFor });
  }

  #control(jobId: string, verb: string, reason?: string): Promise<Job> {
    return this.#call("POST", `${path(jobId)}:${verb}`, reason ? { reason } : {});
  }

  #call<T>(method: string, path: string, body?: unknown): Promise<T> {
    return this.#transport.call<T>(method, path, { body, retryFor: this.#retryFor });
  }

  async *#pages<Page extends { next_page_token?: string }>(path: string, query: object): AsyncGenerator<Page> {
    const parameters = new URLSearchParams();
    for (const [name, value] of Object.entries(query)) {
      for (const one of Array.isArray(value) ? value : value === undefined ? [] : [value]) {
        parameters.append(name, one instanceof Date ? one.toISOString() : String(one));
      }
    }
    for (;;) {
      const page = await this.#transport.call<Page>("GET", `${path}?${parameters}`, { timeout: 30_000, retryFor: this.#retryFor });
      yield page;
      if (!page.next_page_token) return;
      parameters.set("page_token", page.next_page_token);
    }
  }

  /** One stream after the last entry, until the server ends it. */
  async *#stream(jobId: string, last: string, heard: () => void, signal?: AbortSignal): AsyncGenerator<Event> {
    const controller = new AbortController();
    const abort = () => controller.abort(signal?.reason);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) abort();
    const silence = setTimeout(() => controller.abort(new LuciusError("the stream is silent")), streamSilence);
    try {
      const headers = { accept: "text/event-stream", ...(last ? { "last-event-id": last } : {}) };
      const response = await this.#transport.send("GET", `${path(jobId)}/events`, { headers, signal: controller.signal });
      if (!response.ok || !response.body) throw ProblemError.parse(response.status, await textOf(response));
      let text = "";
      const decoder = new TextDecoder();
      for await (const chunk of response.body) {
        silence.refresh();
        heard();
        text += decoder.decode(chunk as Uint8Array, { stream: true });
        const messages = text.split("\n\n");
        text = messages.pop() ?? "";
        for (const message of messages) {
          const data = message.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
          if (data.length > 0) yield JSON.parse(data.join("\n")) as Event;
        }
      }
    } finally {
      clearTimeout(silence);
      signal?.removeEventListener("abort", abort);
      controller.abort();
    }
  }
}

function path(jobId: string): string {
  return `/v1/jobs/${encodeURIComponent(jobId)}`;
}

function linePath(lineId: string): string {
  return `/v1/lines/${encodeURIComponent(lineId)}`;
}

function schedulePath(tenantId: string, name: string): string {
  return `/v1/schedules/${encodeURIComponent(tenantId)}/${encodeURIComponent(name)}`;
}
