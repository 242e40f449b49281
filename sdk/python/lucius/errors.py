"""Errors: the server's refusals, and those that handlers raise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Literal, Mapping, Optional


#: Why a task should end soon.
Cause = Literal["cancelled", "lease_lost", "stopping"]


class LuciusError(Exception):
    """The base of all errors of this package."""


@dataclass(frozen=True)
class Violation:
    """One thing that is wrong with a request: a JSON pointer, and a sentence."""

    pointer: str
    message: str


class ProblemError(LuciusError):
    """The server refused a request, with a problem of RFC 9457.

    ``code`` is stable and meant for programs; it is empty if the answer was no problem,
    as from a proxy. ``violations`` says what is wrong with each field.
    """

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(body.get("code", ""))
        self.title = str(body.get("title", ""))
        self.detail = str(body.get("detail", ""))
        self.instance = str(body.get("instance", ""))
        self.current_rev: Optional[int] = body.get("current_rev")
        errors = body.get("errors")
        self.violations: List[Violation] = [
            Violation(str(e.get("pointer", "")), str(e.get("message", "")))
            for e in (errors if isinstance(errors, list) else [])
            if isinstance(e, dict)
        ]
        text = f"the server answered {status}"
        if self.code:
            text += f" {self.code}: {self.detail or self.title}"
        for v in self.violations:
            text += f"; {v.pointer}: {v.message}"
        super().__init__(text)

    @classmethod
    def parse(cls, status: int, body: bytes) -> "ProblemError":
        """The error of the answer, as the class of its status."""
        parsed: Dict[str, Any] = {}
        try:
            value = json.loads(body)
            if isinstance(value, dict):
                parsed = value
        except ValueError:
            pass
        return _by_status.get(status, ProblemError)(status, parsed)


class UnauthenticatedError(ProblemError):
    """401: the token is missing, wrong or expired."""


class ForbiddenError(ProblemError):
    """403: the caller may not do this."""


class NotFoundError(ProblemError):
    """404: it does not exist, or belongs to another tenant."""


class ConflictError(ProblemError):
    """409: it is not in a state that allows this."""


class InvalidError(ProblemError):
    """400 or 422: the request is wrong; ``violations`` says how."""


class UnavailableError(ProblemError):
    """429 or 503 to the end of the retries."""


_by_status = {
    400: InvalidError, 401: UnauthenticatedError, 403: ForbiddenError, 404: NotFoundError,
    409: ConflictError, 422: InvalidError, 429: UnavailableError, 503: UnavailableError,
}


class NoAnswerError(LuciusError):
    """The server was not reached, or did not answer, to the end of the retries."""


class TimedOutError(LuciusError):
    """What was waited for did not happen in time."""


class Final(LuciusError):
    """Raised by a handler: the step has failed, and no other attempt can succeed."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class Retry(LuciusError):
    """Raised by a handler: this attempt has failed, another one may succeed.

    The protocol's schedule says when it is made.
    """

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message


class RetryAfter(Retry):
    """A :class:`Retry` that says after how many seconds the next attempt is made."""

    def __init__(self, seconds: float, code: str = "retry_after", message: str = "") -> None:
        super().__init__(code, message)
        self.seconds = float(seconds)


class Throttled(RetryAfter):
    """A :class:`RetryAfter` of a service that has no capacity, as with HTTP status 429.

    The next attempt is made exactly after so many seconds, which count as a millisecond if they
    are fewer. The first 100 such attempts of a step spend no retry. ``scope`` is ``service``, or
    ``tenant`` if the service takes no work of the job's tenant, but of others.
    """

    def __init__(self, after: float, code: str = "throttled", message: str = "", *,
                 scope: Literal["service", "tenant"] = "service") -> None:
        super().__init__(after, code, message)
        if scope not in ("service", "tenant"):
            raise ValueError(f"scope is {scope!r} and must be service or tenant")
        self.scope: Literal["service", "tenant"] = scope


class Cancelled(LuciusError):
    """Raised by ``task.raise_if_cancelled()``; ``cause`` is that of ``task.cancelled``."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause: Cause = cause
