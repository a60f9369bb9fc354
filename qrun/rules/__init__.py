"""Conformance rules: every module of this package declares one with @rule and is found by itself."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from qrun.ir import Model, load
from qrun.rules._rule import RULES, Finding, Level, Rule, at, rule
from qrun.session import RunResult

if TYPE_CHECKING:
    import onnx

for _module in iter_modules(__path__):
    if not _module.name.startswith("_"):
        import_module(f"{__name__}.{_module.name}")

_ORDER: dict[Level, int] = {"error": 0, "warning": 1, "note": 2}


def check(model: str | Path | bytes | onnx.ModelProto | Model, result: RunResult | None = None) -> list[Finding]:
    """All findings on a model, worst first, then in graph order.

    result: a run of the model; adds what its values show. Raises ModelError if the model cannot be read.
    """
    loaded = model if isinstance(model, Model) else load(model)
    found = list(_findings(loaded, result))
    return sorted(found, key=lambda f: (_ORDER[f.level], -1 if f.index is None else f.index, f.rule))


def _findings(model: Model, result: RunResult | None) -> Iterator[Finding]:
    for known in RULES.values():
        yield from known.find(model, result)


__all__ = ["RULES", "Finding", "Level", "Rule", "at", "check", "rule"]
