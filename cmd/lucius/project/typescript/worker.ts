/**
 * A worker of the three steps of protocols/summarize.yaml, which main.ts runs.
 *
 * Any number of it may run. LUCIUS_URL says where the server is, and LUCIUS_TOKEN who the
 * worker is, if the server asks.
 */
import { Final, Worker } from "lucius";

export const worker = new Worker({ service: "extract", services: ["summarize", "publish"] });

worker.step("EXTRACT", (task) => ({ uri: `${task.inputRef?.uri}.txt` }));

worker.step<{ words: number }>("SUMMARIZE", (task) => {
  const { words } = task.payload;
  if (words > 10_000) throw new Final("TOO_LONG", `${words} words are no summary`); // Another attempt would not help.
  return { uri: `${task.inputRef?.uri}.summary`, words };
});

worker.step("PUBLISH", (task) => ({ uri: `${task.outputRef?.uri}` }));
