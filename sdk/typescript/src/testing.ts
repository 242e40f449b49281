// Runs workers in tests, against a Lucius on this machine that keeps its jobs in memory.
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

import { Client, type Command, type Job } from "./client.js";
import { LuciusError } from "./errors.js";
import type { Worker } from "./worker.js";

// Seconds for which a call without an answer is repeated: a test server that ended is not restarted.
const retryFor = 5;

export interface ServerOptions {
  /** The folder of the protocol files. */
  protocols: string;
  /** The program lucius. Defaults to LUCIUS_BINARY, else to the one in PATH. */
  binary?: string;
}

/**
 * A server with the protocols of a folder. It listens on a free loopback port, keeps no files, and
 * ignores LUCIUS_ variables. It outlives a test process that is killed with SIGKILL. Its time is
 * real: use protocols with short delays.
 *
 *     const server = await Server.start({ protocols: "protocols" });
 *     after(() => server.stop());
 *     server.run(worker);
 *     const job = await server.do({ … });
 */
export class Server {
  /** A client of it. */
  readonly client: Client;
  readonly #process: ChildProcess;
  readonly #refused = new AbortController();
  readonly #workers: { worker: Worker; end: Promise<unknown> }[] = [];

  private constructor(readonly url: string, process: ChildProcess) {
    this.client = new Client({ url, token: "", retryFor });
    this.#process = process;
  }

  /** Start a server. It rejects with LuciusError, with what the server said, if it does not serve. */
  static async start({ protocols, binary }: ServerOptions): Promise<Server> {
    const program = binary ?? (process.env["LUCIUS_BINARY"] || "lucius");
    const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("LUCIUS_")));
    const args = ["serve", "--storage-backend", "memory", "--listen-addr", "127.0.0.1:0", "--protocols-dir", protocols,
      "--log-level", "error", "--audit-log", "off"];
    const child = spawn(program, args, { env, stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    child.stderr.setEncoding("utf8").on("data", (text: string) => (said += text));
    const end = new Promise<never>((_, reject) => {
      child.once("error", (error: NodeJS.ErrnoException) => reject(new LuciusError(error.code === "ENOENT"
        ? `the program ${program} was not found: build lucius, or name it in LUCIUS_BINARY` : `${program}: ${error.message}`)));
      child.once("close", () => reject(new LuciusError(`the server did not start: ${said.trim()}`)));
    });
    end.catch(() => {}); // It also ends when it is stopped.
    const lines = createInterface(child.stdout);
    const [line] = await Promise.race([once(lines, "line") as Promise<[string]>, end]);
    const [, url] = line.split("lucius serves ");
    if (!url) throw await end.catch((error: unknown) => error);
    return new Server(url.trim(), child);
  }

  /** Run the worker on this server until the server stops, whatever URL and token it was made with. */
  run(worker: Worker): void {
    worker.connect({ url: this.url, token: "" });
    const end = worker.run();
    end.catch((error: unknown) => this.#refused.abort(error)); // stop() rejects with it, too.
    this.#workers.push({ worker, end });
  }

  /** Submit the command, and return its job once it has ended; after the timeout, in seconds, reject, and
   * at once if a worker rejects. */
  async do(command: Command, { timeout = 60 } = {}): Promise<Job> {
    const { jobId } = await this.client.submit(command);
    return this.client.wait(jobId, { timeout, signal: this.#refused.signal });
  }

  /** End the workers, then the server. It rejects with what a worker rejected with, such as a refused claim. */
  async stop(): Promise<void> {
    for (const { worker } of this.#workers) worker.stop();
    const ends = await Promise.allSettled(this.#workers.map(({ end }) => end));
    if (this.#process.exitCode === null && this.#process.signalCode === null) {
      const closed = once(this.#process, "close");
      this.#process.kill("SIGTERM");
      await closed;
    }
    const failed = ends.find((end) => end.status === "rejected");
    if (failed) throw failed.reason;
  }
}
