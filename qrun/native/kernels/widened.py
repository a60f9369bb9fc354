"""A planned integer product on 16-bit copies of activations, where there are only products of 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.native.emit.copied import PIECE, STEP
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels.blocked import Blocked, Run
from qrun.native.kernels.product import Product, RelocatableCall
from qrun.native.machine.memory import aligned

Array = np.ndarray[Any, Any]
ROWS = {4: 5, 3: 7, 2: 5, 1: 8}
"""Rows of a block, by vectors of a panel, with 32 registers."""
_ROWS_16 = {3: 3, 2: 5, 1: 8}
_NEAR = 128 << 10
_SIZE = 2


def block_rows(isa: Isa) -> Mapping[int, int]:
    """Rows of a block, by vectors of a panel, which may be more than a dense kernel's."""
    return ROWS if isa.vectors > 2 else _ROWS_16


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
