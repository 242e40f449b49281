import ast
import asyncio
import logging
import threading
import time
import unittest
from pathlib import Path
from unittest.mock import patch

from lucius import ANY_STEP, CANCELLED, LEASE_LOST, STOPPING, Final, ProblemError, Retry, RetryAfter, Task, Throttled, Worker
from lucius._lease import Lease

from .fake import Fake, Queue

logging.getLogger("lucius").setLevel(logging.CRITICAL)

# The answer of a proxy without a way to the server.
NO_ROUTE = (404, {"code": 404, "message": "no route"}, {"Content-Type": "application/json"})


def run(queue, handler, step_types=("EXTRACT",), **options):
    """Run a worker until all tasks of the queue are reported, and return the reports."""
    worker = Worker("extract", url=queue.url, **{"token": "secret-token", **options})
    for step_type in step_types:
        worker.step(step_type)(handler)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        if not queue.done.wait(60):
            raise AssertionError("nothing was reported")
    finally:
        worker.stop()
        running.join(60)
        queue.close()
    return queue.reports


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Reports(unittest.TestCase):
    def report(self, handler, **options):
        reports = run(Queue({"language": "en"}), handler, **options)
        self.assertEqual(len(reports), 1)
        return reports[0]

    def test_a_result_is_reported(self):
        verb, body = self.report(lambda task: {"uri": task.input_ref["uri"] + ".json"})
        self.assertEqual((verb, body["result_ref"]), ("complete", {"uri": "s3://bucket/in.pdf.json"}))
        self.assertEqual(body["expected_rev"], 2)

    def test_nothing_is_a_result(self):
        verb, body = self.report(lambda task: None)
        self.assertEqual((verb, body.get("result_ref")), ("complete", None))

    def test_errors_say_what_comes_next(self):
        for error, want in (
            (Final("NO_LANGUAGE", "which?"), (False, "NO_LANGUAGE", "which?", None)),
            (Retry("BUSY"), (True, "BUSY", "", None)),
            (RetryAfter(30, "BUSY"), (True, "BUSY", "", 30)),
            (RetryAfter("30", "BUSY"), (True, "BUSY", "", 30)),
            (KeyError("page"), (True, "work_failed", "KeyError: 'page'", None)),
            (OSError("401 for secret-token"), (True, "work_failed", "OSError: 401 for [secret]", None)),
            (Final("of secret-token", "401 for secret-token"), (False, "of [secret]", "401 for [secret]", None)),
            (Retry("BUSY", "x" * 996 + "secret-token"), (True, "BUSY", "x" * 996 + "[sec", None)),
            (SystemExit(3), (True, "work_failed", "SystemExit: 3", None)),
            (asyncio.CancelledError(), (True, "work_failed", "CancelledError: ", None)),
            (Unprintable(), (True, "work_failed", "Unprintable", None)),
            (Final(404, 5), (False, "404", "5", None)),
            (Final("é" * 100), (False, "é" * 64, "", None)),
        ):
            def fail(task, error=error):
                raise error
            with self.subTest(error=repr(error)):
                verb, body = self.report(fail)
                got = (body["retryable"], body["error"]["code"], body["error"]["message"], body.get("retry_after_seconds"))
                self.assertEqual((verb, got), ("fail", want))

    def test_a_throttle_says_for_whom(self):
        for error, want in (
            (Throttled(after=30), ("throttled", "service", 30)),
            (Throttled(30, "HTTP_429", scope="tenant"), ("HTTP_429", "tenant", 30)),
            (Throttled(0), ("throttled", "service", 0.001)),
            (Throttled(float("nan")), ("throttled", "service", 0.001)),
            (Throttled(1e9), ("throttled", "service", 604800)),
            (RetryAfter(30), ("retry_after", None, 30)),
        ):
            def fail(task, error=error):
                raise error
            with self.subTest(error=repr(error)):
                verb, body = self.report(fail)
                self.assertEqual((verb, body["retryable"]), ("fail", True))
                self.assertEqual((body["error"]["code"], body.get("scope"), body["retry_after_seconds"]), want)
        with self.assertRaises(ValueError):
            Throttled(1, scope="lane")

    def test_a_delay_is_a_number(self):
        with self.assertRaises(ValueError):
            RetryAfter("soon")

    def test_a_short_token_is_no_secret(self):
        def fail(task):
            raise ValueError("not a token")
        self.assertEqual(self.report(fail, token="t")[1]["error"]["message"], "ValueError: not a token")

    def test_a_failure_after_the_cancellation_says_so(self):
        for error in (Final("GIVEN_UP"), Retry("BUSY"), KeyError("page")):
            def fail(task, error=error):
                task.cancelled.wait(60)
                raise error
            with self.subTest(error=repr(error)):
                (_, body), = run(Queue({}, lease=1, beat={"cancel_requested": True}), fail)
                self.assertEqual((body["retryable"], body["error"]["code"]), (False, "cancelled"))

    def test_another_worker_gets_the_step_soon_after_the_grace(self):
        for error in (Final("GIVEN_UP"), RetryAfter(600), KeyError("page")):
            queue = Queue({})
            self.addCleanup(queue.close)
            worker = Worker("extract", url=queue.url, grace=0)

            @worker.step("EXTRACT")
            def fail(task, error=error, worker=worker):
                worker.stop()
                task.cancelled.wait(60)
                self.assertEqual(task.cancelled.cause, STOPPING)
                raise error
            with self.subTest(error=repr(error)), patch("lucius.worker._LAST_SECONDS", 60):
                worker.run()
                (_, body), = queue.reports
                self.assertEqual((body["retryable"], body["error"]["code"], body["retry_after_seconds"]), (True, "worker_stopped", 1))

    def test_an_async_handler_that_exits_does_not_end_the_others(self):
        async def handler(task):
            if task.payload["exits"]:
                raise SystemExit(3)
            await asyncio.sleep(0.3)
        reports = run(Queue({"exits": False}, {"exits": True}), handler)
        self.assertEqual(sorted((verb, body.get("error", {}).get("message")) for verb, body in reports),
                         [("complete", None), ("fail", "SystemExit: 3")])

    def test_a_result_that_cannot_be_taken_is_final(self):
        for result, code in (
            ("s3://bucket/out.json", "result_invalid"), ({"pages": 3}, "result_invalid"), ({"uri": " "}, "result_invalid"),
            ({"uri": "u", "when": object()}, "result_invalid"), ({"uri": "u", "n": float("nan")}, "result_invalid"),
            ({"uri": "u", "text": "ä" * 4096}, "result_too_large"),
        ):
            with self.subTest(result=str(result)[:40]):
                verb, body = self.report(lambda task, result=result: result)
                self.assertEqual((verb, body["retryable"], body["error"]["code"]), ("fail", False, code))

    def test_middleware_wraps_handlers_from_outside_in(self):
        def marks(name):
            def middleware(task, call):
                return {"uri": f"{name}({call(task)['uri']})"}
            return middleware
        _, body = self.report(lambda task: {"uri": "x"}, middleware=[marks("a"), marks("b")])
        self.assertEqual(body["result_ref"], {"uri": "a(b(x))"})

    def test_long_messages_are_cut_between_letters(self):
        def fail(task):
            raise ValueError("ä" * 5000)
        message = self.report(fail)[1]["error"]["message"]
        self.assertLessEqual(len(message.encode()), 1000)
        self.assertEqual(set(message[len("ValueError: "):]), {"ä"})


class StepTypes(unittest.TestCase):
    def claims(self, queue):
        return [request.body.get("step_types") for request in queue.requests if request.path == "/v1/work:claim"]

    def test_a_worker_claims_those_that_it_has_handlers_for(self):
        queue = Queue({})
        (verb, body), = run(queue, lambda task: None, ["SCAN", "OCR"])  # The server gives it another one.
        self.assertEqual(self.claims(queue)[0], ["OCR", "SCAN"])
        self.assertEqual((verb, body["retryable"], body["error"]), (
            "fail", True, {"code": "step_type_unknown", "message": "this worker has no handler for EXTRACT"}))

    def test_the_handler_of_any_step_does_what_has_no_other(self):
        queue = Queue({})
        worker = Worker("extract", url=queue.url)

        @worker.step("SCAN")
        def scan(task):
            raise Final("ANOTHERS_STEP")

        @worker.step(ANY_STEP)
        def do(task):
            worker.stop()
            return {"uri": task.step_type}
        worker.run()
        queue.close()
        self.assertEqual(self.claims(queue)[0], None)
        self.assertEqual([(verb, body["result_ref"]) for verb, body in queue.reports], [("complete", {"uri": "EXTRACT"})])


class Completions(unittest.TestCase):
    def together(self, refuse):
        """Run a worker of tasks that end together, and return the queue."""
        all_in_hand = threading.Barrier(20)

        def handler(task):
            all_in_hand.wait(60)
            return {"uri": task.payload["uri"]}
        queue = Queue(*[{"uri": f"s3://{n}"} for n in range(20)], refuse=refuse)
        run(queue, handler, parallel=20)
        return queue

    def reported(self, queue):
        return sorted((verb, body.get("result_ref", {}).get("uri") or body["error"]["code"]) for verb, body in queue.reports)

    def test_those_that_are_ready_share_a_request(self):
        queue = self.together(lambda body: None)
        self.assertEqual(self.reported(queue), sorted(("complete", f"s3://{n}") for n in range(20)))
        self.assertTrue(queue.batches)

    def test_a_refusal_is_that_of_one(self):
        queue = self.together(lambda body: (413, {"code": "too_large"}) if body.get("result_ref") == {"uri": "s3://7"} else None)
        self.assertEqual(self.reported(queue), sorted(
            [("complete", f"s3://{n}") for n in range(20) if n != 7] + [("fail", "result_refused")]))

    def test_a_result_that_is_no_valid_envelope_fails_the_step(self):
        queue = Queue({}, refuse=lambda body: (400, {"code": "invalid_envelope", "detail": "It has half of a pair."}))
        (verb, body), = run(queue, lambda task: {"uri": "u"})
        self.assertEqual((verb, body["error"]["code"], body["retryable"]), ("fail", "result_refused", False))

    def test_those_of_a_refused_batch_are_sent_alone(self):
        queue = self.together(lambda body: (413, {"code": "too_large"}) if "items" in body else None)
        self.assertEqual(self.reported(queue), sorted(("complete", f"s3://{n}") for n in range(20)))
        self.assertTrue(queue.batches)

    def test_each_is_repeated_by_itself(self):
        left = [0, 503, 429]

        def refuse(body):
            return (left.pop(), {"code": "busy"}) if "items" in body and left else None
        queue = self.together(refuse)
        self.assertEqual(self.reported(queue), sorted(("complete", f"s3://{n}") for n in range(20)))


class Async(unittest.TestCase):
    def test_async_handlers_run_at_once(self):
        both = []

        async def handler(task):
            both.append(task)
            while len(both) < 2:
                await asyncio.sleep(0.01)
            return {"uri": task.payload["name"]}
        reports = run(Queue({"name": "a"}, {"name": "b"}), handler)
        self.assertEqual(sorted(body["result_ref"]["uri"] for _, body in reports), ["a", "b"])

    def test_do_works_after_run(self):
        async def handler(task):
            return {"uri": task.payload["name"]}
        queue = Queue({"name": "a"})
        worker = Worker("extract", url=queue.url, token="secret-token")
        worker.step("EXTRACT")(handler)
        running = threading.Thread(target=worker.run)
        running.start()
        self.assertTrue(queue.done.wait(60))
        worker.stop()
        running.join(60)
        queue.close()
        self.assertEqual(worker.do(Task.of("EXTRACT", {"name": "b"})).result, {"uri": "b"})

    def test_a_cancelled_task_cancels_its_coroutine(self):
        seen = []

        async def handler(task):
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                seen.append(task.cancelled.cause)
                raise
        (verb, body), = run(Queue({}, lease=1, beat={"cancel_requested": True}), handler)
        self.assertEqual(seen, [CANCELLED])
        self.assertEqual((verb, body["error"]["code"], body["retryable"]), ("fail", "cancelled", False))


    def test_progress_is_made_fit_for_a_heartbeat(self):
        shown = []

        async def handler(task):
            task.progress(float("nan"), "ä" * 600)
            shown.append(task._progress)
            raise RetryAfter(float("nan"))
        (verb, body), = run(Queue({}), handler)
        self.assertEqual(shown, [{"fraction": 0.0, "message": "ä" * 500}])
        self.assertEqual((verb, body["retry_after_seconds"]), ("fail", 0))

class Claims(unittest.TestCase):
    def test_a_lease_counts_from_the_first_try_of_its_claim(self):
        tried, began = [], []

        class Noted(Lease):
            def __init__(self, *args):
                began.append(args[-1])
                super().__init__(*args)
        queue = Queue({})
        real = queue.answer

        def answer(request):  # The first try of a claim is lost.
            if request.path == "/v1/work:claim":
                tried.append(time.monotonic())
            return (0, b"") if len(tried) == 1 else real(request)
        queue.answer = answer
        with patch("lucius.worker.Lease", Noted):
            run(queue, lambda task: None)
        self.assertLessEqual(began[0], tried[0])

class Tokens(unittest.TestCase):
    def test_a_refused_token_is_no_lost_lease(self):
        for verb, error in (("complete", None), ("fail", KeyError("page"))):
            token, beats, beaten = ["old"], [], threading.Event()

            def accepts(request, verb=verb, token=token, beats=beats, beaten=beaten):
                if request.headers["Authorization"] != "Bearer expired":
                    return True
                if request.path.endswith(":heartbeat"):
                    beats.append(request)
                    if len(beats) > 1:  # The worker has the answer to the first one.
                        beaten.set()
                elif request.path.endswith(verb):  # It is reported again with the new token.
                    token[0] = "new"
                return False

            def handler(task, error=error, token=token, beaten=beaten):
                token[0] = "expired"
                task.progress(0.5)
                if not beaten.wait(60) or task.cancelled.wait(0.1):
                    raise Final(f"NOT_HEARD {task.cancelled.cause}")
                if error:
                    raise error
            with self.subTest(verb), self.assertLogs("lucius", "WARNING") as logged:
                reports = run(Queue({}, accepts=accepts), handler, token=lambda token=token: token[0])
                self.assertEqual([(said, body.get("error", {}).get("code")) for said, body in reports],
                                 [(verb, "work_failed" if error else None)])
                self.assertIn('call repeated call=heartbeat tries=1 error="the server answered 401 unauthenticated', str(logged.output))

    def test_a_claim_is_repeated_until_the_token_is_replaced(self):
        token, claims = ["old"], []

        def accepts(request):
            if request.path == "/v1/work:claim":
                claims.append(request.headers["Authorization"])
                if len(claims) == 4:
                    token[0] = "new"
                    queue.waiting = late
            return len(claims) not in (2, 3, 4)
        queue = Queue({}, accepts=accepts)
        late, queue.waiting = queue.waiting, []
        (verb, _), = run(queue, lambda task: None, token=lambda: token[0])
        self.assertEqual((verb, claims[0], claims[4]), ("complete", "Bearer old", "Bearer new"))

    def test_a_fixed_token_that_is_refused_ends_the_worker(self):
        claims = []

        def answer(request):
            claims.append(request)
            return (200, {"items": []}) if len(claims) == 1 else (401, {"code": "unauthenticated"})
        fake = Fake(answer)
        self.addCleanup(fake.close)
        worker = Worker("extract", url=fake.url, token="t")
        worker.step("EXTRACT")(lambda task: None)
        with self.assertRaisesRegex(ProblemError, "401 unauthenticated"):
            worker.run()

    def test_a_claim_outlasts_the_answers_of_a_proxy(self):
        for answer in ((404, b"no route", {"Content-Type": "text/plain"}), (302, b""), (403, b"<html>denied</html>"), NO_ROUTE):
            claims, queue = [], Queue({})
            late, queue.waiting, real = queue.waiting, [], queue.answer

            def answers(request, answer=answer, claims=claims, queue=queue, late=late, real=real):
                if request.path == "/v1/work:claim":
                    claims.append(request)
                    if 1 < len(claims) < 4:
                        return answer
                    if len(claims) == 4:
                        queue.waiting = late
                return real(request)
            queue.answer = answers
            with self.subTest(answer=answer):
                self.assertEqual([verb for verb, _ in run(queue, lambda task: None)], ["complete"])

    def test_a_proxy_that_answers_the_first_claim_ends_the_worker(self):
        fake = Fake(lambda request: (404, b"no route", {"Content-Type": "text/plain"}))
        self.addCleanup(fake.close)
        worker = Worker("extract", url=fake.url)
        worker.step("EXTRACT")(lambda task: None)
        with self.assertRaisesRegex(ProblemError, "the server answered 404"):
            worker.run()

    def test_a_token_without_an_answer_is_asked_for_again(self):
        tries = []

        def token():
            tries.append(1)
            if len(tries) in (2, 3):
                raise RuntimeError("the issuer is away")
            return "t"
        reports = run(Queue({}), lambda task: None, token=token)
        self.assertEqual([verb for verb, _ in reports], ["complete"])


class Outages(unittest.TestCase):
    def test_a_server_that_is_away_ends_no_work(self):
        for answer in ((0, b""), (404, b"<html>no route</html>"), (302, b""), (503, b"", {"Retry-After": "60"}),
                       (401, {"code": "unauthenticated"}), NO_ROUTE):
            refused, enough = {"heartbeat": 0, "complete": 0}, threading.Event()
            queue, cancelled = Queue({}, lease=1), []
            real = queue.answer

            def answers(request, answer=answer, refused=refused, enough=enough, real=real):
                verb = request.path.rpartition(":")[2]
                if verb in refused and (verb == "heartbeat" or refused[verb] < 2):
                    refused[verb] += 1
                    if refused["heartbeat"] > 2:
                        enough.set()
                    # A report waits as long as it is asked to.
                    return answer if verb == "heartbeat" or answer is NO_ROUTE else answer[:2]
                return real(request)
            queue.answer = answers

            def handler(task, cancelled=cancelled, enough=enough):
                ended = task.cancelled.wait(2.5)  # The lease ends after one second.
                cancelled.append((ended, enough.wait(60), task.cancelled.is_set()))
                return {"uri": "s3://bucket/out.json"}
            with self.subTest(answer=answer):
                self.assertEqual([verb for verb, _ in run(queue, handler)], ["complete"])
                self.assertEqual((cancelled, refused["complete"]), ([(False, True, False)], 2))

    def test_an_item_that_was_taken_is_lost(self):
        for beat in ({"lease": None}, {"attempt": 2}):
            queue, causes = Queue({}, lease=1, beat=beat), []
            self.addCleanup(queue.close)
            worker = Worker("extract", url=queue.url)

            @worker.step("EXTRACT")
            def handler(task, causes=causes, worker=worker):
                task.cancelled.wait(60)
                causes.append(task.cancelled.cause)
                worker.stop()
            with self.subTest(beat=beat):
                worker.run()
                self.assertEqual((causes, queue.reports), ([LEASE_LOST], []))

    def test_a_claim_asks_for_a_lease(self):
        for options, want in ({}, 90.0), ({"lease": 30}, 30):
            queue = Queue({})
            run(queue, lambda task: None, **options)
            self.assertEqual(queue.requests[0].body["lease_seconds"], want)

    def test_a_claim_says_where_the_worker_runs_and_its_version(self):
        for options, want in ({}, None), ({"version": "2.4.1"}, "2.4.1"):
            queue = Queue({})
            run(queue, lambda task: None, **options)
            asked = queue.requests[0]
            self.assertEqual((asked.body.get("version"), asked.headers["User-Agent"]), (want, "lucius-python"))
            self.assertTrue(asked.body["host"])


class Stops(unittest.TestCase):
    def test_a_server_that_shuts_down_is_not_asked_all_the_time(self):
        times = []

        def answer(request):
            times.append(time.monotonic())
            if len(times) == 4:
                worker.stop()
            return 200, {"items": []}
        fake = Fake(answer)
        self.addCleanup(fake.close)
        worker = Worker("extract", url=fake.url)
        worker.step("EXTRACT")(lambda task: None)
        begun = time.monotonic()
        worker.run()
        # The second claim follows the first at once, and each other one after half a second.
        self.assertGreaterEqual(times[3] - begun, 1)

    def test_an_answer_of_another_program_does_not_end_the_worker(self):
        queue, answers = Queue({}), [{}, [], b"", "ok"]
        real = queue.answer
        queue.answer = lambda request: (200, answers.pop()) if answers else real(request)
        self.assertEqual([verb for verb, _ in run(queue, lambda task: None)], ["complete"])

    def test_a_worker_runs_once(self):
        worker = Worker("extract", url="http://127.0.0.1:1")
        worker.step("EXTRACT")(lambda task: None)
        worker.stop()
        worker.run()
        with self.assertRaisesRegex(RuntimeError, "a worker runs once"):
            worker.run()

    def test_the_grace_may_have_no_end(self):
        queue = Queue({})
        self.addCleanup(queue.close)
        worker = Worker("extract", url=queue.url, grace=float("inf"))

        @worker.step("EXTRACT")
        def finish(task):
            worker.stop()
            time.sleep(0.1)
        worker.run()
        self.assertEqual([verb for verb, _ in queue.reports], ["complete"])

    def test_the_lease_of_an_abandoned_task_is_not_extended(self):
        beaten, release = threading.Event(), threading.Event()
        self.addCleanup(release.set)
        queue = Queue({}, lease=1, accepts=lambda request: request.path.endswith(":heartbeat") and beaten.set() or True)
        self.addCleanup(queue.close)
        worker = Worker("extract", url=queue.url, grace=0)

        @worker.step("EXTRACT")
        def deaf(task):
            beaten.wait(60)  # The lease is kept until the worker stops.
            worker.stop()
            release.wait(600)
        worker.run()
        lease, = [t for t in threading.enumerate() if t.name == "lease of w0"] or [None]
        if lease:
            lease.join(60)
            self.assertFalse(lease.is_alive(), "the lease is kept")
        self.assertTrue(beaten.is_set())

    def test_a_refused_claim_ends_the_worker(self):
        fake = Fake(lambda request: (401, {"code": "unauthenticated", "detail": "The token is not known."}))
        self.addCleanup(fake.close)
        worker = Worker("extract", url=fake.url)
        worker.step("EXTRACT")(lambda task: None)
        with self.assertRaisesRegex(ProblemError, "401 unauthenticated: The token is not known."):
            worker.run()

    def test_a_worker_needs_a_handler(self):
        with self.assertRaisesRegex(ValueError, "no handler"):
            Worker("extract", url="http://localhost").run()

    def test_settings_are_checked(self):
        for options in ({"parallel": 0}, {"services": "ocr"}, {"parallel": 101}, {"claim_wait": 61}, {"grace": -1}, {"lease": 2}, {"lease": 86401}, {"url": "ftp://host"}):
            with self.subTest(options=options), self.assertRaises(ValueError):
                Worker("extract", **options)

    def test_a_step_type_has_one_handler(self):
        worker = Worker("extract", url="http://localhost")
        worker.step("EXTRACT")(print)
        with self.assertRaisesRegex(ValueError, "'EXTRACT' has a handler already"):
            worker.step("EXTRACT")(print)
        with self.assertRaisesRegex(TypeError, "name the step type"):
            worker.step(print)


class Sources(unittest.TestCase):
    def test_they_are_python_3_9(self):
        sources = sorted(Path(__file__).parents[1].rglob("*.py"))
        self.assertGreater(len(sources), 5)
        for source in sources:
            ast.parse(source.read_text(encoding="utf-8"), str(source), feature_version=(3, 9))


if __name__ == "__main__":
    unittest.main()
