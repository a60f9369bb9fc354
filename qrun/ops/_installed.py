"""Runs code that declares operators, and finds the installed packages that have such code."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable

from qrun.errors import CallError, QrunError


def run_code(run: Callable[[], object], place: str) -> None:
    """Runs code that declares operators. Raises CallError for everything that it raises."""
    try:
        run()
    except (QrunError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if os.path.abspath(f.filename) == os.path.abspath(place)
        ]
        line = (
            getattr(error, "lineno", None) if isinstance(error, SyntaxError) else frames[-1].lineno if frames else None
        )
        text = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
        raise CallError(
            "QR018",
            f"{place} cannot be imported",
            where=[f"{place}, line {line}" if line else place],
            facts=[("got", text.splitlines()[0][:300])],
            fixes=[f"python {place} shows where it fails"] if place.endswith(".py") else [],
        ) from None


def load_installed(domain: str) -> bool:
    """Imports the installed package that declares the operators of a domain: the entry point of this name in the group
    `qrun.ops`. Returns whether there is one. Raises CallError QR018 if it cannot be imported."""
    from importlib.metadata import entry_points

    for point in entry_points(group="qrun.ops", name=domain) if domain else ():
        run_code(point.load, f"{point.value} (entry point {domain} of qrun.ops)")
        return True
    return False
