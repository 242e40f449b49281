"""Sends the completions of tasks that end at the same time in one request."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, List, Mapping, Optional

from ._transport import Answer, Transport, decoded, encoded, segment, transient

# How many requests with completions are made at once.
_REQUESTS = 4
# The server's limit of a batch, and how many bytes of results one holds before it is sent.
_LARGEST_BATCH = 100
_BATCH_BYTES = 256 << 10
_TIMEOUT = 10.0
_BATCH_TIMEOUT = 30.0


class _Completion:
    """One try to complete a task."""

    def __init__(self, work_id: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self.work_id, self.body, self.headers = work_id, body, headers
        self.size = len(json.dumps(body))
        self.alone = False  # A batch with it was refused as a whole.
        self.answer: Optional[Answer] = None
        self.error: Optional[BaseException] = None


class Completions:
    """Makes one try to complete a task, together with those of other threads that are ready.

    A completion that is alone is sent at once. Each thread waits for its own answer; one of
    them makes the request for all.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._changed = threading.Condition()
        self._waiting: List[_Completion] = []  # Guarded by _changed, and so is the next.
        self._requests = 0

    def once(self, work_id: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        """The answer to one try. Raises what :meth:`Transport.once` does."""
        own = _Completion(work_id, body, headers)
        with self._changed:
            self._waiting.append(own)
        time.sleep(0)  # Threads whose handlers have ended as well get here.
        while True:
            with self._changed:
                self._changed.wait_for(lambda: own.answer or own.error
                                       or own in self._waiting and self._requests < _REQUESTS)
                if own.error:
                    raise own.error
                if own.answer:
                    return own.answer
                batch = self._take(own)
                self._requests += 1
            try:
                self._send(batch)
            except BaseException as error:
                for one in batch:
                    one.error = error
            with self._changed:
                self._requests -= 1
                self._waiting += [one for one in batch if not (one.answer or one.error)]
                self._changed.notify_all()

    def _take(self, own: _Completion) -> List[_Completion]:
        """Take the completion from those that wait, with as many others as one request takes."""
        batch, size = [own], own.size
        for one in self._waiting:
            if one is own or one.alone or own.alone:
                continue
            if len(batch) == _LARGEST_BATCH or size >= _BATCH_BYTES:
                break
            batch.append(one)
            size += one.size
        self._waiting = [one for one in self._waiting if one not in batch]
        return batch

    def _send(self, batch: List[_Completion]) -> None:
        """Make the request, and set the answers, unless each is to be sent alone."""
        if len(batch) == 1:
            one = batch[0]
            one.answer = self._transport.once("POST", f"/v1/work/{segment(one.work_id)}:complete",
                                              encoded(one.body), one.headers, _TIMEOUT)
            return
        items = [{"work_id": one.work_id, **one.body} for one in batch]
        status, headers, content = self._transport.once("POST", "/v1/work:complete", encoded({"items": items}), {}, _BATCH_TIMEOUT)
        if transient(status) or status == 401:
            for one in batch:
                one.answer = status, headers, content
            return
        results = decoded(content).get("results", []) if status == 200 else []
        if len(results) != len(batch):  # One of them may be at fault.
            for one in batch:
                one.alone = True
            return
        for one, result in zip(batch, results):
            one.answer = result["status"], {}, encoded(result.get("error") or result)
