"""Runs workers in tests, against a Lucius on this machine that keeps its jobs in memory.

::

    with Server("protocols") as server:
        server.run(worker)
        job = server.do(Command(…))
        assert job.state == "SUCCEEDED"
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from typing import Any, List, Optional, Union

from ._transport import Interruptible, Transport
from .client import Client
from .errors import LuciusError
from .model import Command, Job
from .worker import Worker

__all__ = ["Server"]

# Seconds for which a call without an answer is repeated: a test server that ended is not restarted.
_RETRY_FOR = 5.0


class Server:
    """A server with the protocols of a folder, which ends with the ``with`` block.

    ``binary`` is the program ``lucius``: by default LUCIUS_BINARY, else the one in PATH. The server
    listens on a free loopback port, keeps no files, and ignores LUCIUS_ variables. It outlives a
    test process that is killed with SIGKILL. Its time is real: use protocols with short delays.
    """

    def __init__(self, protocols: Union[str, "os.PathLike[str]"], *, binary: Optional[str] = None) -> None:
        self._protocols = os.fspath(protocols)
        self._binary = binary or os.environ.get("LUCIUS_BINARY") or shutil.which("lucius")
        self._closing = ExitStack()
        self._refusals: List[Exception] = []
        self._refused = Interruptible()  # Ends what waits for a job.
        #: Its URL, within the ``with`` block.
        self.url = ""
        #: A client of it.
        self.client: Client

    def __enter__(self) -> "Server":
        """Start the server. Raises LuciusError, with what it said, if it does not serve."""
        if not self._binary:
            raise LuciusError("the program lucius is not in PATH: build it, or name it in LUCIUS_BINARY")
        with ExitStack() as closing:
            said = closing.enter_context(tempfile.TemporaryFile())
            try:
                process = subprocess.Popen(
                    [self._binary, "serve", "--storage-backend", "memory", "--listen-addr", "127.0.0.1:0",
                     "--protocols-dir", self._protocols, "--log-level", "error", "--audit-log", "off"],
                    env={name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")},
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True)
            except OSError as error:
                raise LuciusError(f"the server did not start: {error}") from error
            closing.callback(_end, process)
            assert process.stdout
            line = process.stdout.readline()  # Empty if the process ends.
            _, serves, self.url = line.strip().partition("lucius serves ")
            if not serves:
                process.wait()
                said.seek(0)
                raise LuciusError(f"the server did not start: {line}{said.read().decode(errors='replace').strip()}")
            self.client = closing.enter_context(Client(self.url, "", retry_for=_RETRY_FOR))
            self._closing = closing.pop_all()
        return self

    def __exit__(self, failed: Any, *_: Any) -> None:
        """End the workers, then the server. Raises what a worker raised, such as a refused claim."""
        self._closing.close()
        if self._refusals and failed is None:
            raise self._refusals[0]

    def run(self, worker: Worker) -> None:
        """Run the worker on this server until the server ends, whatever URL and token it was made with."""
        worker._connect(Transport(self.url, ""))  # pyright: ignore[reportPrivateUsage]

        def work() -> None:
            try:
                worker.run()
            except Exception as error:
                self._refusals.append(error)
                self._refused.interrupt()

        thread = threading.Thread(target=work, name=f"worker {worker.owner}")
        thread.start()
        self._closing.callback(thread.join)
        self._closing.callback(worker.stop)

    def do(self, command: Command, timeout: float = 60.0) -> Job:
        """Submit the command, and return its job once it has ended.

        After the ``timeout`` it raises :class:`TimedOutError`, and at once what a worker raised.
        """
        job_id = self.client.submit(command).job_id
        try:
            return self.client._wait(job_id, timeout, self._refused)  # pyright: ignore[reportPrivateUsage]
        except LuciusError:
            if self._refusals:
                raise self._refusals[0] from None
            raise


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    assert process.stdout
    with process.stdout:
        process.stdout.read()  # until the process ends
    process.wait()
