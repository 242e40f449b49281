import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest.mock import patch

from lucius import (
    Accepted, AsyncClient, Client, Command, CommandChange, ConflictError, InvalidError, NoAnswerError, NotFoundError, PlannedStep,
    ProblemError, RerunPreview, TimedOutError, UnavailableError,
)

from .fake import Fake

COMMAND = Command(tenant_id="tenant_a", request_type="doc.ingest", payload={"language": "en"},
                  input_ref={"uri": "s3://bucket/in.pdf"}, output_ref={"uri": "s3://bucket/out.json"})
RECEIPT = {"jobId": "j1", "state": "DISPATCHING", "replayed": False, "correlation_id": "c"}


def job(job_id="j1", state="SUCCEEDED"):
    return {"jobId": job_id, "tenant_id": "tenant_a", "request_type": "doc.ingest", "state": state,
            "created_at": "2026-01-27T10:00:00.000Z", "steps": []}


def event(number, to="IN_PROGRESS"):
    return {"event_id": f"e{number}", "rev": number, "type": "job.changed", "at": "2026-01-27T10:00:00.000Z",
            "actor": "worker", "object": "job", "to": to}


def stream(*events):
    return b": open\n\n" + b"".join(b"id: x\nevent: y\ndata: " + json.dumps(e).encode() + b"\n\n" for e in events)


class Scripted(unittest.TestCase):
    def serve(self, *answers):
        """A client of a server that gives these answers, the last one for ever."""
        left = list(answers)
        fake = Fake(lambda request: left.pop(0) if len(left) > 1 else left[0])
        client = Client(fake.url, "t")
        self.addCleanup(fake.close)
        self.addCleanup(client.close)
        return client, fake


class Calls(Scripted):
    def test_calls_without_an_answer_are_repeated(self):
        client, fake = self.serve((0, None), (503, {}, {"Retry-After": "0"}), (429, {}), (500, b"oops"), (202, RECEIPT))
        self.assertEqual(client.submit(COMMAND), Accepted("j1", "DISPATCHING", False, "c"))
        self.assertEqual(len({json.dumps(r.body) for r in fake.requests}), 1)
        self.assertEqual(len(fake.requests), 5)
        self.assertEqual(fake.requests[0].headers["Authorization"], "Bearer t")

    def test_retries_end(self):
        _, fake = self.serve((503, {"code": "store_unavailable"}))
        with Client(fake.url, retry_for=0.01) as client, self.assertRaisesRegex(UnavailableError, "store_unavailable"):
            client.get("j1")
        with Client("http://127.0.0.1:1", retry_for=0.01) as client, self.assertRaises(NoAnswerError):
            client.get("j1")

    def test_a_token_is_trimmed(self):
        _, fake = self.serve((200, job()))
        with Client(fake.url, lambda: " t\n") as client:
            client.get("j1")
        self.assertEqual(fake.requests[0].headers["Authorization"], "Bearer t")
        with self.assertRaisesRegex(ValueError, "^the token has characters"):
            Client(fake.url, "two\nlines")

    def test_a_token_is_read_for_each_request(self):
        _, fake = self.serve((200, job()))
        with tempfile.NamedTemporaryFile("w") as file, patch.dict(
                os.environ, {"LUCIUS_TOKEN": "", "LUCIUS_TOKEN_FILE": file.name}), Client(fake.url, retry_for=0) as client:
            for token in ("first\n", "", "two\nlines", "second"):
                file.seek(0)
                file.truncate()
                file.write(token)
                file.flush()
                if token in ("", "two\nlines"):
                    with self.assertRaisesRegex(NoAnswerError, "no token: "):
                        client.get("j1")
                else:
                    client.get("j1")
        self.assertEqual([r.headers["Authorization"] for r in fake.requests], ["Bearer first", "Bearer second"])

    def test_the_code_of_a_proxy_is_not_the_servers(self):
        client, _ = self.serve((404, {"code": 404, "message": "no route"}, {"Content-Type": "application/json"}))
        for call in (client.get, lambda job_id: next(iter(client.watch(job_id)))):
            with self.assertRaises(NotFoundError) as raised:
                call("j1")
            self.assertEqual((raised.exception.status, raised.exception.code), (404, ""))

    def test_an_answer_that_is_no_json_is_none(self):
        client, _ = self.serve((200, b"<html>"), (200, b""), (200, "ok"), (200, []), (200, job()))
        self.assertTrue(client.get("j1").succeeded)

    def test_a_batch_repeats_the_commands_without_a_decision(self):
        busy = {"status": 503, "error": {"code": "store_unavailable", "detail": "Busy."}}
        client, fake = self.serve(
            (200, {"results": [busy, {"status": 422, "error": {"code": "c"}}, {"status": 409, "error": {"code": "conflict"}}]}),
            (503, {}), (200, {"results": [busy]}),
            (200, {"results": [{"status": 202, **RECEIPT}, busy]}), (200, {"results": [{"status": 202, **RECEIPT}]}))
        commands = [Command(**{**vars(COMMAND), "idempotency_key": key}) for key in "abc"]
        first, refused, last = client.submit_batch(commands)
        self.assertEqual((first.job_id, refused.code, last.job_id), ("j1", "c", "j1"))
        self.assertIsInstance(refused, InvalidError)
        asked = ["".join(c["idempotency_key"] for c in r.body["commands"]) for r in fake.requests]
        self.assertEqual(asked, ["abc", "ac", "ac", "ac", "c"])

    def test_a_batch_repeats_the_rest_of_a_line(self):
        busy, left = ({"status": status, "error": {"code": code}} for status, code in ((503, "store_unavailable"), (409, "predecessor_refused")))
        taken = {"status": 202, **RECEIPT}
        client, fake = self.serve((200, {"results": [busy, taken, left]}), (200, {"results": [taken, taken]}))
        self.assertEqual([one.job_id for one in client.submit_batch([replace(COMMAND, idempotency_key=key, order_key="k") for key in "abc"])], ["j1"] * 3)
        self.assertEqual(["".join(c["idempotency_key"] for c in r.body["commands"]) for r in fake.requests], ["abc", "ac"])

    def test_a_batch_overtakes_nothing_that_is_undecided(self):
        busy = {"status": 503, "error": {"code": "store_unavailable"}}
        fake = Fake(lambda request: (200, {"results": [busy for _ in request.body["commands"]]}))
        self.addCleanup(fake.close)
        with Client(fake.url, retry_for=0.2) as client, self.assertRaises(ProblemError):
            client.submit_batch([replace(COMMAND, idempotency_key=str(n)) for n in range(101)])
        self.assertEqual({len(r.body["commands"]) for r in fake.requests}, {100})

    def test_a_command_has_an_order(self):
        client, fake = self.serve((202, RECEIPT), (200, {**job(state="QUEUED"), "order_key": "k", "order_mode": "newest", "line_id": "ab12"}), (200, job()))
        client.submit(replace(COMMAND, order_key="k", order_mode="newest"))
        self.assertEqual([fake.requests[0].body[name] for name in ("order_key", "order_mode")], ["k", "newest"])
        for want in (("k", "newest", "ab12"), ("", None, "")):
            found = client.get("j1")
            self.assertEqual((found.order_key, found.order_mode, found.line_id), want)

    def test_a_batch_of_any_size_is_split(self):
        fake = Fake(lambda request: (200, {"results": [
            {"status": 202, **RECEIPT, "jobId": c["idempotency_key"]} for c in request.body["commands"]]}))
        self.addCleanup(fake.close)
        commands = [Command(**{**vars(COMMAND), "idempotency_key": str(n)}) for n in range(201)]
        with Client(fake.url) as client:
            self.assertEqual([one.job_id for one in client.submit_batch(commands)], [str(n) for n in range(201)])
            self.assertEqual(client.submit_batch([]), [])
        self.assertEqual([len(r.body["commands"]) for r in fake.requests], [100, 100, 1])

    def test_a_batch_that_stays_undecided_says_so_of_each(self):
        busy = {"status": 503, "error": {"code": "store_unavailable"}}
        _, fake = self.serve((200, {"results": [busy, {"status": 202, **RECEIPT}]}), (503, {}))
        with Client(fake.url, retry_for=0.2) as client:
            waiting, taken = client.submit_batch([COMMAND, COMMAND])
        self.assertEqual((waiting.code, taken.job_id), ("store_unavailable", "j1"))

    def test_refusals_have_a_type(self):
        for status, kind in ((400, InvalidError), (422, InvalidError), (404, NotFoundError), (409, ConflictError), (418, ProblemError)):
            client, fake = self.serve((status, {"code": "c", "detail": "d", "errors": [{"pointer": "/p", "message": "m"}]}))
            with self.subTest(status=status), self.assertRaises(kind) as caught:
                client.get("j/1")
            self.assertEqual(str(caught.exception), f"the server answered {status} c: d; /p: m")
            self.assertEqual([r.path for r in fake.requests], ["/v1/jobs/j%2F1"])

    def test_only_the_caller_names_a_command(self):
        client, fake = self.serve((202, RECEIPT))
        client.submit(COMMAND)
        client.submit(Command(**{**vars(COMMAND), "idempotency_key": "k"}))
        self.assertEqual([r.body.get("idempotency_key") for r in fake.requests], [None, "k"])

    def test_a_wait_goes_on_until_the_end(self):
        client, fake = self.serve((200, job(state="IN_PROGRESS")), (200, job()))
        self.assertTrue(client.wait("j1").succeeded)
        client, fake = self.serve((200, job(state="IN_PROGRESS")))
        with self.assertRaisesRegex(TimedOutError, "IN_PROGRESS after 0 seconds"):
            client.wait("j1", timeout=0)

    def test_a_wait_ends_in_time_without_a_server(self):
        _, fake = self.serve((503, {"code": "store_unavailable"}))
        begun = time.monotonic()
        with Client(fake.url, retry_for=600) as client, self.assertRaisesRegex(UnavailableError, "store_unavailable"):
            client.wait("j1", timeout=0.1)
        self.assertLess(time.monotonic() - begun, 300)

    def test_a_server_that_shuts_down_is_not_asked_all_the_time(self):
        client, fake = self.serve((200, job(state="IN_PROGRESS")))
        with self.assertRaises(TimedOutError):
            client.wait("j1", timeout=0.4)
        self.assertLessEqual(len(fake.requests), 2)

    def test_lists_are_read_page_by_page(self):
        client, fake = self.serve((200, {"jobs": [job("a")], "next_page_token": "t"}), (200, {"jobs": [job("b")]}))
        found = client.list(state="SUCCEEDED", created_after=datetime(2026, 1, 27), created_before="2026-01-28T00:00:00Z")
        self.assertEqual([j.job_id for j in found], ["a", "b"])
        self.assertEqual([r.query.get("page_token") for r in fake.requests], [None, "t"])
        query = fake.requests[1].query
        self.assertEqual((query["state"], query["created_before"]), ("SUCCEEDED", "2026-01-28T00:00:00Z"))
        self.assertEqual(datetime.fromisoformat(query["created_after"]), datetime(2026, 1, 27).astimezone())

    def test_jobs_are_found_by_their_document_and_tags(self):
        tags = {"env": "prod", "customer": "4=2"}
        found = {"jobs": [{**job(), "doc_id": "d 1", "tags": tags}]}
        client, fake = self.serve((202, RECEIPT), (200, {**found, "next_page_token": "t"}), (200, {"jobs": [job()]}))
        client.submit(Command(**{**vars(COMMAND), "doc_id": "d 1", "tags": tags}))
        tagged, bare = client.list(tenant_id="a", doc_id="d 1", tags=tags)
        self.assertEqual((tagged.doc_id, tagged.tags, bare.doc_id, bare.tags), ("d 1", tags, "", {}))
        submitted, *pages = fake.requests
        self.assertEqual((submitted.body["doc_id"], submitted.body["tags"]), ("d 1", tags))
        self.assertEqual([(r.query["doc_id"], r.tags) for r in pages], [("d 1", ["env=prod", "customer=4=2"])] * 2)

    def test_a_rerun_sends_its_corrections(self):
        client, fake = self.serve((202, RECEIPT))
        rest = {
            "from_step": "embed", "payload": {"language": "de"}, "payload_patch": {"model": "v3", "pages": None},
            "input_ref": {"uri": "s3://b/in"}, "output_ref": {"uri": "s3://b/out"}, "workspace_ref": {"uri": "s3://b/w"},
            "resolve": [{"step_id": "ocr", "output_ref": {"uri": "s3://b/ocr"}}], "protocol": "current", "newest": True,
            "callbacks": "none", "tags": {"run": "november"}, "reason": "the scan was bad",
        }
        self.assertEqual(client.rerun("j/1", from_="start", **rest).job_id, "j1")
        client.rerun("j1", payload_patch={}, tags=None)
        self.assertEqual([(r.method, r.path, r.body) for r in fake.requests], [
            ("POST", "/v1/jobs/j%2F1:rerun", {"from": "start", **rest}), ("POST", "/v1/jobs/j1:rerun", {"payload_patch": {}}),
        ])

    def test_a_planned_rerun_is_read(self):
        scan = {"step_id": "ocr", "step_type": "OCR", "service": "scans", "outcome": "carried"}
        embed = {"step_id": "embed", "step_type": "EMBED", "service": "ai"}
        changes = [{"pointer": "/payload/model", "before": None, "after": "v3"}, {"pointer": "/payload/pages", "before": [1, 2]}]
        client, fake = self.serve(
            (200, {"dry_run": True, "jobId": "j/1", "live": False, "existing_job_id": "j2", "protocol_id": "ingest",
                   "protocol_version": "3", "steps": [scan, embed], "changes": changes}),
            (200, {"dry_run": True, "jobId": "j3", "live": True, "steps": [], "changes": []}), (409, {"code": "nothing_to_run"}))
        corrections = {"payload_patch": {"model": "v3", "pages": None}}
        self.assertEqual(client.plan_rerun("j/1", from_="start", **corrections, tags=None), RerunPreview(
            "j/1", False, "j2", "ingest", "3",
            [PlannedStep("ocr", "OCR", "scans", "carried"), PlannedStep("embed", "EMBED", "ai", "")],
            [CommandChange("/payload/model", None, "v3", changes[0]), CommandChange("/payload/pages", [1, 2], None, changes[1])]))
        self.assertEqual(client.plan_rerun("j1", newest=True), RerunPreview("j3", True, "", "", "", [], []))
        with self.assertRaises(ConflictError):
            client.plan_rerun("j1")
        self.assertEqual([(r.method, r.path, r.body) for r in fake.requests], [
            ("POST", "/v1/jobs/j%2F1:rerun", {"from": "start", **corrections, "dry_run": True}),
            ("POST", "/v1/jobs/j1:rerun", {"newest": True, "dry_run": True}), ("POST", "/v1/jobs/j1:rerun", {"dry_run": True}),
        ])

    def test_a_rerun_is_not_told_to_be_dry(self):
        client, fake = self.serve((202, RECEIPT))
        with self.assertRaisesRegex(TypeError, "plan_rerun"):
            client.rerun("j1", dry_run=True)
        self.assertEqual(fake.requests, [])

    def test_a_refused_rerun_names_each_fault(self):
        errors = [{"pointer": "/payload/words", "message": "is required"}, {"pointer": "/payload/wrods", "message": "is not allowed here"}]
        client, _ = self.serve((422, {"code": "payload_invalid", "errors": errors}))
        with self.assertRaises(InvalidError) as caught:
            client.rerun("j1", payload_patch={"wrods": 3})
        self.assertEqual((caught.exception.code, [vars(v) for v in caught.exception.violations]), ("payload_invalid", errors))

    def test_a_lineage_is_read(self):
        rerun = {"jobId": "j1", "purged": False, "rerun_of": "j0", "first_step": "embed", "rerun_edits": ["/payload/model"],
                 "state": "FAILED_FINAL", "error_code": "bad_scan", "caller": "ops-1", "reason": "once more",
                 "created_at": "2026-01-27T10:00:00.000Z"}
        client, fake = self.serve((200, {"jobs": [{"jobId": "j0", "purged": True}, rerun], "truncated": True}))
        lineage = client.lineage("j/1")
        at = datetime(2026, 1, 27, 10, tzinfo=timezone.utc)
        self.assertTrue(lineage.truncated)
        self.assertEqual([tuple(vars(j).values())[:-1] for j in lineage.jobs], [
            ("j0", True, None, "", "", [], "", "", "", None, None),
            ("j1", False, "FAILED_FINAL", "j0", "embed", ["/payload/model"], "bad_scan", "ops-1", "once more", at, None),
        ])
        self.assertEqual((lineage.jobs[1].raw, fake.requests[0].path), (rerun, "/v1/jobs/j%2F1/lineage"))

    def test_a_watch_continues_where_it_was(self):
        client, fake = self.serve(
            (200, stream(event(1), event(2))), (503, {}), (200, job(state="IN_PROGRESS")),
            (200, stream(event(3, "SUCCEEDED"), event(4))))
        self.assertEqual([e.event_id for e in client.watch("j1")], ["e1", "e2", "e3", "e4"])
        streams = [r for r in fake.requests if r.path.endswith("/events")]
        self.assertEqual([r.headers["Last-Event-ID"] for r in streams], [None, "e2", "e2"])

    def test_a_watch_has_the_entries_of_a_job_that_ends_while_its_server_stops(self):
        killed = (200, b"5\r\n: no\n\r\n", {"Transfer-Encoding": "chunked", "Connection": "close"})
        for quiet in ([(200, stream()), (200, job())], [killed, (200, job()), killed]):
            client, _ = self.serve((200, stream(event(1))), *quiet, (200, stream(event(2, "SUCCEEDED"))))
            with self.subTest(quiet=quiet):
                self.assertEqual([e.event_id for e in client.watch("j1")], ["e1", "e2"])

    def test_a_watch_of_a_quiet_job_goes_on_however_often_its_stream_breaks(self):
        quiet = (200, b"b\r\n: waiting\n\n\r\n", {"Transfer-Encoding": "chunked"})
        client, fake = self.serve(
            *[quiet, (200, job(state="IN_PROGRESS"))] * 10, (200, stream(event(1, "SUCCEEDED"))))
        self.assertEqual([e.event_id for e in client.watch("j1")], ["e1"])
        self.assertEqual(len(fake.requests), 21)

    def test_a_watch_of_what_is_not_there_fails(self):
        client, _ = self.serve((404, {"code": "job_not_found"}))
        with self.assertRaises(NotFoundError):
            next(client.watch("j1"))


class Dates(Scripted):
    tonight = datetime(2026, 1, 28, 2, tzinfo=timezone.utc)

    def test_a_command_has_dates(self):
        client, fake = self.serve((202, RECEIPT))
        client.submit(replace(COMMAND, not_before=self.tonight, not_after="2026-01-28T06:00:00Z"))
        client.submit(replace(COMMAND, delay=timedelta(minutes=1, milliseconds=1)))
        client.submit(COMMAND)
        self.assertEqual([{name: value for name, value in r.body.items() if name in ("not_before", "delay", "delay_seconds", "not_after")}
                          for r in fake.requests],
                         [{"not_before": "2026-01-28T02:00:00+00:00", "not_after": "2026-01-28T06:00:00Z"}, {"delay_seconds": 61}, {}])

    def test_a_job_is_rescheduled(self):
        client, fake = self.serve((202, {**job(state="QUEUED"), "not_before": "2026-01-28T02:00:00.000Z"}))
        found = client.reschedule("j/1", not_before=self.tonight, not_after=self.tonight, reason="why")
        self.assertEqual((found.state, found.not_before, found.not_after), ("QUEUED", self.tonight, None))
        client.reschedule("j1", delay=timedelta(0), never_expires=True)
        self.assertEqual([(r.path, r.body) for r in fake.requests], [
            ("/v1/jobs/j%2F1:reschedule", {"not_before": "2026-01-28T02:00:00+00:00", "not_after": "2026-01-28T02:00:00+00:00", "reason": "why"}),
            ("/v1/jobs/j1:reschedule", {"delay_seconds": 0, "never_expires": True}),
        ])

    def test_a_job_is_prioritized(self):
        client, fake = self.serve((202, {**job(state="QUEUED"), "priority": "bulk"}))
        self.assertEqual(client.prioritize("j/1", "bulk", "why").priority, "bulk")
        client.prioritize("j1", "normal")
        self.assertEqual([(r.path, r.body) for r in fake.requests], [
            ("/v1/jobs/j%2F1:prioritize", {"priority": "bulk", "reason": "why"}),
            ("/v1/jobs/j1:prioritize", {"priority": "normal"}),
        ])

    def test_a_job_that_has_begun_is_not_rescheduled(self):
        client, _ = self.serve((409, {"code": "illegal_transition"}))
        with self.assertRaises(ConflictError):
            client.reschedule("j1", delay=timedelta(0))


LINE = {"line_id": "ab12", "tenant_id": "tenant_a", "order_key": "customer-42", "state": "blocked", "waiting": 2,
        "since": "2026-01-27T10:00:00.000Z", "head": {"jobId": "j1", "state": "FAILED_FINAL", "error_code": "bad_scan"}}


class Lines(Scripted):
    def test_lines_are_listed(self):
        client, fake = self.serve((200, {"lines": [LINE], "next_page_token": "p2"}), (200, {"lines": []}), (200, LINE),
                                  (200, {"jobs": [job()], "next_page_token": "2"}), (200, {"jobs": [job()]}))
        listed = list(client.lines(tenant_id="tenant_a", order_key="customer-42", state="blocked", page_size=9))
        at = datetime(2026, 1, 27, 10, tzinfo=timezone.utc)
        self.assertEqual([tuple(vars(line).values()) for line in listed],
                         [("ab12", "tenant_a", "customer-42", "blocked", 2, at, "j1", "bad_scan", LINE)])
        self.assertEqual(client.line("a/b"), listed[0])
        self.assertEqual([j.job_id for j in client.line_jobs("ab12")], ["j1", "j1"])
        query = {"tenant_id": "tenant_a", "order_key": "customer-42", "state": "blocked", "limit": "9"}
        self.assertEqual([(r.path, r.query) for r in fake.requests], [
            ("/v1/lines", query), ("/v1/lines", {**query, "page_token": "p2"}), ("/v1/lines/a%2Fb", {}),
            ("/v1/lines/ab12/jobs", {}), ("/v1/lines/ab12/jobs", {"page_token": "2"}),
        ])

    def test_a_line_is_released(self):
        moving = {key: value for key, value in LINE.items() if key not in ("head", "since")}
        client, fake = self.serve((200, {**moving, "state": "moving"}), (409, {"code": "not_blocking"}))
        line = client.release_line("ab12", "j1", "known")
        self.assertEqual((line.state, line.since, line.head_job_id), ("moving", None, ""))
        with self.assertRaises(ConflictError):
            client.release_line("ab12", "j2")
        self.assertEqual([(r.path, r.body) for r in fake.requests], [
            ("/v1/lines/ab12:release", {"jobId": "j1", "reason": "known"}), ("/v1/lines/ab12:release", {"jobId": "j2"})])

    def test_a_line_is_cancelled(self):
        many, missing = (200, {"cancelled": 1000, "more": True}), (404, {"code": "line_not_found"})
        for name, answers, cancelled in [
            ("in several requests", (many, (200, {"cancelled": 7, "more": False})), 1007),
            ("until none is left that can be", (many, (200, {"cancelled": 0, "more": True})), 1000),
            ("until the line has no job", (many, missing), 1000),
        ]:
            with self.subTest(name):
                client, fake = self.serve(*answers)
                self.assertEqual(client.cancel_line("ab12", "why"), cancelled)
                self.assertEqual([(r.path, r.body) for r in fake.requests], [("/v1/lines/ab12:cancel", {"reason": "why"})] * 2)
        client, _ = self.serve(missing)
        with self.assertRaises(NotFoundError):
            client.cancel_line("ab12", "why")


class Async(Scripted):
    def test_it_does_what_the_client_does(self):
        def answer(request):
            if request.path.endswith("/events"):
                if "event-stream" in request.headers["Accept"]:
                    return 200, stream(event(1, "SUCCEEDED"))
                return 200, {"events": [event(1, "SUCCEEDED")]}
            if request.path == "/v1/commands:batch":
                return 200, {"results": [{"status": 202, **RECEIPT}, {"status": 422, "error": {"code": "c"}}]}
            if request.path == "/v1/jobs":
                return 200, {"jobs": [job()]}
            if request.path == "/v1/jobs/j1/lineage":
                return 200, {"jobs": [{"jobId": "j1", "purged": True}], "truncated": False}
            if request.path.startswith("/v1/lines"):
                return 200, {**LINE, "lines": [LINE], "jobs": [job()], "cancelled": 3, "more": False}
            if request.body and request.body.get("dry_run"):
                return 200, {"dry_run": True, "jobId": "j1", "live": False, "steps": [], "changes": []}
            return 200, {**RECEIPT, **job()}

        fake = Fake(answer)
        self.addCleanup(fake.close)

        async def story():
            async with AsyncClient(fake.url) as client:
                self.assertEqual((await client.submit(COMMAND)).job_id, "j1")
                good, bad = await client.submit_batch([COMMAND, COMMAND])
                self.assertEqual((good.job_id, bad.code), ("j1", "c"))
                both = await asyncio.gather(client.get("j1"), client.wait("j1", timeout=5))
                self.assertEqual([j.state for j in both], ["SUCCEEDED"] * 2)
                for control in (client.cancel, client.pause, client.resume):
                    self.assertEqual((await control("j1", "why")).job_id, "j1")
                self.assertEqual((await client.reschedule("j1", delay=timedelta(minutes=1))).job_id, "j1")
                self.assertEqual((await client.prioritize("j1", "bulk")).job_id, "j1")
                self.assertFalse((await client.plan_rerun("j1", from_="start")).live)
                self.assertEqual((await client.rerun("j1", from_="start", reason="why")).job_id, "j1")
                self.assertEqual([j.job_id for j in (await client.lineage("j1")).jobs], ["j1"])
                self.assertEqual([line.line_id async for line in client.lines(tenant_id="tenant_a")], ["ab12"])
                self.assertEqual([j.job_id async for j in client.line_jobs("ab12")], ["j1"])
                self.assertEqual(await client.line("ab12"), await client.release_line("ab12", "j1", "known"))
                self.assertEqual(await client.cancel_line("ab12", "why"), 3)
                self.assertEqual([j.job_id async for j in client.list(doc_id="d", tags={"env": "prod"})], ["j1"])
                self.assertEqual([e.event_id async for e in client.history("j1")], ["e1"])
                self.assertEqual([e.event_id async for e in client.watch("j1")], ["e1"])
        asyncio.run(story())
        listed = next(r for r in fake.requests if r.path == "/v1/jobs")
        self.assertEqual((listed.query["doc_id"], listed.tags), ("d", ["env=prod"]))
        reruns = [r.body for r in fake.requests if r.path == "/v1/jobs/j1:rerun"]
        self.assertEqual(reruns, [{"from": "start", "dry_run": True}, {"from": "start", "reason": "why"}])

    def test_close_ends_the_repeats(self):
        program = """if True:
            import asyncio
            from lucius import AsyncClient

            async def main():
                async with AsyncClient("http://127.0.0.1:1", retry_for=float("inf")) as client:
                    asyncio.ensure_future(client.get("j1"))
                    await asyncio.sleep(0)
            asyncio.run(main())"""
        subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1], check=True, timeout=60)

    def test_a_cancelled_wait_ends(self):
        def answer(request):
            if request.query:  # It waits for the end of the job.
                release.wait(600)
            return 200, job(state="IN_PROGRESS")
        release = threading.Event()
        fake = Fake(answer)
        self.addCleanup(fake.close)
        self.addCleanup(release.set)

        async def story():
            async with AsyncClient(fake.url, parallel=1) as client:
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.wait("j1"), 0.1)
                await asyncio.wait_for(client.get("j1"), 300)  # It has the only thread.
        asyncio.run(story())
