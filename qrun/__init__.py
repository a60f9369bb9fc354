"""qrun runs quantized ONNX models exactly, times every node and checks conformance.

>>> import qrun
>>> session = qrun.Session("model.onnx")              # doctest: +SKIP
>>> session.run({"x": x})["y"]                        # doctest: +SKIP
>>> for finding in qrun.check("model.onnx"): ...      # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qrun.errors import (
    CallError,
    MemoryLimitError,
    ModelError,
    OperatorError,
    QrunError,
    RunError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from qrun.ir import Model, Node, TensorType, load
    from qrun.rules import Finding, check
    from qrun.session import NodeEvent, Profile, RunResult, Session

__version__ = "0.1.0"

__all__ = [
    "CallError",
    "Finding",
    "MemoryLimitError",
    "Model",
    "ModelError",
    "Node",
    "NodeEvent",
    "OperatorError",
    "Profile",
    "QrunError",
    "RunError",
    "RunResult",
    "Session",
    "TensorType",
    "UnsupportedError",
    "check",
    "load",
]

_HOME = {
    "Model": "qrun.ir", "Node": "qrun.ir", "TensorType": "qrun.ir", "load": "qrun.ir",
    "Finding": "qrun.rules", "check": "qrun.rules",
    "NodeEvent": "qrun.session", "Profile": "qrun.session", "RunResult": "qrun.session", "Session": "qrun.session",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``qrun --help`` starts without numpy and onnx."""
    if name in _HOME:
        from importlib import import_module

        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'qrun' has no attribute {name!r}")
