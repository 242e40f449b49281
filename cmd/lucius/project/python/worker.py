#!/usr/bin/env python3
"""A worker of the three steps of protocols/summarize.yaml. It needs Python 3.9.

Any number of it may run. LUCIUS_URL says where the server is, and LUCIUS_TOKEN who the
worker is, if the server asks.
"""
from lucius import Final, Worker

worker = Worker("extract", services=["summarize", "publish"])


@worker.step("EXTRACT")
def extract(task):
    return {"uri": task.input_ref["uri"] + ".txt"}


@worker.step("SUMMARIZE")
def summarize(task):
    words = task.payload["words"]
    if words > 10_000:
        raise Final("TOO_LONG", f"{words} words are no summary")  # Another attempt would not help.
    return {"uri": task.input_ref["uri"] + ".summary", "words": words}


@worker.step("PUBLISH")
def publish(task):
    return {"uri": task.output_ref["uri"]}


if __name__ == "__main__":
    worker.run()
