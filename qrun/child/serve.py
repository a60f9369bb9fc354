"""The child's side: reads requests from stdin and writes answers to what was stdout; nothing else ever goes there.

A message is the number of its parts, their lengths, then the parts: a pickle and the arrays' bytes, which it refers to.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO

from qrun.declare.calls import Calls, timed_calls


def write(stream: BinaryIO, message: object) -> None:
    """Sends a message of plain data and arrays. If it cannot be pickled, raises before anything is sent."""
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, 5, buffer_callback=buffers.append)
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    stream.write(struct.pack(f"<{len(parts) + 1}Q", len(parts), *(part.nbytes for part in parts)))
    for part in parts:
        stream.write(part)
    stream.flush()


def read(stream: BinaryIO) -> Any:
    """The next message; its arrays are writable. Raises EOFError if the other side has closed the pipe."""
    (count,) = struct.unpack("<Q", _exactly(stream, 8))
    lengths = struct.unpack(f"<{count}Q", _exactly(stream, 8 * count))
    body, *buffers = [_exactly(stream, length) for length in lengths]
    return pickle.loads(body, buffers=buffers)


def _exactly(stream: BinaryIO, length: int) -> bytearray:
    """Read exactly `length` bytes. Raises EOFError."""
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        more = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not more:
            raise EOFError
        done += more
    return data


_WORDS = re.compile(
    r"MemoryError|bad_alloc|bad allocation|failed to allocate memory|cannot allocate memory", re.IGNORECASE
)


@contextmanager
def limit_memory(nbytes: int | None) -> Iterator[None]:
    """Limits this process to `nbytes` in addition to what it has; None: no limit."""
    if nbytes is None or sys.platform != "linux":
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    used = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData:"))
    allowed = used + nbytes if before[1] == resource.RLIM_INFINITY else min(used + nbytes, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def out_of_memory(words: str) -> bool:
    """Whether these words say that there was no memory left."""
    return bool(_WORDS.search(words))


RUNTIMES = {"ort": ("qrun.child.ort", "OrtSession"), "onnx-ref": ("qrun.child.reference", "ReferenceSession")}
"""The module of each runtime, which has a VERSION, and its class that loads a model."""


class Server:
    """The objects that the child keeps, by number, and the requests it serves."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def drop(self, *handles: int) -> None:
        """Forgets the objects with these numbers."""
        for handle in handles:
            self._held.pop(handle, None)

    def version(self, runtime: str) -> str:
        """The version of a runtime."""
        return str(import_module(RUNTIMES[runtime][0]).VERSION)

    def load(
        self, handle: int, runtime: str, limit: int | None, data: bytes, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Loads a model and returns facts: the runtime's version, ns, and more from the runtime."""
        name, loaded = RUNTIMES[runtime]
        module = import_module(name)
        with limit_memory(limit):
            session = self._held[handle] = getattr(module, loaded)(data, **options)
        return {"version": module.VERSION, **session.told}

    def hold(self, handle: int, feeds: Any) -> None:
        """Keeps feeds for many runs."""
        self._held[handle] = feeds

    def run(self, handle: int, limit: int | None, feeds: Any, fetch: bool, *how: Any) -> tuple[Any, int]:
        """Runs once: the outputs (None unless `fetch`) and the time, ns. feeds: these, or the number of held ones."""
        with limit_memory(limit):
            outputs, duration = self._held[handle].run(self._held[feeds] if isinstance(feeds, int) else feeds, *how)
        return (outputs if fetch else None), duration

    def repeat(self, handle: int, limit: int | None, feeds: int, times: int, *how: Any) -> Calls:
        """Runs `times` times in a row, as a user's program does, on the held feeds of that number. Returns each run's
        duration and the time that the thread was on a processor, ns."""
        with limit_memory(limit):
            return timed_calls(self._held[handle].call(self._held[feeds], *how), times)

    def infer(self, what: str, *arguments: Any) -> Any:
        """Calls the function of this name in qrun.child.inference."""
        return getattr(import_module("qrun.child.inference"), what)(*arguments)

    def finish(self, handle: int) -> str:
        """Ends a runtime's own profiling; returns the path of its file."""
        return str(self._held[handle].finish())


def pipes() -> tuple[BinaryIO, BinaryIO]:
    """Reserves stdin and stdout for messages: anything printed goes to stderr. The child ignores Ctrl-C, which the
    other process handles, and a crash leaves no core file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return incoming, outgoing


def main() -> None:
    """Serves until the other process closes the pipe, or ends; then ends at once, whatever is going on."""
    incoming, outgoing = pipes()
    requests: SimpleQueue[tuple[int, list[int], str, tuple[Any, ...]]] = SimpleQueue()
    Thread(target=_listen, args=(incoming, requests), daemon=True).start()
    server = Server()
    while True:
        number, dropped, name, arguments = requests.get()
        server.drop(*dropped)
        try:
            write(outgoing, (number, True, getattr(server, name)(*arguments)))
        except Exception as error:
            write(outgoing, (number, False, words(error)))
        del arguments


def words(error: BaseException) -> str:
    """The exception as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _listen(stream: BinaryIO, requests: SimpleQueue[Any]) -> None:
    """Put the requests of a stream into a queue; end the process with the stream."""
    try:
        while True:
            requests.put(read(stream))
    finally:
        os._exit(0)
