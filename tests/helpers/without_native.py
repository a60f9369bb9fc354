"""Without llvmlite the tests of native kernels are skipped, and every other test runs: the reference tier.

A test belongs to the native engine if it asks for it itself: it imports what needs llvmlite, or calls qrun.native or
``backend="native"`` without the command. An error that reaches a test through the command stays a failure: there a
user would see it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import qrun

MISSING = find_spec("llvmlite") is None
REASON = "needs llvmlite"
_COMMAND = str(Path(qrun.__file__).parent / "cli")


def needs_native(error: BaseException, traceback: TracebackType | None) -> bool:
    """Whether a test, or the import of its module, ended because it asks for native kernels."""
    lacking = "llvmlite" in str(error) and isinstance(error, ImportError)
    if not lacking and getattr(error, "code", "") != "QR014":
        return False
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_COMMAND):
            return False
        traceback = traceback.tb_next
    return True
