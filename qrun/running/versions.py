"""What all that is kept of models depends on besides the model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np

from qrun.declare.digest import digest

SUFFIX = ".model"
"""Of the files in which it is kept."""
_OTHERS = frozenset(("cli", "report", "comparing", "peers", "__pycache__"))
"""Packages of which nothing that is kept depends on."""


@cache
def version() -> str:
    """Names all that an image depends on besides the model: sources by size and age, and the versions below them."""
    sources = repr([*_stamps(Path(__file__).parents[1])]).encode()
    onnx = find_spec("onnx")
    age = os.stat(onnx.origin).st_mtime_ns if onnx and onnx.origin else 0
    return f"{digest(sources)} {sys.version} {np.__version__} {ml_dtypes.__version__} {age}"


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Path, size and age of sources."""
    with os.scandir(folder) as found:
        for entry in sorted(found, key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.name not in _OTHERS:
                    yield from _stamps(Path(entry.path))
            elif entry.name.endswith((".py", ".txt")):
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns
