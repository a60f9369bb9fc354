"""The other side: requests come in on stdin, answers go out on what was stdout; nothing else ever does."""

from __future__ import annotations

import os
import signal
from importlib import import_module
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO

from qrun.child.limit import limited
from qrun.child.wire import read, write
from qrun.declare.calls import Calls, timed_calls

RUNTIMES = {"ort": ("qrun.child.ort", "OrtSession"), "onnx-ref": ("qrun.child.reference", "ReferenceSession")}
"""The module of each runtime, which knows its VERSION, and the class in it that loads a model."""


class Server:
    """What the child keeps, by number, and what it is asked to do."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def drop(self, *handles: int) -> None:
        """Forget what is kept under these numbers."""
        for handle in handles:
            self._held.pop(handle, None)

    def version(self, runtime: str) -> str:
        return str(import_module(RUNTIMES[runtime][0]).VERSION)

    def load(
        self, handle: int, runtime: str, limit: int | None, data: bytes, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Load a model; what is told of it: version of the runtime, ns, and more that is the runtime's."""
        name, loaded = RUNTIMES[runtime]
        module = import_module(name)
        with limited(limit):
            session = self._held[handle] = getattr(module, loaded)(data, **options)
        return {"version": module.VERSION, **session.told}

    def hold(self, handle: int, feeds: Any) -> None:
        """Keep feeds for many runs."""
        self._held[handle] = feeds

    def run(self, handle: int, limit: int | None, feeds: Any, fetch: bool, *how: Any) -> tuple[Any, int]:
        """Run once: the outputs, None unless `fetch`, and how long it took, ns. feeds: perhaps the number of such."""
        with limited(limit):
            outputs, duration = self._held[handle].run(self._held[feeds] if isinstance(feeds, int) else feeds, *how)
        return (outputs if fetch else None), duration

    def repeat(self, handle: int, limit: int | None, feeds: int, times: int, *how: Any) -> Calls:
        """Run `times` times in a row, as a user's program does, on feeds that are held under a number. Gives how long
        each run took, and how long the thread was on a processor, ns."""
        with limited(limit):
            return timed_calls(self._held[handle].call(self._held[feeds], *how), times)

    def infer(self, what: str, *arguments: Any) -> Any:
        """What the function of this name in qrun.child.inference returns."""
        return getattr(import_module("qrun.child.inference"), what)(*arguments)

    def finish(self, handle: int) -> str:
        """End a runtime's own profiling: the path of what it wrote."""
        return str(self._held[handle].finish())


def main() -> None:
    """Serve until the pipe is closed, as it is when the other process ends; then end at once, whatever is going on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _no_core_files()
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
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


def words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _listen(stream: BinaryIO, requests: SimpleQueue[Any]) -> None:
    try:
        while True:
            requests.put(read(stream))
    finally:
        os._exit(0)


def _no_core_files() -> None:
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
