"""Submit commands in a transaction of the application's own PostgreSQL, in which Lucius has its jobs."""

import json
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Protocol, Sequence

from .client import _body
from .errors import ProblemError, Violation
from .model import Command


class Cursor(Protocol):
    """A cursor of the DB-API whose parameters are %s, such as one of psycopg."""

    def execute(self, query: Any, params: Sequence[Any], /) -> Any: ...

    def fetchone(self) -> Any: ...


def _only(cursor: Cursor) -> Any:
    """The one column of the one row, which is a mapping in some applications."""
    row = cursor.fetchone()
    return next(iter(row.values())) if isinstance(row, Mapping) else row[0]


@dataclass(frozen=True)
class Submission:
    """A command that was submitted in a transaction.

    ``state`` is ``waiting``, ``refused`` (until an operator retries or discards it),
    ``accepted``, or ``discarded``. ``code``, ``detail`` and ``violations`` say why it was
    refused or has to wait, and ``discarded`` why an operator discarded it. The rest is that
    of the job of an accepted command.
    """

    state: str
    code: str
    detail: str
    violations: List[Violation]
    job_id: Optional[str]
    job_state: Optional[str]
    final_output: Any
    error_code: Optional[str]
    error_message: Optional[str]
    discarded: str = ""


def submit_tx(cursor: Cursor, command: Command) -> str:
    """Submit a command in the cursor's transaction, and return the command's id.

    There will be one job if the transaction is committed, and none if it is not. Without a
    ``idempotency_key`` each call is a job of its own, also if the contents are equal.

    Raises :class:`ProblemError`, with ``violations`` that name the fields, if the command can
    never be a job; the transaction has then failed. The server makes all other checks after the
    commit: :func:`submission_of` tells whether it refused the command.
    """
    try:
        cursor.execute("SELECT lucius.submit(%s::text::jsonb)::text", (json.dumps(_body(command)),))
    except Exception as e:
        refused = _refusal(e)
        if refused is None:
            raise
        raise refused from e
    return str(_only(cursor))


_COMMAND_REFUSED = "LC002"
"""The SQLSTATE of a command that can never be a job."""


def _refusal(error: Exception) -> Optional[ProblemError]:
    """The problem of a command that the database refused, from the error of psycopg, psycopg2 or pg8000."""
    fields = error.args[0] if error.args and isinstance(error.args[0], Mapping) else {}
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or fields.get("C")
    detail = getattr(getattr(error, "diag", None), "message_detail", None) or fields.get("D")
    if state != _COMMAND_REFUSED or not isinstance(detail, str):
        return None
    try:
        return ProblemError.parse(int(json.loads(detail)["status"]), detail.encode())
    except (ValueError, TypeError, KeyError):
        return None


def submission_of(cursor: Cursor, command_id: str) -> Optional[Submission]:
    """What became of a command. None if there is none, or none any more: it is deleted with its job."""
    cursor.execute("SELECT (SELECT to_json(r)::text FROM lucius.result(%s::text::uuid) r)", (command_id,))
    text = _only(cursor)
    if text is None:
        return None
    raw: Mapping[str, Any] = json.loads(text)
    fault = raw["problem"] or {}
    return Submission(raw["state"], fault.get("code", ""), fault.get("detail", ""),
                      [Violation(v["pointer"], v["message"]) for v in fault.get("errors", [])],
                      raw["job_id"], raw["job_state"], raw["final_output"], raw["error_code"], raw["error_message"],
                      fault.get("discarded", ""))
