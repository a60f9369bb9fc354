"""What a report of accuracy says in words: decibels, names, the verdict, notes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from qrun.comparing.accuracy import Accuracy
from qrun.comparing.accuracy_sums import decibels
from qrun.report.text import plural

_SHOWN = 4
_APART = 1.0
"""Decibels between two ways to run one model that are worth a note."""


def decibel(value: float | None) -> str:
    """``37.3 dB``; ``exact`` without any noise."""
    if value is None or value != value:
        return "-"
    return "exact" if value == float("inf") else "no signal" if value == float("-inf") else f"{value:.1f} dB"


def excluded(found: Accuracy) -> str:
    """The suggested nodes as a Python list."""
    kept = found.suggestion
    nodes = (
        []
        if kept is None
        else sorted({n.index: n for n in (*kept.nodes, *kept.around)}.values(), key=lambda n: n.index)
    )
    return json.dumps([node.label for node in nodes])


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def verdict(found: Accuracy) -> str:
    """The last line: equal, or which output is how far off."""
    limits = f"rtol {found.tolerance.rtol:g}, atol {found.tolerance.atol:g}"
    if found.equal:
        return f"equal: all outputs within {limits}."
    off = [o for o in found.outputs if not o.equal]
    low = min(off, key=lambda o: o.noise.sqnr if o.noise.sqnr == o.noise.sqnr else 0.0)
    others = f" and {plural(len(off) - 1, 'more output')}" if len(off) > 1 else ""
    return f"differ: {low.name}{others} over {limits}; SQNR {decibel(low.noise.sqnr)}."


def notes(found: Accuracy) -> list[str]:
    """What the reader should know about these numbers."""
    made = []
    if found.measured < found.quantizing:
        made.append(f"{found.measured} of {found.quantizing} quantized nodes were measured alone, the others in sets whose noise is "
                    "shared out by that of their own results (~).")  # fmt: skip
    if found.partly:
        made.append(f"of {plural(len(found.partly), 'quantized node')} only the rounding of the result is known: "
                    f"{listed([node.label for node in found.partly])}.")  # fmt: skip
    for side in ("quantized", "reference"):
        strays = [one for one in found.left if one.side == side and not one.inside]
        if strays:
            names = listed([one.tensor for one in strays])
            made.append(f"{plural(len(strays), 'tensor')} of the {side} model without a counterpart: {names} (node "
                        f"{strays[0].index}: {strays[0].why}).")  # fmt: skip
    if found.suggestion is not None and found.suggestion.runs < found.runs:
        made.append(
            f"the lists to keep in float were measured with {found.suggestion.runs} of {found.runs} sets of inputs."
        )
    if found.suggestion is not None:
        real = decibels(sum(o.noise.ratio for o in found.outputs) / len(found.outputs))
        model = found.suggestion.tried[0][1]
        if abs(real - model) > _APART:
            made.append(f"effects are measured in float32 steps, in which the quantized model has {decibel(model)} at the outputs "
                        f"instead of {decibel(real)}; effects of this size say little.")  # fmt: skip
    if any(not node.name for cost in found.costs for node in cost.floats):
        made.append("some nodes of the first model have no name; quantizers need one to leave a node out.")
    return made
