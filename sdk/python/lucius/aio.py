"""The client for asyncio. It makes its calls in threads, which do not block the loop."""

from __future__ import annotations

import asyncio
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Iterator, List, Mapping, Optional, Sequence, TypeVar, Union

from ._transport import Interruptible, Token
from .client import Client
from .errors import ProblemError
from .model import Accepted, Command, Event, Job, JobState, Line, Lineage, LineState, Priority, RerunPreview, RerunRequest, When
from .schedules import Schedule, ScheduleBackfill, ScheduleDefinition, ScheduleFire, ScheduleState, ScheduleTime, ScheduleTimes

if TYPE_CHECKING:  # Only type checkers need it, and have it.
    from typing_extensions import Unpack

T = TypeVar("T")
_END: Any = object()


class AsyncClient:
    """What :class:`Client` does, for asyncio.

    ``parallel`` limits the calls that are under way at once. A cancelled await ends at
    once; its call may still reach the server. A cancelled ``wait`` asks no more.
    """

    def __init__(self, url: Optional[str] = None, token: Token = None, *, retry_for: float = 60.0,
                 parallel: int = 32, tls: Optional[ssl.SSLContext] = None) -> None:
        self._client = Client(url, token, retry_for=retry_for, tls=tls)
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="lucius")

    async def close(self) -> None:
        self._threads.shutdown(wait=False)
        self._client.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def submit(self, command: Command) -> Accepted:
        return await self._run(lambda: self._client.submit(command))

    async def submit_batch(self, commands: Sequence[Command]) -> List[Union[Accepted, ProblemError]]:
        return await self._run(lambda: self._client.submit_batch(commands))

    async def get(self, job_id: str) -> Job:
        return await self._run(lambda: self._client.get(job_id))

    async def wait(self, job_id: str, timeout: Optional[float] = None) -> Job:
        interruptible = Interruptible()
        try:
            return await self._run(lambda: self._client._wait(job_id, timeout, interruptible))
        finally:
            interruptible.interrupt()

    async def cancel(self, job_id: str, reason: str = "") -> Job:
        return await self._run(lambda: self._client.cancel(job_id, reason))

    async def pause(self, job_id: str, reason: str = "") -> Job:
        return await self._run(lambda: self._client.pause(job_id, reason))

    async def resume(self, job_id: str, reason: str = "") -> Job:
        return await self._run(lambda: self._client.resume(job_id, reason))

    async def reschedule(self, job_id: str, *, not_before: When = None, delay: Optional[timedelta] = None,
                         not_after: When = None, never_expires: bool = False, reason: str = "") -> Job:
        return await self._run(lambda: self._client.reschedule(
            job_id, not_before=not_before, delay=delay, not_after=not_after, never_expires=never_expires, reason=reason))

    async def prioritize(self, job_id: str, priority: Priority, reason: str = "") -> Job:
        return await self._run(lambda: self._client.prioritize(job_id, priority, reason))

    async def rerun(self, job_id: str, **request: Unpack[RerunRequest]) -> Accepted:
        return await self._run(lambda: self._client.rerun(job_id, **request))

    async def plan_rerun(self, job_id: str, **request: Unpack[RerunRequest]) -> RerunPreview:
        return await self._run(lambda: self._client.plan_rerun(job_id, **request))

    async def lineage(self, job_id: str) -> Lineage:
        return await self._run(lambda: self._client.lineage(job_id))

    async def lines(self, *, tenant_id: Optional[str] = None, order_key: Optional[str] = None,
                    state: Optional[LineState] = None, page_size: int = 100) -> AsyncIterator[Line]:
        lines = self._client.lines(tenant_id=tenant_id, order_key=order_key, state=state, page_size=page_size)
        async for line in self._each(lines):
            yield line

    async def line(self, line_id: str) -> Line:
        return await self._run(lambda: self._client.line(line_id))

    async def line_jobs(self, line_id: str) -> AsyncIterator[Job]:
        async for job in self._each(self._client.line_jobs(line_id)):
            yield job

    async def release_line(self, line_id: str, job_id: str, reason: str = "") -> Line:
        return await self._run(lambda: self._client.release_line(line_id, job_id, reason))

    async def cancel_line(self, line_id: str, reason: str) -> int:
        return await self._run(lambda: self._client.cancel_line(line_id, reason))

    async def schedules(self, tenant_id: str, *, state: Optional[ScheduleState] = None,
                        page_size: int = 100) -> AsyncIterator[Schedule]:
        async for schedule in self._each(self._client.schedules(tenant_id, state=state, page_size=page_size)):
            yield schedule

    async def schedule(self, tenant_id: str, name: str) -> Schedule:
        return await self._run(lambda: self._client.schedule(tenant_id, name))

    async def put_schedule(self, tenant_id: str, name: str, **definition: Unpack[ScheduleDefinition]) -> Schedule:
        return await self._run(lambda: self._client.put_schedule(tenant_id, name, **definition))

    async def delete_schedule(self, tenant_id: str, name: str) -> None:
        await self._run(lambda: self._client.delete_schedule(tenant_id, name))

    async def pause_schedule(self, tenant_id: str, name: str, reason: str = "") -> Schedule:
        return await self._run(lambda: self._client.pause_schedule(tenant_id, name, reason))

    async def resume_schedule(self, tenant_id: str, name: str, reason: str = "") -> Schedule:
        return await self._run(lambda: self._client.resume_schedule(tenant_id, name, reason))

    async def run_schedule(self, tenant_id: str, name: str, key: str = "") -> ScheduleFire:
        return await self._run(lambda: self._client.run_schedule(tenant_id, name, key))

    async def preview_schedule(self, *, after: When = None, count: Optional[int] = None,
                               **times: Unpack[ScheduleTimes]) -> List[ScheduleTime]:
        return await self._run(lambda: self._client.preview_schedule(after=after, count=count, **times))

    async def schedule_fires(self, tenant_id: str, name: str) -> AsyncIterator[ScheduleFire]:
        async for fire in self._each(self._client.schedule_fires(tenant_id, name)):
            yield fire

    async def backfill_schedule(self, tenant_id: str, name: str, *, from_: Union[datetime, str], to: When = None,
                                repeat: bool = False, rate_per_second: Optional[float] = None, reason: Optional[str] = None,
                                key: str = "") -> ScheduleBackfill:
        return await self._run(lambda: self._client.backfill_schedule(
            tenant_id, name, from_=from_, to=to, repeat=repeat, rate_per_second=rate_per_second, reason=reason, key=key))

    async def schedule_backfills(self, tenant_id: str, name: str) -> List[ScheduleBackfill]:
        return await self._run(lambda: self._client.schedule_backfills(tenant_id, name))

    async def cancel_backfill(self, tenant_id: str, name: str, backfill_id: str, reason: str = "") -> ScheduleBackfill:
        return await self._run(lambda: self._client.cancel_backfill(tenant_id, name, backfill_id, reason))

    async def history(self, job_id: str) -> AsyncIterator[Event]:
        async for event in self._each(self._client.history(job_id)):
            yield event

    async def watch(self, job_id: str) -> AsyncIterator[Event]:
        watch = self._client.watch(job_id)
        try:
            async for event in self._each(watch):
                yield event
        finally:
            watch.close()

    async def list(self, *, tenant_id: Optional[str] = None, state: Optional[JobState] = None,
                   request_type: Optional[str] = None, correlation_id: Optional[str] = None,
                   doc_id: Optional[str] = None, tags: Optional[Mapping[str, str]] = None,
                   created_after: When = None, created_before: When = None,
                   page_size: int = 100) -> AsyncIterator[Job]:
        jobs = self._client.list(tenant_id=tenant_id, state=state, request_type=request_type,
                                 correlation_id=correlation_id, doc_id=doc_id, tags=tags, created_after=created_after,
                                 created_before=created_before, page_size=page_size)
        async for job in self._each(jobs):
            yield job

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _each(self, items: Iterator[T]) -> AsyncIterator[T]:
        while True:
            item: T = await self._run(lambda: next(items, _END))
            if item is _END:
                return
            yield item
