"""Keeps the lease of one task, and reports its end."""

from __future__ import annotations

import threading
import time
import uuid
from datetime import datetime
from functools import partial
from logging import WARNING
from typing import Any, Dict, Mapping, Optional

from ._completions import Completions
from ._log import Link, answers, ended, named, outcome_of, say
from ._transport import LONGEST_WAIT, Transport, segment, transient
from .errors import LuciusError, ProblemError
from .task import CANCELLED, LEASE_LOST, Report, Task, failure, fit

_LONGEST_BEAT = 30.0
_SHORTEST_BEAT = 0.01
# Progress is sent early, but no more often than this: each heartbeat is a write to the ledger.
_PROGRESS_BEAT = 5.0
_CALL_TIMEOUT = 10.0
_SHORTEST_TIMEOUT = 0.2
_SHORTEST_WAIT = 0.05


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _lease_seconds(item: Mapping[str, Any]) -> Optional[float]:
    """How long the lease is, by the server's clock alone: this one's may be wrong."""
    lease = item.get("lease")
    if not lease:
        return None
    return max(_time(lease["expires_at"]) - _time(item["updated_at"]), 0.0)


def _passes(problem: ProblemError) -> bool:
    """Whether the problem is not the server's answer about the attempt: a token can be replaced."""
    return transient(problem.status, problem.code) or problem.status == 401 or not answers(problem)


class Lease:
    """The lease of a task: :meth:`keep` runs in a thread of its own until :meth:`stop`.

    Only an answer of the server ends it. While the server is away the handler goes on: the
    server may have extended the lease.

    invariant: once lost is set, nothing more is sent for the task.
    """

    def __init__(self, transport: Transport, completions: Completions, link: Link, owner: str, item: Mapping[str, Any],
                 task: Task, since: float) -> None:
        """``since`` is when the lease began, or earlier, by :func:`time.monotonic`."""
        self._transport, self._completions, self._link = transport, completions, link
        self._owner, self._task = owner, task
        self._rev, self._attempt = int(item["rev"]), item.get("attempt")
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._ends: Optional[float] = None  # By this clock, and the next: they say when to send heartbeats.
        self._seconds = 0.0
        self._extend(item, since)
        self._headers: Dict[str, str] = {"traceparent": task.traceparent} if task.traceparent else {}
        self.lost = ""  # Why it is, once it is.
        task._progressed = self._wake.set
        self._thread = threading.Thread(target=self._keep, name=f"lease of {task.work_id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the heartbeats, and wait for the one in flight: it may raise the rev."""
        self.abandon()
        self._thread.join()

    def abandon(self) -> None:
        """End the heartbeats, so that the lease ends if nothing is reported."""
        self._stopped.set()
        self._wake.set()

    def _extend(self, item: Mapping[str, Any], since: float) -> None:
        seconds = _lease_seconds(item)
        self._seconds = seconds or 0.0
        self._ends = None if seconds is None else since + seconds

    def _left(self) -> float:
        return float("inf") if self._ends is None else self._ends - time.monotonic()

    def _lose(self, why: str) -> None:
        self.lost = why
        say(WARNING, "lease lost", **named(self._task), error=why)
        self._task.cancelled.cancel(LEASE_LOST)

    def _keep(self) -> None:
        beaten = float("-inf")
        while self._ends is not None:
            self._pause(beaten)
            if self._stopped.is_set():
                return
            beaten = time.monotonic()
            if not self._beat():
                return

    def _pause(self, beaten: float) -> None:
        """Wait until the next heartbeat is due, which progress brings forward."""
        if self._wake.wait(min(max(self._left() / 3, _SHORTEST_BEAT), _LONGEST_BEAT)):
            self._wake.clear()
            early = beaten + min(_PROGRESS_BEAT, self._left() / 3) - time.monotonic()
            self._stopped.wait(max(early, 0))

    def _beat(self) -> bool:
        """Extend the lease. Return false if it is lost."""
        sent = time.monotonic()
        body: Dict[str, Any] = {}
        progress = self._task._take_progress()
        if progress:
            body["progress"] = progress
        try:
            item = self._verb("heartbeat", body, timeout=min(max(self._seconds / 3, _SHORTEST_TIMEOUT), _CALL_TIMEOUT))
        except ProblemError as error:
            if not _passes(error):
                self._lose(str(error))
            return False
        except LuciusError:  # Without an answer until stop().
            return False
        if not item.get("lease") or item.get("attempt") != self._attempt:  # The heartbeat is remembered from before.
            self._lose("the item was taken from the worker")
            return False
        self._extend(item, sent)
        if item.get("cancel_requested"):
            self._task.cancelled.cancel(CANCELLED)
        if item.get("pause_requested"):
            self._task.pause_requested.set()
        return True

    def report(self, end: Report, took: float, stop: threading.Event) -> None:
        """Report and log the end of the task, unless its lease is lost. Call it after stop().

        A result that the server does not take fails the step: the next attempt would
        return the same.
        """
        if self.lost:
            ended(self._task, took, "lease_lost", self.lost)
            return
        end = fit(end, self._transport.redact)
        verb, body = end
        try:
            self._verb(verb, body, timeout=_CALL_TIMEOUT, stop=stop)
        except LuciusError as error:
            if stop.is_set():
                say(WARNING, "result not sent", **named(self._task), error=str(error))
                ended(self._task, took, "not_sent", str(error))
                return
            say(WARNING, "result refused", **named(self._task), error=str(error))
            if verb == "complete" and isinstance(error, ProblemError) and (
                    error.status in (413, 422) or error.code == "invalid_envelope"):
                self.report(failure("result_refused", str(error), retryable=False), took, stop)
            else:
                ended(self._task, took, "refused", str(error))
            return
        ended(self._task, took, *outcome_of(end))

    def _verb(self, verb: str, body: Dict[str, Any], *, timeout: float, stop: Optional[threading.Event] = None) -> Mapping[str, Any]:
        """Make a call for the task until it is answered, and adopt the rev that the answer has."""
        path = f"/v1/work/{segment(self._task.work_id)}:{verb}"
        if verb == "heartbeat":
            stop = self._stopped
        # After an outage the server extends the lease by a third: the call must be made by then.
        longest_wait = min(max(self._seconds / 6, _SHORTEST_WAIT), LONGEST_WAIT) if self._seconds else LONGEST_WAIT
        while True:
            named = {"owner": self._owner, "expected_rev": self._rev, "request_id": str(uuid.uuid4()), **body}
            once = partial(self._completions.once, self._task.work_id, named, self._headers) if verb == "complete" else None
            try:
                item: Mapping[str, Any] = self._transport.call(
                    "POST", path, named, headers=self._headers, retry_for=float("inf"), timeout=timeout, stop=stop,
                    passes=_passes, longest_wait=longest_wait, once=once, link=self._link, name=verb)
            except ProblemError as error:
                if error.code == "rev_conflict" and error.current_rev and error.current_rev != self._rev:
                    self._rev = error.current_rev
                    continue
                raise
            self._rev = int(item["rev"])
            return item
