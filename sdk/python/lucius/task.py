"""The task that a handler gets, and its cancellation."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from .errors import Cancelled, Cause

#: The job is being cancelled: its result is no longer needed.
CANCELLED: Cause = "cancelled"
#: The lease is lost, and another worker may have the task: nothing is reported for it.
LEASE_LOST: Cause = "lease_lost"
#: The worker is stopping, and its grace period is over.
STOPPING: Cause = "stopping"


class Cancellation(threading.Event):
    """An event that is set when the task should end soon. :attr:`cause` says why."""

    def __init__(self) -> None:
        super().__init__()
        self.cause: Optional[Cause] = None
        self._guard = threading.Lock()
        self._then: List[Callable[[], None]] = []

    def cancel(self, cause: Cause) -> None:
        """Set the event. The first cause stays, but a lost lease replaces any."""
        with self._guard:
            if self.cause is None or cause == LEASE_LOST:
                self.cause = cause
            then, self._then = self._then, []
        self.set()
        for call in then:
            call()

    def then(self, call: Callable[[], None]) -> None:
        """Call the function when the event is set, or now if it is set already."""
        with self._guard:
            if not self.is_set() and self.cause is None:
                self._then.append(call)
                return
        call()


class Task:
    """One attempt of a step, as its handler gets it.

    :attr:`cancelled` is an event: wait on it, or pass it on. :attr:`pause_requested` is set
    when the job is being paused: finish, or raise Retry if a later attempt can continue.
    """

    def __init__(self, item: Mapping[str, Any]) -> None:
        directive = item.get("directive")
        self.directive: Mapping[str, Any] = directive if isinstance(directive, dict) else {}
        self.work_id = str(item["work_id"])
        self.cancelled = Cancellation()
        self.pause_requested = threading.Event()
        self._progress_guard = threading.Lock()
        self._progress: Optional[Dict[str, Any]] = None
        self._progressed: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, step_type: str, payload: Optional[Mapping[str, Any]] = None, *, attempt: int = 1, **directive: Any) -> "Task":
        """A task for a test of a handler, see :meth:`Worker.do`. ``directive`` has what else it needs, such as ``input_ref``."""
        return cls({"work_id": "work", "directive": {
            "jobId": "job", "stepId": "step", "tenant_id": "tenant", "service": "service", "step_type": step_type,
            "payload": dict(payload or {}), "attempt_no": attempt, **directive}})

    @property
    def job_id(self) -> str:
        return str(self.directive["jobId"])

    @property
    def step_id(self) -> str:
        return str(self.directive["stepId"])

    @property
    def step_type(self) -> str:
        return str(self.directive["step_type"])

    @property
    def service(self) -> str:
        return str(self.directive["service"])

    @property
    def tenant_id(self) -> str:
        return str(self.directive["tenant_id"])

    @property
    def attempt(self) -> int:
        """The number of the attempt, from 1."""
        return int(self.directive["attempt_no"])

    @property
    def payload(self) -> Mapping[str, Any]:
        """The step's part of the command's payload."""
        payload = self.directive.get("payload")
        return payload if isinstance(payload, dict) else {}

    @property
    def input_ref(self) -> Mapping[str, Any]:
        return self.directive.get("input_ref") or {}

    @property
    def output_ref(self) -> Mapping[str, Any]:
        return self.directive.get("output_ref") or {}

    @property
    def workspace_ref(self) -> Mapping[str, Any]:
        return self.directive.get("workspace_ref") or {}

    @property
    def traceparent(self) -> Optional[str]:
        """The W3C trace context: the parent of the handler's spans."""
        return self.directive.get("traceparent")

    @property
    def correlation_id(self) -> Optional[str]:
        return self.directive.get("correlation_id")

    def progress(self, fraction: float, message: str = "") -> None:
        """Show the task's progress on its step: the next heartbeat sends the newest."""
        # 0.0 comes first, so that it takes the place of what is not a number.
        shown: Dict[str, Any] = {"fraction": min(max(0.0, float(fraction)), 1.0)}
        if message:
            shown["message"] = _cut(message)
        with self._progress_guard:
            self._progress = shown
        self._progressed()

    def raise_if_cancelled(self) -> None:
        """Raise :class:`Cancelled` if the task should end."""
        if self.cancelled.is_set():
            raise Cancelled(self.cancelled.cause or CANCELLED)

    def _take_progress(self) -> Optional[Dict[str, Any]]:
        with self._progress_guard:
            shown, self._progress = self._progress, None
        return shown


#: How a task ended: the verb, and the body of its request.
Report = Tuple[str, Dict[str, Any]]

# The longest message and code that are sent, in bytes.
_MAX_MESSAGE = 1000
_MAX_CODE = 128


def _cut(text: object, length: int = _MAX_MESSAGE) -> str:
    """The text, cut between characters to so many bytes."""
    return str(text).encode("utf-8", "replace")[:length].decode("utf-8", "ignore")


def failure(code: str, message: str, *, retryable: bool, after: Optional[float] = None,
            scope: Optional[str] = None) -> Report:
    """The report of a failure, whose texts :func:`fit` makes fit to be sent."""
    body: Dict[str, Any] = {"retryable": retryable, "error": {"code": str(code), "message": str(message)}}
    if after is not None:
        body["retry_after_seconds"] = min(max(0.0, after), 604800.0)
    if scope is not None:  # The server refuses a throttle without a time.
        body["scope"], body["retry_after_seconds"] = scope, max(0.001, body["retry_after_seconds"])
    return "fail", body


def fit(end: Report, redact: Callable[[str], str]) -> Report:
    """The report with the texts of its error redacted, and cut to the lengths that the server takes."""
    verb, body = end
    if "error" in body:
        code, message = redact(body["error"]["code"]), redact(body["error"]["message"])
        body = {**body, "error": {"code": _cut(code, _MAX_CODE), "message": _cut(message)}}
    return verb, body
