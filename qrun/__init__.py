"""qrun runs quantized ONNX models exactly, times every node and checks conformance.

>>> import qrun
>>> session = qrun.Session("model.onnx")              # doctest: +SKIP
>>> session.run({"x": x})["y"]                        # doctest: +SKIP
>>> for finding in qrun.check("model.onnx"): ...      # doctest: +SKIP
"""

import _signal
import os
import sys

_COLLECT_EVERY = 500_000
"""New objects after which Python collects cycles, in a process of the command. A model, and the modules that run it,
are many objects without cycles: with Python's own 700, collecting would take a quarter of a run; one collection of
200,000 objects takes 50 ms."""
_held: list[int] = []
"""The Ctrl-C that came while the command was being imported; see qrun.cli._main."""


def _hold(number: int, frame: object) -> None:
    """Keeps the first Ctrl-C until the command can report it; ends the process at once with the second."""
    if _held:
        os.write(2, b"interrupted\n")
        os._exit(130)
    _held.append(number)


def _is_command() -> bool:
    """Whether qrun is imported by its command: a script that imports qrun.cli, or ``python -m qrun``."""
    frame, wanted = sys._getframe(2), ""
    while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
        wanted = frame.f_locals.get("name", wanted)
        frame = frame.f_back
    script = frame.f_globals.get("__name__") == "__main__" and wanted == "qrun.cli"
    return script or frame.f_locals.get("mod_name") == "qrun.__main__"


if _is_command():
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _hold)
    import gc

    gc.set_threshold(_COLLECT_EVERY, 20)


class _Package(type(sys)):  # type: ignore[misc]
    """The module qrun. Its submodule of the same name does not hide the function ``qrun.report``."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "report" or not isinstance(value, type(sys)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qrun.checking.rules import Finding, check
    from qrun.comparing.accuracy import Accuracy
    from qrun.comparing.compare import compare
    from qrun.comparing.comparison import Comparison
    from qrun.errors import (
        CallError,
        MemoryLimitError,
        ModelError,
        OperatorError,
        QrunError,
        RunError,
        TimeLimitError,
        UnsupportedError,
    )
    from qrun.evaluating.evaluation import Evaluation
    from qrun.evaluating.setup import evaluate
    from qrun.ir import Model, Node, TensorType
    from qrun.ir.load import load
    from qrun.ops._custom import op
    from qrun.report.html.made import report
    from qrun.running.profiling import Profile
    from qrun.running.session import NodeEvent, RunResult, Session

__version__ = "0.1.0"

__all__ = [
    "Accuracy",
    "CallError",
    "Comparison",
    "Evaluation",
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
    "TimeLimitError",
    "UnsupportedError",
    "check",
    "compare",
    "evaluate",
    "load",
    "op",
    "report",
]

_HOME = {
    **dict.fromkeys(
        (
            "CallError",
            "MemoryLimitError",
            "ModelError",
            "OperatorError",
            "QrunError",
            "RunError",
            "TimeLimitError",
            "UnsupportedError",
        ),
        "qrun.errors",
    ),
    "Model": "qrun.ir",
    "Node": "qrun.ir",
    "TensorType": "qrun.ir",
    "load": "qrun.ir.load",
    "op": "qrun.ops._custom",
    "Finding": "qrun.checking.rules",
    "check": "qrun.checking.rules",
    "compare": "qrun.comparing.compare",
    "Evaluation": "qrun.evaluating.evaluation",
    "evaluate": "qrun.evaluating.setup",
    "report": "qrun.report.html.made",
    "Comparison": "qrun.comparing.comparison",
    "Accuracy": "qrun.comparing.accuracy",
    "NodeEvent": "qrun.running.session",
    "Profile": "qrun.running.profiling",
    "RunResult": "qrun.running.session",
    "Session": "qrun.running.session",
}


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> object:
    """Imports on first use, so that ``qrun --help`` starts without numpy and onnx."""
    if name in _HOME:
        from importlib import import_module

        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'qrun' has no attribute {name!r}")
