"""HTTP with the standard library: idle connections are kept, and calls repeated."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlencode, urlsplit

from ._log import Link, answers
from .errors import NoAnswerError, ProblemError

Token = Union[str, Callable[[], str], None]
#: The status, the headers and the body of an answer.
Answer = Tuple[int, Mapping[str, str], bytes]
#: Parameters of a path: those with None are left out, and a list repeats its parameter.
Query = Mapping[str, Union[str, Sequence[str], None]]

# The first delay is so short that a restart of the server costs little; the longest
# limits the calls during an outage.
_FIRST_DELAY = 0.05
_LONGEST_DELAY = 2.0
# The longest wait between two tries of a call, also if the server asks for more.
LONGEST_WAIT = 60.0
_IDLE_CONNECTIONS = 32
# The least time between two polls that the server answers at once, as while it shuts down.
SHORTEST_POLL = 0.5

# How long a connection may take to open: a stop waits for it.
_CONNECT_TIMEOUT = 5.0

_CALL_FAILED = (OSError, http.client.HTTPException)

class Interruptible:
    """Lets another thread end a call that waits for its answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Optional[http.client.HTTPConnection] = None
        self.interrupted = threading.Event()

    def attach(self, connection: Optional[http.client.HTTPConnection]) -> None:
        with self._lock:
            self._connection = connection
            if connection is not None and self.interrupted.is_set():
                _shut(connection)

    def interrupt(self) -> None:
        with self._lock:
            self.interrupted.set()
            if self._connection is not None:
                _shut(self._connection)


def _shut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is None:
        return
    try:
        # The plain socket's: that of a TLS socket would drop its state under the reader.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass  # It is closed already.


class Transport:
    """Calls one server. Safe for use by many threads."""

    def __init__(self, url: Optional[str] = None, token: Token = None, *,
                 tls: Optional[ssl.SSLContext] = None) -> None:
        url = url or os.environ.get("LUCIUS_URL") or "http://127.0.0.1:8080"
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http or https URL")
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        #: The URL without a password, for people.
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._base}"
        if token is None:
            file = os.environ.get("LUCIUS_TOKEN_FILE")
            token = os.environ.get("LUCIUS_TOKEN") or (partial(_token_of, file) if file else "")
        self._token: Union[str, Callable[[], str]] = token if callable(token) else _checked(token)
        self._sent = ""  # The last token that was sent.
        self._tls = tls
        self._lock = threading.Lock()
        self._idle: List[http.client.HTTPConnection] = []
        self._closed = threading.Event()

    def close(self) -> None:
        """Close the idle connections, and repeat no call any more that has no other end."""
        self._closed.set()
        self._drop_idle()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def redact(self, text: str) -> str:
        """The text without the token, should a message have quoted it.

        One of fewer than 8 characters is kept, as words have such parts.
        """
        return text.replace(self._sent, "[secret]") if len(self._sent) >= 8 else text

    @property
    def token_may_change(self) -> bool:
        return callable(self._token)

    def _current_token(self) -> str:
        """The token of now, empty if there is none. Raises OSError if its function fails."""
        if isinstance(self._token, str):
            return self._token
        try:
            return _checked(self._token())
        except Exception as error:
            raise OSError(f"no token: {error}") from error

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        if self._https:
            context = self._tls or ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def send(self, connection: http.client.HTTPConnection, method: str, path: str, body: Optional[bytes],
             headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send one request and return the answer, of which only the head is read."""
        all_headers: Dict[str, str] = {"Accept": "application/json", "User-Agent": "lucius-python", **headers}
        token = self._sent = self._current_token()
        if token:
            all_headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            all_headers["Content-Type"] = "application/json"
        connection.request(method, self._base + path, body, all_headers)
        return connection.getresponse()

    def once(self, method: str, path: str, body: Optional[bytes], headers: Mapping[str, str], timeout: float,
             interruptible: Optional[Interruptible] = None) -> Answer:
        """Make one try of a call. Raises OSError or HTTPException if it has no answer."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        reused = connection is not None
        connection = connection or self.connect(min(timeout, _CONNECT_TIMEOUT))
        try:
            if not reused:
                connection.connect()
            connection.sock.settimeout(timeout)
            if interruptible:
                interruptible.attach(connection)
            response = self.send(connection, method, path, body, headers)
            content = response.read()
            kept = not response.will_close
        except BaseException:
            connection.close()
            if reused:
                self._drop_idle()  # The server that they lead to may have restarted.
            raise
        finally:
            if interruptible:
                interruptible.attach(None)
        with self._lock:
            kept = kept and not self._closed.is_set() and len(self._idle) < _IDLE_CONNECTIONS
            if kept:
                self._idle.append(connection)
        if not kept:
            connection.close()
        return response.status, response.headers, own(response, content)  # type: ignore[return-value]

    def call(self, method: str, path: str, body: Any = None, *, headers: Optional[Mapping[str, str]] = None,
             timeout: float = 10.0, retry_for: float = 60.0,
             stop: Optional[threading.Event] = None, interruptible: Optional[Interruptible] = None,
             passes: Callable[[ProblemError], bool] = lambda problem: transient(problem.status, problem.code),
             longest_wait: float = LONGEST_WAIT, once: Optional[Callable[[], Answer]] = None,
             link: Optional[Link] = None, name: str = "") -> Any:
        """Make a call and return its answer, repeating it while it has none.

        A call is repeated if the server did not answer, or with a problem that ``passes``,
        until ``retry_for`` seconds have passed or ``stop`` is set, by default by :meth:`close`. It waits at most
        ``longest_wait`` between two tries. Every call of this package is idempotent. ``once``
        makes a try in the place of :meth:`once`. ``link`` logs the failures of the call that
        has the name. Raises :class:`ProblemError` or :class:`NoAnswerError`.
        """
        text = None if body is None else encoded(body)
        give_up = time.monotonic() + retry_for
        delay, tries = _FIRST_DELAY, 0
        stop = stop or (interruptible.interrupted if interruptible else self._closed)
        while True:
            wait = delay * random.uniform(0.5, 1.5)
            failure: Exception
            asked = time.monotonic()
            try:
                status, answer, content = once() if once else self.once(
                    method, path, text, headers or {}, timeout, interruptible)
                if 200 <= status < 300:
                    result = decoded(content)
                    if link:
                        link.answered(asked)
                    return result
                failure = ProblemError.parse(status, content)
                if link and answers(failure):
                    link.answered(asked)
                if not passes(failure):
                    raise failure
                wait = max(wait, _retry_after(answer))
            except _CALL_FAILED as error:
                failure = NoAnswerError(f"{method} {path}: {error or type(error).__name__}")
                failure.__cause__ = error
            tries += 1
            wait = min(wait, longest_wait)
            if link and not stop.is_set():
                link.failed(name, tries, failure)
            if time.monotonic() + wait > give_up or stop.wait(wait):
                raise failure
            delay = min(delay * 2, _LONGEST_DELAY)


def _checked(token: Optional[str]) -> str:
    """The token without the line break with which a file often ends."""
    token = (token or "").strip()
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token has characters that a header cannot hold")
    return token


def _token_of(file: str) -> str:
    """The token in the file, which is read each time so that it can be replaced."""
    with open(file, encoding="utf-8") as opened:
        token = opened.read().strip()
    if not token:
        raise ValueError(f"{file} is empty")
    return token


def transient(status: int, code: str = "") -> bool:
    """Whether the call may succeed if it is repeated."""
    return status >= 500 or status in (408, 429) or code == "conflict"


def own(response: http.client.HTTPResponse, content: bytes) -> bytes:
    """The content, but none if it is an error that does not say it is the server's: a proxy may answer with JSON, too."""
    kind = response.headers.get("Content-Type", "").partition(";")[0]
    return content if 200 <= response.status < 300 or kind == "application/problem+json" else b""


def encoded(body: Any) -> bytes:
    """The body as JSON."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def decoded(content: bytes) -> Dict[str, Any]:
    """The content as a JSON object. Raises HTTPException if it is none, as of a proxy."""
    try:
        answer = json.loads(content)
    except ValueError as error:
        raise http.client.HTTPException(f"the answer is no JSON: {error}") from None
    if not isinstance(answer, dict):
        raise http.client.HTTPException("the answer is no JSON object")
    return answer


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return max(float(headers.get("Retry-After") or 0), 0.0)
    except ValueError:
        return 0.0


def path_with(path: str, query: Query) -> str:
    """The path with those parameters that are set."""
    text = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
    return f"{path}?{text}" if text else path


def segment(text: str) -> str:
    """The text as one segment of a path."""
    return quote(text, safe="")
