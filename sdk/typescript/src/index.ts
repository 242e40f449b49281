export * from "./errors.js";
export { jsonLogger, textLogger, type Fields, type Logger } from "./log.js";
export type { Output, Schema } from "./schema.js";
export { Task, type Directive, type Payload, type Progress, type Ref } from "./task.js";
export type { Connection, Token } from "./transport.js";
export { submissionOf, submitTx, type Queryable, type Submission } from "./transaction.js";
export { anyStep, Worker, type Handler, type Middleware, type Outcome, type Result, type StepOptions, type WorkerOptions } from "./worker.js";
export {
  Client, ended, type Accepted, type BackfillRequest, type ClientOptions, type Command, type CommandChange, type Event, type Job, type JobState, type OrderMode, type Line,
  type Lineage, type LineageJob, type LineOptions, type LineState, type ListOptions, type PlannedStep, type Priority, type RerunPreview, type RerunRequest, type RescheduleRequest,
  type Schedule, type ScheduleBackfill, type ScheduleFire, type SchedulePreviewRequest, type ScheduleRequest, type ScheduleState, type ScheduleTime,
} from "./client.js";
