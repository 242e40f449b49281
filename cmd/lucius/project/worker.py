#!/usr/bin/env python3
"""A worker of two services, with the SDK in the folder lucius. It needs Python 3.9.

Any number of it may run. LUCIUS_URL says where the server is, and LUCIUS_TOKEN who the
worker is, if the server asks.
"""
from lucius import Worker

worker = Worker("extract", services=["summarize"])


@worker.step("EXTRACT")
def extract(task):
    return {"uri": task.input_ref["uri"] + ".txt"}


@worker.step("SUMMARIZE")
def summarize(task):
    return {"uri": task.output_ref["uri"], "words": task.payload["words"]}


worker.run()
