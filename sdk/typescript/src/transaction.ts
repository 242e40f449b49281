import type { Command, JobState } from "./client.js";
import { ProblemError, type Violation } from "./errors.js";

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
 * own. Throws a {@link ProblemError}, with `violations` that name the fields, if the command
 * can never be a job; the transaction has then failed. The server makes all other checks after
 * the commit: {@link submissionOf} tells whether it refused the command.
 */
export async function submitTx(db: Queryable, command: Command): Promise<string> {
  try {
    const { rows } = await db.query("SELECT lucius.submit($1::text::jsonb)::text AS value", [JSON.stringify(command)]);
    return rows[0]!.value!;
  } catch (error) {
    throw refusalOf(error) ?? error;
  }
}

/** The SQLSTATE of a command that can never be a job. */
const commandRefused = "LC002";

/** The problem of a command that the database refused; undefined for any other error. */
function refusalOf(error: unknown): ProblemError | undefined {
  const { code, detail } = Object(error) as { code?: unknown; detail?: unknown };
  if (code !== commandRefused || typeof detail !== "string") return undefined;
  try {
    const problem = JSON.parse(detail) as { status: number };
    const refused = ProblemError.parse(problem.status, detail);
    refused.cause = error;
    return refused;
  } catch {
    return undefined;
  }
}

/** What became of a command; undefined if there is none, or none any more: it is deleted with its job. */
export async function submissionOf(db: Queryable, id: string): Promise<Submission | undefined> {
  const { rows } = await db.query("SELECT (SELECT to_json(r)::text FROM lucius.result($1::text::uuid) r) AS value", [id]);
  const text = rows[0]!.value;
  return text === null ? undefined : (JSON.parse(text) as Submission);
}
