"""The conformance worker: sdk/conformance/README.md says what it does."""

import json
import logging
import os
import threading

from lucius import ANY_STEP, Final, Retry, RetryAfter, Throttled, Worker

worker = Worker(service=os.environ["CONFORMANCE_SERVICE"], parallel=int(os.environ["CONFORMANCE_PARALLEL"]),
                grace=float(os.environ["CONFORMANCE_GRACE_SECONDS"]), lease=float(os.environ["CONFORMANCE_LEASE_SECONDS"]))
printing = threading.Lock()


class JSON(logging.Formatter):
    """Formats a record as those of many hosts do: with all that was given as its extra."""

    usual = set(logging.makeLogRecord({}).__dict__) | {"message", "event"}

    def format(self, record):
        extra = {name: value for name, value in record.__dict__.items() if name not in self.usual}
        return json.dumps({"level": record.levelname, "msg": record.event, **extra})


handler = logging.StreamHandler()
handler.setFormatter(JSON())
logging.basicConfig(level=logging.INFO, handlers=[handler])


def say(event, task, **more):
    with printing:
        print(json.dumps({"event": event, "jobId": task.job_id, "attempt": task.attempt, **more}), flush=True)


def result(task):
    traced = {"traceparent": task.traceparent} if task.traceparent else {}
    return {"uri": f"conformance://{task.job_id}/{task.attempt}", **traced}


def sleep(task):
    def watch():
        if task.pause_requested.wait(60):
            say("pause_requested", task)
    threading.Thread(target=watch, daemon=True).start()
    seconds = task.payload.get("seconds", 0)
    if task.payload.get("deaf"):
        threading.Event().wait(seconds)
    elif task.cancelled.wait(seconds):
        say("cancelled", task, cause=task.cancelled.cause)
        task.raise_if_cancelled()


def do(task):
    what, first = task.payload["do"], task.attempt == 1
    if what == "final":
        raise Final("CONFORMANCE_FINAL", "told to fail")
    if what == "quote_token":
        with open(os.environ["LUCIUS_TOKEN_FILE"]) as file:
            raise Final("CONFORMANCE_FINAL", f"refused: Bearer {file.read().strip()}")
    if what == "retry_once" and first:
        raise Retry("CONFORMANCE_RETRY", "told to retry")
    if what == "retry_after" and first:
        raise RetryAfter(task.payload["seconds"], "CONFORMANCE_RETRY_AFTER", "told to retry later")
    if what == "throttled" and first:
        raise Throttled(task.payload["seconds"], "CONFORMANCE_THROTTLED", "told that the service is throttled")
    if what == "throttled_tenant" and first:
        raise Throttled(task.payload["seconds"], "CONFORMANCE_THROTTLED", "told that the tenant is throttled", scope="tenant")
    if what == "throw" and first:
        raise RuntimeError("thrown in attempt 1")
    if what == "too_large":
        return {**result(task), "filler": "x" * 9000}
    if what == "progress":
        task.progress(0.5, "half")
    if what in ("progress", "sleep", "refused"):
        sleep(task)
    longer = {"uri": result(task)["uri"] + "x" * 3000} if what == "refused" else {}
    return {**result(task), **longer}


@worker.step(ANY_STEP if os.environ.get("CONFORMANCE_ANY_STEP") else "CONFORM")
def conform(task):
    say("started", task)
    try:
        return do(task)
    finally:
        say("ended", task)


if __name__ == "__main__":
    worker.run()
