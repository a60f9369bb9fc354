"""Where a record was made: versions, CPU and instruction set, nothing that changes from call to call."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np

from qrun.native.emit.isa import available


def host(threads: int | None) -> dict[str, str | int]:
    """What results may depend on. threads: those of the runtime, None for its default."""
    from qrun import __version__

    return {
        "qrun": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnx": version("onnx"),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": next(_cpu_names(), platform.machine()),
        "isa": _isa(),
        "threads": "default" if threads is None else threads,
    }


def _cpu_names() -> Iterator[str]:
    """The processor as the system calls it: ``AMD EPYC 9B14``; nothing where it does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    told = dict(line.partition(":")[::2] for line in reversed(text.splitlines()))
    fields = {key.strip(): value.strip() for key, value in told.items()}
    yield from (fields[key] for key in ("model name", "Hardware", "CPU part") if fields.get(key))
    if name := platform.processor():
        yield name


def _isa() -> str:
    """The best instruction set that qrun has kernels for here."""
    try:
        return next((isa.name for isa in available()), "none")
    except ImportError:
        return "none"
