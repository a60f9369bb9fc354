"""Products of float32 with constant weights, two of three in pairs:
where that pays, what sums may be off, how work is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.emit.float_pairs import DEPTH, PAIRED, PITCH, ROW, TURN
from qrun.native.emit.isa import Isa, adds_apart
from qrun.native.kernels.float_product import Cut, FloatProduct, known_lengths, laid_out
from qrun.native.kernels.floats import FloatStack
from qrun.native.machine.engine import Array, KernelCall, KernelSpec

_SPARE = 8
"""How many times longer or shorter than the rows are made a column may be: what sums are off grows with that."""
_SIZES = 2.0**-100, 2.0**100
"""Lengths of columns between which no factor of a row leaves float64's range."""
_LEAST = 72, 48, 64
"""Rows, columns and elements of a row from which on pairs pay."""
_VECTORS = 2
"""Vectors of columns in a strip: beside its sums a pair needs two registers for each, and two more."""


def weight(lengths: Array) -> float:
    """The length of rows that suits columns of these lengths; 0 if there is none."""
    least, most = float(lengths.min(initial=np.inf)), float(lengths.max(initial=0))
    if not _SIZES[0] <= least <= most <= _SIZES[1] or most > least * _SPARE**2:
        return 0.0
    return float(np.sqrt(least * most))


def worthwhile(isa: Isa, stack: FloatStack) -> bool:
    """Whether a product with constant weights takes less time in pairs, if they have a `weight`."""
    sizes = stack.left.rows, stack.columns, stack.left.depth
    return adds_apart(isa) and all(size >= least for size, least in zip(sizes, _LEAST, strict=True))


def steps(depth: int) -> tuple[int, int]:
    """Blocks of k, and the elements of each, of which the last one may have fewer."""
    blocks = -(-depth // DEPTH)
    return blocks, -(-depth // (blocks * TURN)) * TURN


def neighbours(matrices: Array) -> Array:
    """Of right matrices [number, K, N]: float64 [number, N],
    the sums of products of each column's neighbours that are paired."""
    _, size = steps(matrices.shape[1])
    terms = []
    for start in range(0, matrices.shape[1], size):
        whole = matrices[:, start : start + size].astype(np.float64)
        paired = whole[:, : -(-whole.shape[1] // TURN) * PAIRED]
        count = paired.shape[1] // 2
        terms.append(paired[:, 0 : 2 * count : 2] * paired[:, 1 : 2 * count : 2])
    made = np.concatenate(terms, axis=1)
    while (count := made.shape[1]) > 1:  # halves, so that few roundings follow each other
        half = count // 2
        made = np.concatenate([made[:, :half] + made[:, half : 2 * half], made[:, 2 * half :]], axis=1)
    return np.asarray(made.sum(axis=1))


def links(isa: Isa, depth: int) -> float:
    """How many roundings of all terms' sizes a sum may be off (exactness.md, L28)."""
    blocks, size = steps(depth)
    turns = size // TURN
    chain = turns * (PAIRED // 2 + TURN - PAIRED) + blocks
    lanes = isa.lanes // 2
    rows = -(-turns * PAIRED // lanes) * blocks + lanes
    return chain + 3 + 2 + max(rows, depth.bit_length())


def pairs_call(
    product: FloatProduct,
    stack: FloatStack,
    pointers: Sequence[str] | Mapping[str, int],
    extents: Sequence[int],
    *,
    matrices: Callable[[], Array],
    lengths: Callable[[], Array],
    memo: Memo,
) -> KernelCall | None:
    """The call for products that are `worthwhile`; None for others. matrices: constant right ones, float32 [number, K,
    N] in C order; lengths: float64 [number, N], of their columns; memo: what is made of them.
    Other parameters as in product_call."""
    engine, left, isa = product.engine, stack.left, product.engine.isa
    length = weight(lengths()) if worthwhile(isa, stack) and np.isfinite(product.terms.alpha) else 0.0
    if not length:
        return None
    held = {"b*": matrices()}
    pairs = memo.once("pairs", lambda: neighbours(held["b*"]))
    lanes = isa.lanes // 2
    blocks, size = steps(left.depth)
    vectors = _VECTORS
    rows = min(isa.real_rows[vectors], left.rows)
    width = vectors * lanes
    panels = -(-stack.columns // width)
    sizes = (left.rows, stack.columns, left.depth), (rows, width)
    cut = Cut.of(len(stack.starts), *sizes, engine.threads, ready=False, depth=DEPTH)
    kept = cut.rows * PITCH, 8 * width * (DEPTH + TURN), cut.rows * ROW, 8 * cut.rows
    places, scratch = laid_out(cut, (rows, width), blocks, kept)
    stack = replace(stack, left=replace(left, links=links(isa, left.depth)))
    off = (np.sqrt(2) * length + lengths()) ** 2 / 2
    words = {
        **places,
        "tap_step": 1,
        "depth_step": size,
        "row_block": cut.rows,
        "panels": panels,
        "panel_block": cut.panels,
        "tiles": len(stack.starts) * -(-left.rows // cut.rows) * -(-panels // cut.panels),
    }
    held |= {
        **known_lengths(stack, off, width),
        "weight*": np.array([np.sqrt(2) * length]),
        "pairs*": known_lengths(stack, pairs, width)["known*"],
    }
    form = product.terms.form, product.terms.out, False
    spec = KernelSpec("float_pairs", isa.name, rows, vectors, TURN, *form, operands="rows-packed")
    return product.call(spec, stack, words, held, pointers, extents, scratch)
