import { worker } from "./worker.js";

await worker.run();
