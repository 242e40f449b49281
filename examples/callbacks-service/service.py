#!/usr/bin/env python3
"""A platform service that answers by plain callbacks, in the shape of a FastAPI application.

It claims the directives of three services, sends ACK when it begins one, HEARTBEAT while it is
at it, and RESULT at the end. The first part is what you write, and would move to FastAPI as it
is; the rest does with the standard library alone what FastAPI and an HTTP client would do.
"""
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LUCIUS = os.environ.get("LUCIUS_URL", "http://127.0.0.1:8080")
TOKEN = os.environ.get("LUCIUS_TOKEN")
OWNER = f"text-{uuid.uuid4()}"
PARALLEL = 4
HEARTBEAT = 10.0  # seconds

services, routes, in_hand = {}, {}, {}


def service(name):
    return lambda function: services.setdefault(name, function)


def get(path):
    return lambda function: routes.setdefault(path, function)


# The service.


class Final(Exception):
    """The step cannot succeed, however often it is tried. Its first argument is a code."""


@service("extract")
def extract(directive):
    return {"uri": directive["input_ref"]["uri"] + ".txt"}


@service("summarize")
def summarize(directive):
    if not directive["payload"].get("words"):
        raise Final("no_words", "the payload does not say how many words")
    return {"uri": directive["input_ref"]["uri"] + ".summary"}


@service("publish")
def publish(directive):
    return {"uri": directive["output_ref"]["uri"]}


@get("/healthz")
def healthz():
    return {"in_hand": sorted(in_hand)}


# The callbacks.


class Refused(Exception):
    """Lucius refuses the request for good: another attempt has the step, or its job has ended."""


def post(path, body):
    """Sends a request until it is answered. Lucius recognises a repeat, and answers it alike."""
    headers = {"Content-Type": "application/json"}
    if TOKEN:
        headers["Authorization"] = "Bearer " + TOKEN
    request = urllib.request.Request(LUCIUS + path, json.dumps(body).encode(), headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code != 429 and error.code < 500:
                raise Refused(error.read().decode()) from None
            time.sleep(float(error.headers.get("Retry-After") or 1))
        except OSError:  # No connection, or it broke.
            time.sleep(1)


def callback(directive, kind, **more):
    """Sends a callback. These five fields say which attempt of which step it is about."""
    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
    return post("/v1/callbacks/" + kind, {
        **{name: directive[name] for name in names},
        "timestamp": datetime.now(timezone.utc).isoformat(), **more,
    })


def heartbeats(directive, ended):
    while not ended.wait(HEARTBEAT):
        try:
            callback(directive, "heartbeat")
        except Refused:
            return  # RESULT will be refused as well.


def attend(directive):
    """Does one directive."""
    key, ended = f"{directive['jobId']} {directive['stepId']}", threading.Event()
    in_hand[key] = directive
    beating = threading.Thread(target=heartbeats, args=(directive, ended))
    try:
        callback(directive, "ack")
        beating.start()
        try:
            report = {"status": "SUCCEEDED", "result_ref": services[directive["service"]](directive)}
        except Final as error:
            code, message = error.args
            report = {"status": "FAILED_FINAL", "error": {"code": code, "message": message}}
        except Exception as error:  # Whatever it is, another attempt may succeed.
            report = {"status": "FAILED_RETRY", "error": {"code": type(error).__name__, "message": str(error)}}
        callback(directive, "result", **report)
    except Refused as error:
        print(f"{key} is not ours any more: {error}", flush=True)
    finally:
        ended.set()
        if beating.is_alive():
            beating.join()
        del in_hand[key]


def claim(pool, free):
    """Claims directives, never more than there are free workers."""
    while True:
        free.acquire()
        items = post("/v1/work:claim", {
            "owner": OWNER, "request_id": str(uuid.uuid4()), "services": list(services), "max": 1, "wait_seconds": 20,
        })["items"]
        if not items:
            free.release()
        for item in items:
            pool.submit(attend, item["directive"]).add_done_callback(lambda _: free.release())


class Web(BaseHTTPRequestHandler):
    def do_GET(self):
        found = routes.get(self.path)
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found() if found else {"detail": "Not Found"}).encode())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # What is in hand is still done.
    web = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Web)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    print("the service listens on port", web.server_port, flush=True)
    with ThreadPoolExecutor(PARALLEL) as workers:
        claim(workers, threading.Semaphore(PARALLEL))
