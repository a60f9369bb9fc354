"""The file that a bug leaves behind: what was called, with which versions, and the traceback."""

from __future__ import annotations

import secrets
import shlex
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from qrun.errors import CallError
from qrun.io.files import replacing


def write_report(argv: Sequence[str], error: BaseException) -> str:
    """Write ``qrun-crash-XXXX.txt`` in the temporary folder, or the current one, and return its path; "" if neither."""
    from qrun.cli._group import versions

    text = "\n".join(
        [versions(), "", f"qrun {shlex.join(argv)}", "", "".join(traceback.format_exception(error)).rstrip(), ""]
    )
    name = f"qrun-crash-{secrets.token_hex(4)}.txt"
    for folder in (Path(tempfile.gettempdir()), Path()):
        with suppress(CallError):
            with replacing(str(folder / name)) as file:
                file.write(text.encode("utf-8", "backslashreplace"))
            return str(folder / name)
    return ""


def place(error: BaseException) -> str:
    """``qrun/ops/concat.py:88``: the innermost line of qrun in the traceback."""
    root = Path(__file__).resolve().parents[2]
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename)
        if path.is_relative_to(root / "qrun"):
            return f"{path.relative_to(root).as_posix()}:{frame.lineno}"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
