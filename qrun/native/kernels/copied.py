"""Which products copy activations first, and in which form."""

from __future__ import annotations

from collections.abc import Mapping

from qrun.native.kernels.blocked import Run
from qrun.native.kernels.clipped import ROWS, clipped, clips
from qrun.native.kernels.product import Product, RelocatableCall
from qrun.native.kernels.widened import block_rows, widened

_LEAST_ROWS = 16
"""Rows below which it matters more that 16-bit weights are twice as many bytes."""
_FEW = 2
"""Panels from which on it pays to look which activations are small."""
_VECTORS, _QUAD = 2, 4
"""Groups of no more vectors of channels, or no more activations at each tap, are not copied."""
_BROADCAST, _PRODUCT, _LOOP = 1.25, 2, 7
"""Instructions for each row, for each of its vectors, and for the loop; the first and last fitted to what was measured."""


def copied(product: Product, groups: int, kinds: frozenset[str]) -> list[RelocatableCall]:
    """Kernel calls for [rows, taps, groups * k] activations, as Product.dense; none where copies do not serve."""
    layout, isa = product.layout, product.isa
    each = len(product.folded.centred) // groups
    plain = product.panels(each, groups)
    if not layout.k or any(form == "table" for *_, form in plain):
        return []
    if groups > 1 and (each <= _VECTORS * isa.lanes or layout.k <= _QUAD):
        return []
    wide, small = "widened" in kinds and layout.rows >= _LEAST_ROWS, "clipped" in kinds and clips(product)
    least, most = (_narrow(rows, each, isa.lanes) for rows in (ROWS, block_rows(isa)))
    fitting = {vectors: rows for vectors, rows in least.items() if rows <= layout.rows} or least
    narrow, broad = (_runs(plain, each, isa.lanes, rows) for rows in (fitting, most))
    parts = []
    for run, other in zip(narrow, broad, strict=True):
        _, vectors, panels, _ = run
        if small and layout.rows >= ROWS[vectors] and (panels >= _FEW or not wide):
            parts.append(clipped(product, groups, run))
        elif wide:
            parts.append(widened(product, groups, other))
        else:
            return []
    return parts


def _narrow(rows: Mapping[int, int], channels: int, lanes: int) -> dict[int, int]:
    """The entries of `rows` (rows of a block, by vectors of a panel) whose panels have channels in every vector."""
    return {vectors: count for vectors, count in rows.items() if (vectors - 1) * lanes < channels}


def _runs(plain: list[Run], channels: int, lanes: int, rows: Mapping[int, int]) -> list[Run]:
    """One run of panels of equal width, the cheapest for this many channels; the plain runs if they differ in form.

    rows: rows of a block, by vectors of a panel. Panels may overlap.
    """
    form = plain[0][3]
    if any(run[3] != form for run in plain):
        return plain
    sizes = [(vectors, -(-channels // (vectors * lanes))) for vectors in sorted(rows, reverse=True)]
    vectors, panels = min(sizes, key=lambda size: size[1] * _cost(size[0], rows[size[0]]))
    return [(0, vectors, panels, form)]


def _cost(vectors: int, rows: int) -> float:
    """Instructions per row in a turn of the inner loop of a panel. The loop and the loads of weights are shared by the rows."""
    return _BROADCAST + _PRODUCT * vectors + (vectors + _LOOP) / rows
