"""The child process that loads one adapter and runs cases, and its messages: JSON and raw bytes.
It may run in another Python, without qrun's dependencies."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, BinaryIO

from qrun.child.serve import pipes, words
from qrun.conform.tensors import Tensor

MOST = 1 << 31
"""The most bytes of a message's head; a larger length is invalid."""


def send(stream: BinaryIO, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Write a message: the length of the head, the head, then the parts, whose lengths are in the head."""
    text = json.dumps({**head, "lengths": [len(part) for part in parts]}).encode()
    stream.write(b"".join([len(text).to_bytes(8, "little"), text, *parts]))
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Read the next message. Raises EOFError if the other side is gone, ValueError if it is no message."""
    length = int.from_bytes(_exactly(stream, 8), "little")
    if length > MOST:
        raise ValueError("not a message")
    head = json.loads(_exactly(stream, length))
    return head, [_exactly(stream, size) for size in head["lengths"]]


def _exactly(stream: BinaryIO, length: int) -> bytes:
    """Read exactly `length` bytes. Raises EOFError."""
    data = bytearray()
    while len(data) < length:
        more = stream.read(length - len(data))
        if not more:
            raise EOFError
        data += more
    return bytes(data)


def main(adapter: str, option: str) -> None:
    """Serve cases until the pipe is closed. adapter: a module, or ``module:class``. Its prints go to stderr."""
    incoming, outgoing = pipes()
    try:
        name, _, made = adapter.partition(":")
        module = import_module(name)
        module = getattr(module, made)() if made else module
        send(outgoing, {"version": str(module.version()), **_facts(module, option)})
    except BaseException as error:
        send(outgoing, {"missing": words(error)[:1000]})
        return
    while True:
        try:
            head, parts = receive(incoming)
        except EOFError:
            os._exit(0)
        _answer(outgoing, module, option, head, parts)


def _facts(module: Any, option: str) -> dict[str, Any]:
    """The facts about a runtime that results name; an adapter need not have PACKAGES and settings."""
    settings = module.settings(option) if hasattr(module, "settings") else {}
    wheel = wheel_hash(getattr(module, "PACKAGES", ()))
    return {"python": platform.python_version(), "wheel": wheel, "options": {k: str(v) for k, v in settings.items()}}


def wheel_hash(packages: Sequence[str]) -> str:
    """A SHA-256 of the files in the wheels of these packages, as far as installed; "" without any.

    It is that of the sorted lines of RECORD, which have each file's hash, without those that differ from one
    installation to the next: scripts, compiled files, and what the installer notes in .dist-info.
    """
    lines = []
    for name in packages:
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if '"editable": true' not in (found.read_text("direct_url.json") or ""):
            lines += (found.read_text("RECORD") or "").splitlines()
    kept = sorted(x for x in lines if ".dist-info/" not in x and not x.startswith("../") and not x.endswith(",,"))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest() if kept else ""


def _answer(outgoing: Any, module: Any, option: str, head: dict[str, Any], parts: list[bytes]) -> None:
    """Run one case and send the response."""
    model, *arrays = parts
    inputs = {row[0]: Tensor(row[1], tuple(row[2]), data) for row, data in zip(head["inputs"], arrays)}  # noqa: B905
    wanted = {row[0]: (row[1], tuple(row[2])) for row in head["outputs"]}
    try:
        made = module.run(model, inputs, wanted, option)
        rows = [None if t is None else [t.type, list(t.shape)] for t in made]
        data = [t.data for t in made if t is not None]
    except BaseException as error:
        message = words(error)[:1000]
        kind = "unsupported" if any(sign in message for sign in module.UNSUPPORTED) else "refused"
        send(outgoing, {"failed": kind, "message": message})
        return
    send(outgoing, {"outputs": rows}, data)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
