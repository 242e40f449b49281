"""Tests lucius.testing with the program that LUCIUS_BINARY names. sdk/conformance runs it."""

import os
import tempfile
import threading
import time
import unittest

from lucius import Client, Command, LuciusError, NoAnswerError, RetryAfter, Worker
from lucius.testing import Server

PROTOCOLS = os.path.join(os.path.dirname(__file__), "..", "conformance", "testdata", "protocols")
REF = {"uri": "s3://bucket/x"}


class Testing(unittest.TestCase):
    def test_a_worker_does_a_job_whose_first_attempt_fails(self):
        worker = Worker("conformance", url="http://127.0.0.1:1")

        @worker.step("CONFORM")
        def conform(task):
            if task.attempt == 1:
                raise RetryAfter(0.001, "BUSY")
            return {"uri": f"{task.input_ref['uri']}.{task.payload['extension']}"}

        before = threading.active_count()
        with Server(PROTOCOLS) as server:
            server.run(worker)
            job = server.do(Command("tenant_a", "sdk.conform", {"extension": "txt"}, REF, REF))
            self.assertEqual((job.state, job.steps[0].attempt), ("SUCCEEDED", 2))
            self.assertEqual(job.final_output, {"uri": "s3://bucket/x.txt"})
        for thread in threading.enumerate():
            if thread.name.startswith("task "):  # It has reported, and is about to end.
                thread.join(60)
        self.assertEqual(threading.active_count(), before)
        with Client(server.url, "", retry_for=0) as client, self.assertRaises(LuciusError):
            client.get(job.job_id)

    def test_protocols_that_are_wrong_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "wrong.yaml"), "w") as file:
                file.write("protocol_id: x\nstepz: []\n")
            with self.assertRaisesRegex(LuciusError, "stepz.*steps"):
                with Server(folder):
                    self.fail("it serves")

    def test_a_program_that_does_not_exist_is_named(self):
        with self.assertRaisesRegex(LuciusError, "no-such-program"):
            with Server(PROTOCOLS, binary="/no-such-program"):
                self.fail("it serves")

    def test_a_server_that_ends_fails_the_test_soon(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "lucius")  # It serves nothing, and ends when it is told to.
            with open(program, "w") as file:
                file.write("#!/bin/sh\necho lucius serves http://127.0.0.1:1\nexec sleep 60\n")
            os.chmod(program, 0o755)
            begun = time.monotonic()
            with Server(PROTOCOLS, binary=program) as server, self.assertRaises(NoAnswerError):
                server.do(Command("tenant_a", "sdk.conform", {}, REF, REF))
            self.assertLess(time.monotonic() - begun, 50)  # A client outside of tests goes on for a minute.

    def test_what_a_worker_raises_ends_the_wait_for_a_job(self):
        worker = Worker("conformance")
        worker.step("CONFORM")(lambda task: None)
        command = Command("tenant_a", "sdk.conform", {}, REF, REF)
        with Server(PROTOCOLS) as server:
            server.run(worker)
            server.do(command)
        with self.assertRaisesRegex(RuntimeError, "a worker runs once"), Server(PROTOCOLS) as server:
            server.run(worker)
            server.do(command, timeout=float("inf"))

    def test_a_failure_of_the_test_is_not_hidden(self):
        with self.assertRaisesRegex(ZeroDivisionError, "division"):
            with Server(PROTOCOLS) as server:
                worker = Worker("conformance")
                server.run(worker)  # It has no handler.
                1 / 0
        with self.assertRaisesRegex(ValueError, "no handler"):
            with Server(PROTOCOLS) as server:
                server.run(Worker("conformance"))


if __name__ == "__main__":
    unittest.main()
