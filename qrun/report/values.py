"""The values of arrays, one paragraph each: ``logits  [-2.947, -3.368, … 0.8421, 15.37]``."""

from __future__ import annotations

from collections.abc import Mapping

from qrun.ir import Array
from qrun.report.screen import Screen
from qrun.report.stats import values_shown
from qrun.report.text import shorten_all, width_of


def print_values(screen: Screen, arrays: Mapping[str, Array]) -> None:
    """Each name, shortened to a third of the width, and its values."""
    names = [screen.clean(name) for name in arrays]
    if screen.width is not None:
        names = shorten_all(names, screen.width // 3, screen.ellipsis)
    width = max(map(width_of, names), default=0)
    for name, array in zip(names, arrays.values(), strict=True):
        first = f"  {name}{' ' * (width - width_of(name))}  "
        values = ", ".join(values_shown(array)).replace("…,", "…")
        screen.wrapped(first, " " * (width_of(first) + 1), f"[{values}]")
