"""The client's calls that concern schedules."""

import asyncio
from datetime import datetime, timezone

from lucius import AsyncClient, ConflictError, InvalidError, NotFoundError

from .fake import Fake
from .test_client import Scripted

NEXT = {"at": "2026-01-28T01:30:00.000Z", "local": "2026-01-28T02:30:00+01:00", "clock_change": "moved"}
FIRE = {"scheduled_for": "2026-01-27T01:30:00.000Z", "outcome": "fired", "jobId": "j1", "version": 2, "late_seconds": 0.4}
SCHEDULE = {"schedule_id": "s1", "tenant_id": "tenant_a", "name": "nightly", "rev": 3, "version": 2, "state": "active",
            "cron": "30 2 * * *", "overlap": "skip", "command": {"request_type": "doc.index"}, "failures_in_row": 1,
            "next": [NEXT], "last_fire": FIRE}
BACKFILL = {"backfill_id": "b1", "state": "running", "total": 72, "fired": 20, "left_alone": 3, "refused": 1, "detail": "busy"}
NIGHTLY = "/v1/schedules/tenant_a/nightly"
MISSING = (404, {"code": "schedule_not_found"})
START = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Schedules(Scripted):
    def test_schedules_are_listed_read_and_previewed(self):
        client, fake = self.serve(
            (200, {"schedules": [SCHEDULE], "next_page_token": "p2"}), (200, {"schedules": []}), (200, SCHEDULE),
            (200, {"time_zone": "UTC", "times": [NEXT]}), (200, {"fires": [FIRE], "next_page_token": "2"}), (200, {"fires": []}))
        listed = list(client.schedules("tenant_a", state="active", page_size=9))
        self.assertEqual(client.schedule("a/b", "nightly"), listed[0])
        one = listed[0]
        self.assertEqual((one.schedule_id, one.tenant_id, one.name, one.rev, one.version, one.state, one.command, one.failures_in_row),
                         ("s1", "tenant_a", "nightly", 3, 2, "active", {"request_type": "doc.index"}, 1))
        at = datetime(2026, 1, 28, 1, 30, tzinfo=timezone.utc)
        self.assertEqual([tuple(vars(time).values()) for time in one.next], [(at, NEXT["local"], "moved")])
        self.assertEqual(client.preview_schedule(cron="@daily", after=START, count=1, time_zone=None), one.next)
        fires = list(client.schedule_fires("tenant_a", "nightly"))
        self.assertEqual(fires, [one.last_fire])
        self.assertEqual((fires[0].job_id, fires[0].outcome, fires[0].count, fires[0].backfill_id), ("j1", "fired", 1, ""))
        query = {"tenant_id": "tenant_a", "state": "active", "limit": "9"}
        asked = {"cron": "@daily", "after": fake.requests[3].body["after"], "count": 1}
        self.assertEqual(datetime.fromisoformat(asked["after"]), START)
        self.assertEqual([(r.method, r.path, r.query, r.body) for r in fake.requests], [
            ("GET", "/v1/schedules", query, None), ("GET", "/v1/schedules", {**query, "page_token": "p2"}, None),
            ("GET", "/v1/schedules/a%2Fb/nightly", {}, None), ("POST", "/v1/schedules:preview", {}, asked),
            ("GET", NIGHTLY + "/fires", {}, None), ("GET", NIGHTLY + "/fires", {"page_token": "2"}, None),
        ])

    def test_a_schedule_that_another_request_creates_is_put_again(self):
        client, fake = self.serve((409, {"code": "conflict"}), (200, SCHEDULE), (409, {"code": "rev_conflict"}))
        self.assertEqual(client.put_schedule("tenant_a", "nightly", every="1h", command={}).rev, 3)
        with self.assertRaisesRegex(ConflictError, "rev_conflict"):
            client.put_schedule("tenant_a", "nightly", every="1h", command={}, expected_rev=2)
        self.assertEqual(len(fake.requests), 3)

    def test_a_schedule_is_changed(self):
        client, fake = self.serve(
            (201, SCHEDULE), (200, SCHEDULE), (200, SCHEDULE), (200, SCHEDULE), MISSING, (404, {"code": "not_found"}),
            (422, {"code": "schedule_invalid"}))
        self.assertEqual(client.put_schedule("tenant_a", "nightly", every="1h", command={"a": 1}, jitter=None, expected_rev=2).rev, 3)
        self.assertEqual(client.pause_schedule("tenant_a", "nightly", "why").schedule_id, "s1")
        self.assertEqual(client.resume_schedule("tenant_a", "nightly").schedule_id, "s1")
        client.delete_schedule("tenant_a", "nightly")
        client.delete_schedule("tenant_a", "nightly")  # It finds none.
        with self.assertRaises(NotFoundError):
            client.delete_schedule("tenant_a", "nightly")
        with self.assertRaises(InvalidError):
            client.put_schedule("tenant_a", "nightly", cron="61 * * * *", command={})
        self.assertEqual([(r.method, r.path, r.body) for r in fake.requests], [
            ("PUT", NIGHTLY, {"every": "1h", "command": {"a": 1}, "expected_rev": 2}), ("POST", NIGHTLY + ":pause", {"reason": "why"}),
            ("POST", NIGHTLY + ":resume", {}), *[("DELETE", NIGHTLY, None)] * 3,
            ("PUT", NIGHTLY, {"cron": "61 * * * *", "command": {}}),
        ])

    def test_a_schedule_is_run_and_backfilled_once_for_each_key(self):
        client, fake = self.serve(
            (0, None), (202, FIRE), (200, FIRE), (0, None), (202, BACKFILL), (200, {"backfills": [BACKFILL]}),
            (200, {**BACKFILL, "state": "cancelled"}), (409, {"code": "illegal_transition"}))
        self.assertEqual([client.run_schedule("tenant_a", "nightly", key).job_id for key in ("", "k")], ["j1", "j1"])
        request = {"from": "2026-01-20T00:00:00Z", "to": "2026-01-27T00:00:00Z", "repeat": True, "rate_per_second": 2, "reason": "why"}
        begun = client.backfill_schedule("tenant_a", "nightly", from_=request["from"], to=request["to"], repeat=True,
                                         rate_per_second=2, reason="why", key="k2")
        self.assertEqual(tuple(vars(begun).values()), ("b1", "running", 72, 20, 3, 1, "busy", BACKFILL))
        self.assertEqual((begun.ended, client.schedule_backfills("tenant_a", "nightly")), (False, [begun]))
        self.assertTrue(client.cancel_backfill("tenant_a", "nightly", "b1", "why").ended)
        with self.assertRaises(ConflictError):
            client.backfill_schedule("tenant_a", "nightly", from_=START)
        keys = [r.headers.get("Idempotency-Key") for r in fake.requests]
        self.assertTrue(keys[0] and keys[0] == keys[1], keys)
        self.assertEqual(keys[2:7], ["k", "k2", "k2", None, None])
        self.assertEqual([(r.method, r.path, r.body) for r in fake.requests[2:7]], [
            ("POST", NIGHTLY + ":run", {}), *[("POST", NIGHTLY + ":backfill", request)] * 2,
            ("GET", NIGHTLY + "/backfills", None), ("POST", NIGHTLY + "/backfills/b1:cancel", {"reason": "why"}),
        ])
        self.assertEqual(datetime.fromisoformat(fake.requests[7].body.pop("from")), START)
        self.assertEqual(fake.requests[7].body, {})

    def test_the_client_for_asyncio_does_the_same(self):
        every = {**SCHEDULE, **FIRE, **BACKFILL, "state": "active", "schedules": [SCHEDULE], "times": [NEXT], "fires": [FIRE], "backfills": [BACKFILL]}
        fake = Fake(lambda request: (200, every))
        self.addCleanup(fake.close)

        async def story():
            async with AsyncClient(fake.url) as client:
                name = ("tenant_a", "nightly")
                self.assertEqual([s.name async for s in client.schedules("tenant_a")], ["nightly"])
                self.assertEqual([f.job_id async for f in client.schedule_fires(*name)], ["j1"])
                for call in (client.schedule(*name), client.put_schedule(*name, every="1h", command={}),
                             client.pause_schedule(*name), client.resume_schedule(*name, "why")):
                    self.assertEqual((await call).schedule_id, "s1")
                self.assertEqual((await client.run_schedule(*name, "k")).job_id, "j1")
                self.assertEqual(len(await client.preview_schedule(every="1h")), 1)
                self.assertEqual((await client.backfill_schedule(*name, from_=START)).backfill_id, "b1")
                self.assertEqual(len(await client.schedule_backfills(*name)), 1)
                self.assertEqual((await client.cancel_backfill(*name, "b1")).total, 72)
                self.assertIsNone(await client.delete_schedule(*name))

        asyncio.run(story())
