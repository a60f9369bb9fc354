"""Products that copy activations first: which do, and in which form; and those that copy them as 16 bits, where there are
only products of 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.native.emit.copied import PIECE, STEP
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels.blocked import Blocked, Run
from qrun.native.kernels.clipped import ROWS as CLIPPED_ROWS
from qrun.native.kernels.clipped import clipped, clips
from qrun.native.kernels.product import Product, RelocatableCall
from qrun.native.machine.memory import aligned

Array = np.ndarray[Any, Any]
WIDENED_ROWS = {4: 5, 3: 7, 2: 5, 1: 8}
"""Rows of a block, by vectors of a panel, with 32 registers."""
_WIDENED_ROWS_16 = {3: 3, 2: 5, 1: 8}
_NEAR = 128 << 10
_SIZE = 2
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
    least, most = (_narrow(rows, each, isa.lanes) for rows in (CLIPPED_ROWS, block_rows(isa)))
    fitting = {vectors: rows for vectors, rows in least.items() if rows <= layout.rows} or least
    narrow, broad = (_runs(plain, each, isa.lanes, rows) for rows in (fitting, most))
    parts = []
    for run, other in zip(narrow, broad, strict=True):
        _, vectors, panels, _ = run
        if small and layout.rows >= CLIPPED_ROWS[vectors] and (panels >= _FEW or not wide):
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


def block_rows(isa: Isa) -> Mapping[int, int]:
    """Rows of a block, by vectors of a panel, which may be more than a dense kernel's."""
    return WIDENED_ROWS if isa.vectors > 2 else _WIDENED_ROWS_16


def widened(product: Product, groups: int, run: Run) -> RelocatableCall:
    """The call for one run of panels; weights may be any within -255..255."""
    folded = product.folded.shifted(-product.isa.shift(product.signed))
    product = replace(product, folded=folded)
    taps, rows = folded.centred.shape[1], block_rows(product.isa)[run[1]]
    depth = -(-product.layout.k // STEP) * STEP
    block = rows * taps * depth * _SIZE
    plan = Blocked(product, groups, run, rows, tuple(range(taps)), depth, max(depth, PIECE), block, _NEAR)
    spec = KernelSpec("widened", product.isa.name, rows, run[1], 1, run[3], product.results.out, product.signed)
    arrays = {"weights*": _packed(folded.centred, plan)}
    return plan.part(spec, arrays, {}, plan.cut()[0] * block + _SIZE * PIECE)


def _packed(weights: Array, plan: Blocked) -> Array:
    """[N, taps, k] as int16 [panels, taps * depth / 2, width, 2], zero where there is no channel or k."""
    taps, k = weights.shape[1:]
    packed = aligned((len(plan.pick), taps * plan.depth // 2, plan.width), np.int32)
    rows = np.zeros((plan.width, taps, plan.depth), np.int16)
    for panel, channels in enumerate(plan.pick):
        chosen = weights[channels[channels >= 0]]
        rows[: len(chosen), :, :k] = chosen
        packed[panel] = rows.reshape(plan.width, -1).view(np.int32).T
    return packed
