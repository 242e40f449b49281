"""Commands, and the jobs, steps and events that clients read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, List, Literal, Mapping, Optional

#: The final states of a job.
ENDED = frozenset({"SUCCEEDED", "FAILED_FINAL", "CANCELLED"})

JobState = Literal["QUEUED", "DISPATCHING", "IN_PROGRESS", "PAUSING", "PAUSED", "CANCELLING", "CANCELLED", "SUCCEEDED", "FAILED_FINAL"]
StepState = Literal["PENDING", "DISPATCHING", "AWAITING_ACK", "IN_PROGRESS", "FAILED_RETRY", "SUCCEEDED", "FAILED_FINAL", "CANCELLED"]

Ref = Mapping[str, Any]


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
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "Step":
        return cls(raw["stepId"], raw["step_type"], raw["service"], raw["state"], raw["attempt_no"],
                   raw.get("last_error_code", ""), raw.get("last_error_message", ""), raw.get("result_ref"), raw)


@dataclass(frozen=True)
class Job:
    """A job with its steps. ``raw`` is the server's whole JSON object."""

    job_id: str
    tenant_id: str
    request_type: str
    state: JobState
    created_at: datetime
    completed_at: Optional[datetime]
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
                   _time(raw.get("completed_at")), raw.get("error_code", ""), raw.get("error_message", ""),
                   raw.get("correlation_id", ""), raw.get("doc_id", ""), raw.get("tags", {}), raw.get("final_output"),
                   [Step.parse(step) for step in raw.get("steps", [])], raw)

    @property
    def ended(self) -> bool:
        """Whether the job has ended: it never changes again."""
        return self.state in ENDED

    @property
    def succeeded(self) -> bool:
        return self.state == "SUCCEEDED"


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
