import type { Command, JobState } from "./client.js";
import type { Violation } from "./errors.js";

/** A client of PostgreSQL, such as one of the package pg, in the transaction that it has begun. */
export interface Queryable {
  query(text: string, values: unknown[]): Promise<{ rows: { value: string | null }[] }>;
}

/** A command that was submitted in a transaction. */
export interface Submission {
  /** A refused command stays so until an operator retries or discards it. */
  state: "waiting" | "refused" | "accepted" | "discarded";
  /** Why it was refused or has to wait; `discarded` is the operator's reason. */
  problem: { code: string; detail: string; errors?: Violation[]; discarded?: string } | null;
  /** The job of an accepted command. */
  job_id: string | null;
  job_state: JobState | null;
  final_output: unknown;
  error_code: string | null;
  error_message: string | null;
}

/**
 * Submit a command in a transaction of the application's own PostgreSQL, in which Lucius has
 * its jobs, and return the command's id. There will be one job if the transaction is
 * committed, and none if it is not. Without an `idempotency_key` each call is a job of its
 * own. The server checks the command after the commit: {@link submissionOf} tells whether it
 * was refused.
 */
export async function submitTx(db: Queryable, command: Command): Promise<string> {
  const { rows } = await db.query("SELECT lucius.submit($1::text::jsonb)::text AS value", [JSON.stringify(command)]);
  return rows[0]!.value!;
}

/** What became of a command; undefined if there is none, or none any more: it is deleted with its job. */
export async function submissionOf(db: Queryable, id: string): Promise<Submission | undefined> {
  const { rows } = await db.query("SELECT (SELECT to_json(r)::text FROM lucius.result($1::text::uuid) r) AS value", [id]);
  const text = rows[0]!.value;
  return text === null ? undefined : (JSON.parse(text) as Submission);
}
