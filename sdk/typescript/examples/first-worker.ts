import { Final, Worker } from "lucius";

const worker = new Worker({ service: "extract", parallel: 4 }); // LUCIUS_URL, LUCIUS_TOKEN

worker.step("EXTRACT", async (task) => {
  if (!task.payload.words) throw new Final("NO_WORDS", "the payload does not say how many words");
  return { uri: `${task.inputRef?.uri}.txt` };
});

await worker.run();
