"""Schedules, which submit a command at times, and what became of these times."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence, TypedDict

from .model import When, _time

ScheduleState = Literal["active", "paused", "completed"]
FireOutcome = Literal["claimed", "fired", "skipped", "refused", "missed"]
BackfillState = Literal["running", "cancelling", "cancelled", "done"]


class ScheduleTimes(TypedDict, total=False):
    """When a schedule is due: by ``cron`` or ``every``. A keyword that is None is left out."""

    #: Five fields as in crontab, or ``@hourly`` to ``@yearly``.
    cron: Optional[str]
    #: An interval such as ``15m``.
    every: Optional[str]
    #: The IANA name of the zone whose clocks count; UTC unless given.
    time_zone: Optional[str]
    start_at: When
    end_at: When
    #: Days without occurrences, such as ``2026-12-25``.
    excluded_dates: Optional[Sequence[str]]


class CatchUp(TypedDict, total=False):
    """Which occurrences that were missed are fired late: within the ``window``, such as ``6h``."""

    policy: Literal["none", "last", "all"]
    window: str


class ScheduleDefinition(ScheduleTimes, total=False):
    """The keywords of :meth:`Client.put_schedule`: when a command is submitted, and which."""

    #: The command without its tenant and key. Its strings may hold ``${scheduled_for}`` and ``${scheduled_date}``.
    command: Mapping[str, Any]
    #: By up to how much an occurrence is delayed, such as ``2m``.
    jitter: Optional[str]
    #: What an occurrence does while the job of an earlier one is live.
    overlap: Optional[Literal["skip", "queue", "cancel_running", "allow"]]
    catch_up: Optional[CatchUp]
    #: The ``rev`` of the schedule as last seen.
    expected_rev: Optional[int]


@dataclass(frozen=True)
class ScheduleTime:
    """An occurrence to come."""

    at: datetime
    #: The same time on the clocks of the schedule's zone, with their offset from UTC.
    local: str
    #: What a change of clocks does to it: ``moved``, ``first_of_two``, ``second_of_two`` or ``changed``, else empty.
    clock_change: str

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "ScheduleTime":
        return cls(_known(raw["at"]), raw["local"], raw.get("clock_change", ""))


@dataclass(frozen=True)
class ScheduleFire:
    """What became of an occurrence or a run. ``raw`` is the server's whole JSON object."""

    scheduled_for: datetime
    outcome: FireOutcome
    #: The job, empty unless it was claimed or fired.
    job_id: str
    version: int
    #: Why it was not fired, and the code of the problem of a refusal.
    detail: str
    code: str
    #: Who ran it by hand, or by a backfill.
    actor: str
    #: The backfill that decided it, else empty.
    backfill_id: str
    #: How many occurrences these are: many that were missed may be one entry, of which this is the last.
    count: int
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "ScheduleFire":
        return cls(_known(raw["scheduled_for"]), raw["outcome"], raw.get("jobId", ""), raw["version"], raw.get("detail", ""),
                   raw.get("code", ""), raw.get("actor", ""), raw.get("backfill_id", ""), raw.get("count", 1), raw)


@dataclass(frozen=True)
class Schedule:
    """A schedule. ``raw`` is the server's whole JSON object, with its definition."""

    schedule_id: str
    tenant_id: str
    name: str
    #: Counts the changes.
    rev: int
    #: Counts the definitions.
    version: int
    state: ScheduleState
    command: Mapping[str, Any]
    #: Its next occurrences, in a list the first one; none unless it is active.
    next: List[ScheduleTime]
    #: The last one that is decided; None in a list.
    last_fire: Optional[ScheduleFire]
    #: How many of the last occurrences were refused or missed, one after the other.
    failures_in_row: int
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Schedule":
        last = raw.get("last_fire")
        return cls(raw["schedule_id"], raw["tenant_id"], raw["name"], raw["rev"], raw["version"], raw["state"], raw["command"],
                   [ScheduleTime.parse(time) for time in raw.get("next", [])], ScheduleFire.parse(last) if last else None,
                   raw["failures_in_row"], raw)


@dataclass(frozen=True)
class ScheduleBackfill:
    """The firing of past occurrences of a schedule. ``raw`` is the server's whole JSON object."""

    backfill_id: str
    state: BackfillState
    #: How many occurrences there are, and what became of them.
    total: int
    fired: int
    #: Those that had a job.
    left_alone: int
    refused: int
    #: Why the last one was refused, or why the next one waits.
    detail: str
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "ScheduleBackfill":
        return cls(raw["backfill_id"], raw["state"], raw["total"], raw["fired"], raw["left_alone"], raw["refused"],
                   raw.get("detail", ""), raw)

    @property
    def ended(self) -> bool:
        return self.state in ("cancelled", "done")


def _known(text: str) -> datetime:
    at = _time(text)
    assert at is not None
    return at


def body(request: Mapping[str, Any]) -> Dict[str, Any]:
    """A request as the server takes it."""
    # No keyword can be called "from".
    return {name.rstrip("_"): value.astimezone().isoformat() if isinstance(value, datetime) else value
            for name, value in request.items() if value is not None}
