"""The section on quantized tensors, one row each: parameters, the quantized values in use, and their histogram."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.documents.answers import TensorCodes
from qrun.ir.types import shape_text
from qrun.report.grid import Column, Grid
from qrun.report.html.markup import Markup, search, section, shape, table, tag
from qrun.report.text import number, percent, plural

WIDTH, HEIGHT, END = 120, 22, 3
"""Size of a histogram in pixels; END: the width of the bar at each limit, one pixel apart from the others."""


def quantization_section(tensors: Sequence[TensorCodes], count: int) -> Markup:
    """count: the number of all tensors, including those not on the page."""
    if not tensors:
        return Markup()
    kinds = [(kind, sum(t.kind == kind for t in tensors)) for kind in ("activation", "weight", "bias")]
    counts = [plural(n, kind) if kind != "bias" else f"{n} bias{'es' if n > 1 else ''}" for kind, n in kinds if n]
    first = f"The first {len(tensors):,} of {count:,} tensors: " if count > len(tensors) else ""
    about = (
        f"{first}{', '.join(counts)}. A code is a quantized value. A histogram spans all codes of the type (of int32: the used codes). "
        "The bars at its two ends count the smallest and the largest code, to which values outside the range are clipped: "
        "red where that loses something, grey where it does not (the zero point after a Relu; weights and biases). "
        "Range: the real values of the smallest and the largest used code."
    )
    columns = [
        Column("#", right=True, cell=lambda t: str(t.index)),
        Column("tensor", shrink=1, cell=lambda t: t.name),
        Column("codes", cell=_histogram),
        Column("kind", cell=lambda t: t.kind),
        Column("type", cell=lambda t: f"{t.type} {shape_text(t.shape)}"),
        Column("scale", right=True, cell=lambda t: _parameter(t.scale)),
        Column("zero point", right=True, cell=lambda t: _parameter(t.zero_point)),
        Column("used codes", right=True, cell=lambda t: f"{t.used[0]:g} … {t.used[1]:g}" if t.used else "-"),
        Column("range", right=True, cell=_real_range),
        Column("at low", right=True, cell=lambda t: _part(t.at_low, t.size)),
        Column("at high", right=True, cell=lambda t: _part(t.at_high, t.size)),
    ]
    shown = table("quantized tensors", Grid.of(columns, tensors))
    box = search("tensor-table", "Filter by name, kind or type", "1 3 4")
    return section("quantization", "Quantization", about, box, tag("div", shown, id="tensor-table"))


def _parameter(ends: Sequence[float] | None) -> str:
    """The value if all channels share it, else the smallest and the largest."""
    if ends is None:
        return "-"
    low, high = ends
    return number(low) if low == high else f"{number(low)} … {number(high)}"


def _real_range(t: TensorCodes) -> str:
    """The real values of the used codes, if the whole tensor has one scale and zero point."""
    scale, zero = t.scale, t.zero_point or (0, 0)
    if scale is None or t.used is None or scale[0] != scale[1] or zero[0] != zero[1]:
        return "-"
    low, high = ((code - zero[0]) * scale[0] for code in t.used)
    return f"{number(float(low))} … {number(float(high))}"


def _part(count: int, size: int) -> str:
    if not size:
        return "-"
    part = count / size
    return "0" if not count else f"<{percent(_LEAST, 2)}" if part < _LEAST else percent(part, 2)


_LEAST = 0.0001
"""The least share that has a number of its own."""


def _histogram(t: TensorCodes) -> Markup:
    """Draws elements per code, scaled to the largest bar that is not at a limit; the bars of the two limits are cut off
    at full height."""
    bins = [count / (codes or 1) for count, codes in zip(t.bins, t.bin_codes, strict=False)]
    top = max(bins, default=0) or max(t.at_low, t.at_high, 1)
    left = END + 1
    edges = [left + round((WIDTH - 2 * left) * at / len(bins)) for at in range(len(bins) + 1)]
    path = f"M{left} {HEIGHT}"
    for start, stop, count in zip(edges, edges[1:], bins, strict=False):
        path += f"V{HEIGHT - _height(count, top)}h{stop - start}"
    ends = _end(t, t.at_low, 0, 0, top), _end(t, t.at_high, 1, WIDTH - END, top)
    return tag("svg", shape("path", d=f"{path}V{HEIGHT}z"), *ends, class_="h", aria_hidden="true")


def _end(t: TensorCodes, count: int, side: int, at: int, top: float) -> Markup:
    if not count:
        return Markup()
    zero = t.zero_point
    rests = t.kind != "activation" or (
        zero is not None and t.limits is not None and zero[0] == zero[1] == t.limits[side]
    )
    height = _height(count, top)
    return shape("path", class_="z" if rests else "e", d=f"M{at} {HEIGHT}v-{height}h{END}v{height}z")


def _height(count: float, top: float) -> int:
    """A bar's height in pixels; at least one if there is anything."""
    return min(max(round(HEIGHT * count / top), 1 if count else 0), HEIGHT)
