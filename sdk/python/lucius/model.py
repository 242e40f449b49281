"""Commands, and the jobs, steps and events that clients read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, List, Literal, Mapping, Optional, Sequence, TypedDict, Union

#: The final states of a job.
ENDED = frozenset({"SUCCEEDED", "FAILED_FINAL", "CANCELLED"})

OrderMode = Literal["fifo", "newest", "reject"]
Priority = Literal["normal", "bulk"]
JobState = Literal["QUEUED", "DISPATCHING", "IN_PROGRESS", "PAUSING", "PAUSED", "CANCELLING", "CANCELLED", "SUCCEEDED", "FAILED_FINAL"]
LineState = Literal["blocked", "moving"]
StepState = Literal["PENDING", "DISPATCHING", "AWAITING_ACK", "IN_PROGRESS", "FAILED_RETRY", "SUCCEEDED", "FAILED_FINAL", "CANCELLED"]

Ref = Mapping[str, Any]
#: A time; one without a time zone is local, as everywhere in Python.
When = Union[datetime, str, None]


def _time(text: Optional[str]) -> Optional[datetime]:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


@dataclass(frozen=True)
class Step:
    """A step of a job. ``raw`` is the server's whole JSON object."""

    step_id: str
    step_type: str
    service: str
    state: StepState
    attempt: int
    last_error_code: str
    last_error_message: str
    result_ref: Optional[Ref]
    #: Why a rerun did not execute the step: ``carried`` or ``resolved``, else empty.
    outcome: str
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Step":
        return cls(raw["stepId"], raw["step_type"], raw["service"], raw["state"], raw["attempt_no"],
                   raw.get("last_error_code", ""), raw.get("last_error_message", ""), raw.get("result_ref"), raw.get("outcome", ""), raw)


@dataclass(frozen=True)
class Job:
    """A job with its steps. ``raw`` is the server's whole JSON object."""

    job_id: str
    tenant_id: str
    request_type: str
    state: JobState
    created_at: datetime
    completed_at: Optional[datetime]
    #: When the job may begin, None if it may at once.
    not_before: Optional[datetime]
    #: When it expires unless a worker has started it, None if it does not.
    not_after: Optional[datetime]
    #: The jobs of its tenant with this key run one after the other; empty without a key.
    order_key: str
    order_mode: Optional[OrderMode]
    #: The line of the tenant and key, empty without a key.
    line_id: str
    #: The class of its work.
    priority: Priority
    error_code: str
    error_message: str
    correlation_id: str
    doc_id: str
    tags: Mapping[str, str]
    final_output: Optional[Ref]
    steps: List[Step]
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Job":
        created = _time(raw["created_at"])
        assert created is not None
        return cls(raw["jobId"], raw["tenant_id"], raw["request_type"], raw["state"], created,
                   _time(raw.get("completed_at")), _time(raw.get("not_before")), _time(raw.get("not_after")),
                   raw.get("order_key", ""), raw.get("order_mode"), raw.get("line_id", ""), raw.get("priority", "normal"),
                   raw.get("error_code", ""), raw.get("error_message", ""), raw.get("correlation_id", ""), raw.get("doc_id", ""), raw.get("tags", {}), raw.get("final_output"),
                   [Step.parse(step) for step in raw.get("steps", [])], raw)

    @property
    def ended(self) -> bool:
        """Whether the job has ended: it never changes again."""
        return self.state in ENDED

    @property
    def succeeded(self) -> bool:
        return self.state == "SUCCEEDED"


@dataclass(frozen=True)
class Line:
    """The jobs of one tenant and order key, which run one after the other.

    ``raw`` is the server's whole JSON object.
    """

    line_id: str
    tenant_id: str
    order_key: str
    #: ``blocked`` if its first job failed, and the line goes on once it is rerun or released.
    state: LineState
    #: How many jobs are after the first one.
    waiting: int
    #: Since when it is blocked, or since when jobs wait in it.
    since: Optional[datetime]
    #: Its first job, empty if it has none, and the error code of one that blocks.
    head_job_id: str
    head_error_code: str
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Line":
        head = raw.get("head", {})
        return cls(raw["line_id"], raw["tenant_id"], raw["order_key"], raw["state"], raw["waiting"], _time(raw.get("since")),
                   head.get("jobId", ""), head.get("error_code", ""), raw)


@dataclass(frozen=True)
class Accepted:
    """The receipt of a command: its job is durable."""

    job_id: str
    state: str
    #: The same command was accepted before, and this is its job.
    replayed: bool
    correlation_id: str

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Accepted":
        return cls(raw["jobId"], raw.get("state", ""), bool(raw.get("replayed")), raw.get("correlation_id", ""))


@dataclass(frozen=True)
class Event:
    """One entry of a job's history. ``raw`` is the server's whole JSON object."""

    event_id: str
    type: str
    at: datetime
    actor: str
    to: str
    attempt: Optional[int]
    detail: str
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Event":
        at = _time(raw["at"])
        assert at is not None
        return cls(raw["event_id"], raw["type"], at, raw["actor"], raw.get("to", ""), raw.get("attempt_no"),
                   raw.get("detail", ""), raw)

    @property
    def ends_job(self) -> bool:
        return self.raw["object"] == "job" and self.to in ENDED


@dataclass(frozen=True)
class Command:
    """A command of an application.

    ``idempotency_key`` names the command: the same key in the same tenant is the same job, however
    often it is submitted. Without one, commands of the same request type, schema version,
    references and payload are one job. Jobs are found by their ``doc_id`` and ``tags``.

    The job does not begin before ``not_before``, or until the ``delay`` has passed since the server
    got the command. It ends with the error code ``expired`` if no worker has started it by
    ``not_after``. A repeated command keeps its first dates.

    The jobs of one tenant and ``order_key`` run one after the other. By its ``order_mode`` a job
    waits for those before it, cancels those that wait (``newest``), or is refused if there is one
    (``reject``).

    Work of the ``priority`` ``bulk`` yields to all other work of its service and step type. Without
    one the job has that of its protocol.
    """

    tenant_id: str
    request_type: str
    payload: Mapping[str, Any]
    input_ref: Ref
    output_ref: Ref
    schema_version: str = "1"
    idempotency_key: Optional[str] = None
    mode: Optional[str] = None
    doc_id: Optional[str] = None
    tags: Optional[Mapping[str, str]] = None
    workspace_ref: Optional[Ref] = None
    correlation_id: Optional[str] = None
    traceparent: Optional[str] = None
    callback_urls: Optional[List[str]] = None
    not_before: When = None
    delay: Optional[timedelta] = None
    not_after: When = None
    order_key: Optional[str] = None
    order_mode: Optional[OrderMode] = None
    priority: Optional[Priority] = None


class ResolvedStep(TypedDict):
    """A step that was done by hand, with its output."""

    step_id: str
    output_ref: Ref


class RerunRequest(TypedDict, total=False):
    """The keywords of :meth:`Client.rerun` and :meth:`Client.plan_rerun`: where a rerun starts, what it corrects, and why.

    A keyword that is None is left out.
    """

    #: ``failed``, unless given, is the step that failed.
    from_: Optional[Literal["failed", "start"]]
    #: The step to start at, in place of ``from_``.
    from_step: Optional[str]
    payload: Optional[Mapping[str, Any]]
    #: A merge patch of the payload (RFC 7396): None removes a member.
    payload_patch: Optional[Mapping[str, Any]]
    input_ref: Optional[Ref]
    output_ref: Optional[Ref]
    workspace_ref: Optional[Ref]
    #: Steps that were done by hand, before the one to start at. It needs the role admin.
    resolve: Optional[Sequence[ResolvedStep]]
    #: The class of the new job; unless given, that of the old one.
    priority: Optional[Priority]
    #: Whether to take the steps and policies of the old job, or those of the current protocol.
    protocol: Optional[Literal["kept", "current"]]
    #: Rerun the last job in the chain of reruns; if it is live, it is the answer.
    newest: Optional[bool]
    #: ``none`` leaves out the callback URLs of the old job.
    callbacks: Optional[Literal["keep", "none"]]
    #: Added to those of the old job.
    tags: Optional[Mapping[str, str]]
    #: For the history.
    reason: Optional[str]


@dataclass(frozen=True)
class PlannedStep:
    """A step of a rerun that was planned."""

    step_id: str
    step_type: str
    service: str
    #: Why the rerun would not execute the step: ``carried`` or ``resolved``, else empty.
    outcome: str

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "PlannedStep":
        return cls(raw["step_id"], raw["step_type"], raw["service"], raw.get("outcome", ""))


@dataclass(frozen=True)
class CommandChange:
    """A difference between the commands of a job and of its rerun.

    ``raw`` is the server's whole JSON object.
    """

    #: The member, as a JSON pointer into the command.
    pointer: str
    #: Its values. None is null or, if ``raw`` has no such member, no value.
    before: Any
    after: Any
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "CommandChange":
        return cls(raw["pointer"], raw.get("before"), raw.get("after"), raw)


@dataclass(frozen=True)
class RerunPreview:
    """What a rerun would do."""

    #: The job that would be repeated: with ``newest``, the last of its reruns.
    job_id: str
    #: With ``newest``: the job is live and would be the answer. All other fields are empty.
    live: bool
    #: The job that the same rerun made before, which would be the answer, else empty.
    existing_job_id: str
    protocol_id: str
    protocol_version: str
    steps: List[PlannedStep]
    #: How the command would differ: as many members as have pointers of 1 KiB together.
    changes: List[CommandChange]

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "RerunPreview":
        return cls(raw["jobId"], raw["live"], raw.get("existing_job_id", ""), raw.get("protocol_id", ""),
                   raw.get("protocol_version", ""), [PlannedStep.parse(step) for step in raw["steps"]],
                   [CommandChange.parse(change) for change in raw["changes"]])


@dataclass(frozen=True)
class LineageJob:
    """A job in a chain of reruns. Of one that was ``purged`` only the id is known.

    ``raw`` is the server's whole JSON object.
    """

    job_id: str
    purged: bool
    state: Optional[JobState]
    rerun_of: str
    #: The first step that the job executes itself: those before it were carried or resolved.
    first_step: str
    #: What the rerun corrects, as JSON pointers into the command.
    rerun_edits: List[str]
    error_code: str
    caller: str
    reason: str
    created_at: Optional[datetime]
    completed_at: Optional[datetime]
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "LineageJob":
        return cls(raw["jobId"], raw["purged"], raw.get("state"), raw.get("rerun_of", ""), raw.get("first_step", ""),
                   raw.get("rerun_edits", []), raw.get("error_code", ""), raw.get("caller", ""), raw.get("reason", ""),
                   _time(raw.get("created_at")), _time(raw.get("completed_at")), raw)


@dataclass(frozen=True)
class Lineage:
    """The chain of reruns of a job, oldest first. It is ``truncated`` if there are more."""

    jobs: List[LineageJob]
    truncated: bool

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Lineage":
        return cls([LineageJob.parse(job) for job in raw["jobs"]], raw["truncated"])
