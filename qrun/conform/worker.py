"""The other process: it loads one adapter, and runs case after case.
It may be of another Python, without qrun's packages."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

from qrun.conform.adapters import Tensor
from qrun.conform.wire import receive, send


def main(adapter: str, option: str) -> None:
    """Serve until the pipe is closed. What the runtime prints goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _no_core_files()
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    try:
        module = import_module(adapter)
        send(outgoing, {"version": str(module.version())})
    except BaseException as error:
        send(outgoing, {"missing": words(error)})
        return
    while True:
        try:
            head, parts = receive(incoming)
        except EOFError:
            os._exit(0)
        _answer(outgoing, module, option, head, parts)


def _answer(outgoing: Any, module: Any, option: str, head: dict[str, Any], parts: list[bytes]) -> None:
    model, *arrays = parts
    inputs = {row[0]: Tensor(row[1], tuple(row[2]), data) for row, data in zip(head["inputs"], arrays)}  # noqa: B905
    wanted = {row[0]: (row[1], tuple(row[2])) for row in head["outputs"]}
    try:
        made = module.run(model, inputs, wanted, option)
        rows = [None if t is None else [t.type, list(t.shape)] for t in made]
        data = [t.data for t in made if t is not None]
    except BaseException as error:
        kind = "unsupported" if any(sign in words(error) for sign in module.UNSUPPORTED) else "refused"
        send(outgoing, {"failed": kind, "message": words(error)})
        return
    send(outgoing, {"outputs": rows}, data)


def words(error: BaseException) -> str:
    """The exception as one line, cut where it is long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:1000]


def _no_core_files() -> None:
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
