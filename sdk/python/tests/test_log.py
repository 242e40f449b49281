import json
import logging
import re
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from lucius import Final, Worker
from lucius._log import seconds

from .fake import Queue

TASK = "job_id=job0 step_id=extract step_type=EXTRACT attempt=1"


def refused(status, code):
    """Refuses the first completion."""
    answers = [(status, {"code": code, "detail": "It is not taken."})]
    return lambda body: answers.pop() if answers and "result_ref" in body else None


class Log(unittest.TestCase):
    maxDiff = None

    def logged(self, queue, handler, *, until=None, **options):
        """What the worker says after its start, until the queue is done."""
        self.addCleanup(queue.close)
        worker = Worker("extract", url=queue.url, owner="worker-7", **options)
        worker.step("EXTRACT")(handler)
        with self.assertLogs("lucius", "INFO") as logged:
            running = threading.Thread(target=worker.run)
            running.start()
            self.assertTrue((until or queue.done).wait(60))
            worker.stop()
            running.join(60)
            for thread in threading.enumerate():
                if thread.name.startswith("task "):  # It may outlast the worker.
                    thread.join(60)
        lines = []
        for record in logged.records:
            line = record.getMessage().replace(queue.url, "SERVER")
            line = re.sub(r"duration=(\d\.\d{3}|\d+\.\d)s", "duration=…", line)
            if not line.startswith("last claim unanswered "):  # On a machine that pauses while the worker stops.
                lines.append(f"{record.levelname} {line}")
        self.records = logged.records
        self.assertEqual(lines.pop(0), "INFO worker started owner=worker-7 services=extract steps=EXTRACT server=SERVER parallel=4")
        return lines

    def test_a_task(self):
        lines = self.logged(Queue({}), lambda task: {"uri": "u"})
        self.assertEqual(lines, [f"INFO task ended {TASK} duration=… outcome=succeeded"])

    def test_a_record_has_the_fields(self):
        self.logged(Queue({}), lambda task: None)
        started, ended = self.records
        self.assertEqual((started.event, started.owner, started.parallel), ("worker started", "worker-7", 4))
        self.assertEqual((ended.event, ended.job_id, ended.attempt, ended.outcome), ("task ended", "job0", 1, "succeeded"))
        json.dumps({name: value for name, value in ended.__dict__.items() if name != "args"})

    def test_a_failure(self):
        def fail(task):
            raise Final("NO_PAGES", "it has no pages")
        lines = self.logged(Queue({}), fail)
        self.assertEqual(lines, [f'INFO task ended {TASK} duration=… outcome=failed error="NO_PAGES: it has no pages"'])

    def test_an_exception(self):
        def fail(task):
            raise KeyError("page")
        lines = self.logged(Queue({}), fail)
        self.assertEqual(lines, [
            f'''ERROR handler crashed {TASK} error="KeyError: 'page'"''',
            f'''INFO task ended {TASK} duration=… outcome=retry error="work_failed: KeyError: 'page'"''',
        ])
        self.assertIn("in fail", logging.Formatter().formatException(self.records[1].exc_info))

    def test_a_refused_result(self):
        lines = self.logged(Queue({}, refuse=refused(422, "ref_invalid")), lambda task: {"uri": "u"})
        why = "the server answered 422 ref_invalid: It is not taken."
        self.assertEqual(lines, [
            f'WARNING result refused {TASK} error="{why}"',
            f'INFO task ended {TASK} duration=… outcome=failed error="result_refused: {why}"',
        ])

    def test_a_refused_report(self):
        told = threading.Event()

        def refuse(body):
            told.set()
            return 409, {"code": "stale_attempt", "detail": "It is not taken."}
        lines = self.logged(Queue({}, refuse=refuse), lambda task: {"uri": "u"}, until=told)
        why = "the server answered 409 stale_attempt: It is not taken."
        self.assertEqual(lines, [
            f'WARNING result refused {TASK} error="{why}"',
            f'INFO task ended {TASK} duration=… outcome=refused error="{why}"',
        ])

    def test_a_lost_lease(self):
        lost = threading.Event()

        def handler(task):
            task.progress(0.5)  # It is sent at once, with a heartbeat.
            task.cancelled.wait(60)
            lost.set()
        lines = self.logged(Queue({}, beat={"lease": None}), handler, until=lost)
        self.assertEqual(lines, [
            f'WARNING lease lost {TASK} error="the item was taken from the worker"',
            f'INFO task ended {TASK} duration=… outcome=lease_lost error="the item was taken from the worker"',
        ])

    def test_an_outage(self):
        queue, away, waiting = Queue({}), [1] * 5, threading.Event()
        real = queue.answer

        def answer(request):
            if request.path == "/v1/work:claim" and request.body["wait_seconds"]:
                waiting.set()
            return (0, b"") if away and away.pop() else real(request)
        queue.answer = answer
        lines = self.logged(queue, lambda task: waiting.wait(60) and None)
        self.assertRegex(lines.pop(0), r"^WARNING server unreachable server=SERVER error=\"POST /v1/work:claim: ")
        self.assertEqual(lines, [
            "INFO server reachable server=SERVER duration=…", f"INFO task ended {TASK} duration=… outcome=succeeded",
        ])
        waits = [request.body["wait_seconds"] for request in queue.requests if request.path == "/v1/work:claim"]
        self.assertEqual(waits[:7], [0] * 6 + [20])

    def test_a_warning_is_logged_once(self):
        unknown = {"code": "service_unknown", "message": "no protocol has service extract (services: ocr)"}
        denied = {"code": "service_not_allowed", "message": "the token does not cover extract"}
        queue, warnings = Queue({}), [[unknown], [unknown, denied], [denied], [], [unknown], [unknown]]
        real = queue.answer

        def answer(request):
            if warnings and request.path == "/v1/work:claim":
                return 200, {"items": [], "warnings": warnings.pop(0)}
            return real(request)
        queue.answer = answer
        lines = self.logged(queue, lambda task: None)  # It goes on polling.
        line = 'WARNING claim warning code=service_unknown warning="no protocol has service extract (services: ocr)"'
        self.assertEqual(lines, [
            line, 'WARNING claim warning code=service_not_allowed warning="the token does not cover extract"', line,
            f"INFO task ended {TASK} duration=… outcome=succeeded",
        ])

    def test_a_busy_server(self):
        queue, busy = Queue({}), [1] * 3
        real = queue.answer
        problem = {"code": "store_unavailable", "detail": "The disk is full."}
        queue.answer = lambda request: (503, problem) if request.path.endswith(":complete") and busy and busy.pop() else real(request)
        lines = self.logged(queue, lambda task: None)
        why = "the server answered 503 store_unavailable: The disk is full."
        self.assertEqual(lines, [
            f'WARNING call repeated call=complete tries=1 error="{why}"',
            f'WARNING call repeated call=complete tries=2 error="{why}"',
            f"INFO task ended {TASK} duration=… outcome=succeeded",
        ])

    def test_a_stop_without_a_server(self):
        queue, tries, tried, stopped = Queue({}), [], threading.Event(), threading.Event()
        self.addCleanup(stopped.set)
        real = queue.answer

        def answer(request):
            if request.path == "/v1/work:claim" and not queue.waiting and not tried.is_set():
                stopped.wait(60)  # An answer would say that the server is back. The stop hangs up.
            if not request.path.endswith(":complete"):
                return real(request)
            tries.append(request)
            if len(tries) > 1:  # So the worker has noticed that the first one had no answer.
                tried.set()
            return 0, b""
        queue.answer = answer
        lines = self.logged(queue, lambda task: None, until=tried, grace=0.1)
        self.assertEqual(sorted(line.partition(" error=")[0] for line in lines), [
            f"INFO task ended {TASK} duration=… outcome=not_sent", f"WARNING result not sent {TASK}",
            "WARNING server unreachable server=SERVER", f"WARNING task abandoned {TASK}",
        ])

    def test_durations_are_for_people(self):
        self.assertEqual([seconds(s) for s in (0.0123, 0.95, 1, 38.71, 412.3)], ["0.012s", "0.950s", "1.0s", "38.7s", "412.3s"])

    def test_a_host_without_logging_sees_it_on_standard_error(self):
        for setup, want in (
            ("", [r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d INFO worker started owner=worker-7 "]),
            ("import logging; logging.basicConfig(level='INFO')", [r"^INFO:lucius:worker started owner=worker-7 "]),
            ("import logging; logging.basicConfig()", []),
        ):
            program = setup + "\n" + (
                "from lucius import Worker\n"
                "worker = Worker('extract', owner='worker-7')\n"
                "worker.step('EXTRACT')(print)\n"
                "worker.stop()\n"
                "worker.run()\n")
            with self.subTest(setup=setup):
                ran = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1], env={"LUCIUS_URL": "http://127.0.0.1:1"},
                                     capture_output=True, text=True, timeout=60)
                lines = ran.stderr.splitlines()
                self.assertEqual((ran.returncode, len(lines)), (0, len(want)), ran.stderr)
                for line, pattern in zip(lines, want):
                    self.assertRegex(line, pattern)


if __name__ == "__main__":
    unittest.main()
