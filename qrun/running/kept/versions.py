"""The version of everything besides the model on which kept results depend."""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec

import ml_dtypes
import numpy as np

from qrun.declare.digest import digest

SUFFIX = ".model"
"""The suffix of the files with kept results."""
_OTHERS = frozenset(("child", "cli", "comparing", "conform", "evaluating", "peers", "report", "schemas", "__pycache__"))
"""Packages of qrun on which no kept result depends."""


def _stamps(folder: str) -> list[tuple[str, int, int]]:
    """Path, size (bytes) and time of the last change (ns) of each source file."""
    made, folders = [], [folder]
    for index in folders:
        with os.scandir(index) as found:
            for entry in found:
                name = entry.name
                if name.endswith((".py", ".txt")):
                    status = entry.stat()
                    made.append((entry.path, status.st_size, status.st_mtime_ns))
                elif name not in _OTHERS and "." not in name and entry.is_dir():
                    folders.append(entry.path)
    return sorted(made)


_SOURCES = repr(_stamps(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))).encode()
"""The sources as this process imported them; it does not run later edits."""


@cache
def version() -> str:
    """Identifies all that an image depends on besides the model: sources by size and time of change, and versions."""
    onnx = find_spec("onnx")
    age = os.stat(onnx.origin).st_mtime_ns if onnx and onnx.origin else 0
    return f"{digest(_SOURCES)} {sys.version} {np.__version__} {ml_dtypes.__version__} {age}"
