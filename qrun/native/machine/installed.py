"""Which llvmlite is installed, found without importing it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from qrun.declare.digest import digest


def llvmlite_version() -> str:
    """What the installed llvmlite says about its version, and the size and age of its library."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        raise ImportError("No module named 'llvmlite'")
    folder = Path(spec.origin).parent
    version = digest((folder / "_version.py").read_bytes())
    files = sorted((folder / "binding").glob("*llvmlite.*"))
    return " ".join([version, *(f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files)])
