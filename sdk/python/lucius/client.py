"""A client submits commands, and watches and controls their jobs."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import uuid
from datetime import datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from ._transport import (
    _CALL_FAILED, SHORTEST_POLL, Answer, Interruptible, Query, Token, Transport, decoded, encoded, own, path_with,
    segment, transient,
)
from .errors import LuciusError, NoAnswerError, NotFoundError, ProblemError, TimedOutError
from .model import Accepted, Command, Event, Job, JobState, Line, Lineage, LineState, Priority, RerunPreview, RerunRequest, When
from .schedules import Schedule, ScheduleBackfill, ScheduleDefinition, ScheduleFire, ScheduleState, ScheduleTime, ScheduleTimes
from .schedules import body as _given

if TYPE_CHECKING:  # Only type checkers need it, and have it.
    from typing_extensions import Unpack

# The longest wait that one request asks for.
_POLL_SECONDS = 30
_BATCH_TIMEOUT = 30.0
# The server works on it for up to 10 seconds.
_CANCEL_LINE_TIMEOUT = 30.0
# The server's limit.
_LARGEST_BATCH = 100
# A stream has a comment about every 15 seconds.
_STREAM_SILENCE = 60.0


class Client:
    """Calls one server. Safe for use by many threads.

    ``url`` and ``token`` default to LUCIUS_URL and LUCIUS_TOKEN, else to the token in the
    file that LUCIUS_TOKEN_FILE names. A function and the file are read for each request. A
    call that has no answer, or 408, 429, 5xx or the code ``conflict``, is repeated for ``retry_for`` seconds; every call
    is idempotent. Refusals are :class:`ProblemError`.
    """

    def __init__(self, url: Optional[str] = None, token: Token = None, *, retry_for: float = 60.0,
                 tls: Optional[ssl.SSLContext] = None) -> None:
        self._transport = Transport(url, token, tls=tls)
        self._retry_for = retry_for

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, command: Command) -> Accepted:
        """Submit a command. Its job is durable once this returns."""
        return Accepted.parse(self._call("POST", "/v1/commands", _body(command)))

    def submit_batch(self, commands: Sequence[Command]) -> List[Union[Accepted, ProblemError]]:
        """Submit any number of commands. Each is accepted or refused by itself.

        Commands with the same order key are accepted in their order. Those on which the server
        could not decide are repeated. A request has up to 100 of them: if one of the requests
        fails, or leaves some without a decision while others follow, those before it have been
        submitted, and the same call again gets the same jobs.
        """
        bodies = [_body(c) for c in commands]
        return [result for first in range(0, len(bodies), _LARGEST_BATCH)
                for result in self._submit_part(bodies[first:first + _LARGEST_BATCH], first + _LARGEST_BATCH >= len(bodies))]

    def _submit_part(self, bodies: Sequence[Mapping[str, Any]], last: bool) -> List[Union[Accepted, ProblemError]]:
        """Submit as many commands as one request takes."""
        path = "/v1/commands:batch"
        results: Dict[int, Mapping[str, Any]] = {}

        def once() -> Answer:
            asked = [i for i in range(len(bodies)) if i not in results or _undecided(results[i])]
            status, headers, content = self._transport.once(
                "POST", path, encoded({"commands": [bodies[i] for i in asked]}), {}, _BATCH_TIMEOUT)
            if status != 200:
                return status, headers, content
            answers = decoded(content).get("results", [])
            if len(answers) != len(asked):
                raise http.client.HTTPException("it answered another number of commands")
            results.update(zip(asked, answers))
            undecided = next((r for r in results.values() if transient(r["status"], _code(r))), None)
            return (undecided["status"], headers, encoded(undecided["error"])) if undecided else (200, headers, b"{}")

        try:
            self._transport.call("POST", path, retry_for=self._retry_for, once=once)
        except LuciusError:
            if len(results) < len(bodies) or not last:  # What follows must not overtake those without a decision.
                raise
        return [ProblemError.parse(r["status"], encoded(r["error"])) if r.get("error") else Accepted.parse(r)
                for _, r in sorted(results.items())]

    def get(self, job_id: str) -> Job:
        """The job with its steps."""
        return Job.parse(self._call("GET", _job(job_id)))

    def wait(self, job_id: str, timeout: Optional[float] = None) -> Job:
        """Wait until the job has ended, and return it.

        After the ``timeout`` it raises :class:`TimedOutError`, or the error of the last call
        if the server does not answer.
        """
        return self._wait(job_id, timeout, Interruptible())

    def _wait(self, job_id: str, timeout: Optional[float], interruptible: Interruptible) -> Job:
        """Wait as :meth:`wait` does. Raises LuciusError if it is interrupted."""
        end = float("inf") if timeout is None else time.monotonic() + timeout
        while True:
            begun = time.monotonic()
            left = max(end - begun, 0.0)
            seconds = min(left, _POLL_SECONDS)
            job = Job.parse(self._transport.call(
                "GET", path_with(_job(job_id), {"wait": f"{seconds:.3f}s"}), timeout=seconds + 10,
                retry_for=min(self._retry_for, max(left, 1.0)), interruptible=interruptible))
            if job.ended:
                return job
            if time.monotonic() >= end:
                raise TimedOutError(f"job {job_id} is {job.state} after {timeout} seconds")
            if interruptible.interrupted.wait(max(min(SHORTEST_POLL + begun, end) - time.monotonic(), 0)):
                raise LuciusError(f"the wait for job {job_id} was interrupted")

    def list(self, *, tenant_id: Optional[str] = None, state: Optional[JobState] = None,
             request_type: Optional[str] = None, correlation_id: Optional[str] = None,
             doc_id: Optional[str] = None, tags: Optional[Mapping[str, str]] = None,
             created_after: When = None, created_before: When = None, page_size: int = 100) -> Iterator[Job]:
        """The jobs that match, newest first, read page by page.

        A job matches ``tags`` if it has all of them. ``doc_id`` and ``tags`` need a ``tenant_id``.
        """
        query = {"tenant_id": tenant_id, "state": state, "request_type": request_type,
                 "correlation_id": correlation_id, "doc_id": doc_id,
                 "tag": [f"{key}={value}" for key, value in (tags or {}).items()],
                 "created_after": _when(created_after),
                 "created_before": _when(created_before), "limit": str(page_size)}
        for page in self._pages("/v1/jobs", query):
            yield from (Job.parse(raw) for raw in page["jobs"])

    def history(self, job_id: str) -> Iterator[Event]:
        """The job's history so far."""
        for page in self._pages(_job(job_id) + "/events", {"limit": "1000"}):
            yield from (Event.parse(raw) for raw in page["events"])

    def watch(self, job_id: str) -> "Watch":
        """The job's history so far, then each entry as it happens, until the job has ended."""
        return Watch(self, job_id)

    def cancel(self, job_id: str, reason: str = "") -> Job:
        return self._control(job_id, "cancel", reason)

    def pause(self, job_id: str, reason: str = "") -> Job:
        return self._control(job_id, "pause", reason)

    def resume(self, job_id: str, reason: str = "") -> Job:
        return self._control(job_id, "resume", reason)

    def reschedule(self, job_id: str, *, not_before: When = None, delay: Optional[timedelta] = None,
                   not_after: When = None, never_expires: bool = False, reason: str = "") -> Job:
        """Change the dates of a job that has not begun; one that is None stays.

        A ``delay`` of ``timedelta(0)`` begins the job; ``never_expires`` removes its ``not_after``. A job that
        has begun raises :class:`ConflictError`. The call may be repeated.
        """
        body: Dict[str, Any] = _dates(not_before, delay, not_after)
        if never_expires:
            body["never_expires"] = True
        if reason:
            body["reason"] = reason
        return Job.parse(self._call("POST", _job(job_id) + ":reschedule", body))

    def prioritize(self, job_id: str, priority: Priority, reason: str = "") -> Job:
        """Make a job that has not ended normal or bulk, which yields to all other work of its kind.

        A job that has ended raises :class:`ConflictError`. The call may be repeated.
        """
        body: Dict[str, Any] = {"priority": priority}
        if reason:
            body["reason"] = reason
        return Job.parse(self._call("POST", _job(job_id) + ":prioritize", body))

    def rerun(self, job_id: str, **request: Unpack[RerunRequest]) -> Accepted:
        """Create a new job from one that has ended, with the same steps.

        It starts at the step that failed, or at another one. It may correct the payload and the
        references, give the outputs of steps that were done by hand, and take the current
        protocol: :class:`RerunRequest` has all keywords. There is one rerun for each job, starting
        point and set of corrections: a repeat returns it, ``replayed``. Corrections that the
        server refuses raise :class:`InvalidError`, with a violation for each fault.

        With ``newest``, the call reruns the last rerun of the job. If an answer is lost and the
        rerun has ended before the call is repeated, the repeat reruns that one.
        """
        if "dry_run" in request:  # The answer would be no receipt.
            raise TypeError("rerun has no dry_run: plan_rerun says what it would do")
        return Accepted.parse(self._call("POST", _job(job_id) + ":rerun", _corrections(request)))

    def plan_rerun(self, job_id: str, **request: Unpack[RerunRequest]) -> RerunPreview:
        """What :meth:`rerun` would do with the same keywords. Nothing is done.

        It has the steps of the new job, how its command would differ, and the job that the same
        rerun made before. Its errors are those of :meth:`rerun`, but for the tenant's limit of jobs.
        """
        body = {**_corrections(request), "dry_run": True}
        return RerunPreview.parse(self._call("POST", _job(job_id) + ":rerun", body))

    def lineage(self, job_id: str) -> Lineage:
        """The chain of reruns that the job is in, oldest first: at most 100 jobs."""
        return Lineage.parse(self._call("GET", _job(job_id) + "/lineage"))

    def lines(self, *, tenant_id: Optional[str] = None, order_key: Optional[str] = None,
              state: Optional[LineState] = None, page_size: int = 100) -> Iterator[Line]:
        """The lines in which a job waits or that a failed job blocks, in no particular order, read page by page.

        With an ``order_key``, which needs a ``tenant_id``, it is the line of this key, also if no job waits in it.
        """
        query = {"tenant_id": tenant_id, "order_key": order_key, "state": state, "limit": str(page_size)}
        for page in self._pages("/v1/lines", query):
            yield from (Line.parse(raw) for raw in page["lines"])

    def line(self, line_id: str) -> Line:
        """The line that the ``line_id`` of a job names. It raises :class:`NotFoundError` if no job is in it."""
        return Line.parse(self._call("GET", _line(line_id)))

    def line_jobs(self, line_id: str) -> Iterator[Job]:
        """The jobs of a line in the order in which they run. A failed job that blocks the line is the first."""
        for page in self._pages(_line(line_id) + "/jobs", {}):
            yield from (Job.parse(raw) for raw in page["jobs"])

    def release_line(self, line_id: str, job_id: str, reason: str = "") -> Line:
        """Let a line go on past the failed job that blocks it, without a rerun: its next job begins.

        A job that does not block the line, as when its rerun took its place, raises :class:`ConflictError`. The call
        may be repeated: then it returns the line as it is.
        """
        body = {"jobId": job_id, "reason": reason} if reason else {"jobId": job_id}
        return Line.parse(self._call("POST", _line(line_id) + ":release", body))

    def cancel_line(self, line_id: str, reason: str) -> int:
        """Cancel the jobs of a line that have not begun, the last first, and return how many.

        A job that has begun and a failed job that blocks the line stay. The call may be repeated. Not counted are jobs
        that a request without an answer cancelled; if these were all jobs of the line, it raises :class:`NotFoundError`.
        """
        cancelled = 0
        while True:
            try:
                some = self._call("POST", _line(line_id) + ":cancel", {"reason": reason}, timeout=_CANCEL_LINE_TIMEOUT)
            except NotFoundError:
                if cancelled:  # The jobs before have ended.
                    return cancelled
                raise
            cancelled += some["cancelled"]
            if not some["more"] or not some["cancelled"]:
                return cancelled

    def schedules(self, tenant_id: str, *, state: Optional[ScheduleState] = None, page_size: int = 100) -> Iterator[Schedule]:
        """The schedules of a tenant by name, each with its next occurrence, read page by page."""
        query = {"tenant_id": tenant_id, "state": state, "limit": str(page_size)}
        for page in self._pages("/v1/schedules", query):
            yield from (Schedule.parse(raw) for raw in page["schedules"])

    def schedule(self, tenant_id: str, name: str) -> Schedule:
        """A schedule with its next occurrences and its last. It raises :class:`NotFoundError` if there is none."""
        return Schedule.parse(self._call("GET", _schedule(tenant_id, name)))

    def put_schedule(self, tenant_id: str, name: str, **definition: Unpack[ScheduleDefinition]) -> Schedule:
        """Create a schedule, or replace its definition: then the next occurrence is the first after now.

        Times or a command that make no sense raise :class:`InvalidError` with a violation for each fault. The call may be
        repeated, but not one with an ``expected_rev`` whose answer was lost: that raises :class:`ConflictError`.
        """
        return Schedule.parse(self._call("PUT", _schedule(tenant_id, name), _given(definition)))

    def delete_schedule(self, tenant_id: str, name: str) -> None:
        """Delete a schedule. Its jobs go on. One that does not exist is no error, so the call may be repeated."""
        try:
            self._call("DELETE", _schedule(tenant_id, name))
        except NotFoundError as error:
            if error.code != "schedule_not_found":
                raise

    def pause_schedule(self, tenant_id: str, name: str, reason: str = "") -> Schedule:
        """Stop a schedule; what is due until it is resumed is not caught up. The call may be repeated."""
        return Schedule.parse(self._call("POST", _schedule(tenant_id, name) + ":pause", _because(reason)))

    def resume_schedule(self, tenant_id: str, name: str, reason: str = "") -> Schedule:
        """Start a paused schedule with the first occurrence after now. The call may be repeated."""
        return Schedule.parse(self._call("POST", _schedule(tenant_id, name) + ":resume", _because(reason)))

    def run_schedule(self, tenant_id: str, name: str, key: str = "") -> ScheduleFire:
        """Submit the command of a schedule now, also while it is paused.

        Calls with the same ``key`` run it once, and return what the first one did: the job, or why there is none.
        Without a key each call runs it once.
        """
        return ScheduleFire.parse(self._once(_schedule(tenant_id, name) + ":run", {}, key))

    def preview_schedule(self, *, after: When = None, count: Optional[int] = None,
                         **times: Unpack[ScheduleTimes]) -> List[ScheduleTime]:
        """The next times of a cron expression or an interval, at most 100."""
        found = self._call("POST", "/v1/schedules:preview", _given({**times, "after": after, "count": count}))
        return [ScheduleTime.parse(raw) for raw in found["times"]]

    def schedule_fires(self, tenant_id: str, name: str) -> Iterator[ScheduleFire]:
        """What became of the occurrences and runs of a schedule, newest first, read page by page."""
        for page in self._pages(_schedule(tenant_id, name) + "/fires", {}):
            yield from (ScheduleFire.parse(raw) for raw in page["fires"])

    def backfill_schedule(self, tenant_id: str, name: str, *, from_: Union[datetime, str], to: When = None, repeat: bool = False,
                          rate_per_second: Optional[float] = None, reason: Optional[str] = None, key: str = "") -> ScheduleBackfill:
        """Begin to fire occurrences of the past: those without a job, unless ``repeat`` is set.

        The server goes on by itself; :meth:`schedule_backfills` has its progress. Calls with the same ``key`` begin one
        backfill, and return it as it is then; another request with that key raises :class:`InvalidError`. While another
        backfill of the schedule goes on, it raises :class:`ConflictError`.
        """
        request = {"from_": from_, "to": to, "repeat": repeat or None, "rate_per_second": rate_per_second, "reason": reason}
        return ScheduleBackfill.parse(self._once(_schedule(tenant_id, name) + ":backfill", _given(request), key))

    def schedule_backfills(self, tenant_id: str, name: str) -> List[ScheduleBackfill]:
        """The backfills of a schedule with their progress, newest first."""
        found = self._call("GET", _schedule(tenant_id, name) + "/backfills")
        return [ScheduleBackfill.parse(raw) for raw in found["backfills"]]

    def cancel_backfill(self, tenant_id: str, name: str, backfill_id: str, reason: str = "") -> ScheduleBackfill:
        """Stop a backfill; its jobs go on. It may be ``cancelling`` for a moment. The call may be repeated."""
        path = f"{_schedule(tenant_id, name)}/backfills/{segment(backfill_id)}:cancel"
        return ScheduleBackfill.parse(self._call("POST", path, _because(reason)))

    def _once(self, path: str, body: Any, key: str) -> Any:
        """A call with an idempotency key: the given one, or one of this call and its repetitions."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._transport.call("POST", path, body, headers=headers, retry_for=self._retry_for)

    def _control(self, job_id: str, verb: str, reason: str) -> Job:
        return Job.parse(self._call("POST", f"{_job(job_id)}:{verb}", _because(reason)))

    def _call(self, method: str, path: str, body: Any = None, timeout: float = 10.0) -> Any:
        return self._transport.call(method, path, body, timeout=timeout, retry_for=self._retry_for)

    def _pages(self, path: str, query: Query) -> Iterator[Mapping[str, Any]]:
        token: Optional[str] = None
        while True:
            page = self._call("GET", path_with(path, {**query, "page_token": token}), timeout=30)
            yield page
            token = page.get("next_page_token")
            if not token:
                return


class Watch(Iterator[Event]):
    """A job's history as it happens. It reconnects, and continues after the last entry.

    :meth:`close`, which any thread may call, ends it.
    """

    def __init__(self, client: Client, job_id: str) -> None:
        self._client, self._job_id = client, job_id
        self._interruptible = Interruptible()
        self._failures = 0  # in a row, of streams over which the server said nothing
        self._events = self._read()

    def __next__(self) -> Event:
        return next(self._events)

    def close(self) -> None:
        self._interruptible.interrupt()

    def _read(self) -> Iterator[Event]:
        last, ended = "", False
        while not self._interruptible.interrupted.is_set():
            seen, broken = last, False
            try:
                for event in self._stream(last):
                    last, ended = event.event_id, ended or event.ends_job
                    yield event
            except _CALL_FAILED as error:
                if self._interruptible.interrupted.is_set():
                    return
                self._failures, broken = self._failures + 1, True
                if self._failures > 8:
                    raise NoAnswerError(f"the stream of job {self._job_id}: {error}") from error
            # A server that stops may end the stream before the last entries of a job.
            if ended and not broken:
                return
            if last == seen:
                ended = ended or self._client.get(self._job_id).ended
                self._interruptible.interrupted.wait(min(0.1 * 2 ** self._failures, 5))

    def _stream(self, last: str) -> Iterator[Event]:
        """One stream after the last entry, until the server ends it."""
        transport = self._client._transport
        connection = transport.connect(_STREAM_SILENCE)
        try:
            connection.connect()
            self._interruptible.attach(connection)
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
            response = transport.send(connection, "GET", _job(self._job_id) + "/events", None, headers)
            if response.status != 200:
                problem = ProblemError.parse(response.status, own(response, response.read()))
                if response.status >= 500 or response.status == 429:
                    raise http.client.HTTPException(str(problem))
                raise problem
            data: List[str] = []
            for line in iter(response.readline, b""):
                self._failures = 0  # A quiet job has comments only.
                text = line.decode().rstrip("\r\n")
                if text.startswith("data:"):
                    data.append(text[5:].lstrip(" "))
                elif not text and data:
                    yield Event.parse(json.loads("\n".join(data)))
                    data = []
            if response.chunked and response.chunk_left is not None:  # readline() does not tell.
                raise http.client.IncompleteRead(b"")
        finally:
            self._interruptible.attach(None)
            connection.close()


def _job(job_id: str) -> str:
    return f"/v1/jobs/{segment(job_id)}"


def _line(line_id: str) -> str:
    return f"/v1/lines/{segment(line_id)}"


def _schedule(tenant_id: str, name: str) -> str:
    return f"/v1/schedules/{segment(tenant_id)}/{segment(name)}"


def _because(reason: str) -> Dict[str, str]:
    return {"reason": reason} if reason else {}


def _when(when: When) -> Optional[str]:
    return when.astimezone().isoformat() if isinstance(when, datetime) else when


def _corrections(request: RerunRequest) -> Dict[str, Any]:
    """The request of a rerun as the server takes it."""
    # No keyword can be called "from".
    return {name.rstrip("_"): value for name, value in request.items() if value is not None}


def _undecided(result: Mapping[str, Any]) -> bool:
    """Whether the command is to be submitted again, for its own sake or after one before it in its line."""
    return transient(result["status"], _code(result)) or _code(result) == "predecessor_refused"


def _code(result: Mapping[str, Any]) -> str:
    """The code of a command's refusal, empty if it was accepted."""
    return (result.get("error") or {}).get("code", "")


def _body(command: Command) -> Dict[str, Any]:
    """The command as the server takes it."""
    dates = ("not_before", "delay", "not_after")
    return {**{name: value for name, value in vars(command).items() if value is not None and name not in dates},
            **_dates(command.not_before, command.delay, command.not_after)}


def _dates(not_before: When, delay: Optional[timedelta], not_after: When) -> Dict[str, Any]:
    """The dates as the server takes them. A delay is rounded up to whole seconds."""
    dates = {"not_before": _when(not_before), "not_after": _when(not_after),
             "delay_seconds": None if delay is None else ceil(delay.total_seconds())}
    return {name: value for name, value in dates.items() if value is not None}
