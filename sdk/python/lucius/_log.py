"""The log of a worker. The messages and fields are the same in all SDKs: sdk/README.md lists them."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from .errors import ProblemError
from .task import Report, Task

log = logging.getLogger("lucius")


def say(level: int, event: str, exc_info: Optional[BaseException] = None, **fields: Any) -> None:
    """Log a line. Its record has the fields, too, and the message as its event."""
    log.log(level, event + " %s", _text(fields), exc_info=exc_info, extra={"event": event, **fields}, stacklevel=2)


def show() -> None:
    """Have the lines written to standard error, if the host has set up no logging."""
    if log.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y/%m/%d %H:%M:%S"))
    handler.addFilter(lambda record: not logging.getLogger().handlers)  # The host may do it later.
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)


def _text(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_quoted(str(value))}" for name, value in fields.items())


def _quoted(value: str) -> str:
    plain = value and value.isprintable() and not any(c in value for c in ' "=')
    return value if plain else json.dumps(value, ensure_ascii=False)


def seconds(duration: float) -> str:
    """The duration as 38.7s, and one of less than a second as 0.012s."""
    return f"{duration:.1f}s" if duration >= 1 else f"{duration:.3f}s"


def names(of: Sequence[str]) -> str:
    """The names of services or step types. None are all."""
    return ",".join(of) or "*"


def named(task: Task) -> Dict[str, Any]:
    """The fields that name an attempt."""
    directive = task.directive
    return {"job_id": directive.get("jobId", ""), "step_id": directive.get("stepId", ""),
            "step_type": directive.get("step_type", ""), "attempt": directive.get("attempt_no", 0)}


def ended(task: Task, took: float, outcome: str, reason: str = "") -> None:
    """Log how an attempt ended. The reason is empty if it succeeded."""
    more: Dict[str, Any] = {"error": reason} if reason else {}
    say(logging.INFO, "task ended", **named(task), duration=seconds(took), outcome=outcome, **more)


def outcome_of(end: Report) -> Tuple[str, str]:
    """The outcome and the reason of an attempt whose report was taken."""
    verb, body = end
    if verb == "complete":
        return "succeeded", ""
    code, message = body["error"]["code"], body["error"]["message"]
    outcome = {"cancelled": "cancelled", "worker_stopped": "stopped"}.get(code, "retry" if body["retryable"] else "failed")
    return outcome, f"{code}: {message}" if message else code


class Link:
    """Logs once that the server does not answer, and once that it answers again."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._guard = threading.Lock()
        self._lost_at: Optional[float] = None  # None while the server answers.

    @property
    def down(self) -> bool:
        """Whether the last call had no answer."""
        return self._lost_at is not None

    def answered(self, asked: float) -> None:
        """Note that a call that was made at that time had an answer."""
        with self._guard:
            lost_at = self._lost_at
            if lost_at is None or asked < lost_at:
                return
            self._lost_at = None
        say(logging.INFO, "server reachable", server=self.server, duration=seconds(time.monotonic() - lost_at))

    def failed(self, call: str, tries: int, error: Exception) -> None:
        """Note that a call failed for the nth time, and is repeated."""
        if answers(error):
            if tries & (tries - 1) == 0:  # The first, and then ever fewer.
                say(logging.WARNING, "call repeated", call=call, tries=tries, error=str(error))
            return
        with self._guard:
            if self._lost_at is not None:
                return
            self._lost_at = time.monotonic()
        say(logging.WARNING, "server unreachable", server=self.server, error=str(error))


def answers(error: Exception) -> bool:
    """Whether the error is an answer of the server, and not one of a proxy in its place.

    The server's own have a code, except to a request that cannot be read or is too large.
    """
    return isinstance(error, ProblemError) and (bool(error.code) or error.status in (400, 413))
