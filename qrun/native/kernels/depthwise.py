"""How a depthwise product falls into kernel calls: whole panels of channels with interleaved taps, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qrun.native.emit.spec import INTERLEAVED, KernelSpec, taps_per_turn
from qrun.native.kernels.product import TABLE_ROWS, Product, RelocatableCall, lanes_of
from qrun.native.machine.memory import Array, Ints, aligned_copy

_ROWS = 4
_FEW_VECTORS = {2: 2, 4: 1}
"""By taps per turn: up to so many vectors of channels beyond the last whole panel run on the plain kernel."""
_THREE = 3
_LONGER = 8
"""One product of a depthwise kernel takes about as long as so many of a dense kernel."""


def depthwise(product: Product) -> list[RelocatableCall]:
    """Kernel calls for [rows, taps, N] activations and [N, taps, 1] weights."""
    lanes, n = product.isa.lanes, len(product.folded.centred)
    width = INTERLEAVED * lanes
    if n < width or not _interleaves(product):
        return [_plain(product, 0)]
    rest = n % width
    if rest > _FEW_VECTORS[taps_per_turn(product.isa)] * lanes:
        rest = 0
    parts = [_interleaved(product, n - rest)]
    return [*parts, _plain(product, n - -(-rest // lanes) * lanes)] if rest else parts


def _interleaves(product: Product) -> bool:
    """Whether the weights fit the instruction that adds the products of a turn,
    and its kernel has the results' form."""
    w, step = product.folded.centred, taps_per_turn(product.isa)
    if step == 1 or product.results.form(slice(None)) == "table":
        return False
    return step < 4 or bool(w.min() >= -128 and w.max() <= 127)


def _plain(product: Product, start: int) -> RelocatableCall:
    """The channels from `start` on."""
    centred, lanes, results = product.folded.centred, product.isa.lanes, product.results
    count, form = len(centred) - start, results.form(slice(start, None))
    vectors = min(range(product.isa.vectors, 0, -1), key=lambda v: (v * lanes > count, -(-count // (v * lanes)) * v))
    pick = _pick(start, len(centred), vectors * lanes)
    rows = min(TABLE_ROWS if form == "table" else _ROWS, product.layout.rows)
    spec = KernelSpec("depthwise", product.isa.name, rows, vectors, 1, form, results.out, product.signed)
    packed = product.folded.memo.once(("plain", start, vectors), lambda: _packed(centred, pick))
    return _part(product, spec, pick, packed, range(centred.shape[1]))


def _packed(centred: Array, pick: Ints) -> Array:
    """int32 [panels, taps, lanes], each weight in 16 bits."""
    weights = np.where(pick < 0, 0, centred[np.maximum(pick, 0), :, 0].transpose(2, 0, 1)).astype(np.int32) & 0xFFFF
    return aligned_copy(weights.swapaxes(0, 1))


def _interleaved(product: Product, count: int) -> RelocatableCall:
    """The first `count` channels.

    Where four taps make a turn, and a kernel is three pixels wide, two results side by side share the four pixels that
    they read of a line: the weights of the first are (a, b, c, 0), those of the second (0, a, b, c).
    """
    centred, lanes, step = product.folded.centred, product.isa.lanes, taps_per_turn(product.isa)
    taps = list(range(centred.shape[1]))
    places, later = [taps], list[int]()
    if step == _THREE + 1 and product.window.side_by_side(_THREE):
        places = [[tap + tap // _THREE + pixel for tap in taps] for pixel in (0, 1)]
        later = [0, 0, 0, 1] * (len(taps) // _THREE)
        taps = [tap for first in taps[::_THREE] for tap in (first, first + 1, first + 2, first + 2)]
    taps = taps + taps[:1] * (-len(taps) % step)
    pick = _pick(0, count, INTERLEAVED * lanes)
    pick = pick.reshape(-1, lanes // 4, 4, 4).swapaxes(1, 2).reshape(pick.shape)

    def turns() -> Array:
        weights = np.zeros((len(places), len(taps), *pick.shape), np.int8 if step == 4 else np.int16)
        for pixel, place in enumerate(places):
            weights[pixel, place] = centred[pick, :, 0].transpose(2, 0, 1)
        made = weights.reshape(len(places), -1, step, *pick.shape).transpose(3, 1, 0, 4, 2)
        return aligned_copy(np.ascontiguousarray(made).view(np.int32))

    packed = product.folded.memo.once(("interleaved", count, len(places), step), turns)
    rows = min(_ROWS if lanes == 16 else _ROWS // 2, product.layout.rows)
    form, out = product.results.form(slice(count)), product.results.out
    spec = KernelSpec("interleaved", product.isa.name, rows, INTERLEAVED, len(places), form, out, product.signed)
    return _part(product, spec, pick, packed, taps, later)


def _pick(start: int, end: int, width: int) -> Ints:
    """Channels [panels, width] from `start` on: panels overlap rather than run over, unless there is less than one."""
    last = max(end - width, start)
    return np.stack([lanes_of(min(first, last), width, end) for first in range(start, end, width)])


def _part(
    product: Product, spec: KernelSpec, pick: Ints, weights: Array, taps: Sequence[int], later: Sequence[int] = ()
) -> RelocatableCall:
    start, last = int(pick[0, 0]), int(pick[-1, 0])
    words = {"taps": len(taps), "panels": len(pick), "last_channel": last - start}
    macs, reads = _LONGER * len(taps) * spec.rows * pick.size, (taps, last - start + pick.shape[1], 0)
    part = product.part(spec, pick, {"weights*": weights}, words, reads, macs)
    return replace(part, later=tuple(later), start=start)
