"""Keeps the lease of one task, and reports its end."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from datetime import datetime
from functools import partial
from typing import Any, Dict, Mapping, Optional

from ._completions import Completions
from ._transport import Transport, segment, transient
from .errors import LuciusError, ProblemError
from .task import CANCELLED, LEASE_LOST, Report, Task, failure, fit

log = logging.getLogger("lucius")

_LONGEST_BEAT = 30.0
_SHORTEST_BEAT = 0.01
# Progress is sent early, but no more often than this: each heartbeat is a write to the ledger.
_PROGRESS_BEAT = 5.0
_CALL_TIMEOUT = 10.0


def _time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _lease_seconds(item: Mapping[str, Any]) -> Optional[float]:
    """How long the lease is, by the server's clock alone: this one's may be wrong."""
    lease = item.get("lease")
    if not lease:
        return None
    return max(_time(lease["expires_at"]) - _time(item["updated_at"]), 0.0)


def _refused(error: LuciusError) -> bool:
    """Whether the server refused the call, and would again. A token can be replaced."""
    return isinstance(error, ProblemError) and not transient(error.status) and error.status != 401


class Lease:
    """The lease of a task: :meth:`keep` runs in a thread of its own until :meth:`stop`.

    invariant: once lost is true, nothing more is sent for the task.
    """

    def __init__(self, transport: Transport, completions: Completions, owner: str, item: Mapping[str, Any], task: Task) -> None:
        self._transport, self._completions, self._owner, self._task = transport, completions, owner, task
        self._rev = int(item["rev"])
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._ends: Optional[float] = None
        self._extend(item, time.monotonic())
        self._headers: Dict[str, str] = {"traceparent": task.traceparent} if task.traceparent else {}
        self.lost = False
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
        self._ends = None if seconds is None else since + seconds

    def _left(self) -> float:
        return float("inf") if self._ends is None else self._ends - time.monotonic()

    def _lose(self, why: object) -> None:
        self.lost = True
        self._task.cancelled.cancel(LEASE_LOST)
        log.warning("the lease of %s is lost: %s", self._task.work_id, why)

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
        sent, left = time.monotonic(), self._left()
        body: Dict[str, Any] = {}
        progress = self._task._take_progress()
        if progress:
            body["progress"] = progress
        try:
            if left <= 0:
                raise LuciusError("no heartbeat was accepted in time")
            item = self._verb("heartbeat", body, retry_for=left, timeout=min(max(left / 3, 0.2), _CALL_TIMEOUT))
        except LuciusError as error:
            if not _refused(error) and self._left() > 0:
                return True
            self._lose(error)
            return False
        self._extend(item, sent)
        if item.get("cancel_requested"):
            self._task.cancelled.cancel(CANCELLED)
        if item.get("pause_requested"):
            self._task.pause_requested.set()
        return True

    def report(self, end: Report, stop: threading.Event) -> None:
        """Report the end of the task, unless its lease is lost. Call it after stop().

        A result that the server does not take fails the step: the next attempt would
        return the same.
        """
        verb, body = fit(end, self._transport.redact)
        if not self.lost and self._left() <= 0:
            self._lose("it has ended")
        if self.lost:
            return
        try:
            self._verb(verb, body, retry_for=float("inf"), timeout=_CALL_TIMEOUT, stop=stop)
        except ProblemError as error:
            if verb == "complete" and error.status in (413, 422):
                self.report(failure("result_refused", str(error), retryable=False), stop)
            else:
                log.warning("the report for %s is dropped: %s", self._task.work_id, error)
        except LuciusError as error:
            log.warning("the report for %s is dropped: %s", self._task.work_id, error)

    def _verb(self, verb: str, body: Dict[str, Any], *, retry_for: float, timeout: float,
              stop: Optional[threading.Event] = None) -> Mapping[str, Any]:
        """Make a call for the task, and adopt the rev that the answer has."""
        path = f"/v1/work/{segment(self._task.work_id)}:{verb}"
        if verb == "heartbeat":
            stop = self._stopped
        while True:
            named = {"owner": self._owner, "expected_rev": self._rev, "request_id": str(uuid.uuid4()), **body}
            once = partial(self._completions.once, self._task.work_id, named, self._headers) if verb == "complete" else None
            try:
                item: Mapping[str, Any] = self._transport.call(
                    "POST", path, named, headers=self._headers, retry_for=retry_for, timeout=timeout, stop=stop, repeat_401=True, once=once)
            except ProblemError as error:
                if error.code == "rev_conflict" and error.current_rev and error.current_rev != self._rev:
                    self._rev = error.current_rev
                    continue
                raise
            self._rev = int(item["rev"])
            return item
