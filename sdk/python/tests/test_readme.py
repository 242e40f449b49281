import os
import re
import signal
import threading
import unittest
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

import lucius

from .fake import Fake, Queue

SNIPPETS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text("utf-8"), re.S)


class Readme(unittest.TestCase):
    def run_worker(self, snippet, *payloads):
        """Run a snippet whose worker is stopped once its tasks are reported."""
        queue = Queue(*payloads)
        self.addCleanup(queue.close)
        stopper = threading.Thread(
            target=lambda: (queue.done.wait(60), os.kill(os.getpid(), signal.SIGTERM)))
        stopper.start()
        with mock.patch.dict(os.environ, {"LUCIUS_URL": queue.url, "LUCIUS_TOKEN": "t"}):
            exec(snippet, {})
        stopper.join()
        return queue.reports

    def test_the_first_worker(self):
        reports = self.run_worker(SNIPPETS[0], {"words": 100}, {})
        found = sorted((verb, str(body.get("result_ref") or body.get("error"))) for verb, body in reports)
        self.assertEqual(found, [
            ("complete", "{'uri': 's3://bucket/in.pdf.txt'}"),
            ("fail", "{'code': 'NO_WORDS', 'message': 'the payload does not say how many words'}"),
        ])

    def test_the_async_worker(self):
        (verb, body), = self.run_worker(SNIPPETS[1], {})
        self.assertEqual((verb, body["result_ref"]), ("complete", {"uri": "s3://bucket/in.pdf.txt"}))

    def test_the_client(self):
        job = {"jobId": "j1", "tenant_id": "tenant_a", "request_type": "doc.ingest", "state": "SUCCEEDED",
               "created_at": "2026-01-27T10:00:00.000Z", "final_output": {"uri": "s3://bucket/out.json"}, "steps": []}
        fake = Fake(lambda request: (202, {**job, "replayed": False, "correlation_id": "c"}))
        self.addCleanup(fake.close)
        printed = StringIO()
        with mock.patch.dict(os.environ, {"LUCIUS_URL": fake.url}), redirect_stdout(printed):
            exec(SNIPPETS[2], {})
        self.assertEqual(printed.getvalue(), "SUCCEEDED {'uri': 's3://bucket/out.json'}\n")
        self.assertEqual(fake.requests[0].body["idempotency_key"], "order-4711")

    def test_all_snippets_are_tested(self):
        self.assertEqual(len(SNIPPETS), 3)

    def test_what_it_names_exists(self):
        for name in lucius.__all__:
            self.assertTrue(hasattr(lucius, name), name)
