import { Final } from "./errors.js";
import type { Task } from "./task.js";

/** What a schema of zod, valibot and others has, see https://standardschema.dev. */
export interface Schema<Output = unknown> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => Validated<Output> | Promise<Validated<Output>>;
    readonly types?: { readonly input: unknown; readonly output: Output } | undefined;
  };
}

type Validated<Output> = { readonly value: Output; readonly issues?: undefined } | { readonly issues: readonly Issue[] };

interface Issue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** What a schema makes of a payload. */
export type Output<S extends Schema> = NonNullable<S["~standard"]["types"]>["output"];

/** Has the task's payload be what the schema makes of it. It rejects with Final if it does not fit. */
export async function validate<S extends Schema>(task: Task<Output<S>>, schema: S): Promise<void> {
  const result = await schema["~standard"].validate(task.payload);
  if (result.issues) throw new Final("payload_invalid", result.issues.map(described).join("; "));
  task.validated = result.value;
}

/** The message of the issue, after the JSON pointer of what is wrong. */
function described({ path = [], message }: Issue): string {
  const keys = path.map((part) => String(typeof part === "object" ? part.key : part));
  const pointer = keys.map((key) => `/${key.replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
  return pointer ? `${pointer}: ${message}` : message;
}
