"""qrun: option ``native`` or ``reference``, the graph as written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qrun.conform.adapters import Tensor, tensor

UNSUPPORTED = ("QR201", "QR105", "QR106")


def version() -> str:
    from qrun import __version__

    return __version__


def run(model: bytes, inputs: Mapping[str, Tensor], outputs: Mapping[str, Any], option: str) -> list[Tensor | None]:
    from qrun.running.session import Session

    session = Session(model, backend=option, fuse=False, threads=1)
    made = session.run({name: value.numpy() for name, value in inputs.items()}, list(outputs))
    return [tensor(made[name]) for name in outputs]
