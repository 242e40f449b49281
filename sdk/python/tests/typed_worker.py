"""A worker with typed payloads: mypy --strict and pyright, which make sdk runs, accept it, and tests run its handlers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, TypedDict

from lucius import AsyncClient, Client, Final, JobState, NotFoundError, RerunRequest, Task, Worker

worker = Worker("extract", url="http://127.0.0.1:1")


@dataclass
class Page:
    number: int
    title: Optional[str] = None


@dataclass
class Extract:
    words: int
    pages: Sequence[Page] = ()
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.words < 0:
            raise ValueError("words must not be negative")


@dataclass
class Extracted:
    uri: str
    words: int


@worker.step("EXTRACT", payload=Extract)
def extract(task: Task, payload: Extract) -> Extracted:
    return Extracted(uri=f"{task.input_ref['uri']}.txt", words=payload.words + len(payload.pages))


class Language(TypedDict):
    language: str


class Summarize(Language, total=False):
    words: int


@worker.step("SUMMARIZE", payload=Summarize)
async def summarize(task: Task, payload: Summarize) -> Dict[str, Any]:
    return {"uri": payload["language"], "words": payload.get("words", 0)}


def even(payload: Dict[str, Any]) -> int:
    number = int(payload["n"])
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


@worker.step("HALVE", payload=even)
def halve(task: Task, n: int) -> Dict[str, str]:
    return {"uri": f"half:{n // 2}"}


@worker.step("PLAIN")
def plain(task: Task) -> None:
    if not task.payload:
        raise Final("NOTHING")


def follow(client: Client, job_id: str) -> JobState:
    """What a client reads is typed, too."""
    try:
        job = client.wait(job_id, timeout=1.0)
    except NotFoundError as error:
        raise LookupError(error.code) from error
    if job.state == "CANCELLED" or any(step.state == "FAILED_FINAL" for step in job.steps):
        return "CANCELLED"
    return job.state


async def correct(client: Client, other: AsyncClient, job_id: str, model: Optional[str]) -> str:
    """The keywords of a rerun are typed, and may be collected."""
    request: RerunRequest = {"payload_patch": {"model": model, "pages": None}, "protocol": "current"}
    request["tags"] = {"run": "november"} if model else None
    plan = client.plan_rerun(job_id, **request)
    if plan.live or plan.existing_job_id or [step for step in plan.steps if step.outcome == "carried"]:
        return (await other.plan_rerun(job_id, newest=True)).changes[0].pointer
    client.rerun(job_id, **request)
    await other.rerun(job_id, from_="start", resolve=[{"step_id": "ocr", "output_ref": {"uri": "s3://bucket/ocr"}}])
    return client.lineage(job_id).jobs[-1].job_id
