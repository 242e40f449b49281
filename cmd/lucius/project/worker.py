#!/usr/bin/env python3
"""A worker of two services, which needs nothing but Python 3.

It claims steps from Lucius, does them, and reports how they ended. Any number of it may
run. LUCIUS_URL says where the server is, and LUCIUS_TOKEN who the worker is, if the server
asks. Work that may take longer than the lease, 15 minutes, has to report in between:
POST /v1/work/{workId}:heartbeat.
"""
import json
import os
import time
import urllib.error
import urllib.request
import uuid

URL = os.environ.get("LUCIUS_URL", "http://127.0.0.1:8080")
OWNER = "worker-" + uuid.uuid4().hex[:8]


def extract(directive):
    return {"uri": directive["input_ref"]["uri"] + ".txt"}


def summarize(directive):
    return {"uri": directive["output_ref"]["uri"], "words": directive["payload"]["words"]}


SERVICES = {"extract": extract, "summarize": summarize}


def post(path, **body):
    """Sends a request until it is answered. A repeat is safe: it has the same request_id."""
    headers = {"Content-Type": "application/json"}
    if os.environ.get("LUCIUS_TOKEN"):
        headers["Authorization"] = "Bearer " + os.environ["LUCIUS_TOKEN"]
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=90) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            print(path, error.code, error.read().decode(), flush=True)
            time.sleep(1)
            if error.code < 500 and error.code != 429:
                return {}
        except OSError as error:
            print(path, error, flush=True)
            time.sleep(1)


def work():
    claimed = post("/v1/work:claim", owner=OWNER, request_id=uuid.uuid4().hex, services=list(SERVICES),
                   max=1, wait_seconds=20, start=True)
    for item in claimed.get("items", []):
        directive = item["directive"]
        report = {"owner": OWNER, "expected_rev": item["rev"], "request_id": uuid.uuid4().hex}
        try:
            report["result_ref"], verb = SERVICES[directive["service"]](directive), "complete"
        except Exception as error:  # Any failure is reported, and the step repeated.
            report["error"], verb = {"code": "work_failed", "message": str(error)[:1000]}, "fail"
            report["retryable"] = True
        post(f"/v1/work/{item['work_id']}:{verb}", **report)
        print(verb, directive["step_type"], "of job", directive["jobId"], flush=True)


if __name__ == "__main__":
    try:
        while True:
            work()
    except KeyboardInterrupt:
        pass
