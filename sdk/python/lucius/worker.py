"""A worker pulls tasks over HTTP and hands them to handlers."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import socket
import ssl
import threading
import time
import uuid
from concurrent.futures import CancelledError as FutureCancelled
from logging import ERROR, INFO, WARNING
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Awaitable, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Type, TypeVar, Union, overload

from ._completions import Completions
from ._lease import Lease
from ._log import Link, answers, named, names, say, show
from ._payload import decoder
from ._transport import SHORTEST_POLL, Answer, Interruptible, Token, Transport, encoded, transient
from .errors import Final, LuciusError, ProblemError, Retry, RetryAfter, Throttled
from .task import CANCELLED, STOPPING, Report, Task, failure, fit

#: What a handler returns: the reference of its result, as a mapping or a dataclass with a uri, or
#: None; or an awaitable of it.
Result = Optional[Mapping[str, Any]]
Handler = Callable[[Task], Any]
#: Wraps every handler: middleware(task, next) calls next(task), and returns what that does.
Middleware = Callable[[Task, Handler], Any]
H = TypeVar("H", bound=Handler)
P = TypeVar("P")
R = TypeVar("R")

#: Stands for all step types, see :meth:`Worker.step`.
ANY_STEP = "*"

# The server's limit of a reference, in bytes of JSON.
_MAX_RESULT = 8 << 10
# What handlers get to end after the cancellation at the end of the grace.
_LAST_SECONDS = 2.0


@dataclass(frozen=True)
class Outcome:
    """What is reported of a task: its result, or the code and the message of a failure."""

    result: Result = None
    #: Empty if the task succeeded.
    code: str = ""
    message: str = ""
    #: Whether the step is tried again, and after how many seconds if not as the protocol says.
    retryable: bool = False
    after: Optional[float] = None
    #: Of a :class:`Throttled`: ``service`` or ``tenant``.
    scope: Optional[str] = None


class Worker:
    """Does the steps of one service, or of several.

    Register a handler for each step type with :meth:`step`, then call :meth:`run`.
    Delivery is at least once: a handler may see a step again, and must be idempotent.
    """

    def __init__(self, service: str, *, services: Sequence[str] = (), parallel: int = 4, url: Optional[str] = None,
                 token: Token = None, owner: Optional[str] = None, grace: float = 10.0, claim_wait: float = 20.0,
                 lease: float = 90.0, middleware: Sequence[Middleware] = (), tls: Optional[ssl.SSLContext] = None,
                 version: Optional[str] = None) -> None:
        """``url`` and ``token`` default to LUCIUS_URL and LUCIUS_TOKEN, else to the token in
        the file that LUCIUS_TOKEN_FILE names. A function and the file are read for each request.

        ``parallel`` (1 to 100) limits the tasks in hand; ``grace`` is how many seconds they
        may still take after a stop; ``claim_wait`` (up to 60) how many a claim waits for
        work; ``owner`` names the worker, uniquely among those that run. ``lease`` (3 to
        86400) is how many seconds the server waits for a heartbeat before it gives a step to
        another worker, at most the step's own lease; a heartbeat is sent after a third of
        it, at least every 30 seconds. ``version`` is that of the program, which the server's
        list of workers shows beside the host. The first middleware is the outermost.
        """
        if not 1 <= parallel <= 100:
            raise ValueError(f"parallel is {parallel}, it must be from 1 to 100")
        if not 0 <= claim_wait <= 60:
            raise ValueError(f"claim_wait is {claim_wait}, it must be from 0 to 60")
        if not 3 <= lease <= 86400:
            raise ValueError(f"lease is {lease}, it must be from 3 to 86400")
        if grace < 0:
            raise ValueError(f"grace is {grace}, it must not be negative")
        if isinstance(services, str):
            raise ValueError(f"services is {services!r}, it must be a list of names")
        self._about = {"host": socket.gethostname()[:128], **({"version": version} if version else {})}
        self.owner = owner or f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._services = [service, *services]
        self._parallel, self._grace, self._claim_wait = parallel, min(grace, threading.TIMEOUT_MAX), claim_wait
        self._lease = lease
        self._connect(Transport(url, token, tls=tls))
        self._handlers: Dict[str, Handler] = {}
        self._middleware = list(middleware)
        self._ran = False
        self._welcome = False  # The server has answered a claim.
        self._warnings: List[Any] = []  # Those of the last claim.
        self._stopping = Interruptible()
        self._finished = threading.Event()  # Nothing is reported after it.
        self._changed = threading.Condition()
        self._in_hand: Set[Task] = set()  # Guarded by _changed, and so is the next.
        self._leases: Set[Lease] = set()
        self._refusal: Optional[Exception] = None
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._loop_guard = threading.Lock()

    def _connect(self, transport: Transport) -> None:
        self._transport = transport
        self._completions = Completions(transport)
        self._link = Link(transport.address)

    @overload
    def step(self, step_type: str) -> Callable[[H], H]: ...

    @overload
    def step(self, step_type: str, *, payload: Union[Type[P], Callable[[Dict[str, Any]], P]],
             ) -> Callable[[Callable[[Task, P], R]], Callable[[Task, P], R]]: ...

    def step(self, step_type: str, *, payload: Any = None) -> Any:
        """Register the decorated function, plain or ``async``, for a step type.

        With ``payload`` it is called with the task and its decoded payload: a dataclass, a
        TypedDict, or any function that makes something of it or raises an exception, such as
        ``Model.model_validate`` of pydantic. A payload that does not fit fails the step for
        good with the code ``payload_invalid``, and names what is wrong. A field of a type that
        JSON does not have, such as a datetime, is a TypeError.

        With :data:`ANY_STEP` it does the steps of all types of the worker's services that
        have no handler of their own.
        """
        if not isinstance(step_type, str):
            raise TypeError('name the step type: @worker.step("OCR")')

        def register(handler: Any) -> Any:
            if step_type in self._handlers:
                raise ValueError(f"step type {step_type!r} has a handler already")
            self._handlers[step_type] = handler if payload is None else _typed(decoder(payload), handler)
            return handler
        return register

    def do(self, task: Task) -> Outcome:
        """Run the handler of the task as :meth:`run` does, without a server: for tests.

        :meth:`Task.of` makes a task. ``task.cancelled.cancel(CANCELLED)`` cancels it.
        """
        verb, body = fit(self._handle(task), self._transport.redact)
        if verb == "complete":
            return Outcome(body.get("result_ref"))
        return Outcome(None, body["error"]["code"], body["error"]["message"], body["retryable"], body.get("retry_after_seconds"),
                       body.get("scope"))

    def stop(self) -> None:
        """Make :meth:`run` finish what is in hand and return. Any thread may call it."""
        self._stopping.interrupt()
        with self._changed:
            self._changed.notify_all()

    def run(self) -> None:
        """Work until :meth:`stop`, SIGTERM or SIGINT, then finish what is in hand.

        Raises :class:`ProblemError` if the server refuses a claim, as with a wrong token. Once
        the server has answered a claim, the worker waits instead while a proxy answers in its
        place, and for another token if that is from a function or a file. A worker runs once.
        """
        if not self._handlers:
            raise ValueError("no handler is registered: decorate a function with @worker.step(…)")
        with self._changed:
            if self._ran:
                raise RuntimeError("a worker runs once: create another one")
            self._ran = True
        show()
        say(INFO, "worker started", owner=self.owner, services=names(self._services), steps=names(self._step_types()),
            server=self._transport.address, parallel=self._parallel)
        restore = self._take_signals()
        claimer = threading.Thread(target=self._claim_until_stopped, name="claims", daemon=True)
        claimer.start()
        try:
            # A signal that another thread gets does not end the wait, and its handler runs after it.
            while not self._stopping.interrupted.wait(1):
                pass
            claimer.join()
            self._drain()
        finally:
            restore()
            with self._loop_guard:
                loop, self._loop = self._loop, None  # do() may still need another one.
            if loop:
                loop.call_soon_threadsafe(loop.stop)
            self._transport.close()
        if self._refusal:
            raise self._refusal

    def _take_signals(self) -> Callable[[], None]:
        if threading.current_thread() is not threading.main_thread():
            return lambda: None
        def on_signal(*_: object) -> None:
            # A lock of the interrupted thread may be needed.
            threading.Thread(target=self.stop, daemon=True).start()
        before = {sig: signal.signal(sig, on_signal) for sig in (signal.SIGTERM, signal.SIGINT)}
        def restore() -> None:
            for sig, handler in before.items():
                signal.signal(sig, handler)
        return restore

    def _drain(self) -> None:
        """Wait for the tasks in hand; cancel those that outlast the grace."""
        with self._changed:
            idle = self._changed.wait_for(lambda: not self._in_hand, self._grace)
            late = list(self._in_hand)
        for task in late:
            task.cancelled.cancel(STOPPING)
        if not idle:
            with self._changed:
                self._changed.wait_for(lambda: not self._in_hand, _LAST_SECONDS)
        self._finished.set()
        with self._changed:
            for lease in self._leases:
                lease.abandon()
            for task in self._in_hand:
                say(WARNING, "task abandoned", **named(task))

    # Claims

    def _claim_until_stopped(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._stopping.interrupted.is_set() or len(self._in_hand) < self._parallel, 1)
                    free = self._parallel - len(self._in_hand)
                if self._stopping.interrupted.is_set():
                    return
                if free:
                    begun, welcome = time.monotonic(), self._welcome
                    items, since = self._claim(free)
                    for item in items:
                        self._begin(item, since)
                    if not items and welcome:
                        self._stopping.interrupted.wait(SHORTEST_POLL + begun - time.monotonic())
        except Exception as error:
            self._refusal = error
            self.stop()

    def _claim(self, most: int) -> Tuple[List[Mapping[str, Any]], float]:
        """Claim and start up to most items, and wait for the first.

        Returns also since when they may be claimed: the first try of a claim that was
        repeated may have claimed them.
        """
        body = {"owner": self.owner, "services": self._services, "max": most, "wait_seconds": self._claim_wait,
                "lease_seconds": self._lease, "start": True, "request_id": str(uuid.uuid4()), **self._about}
        if self._step_types():
            body["step_types"] = self._step_types()
        path = "/v1/work:claim"
        begun, tries = time.monotonic(), 0

        def once() -> Answer:
            nonlocal tries
            tries += 1
            # An answer at once says what is wrong with the first claim, and that the server is back.
            if self._link.down or not self._welcome:
                body["wait_seconds"] = 0
            return self._transport.once("POST", path, encoded(body), {}, self._claim_wait + 10, self._stopping)

        try:
            answer = self._transport.call("POST", path, once=once, retry_for=float("inf"), interruptible=self._stopping,
                                          passes=self._claim_passes, link=self._link, name="claim")
            self._welcome = True
        except LuciusError as error:
            if not self._stopping.interrupted.is_set():
                raise
            # The interrupted claim may have succeeded: its items would stay claimed.
            body["wait_seconds"] = 0
            tries += 1
            try:
                answer = self._transport.call("POST", path, body, timeout=2, retry_for=2)
            except LuciusError as again:
                say(WARNING, "last claim unanswered", error=str(again) or str(error))
                return [], begun
        warnings = answer.get("warnings") or []
        for warning in warnings:
            if warning not in self._warnings:
                say(WARNING, "claim warning", code=warning["code"], warning=warning["message"])
        self._warnings = warnings
        items: List[Mapping[str, Any]] = answer.get("items") or []
        return items, begun if tries > 1 else time.monotonic()

    def _step_types(self) -> List[str]:
        """The step types that have a handler, or none if a handler does all."""
        return [] if ANY_STEP in self._handlers else sorted(self._handlers)

    def _claim_passes(self, problem: ProblemError) -> bool:
        """Whether a refused claim is repeated. Before the first answer the URL or the token may be wrong for good."""
        replaced = problem.status == 401 and self._transport.token_may_change
        return transient(problem.status, problem.code) or self._welcome and (replaced or not answers(problem))

    def _begin(self, item: Mapping[str, Any], since: float) -> None:
        task = Task(item)
        with self._changed:
            self._in_hand.add(task)
        threading.Thread(target=self._attend, args=(item, task, since), name=f"task {task.work_id}", daemon=True).start()

    # Tasks

    def _attend(self, item: Mapping[str, Any], task: Task, since: float) -> None:
        """Do one task and report its end."""
        try:
            begun = time.monotonic()
            lease = Lease(self._transport, self._completions, self._link, self.owner, item, task, since)
            with self._changed:
                self._leases.add(lease)
            try:
                end = self._handle(task)
                took = time.monotonic() - begun
            finally:
                lease.stop()
                with self._changed:
                    self._leases.discard(lease)
            lease.report(end, took, self._finished)
        except Exception as error:
            say(ERROR, "task dropped", error, **named(task), error=str(error))
        finally:
            with self._changed:
                self._in_hand.discard(task)
                self._changed.notify_all()

    def _handle(self, task: Task) -> Report:
        handler = self._handlers.get(task.step_type) or self._handlers.get(ANY_STEP)
        if handler is None:
            return failure("step_type_unknown", f"this worker has no handler for {task.step_type}", retryable=True)
        for middleware in reversed(self._middleware):
            handler = _wrapped(middleware, handler)
        try:
            result = handler(task)
            if inspect.isawaitable(result):
                result = self._await(task, result)
            return _completion(result)
        except BaseException as error:
            return self._failed(task, error)

    def _failed(self, task: Task, error: BaseException) -> Report:
        """The report of a handler that raised an exception."""
        cause = task.cancelled.cause
        try:
            message = f"{type(error).__name__}: {error}"
        except Exception:  # Its __str__ fails.
            message = type(error).__name__
        if cause == CANCELLED:
            return failure("cancelled", message, retryable=False)
        if cause == STOPPING:  # Another worker gets the step at once.
            return failure("worker_stopped", message, retryable=True, after=1)
        if isinstance(error, Final):
            return failure(error.code, error.message, retryable=False)
        if isinstance(error, Retry):
            after = error.seconds if isinstance(error, RetryAfter) else None
            scope = error.scope if isinstance(error, Throttled) else None
            return failure(error.code, error.message, retryable=True, after=after, scope=scope)
        if cause is None:
            say(ERROR, "handler crashed", error, **named(task), error=message)
        return failure("work_failed", message, retryable=True)

    def _await(self, task: Task, awaitable: Awaitable[Any]) -> Any:
        """Wait for an async handler, which a cancelled task cancels as asyncio does."""
        loop = self._running_loop()

        async def handle() -> Tuple[Any, Optional[BaseException]]:
            try:
                return await awaitable, None
            except (SystemExit, KeyboardInterrupt) as error:  # It would end the loop of all handlers.
                return None, error

        async def run() -> Tuple[Any, Optional[BaseException]]:
            handling = asyncio.ensure_future(handle())
            task.cancelled.then(lambda: _discard(loop.call_soon_threadsafe(handling.cancel)))
            return await handling

        try:
            result, error = asyncio.run_coroutine_threadsafe(run(), loop).result()
        except FutureCancelled:
            raise LuciusError(f"cancelled: {task.cancelled.cause or 'by the handler'}") from None
        if error is not None:
            raise error
        return result

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._loop_guard:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_run_loop, args=(self._loop,), name="async handlers", daemon=True).start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _typed(decode: Callable[[Any], Any], handler: Callable[[Task, Any], Any]) -> Handler:
    return lambda task: handler(task, decode(task.payload))


def _wrapped(middleware: Middleware, handler: Handler) -> Handler:
    return lambda task: middleware(task, handler)


def _completion(result: Any) -> Report:
    if result is None:
        return "complete", {}
    if is_dataclass(result) and not isinstance(result, type):
        result = asdict(result)
    if not isinstance(result, Mapping) or not isinstance(result.get("uri"), str) or not result["uri"].strip():
        return failure("result_invalid", "the handler must return a mapping or a dataclass with a uri, or None", retryable=False)
    try:
        size = len(json.dumps(dict(result), ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        return failure("result_invalid", f"the result is no JSON: {error}", retryable=False)
    if size > _MAX_RESULT:
        return failure("result_too_large", f"the result has {size} bytes, at most {_MAX_RESULT} are taken: "
                        "store it, and return its uri", retryable=False)
    return "complete", {"result_ref": dict(result)}


def _discard(_: object) -> None:
    """Make an expression of no result."""
