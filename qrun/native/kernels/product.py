"""Plans integer products: packs the constants and fills the argument structs of the kernels that compute them. A
depthwise product is cut into whole panels of channels with interleaved taps, and a rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.declare.stored import Reloadable
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import INTERLEAVED, MAGIC_BITS, KernelSpec, constant_bytes, taps_per_turn
from qrun.native.kernels.layout import Layout, Window, chunk_blocks, unroll_for
from qrun.native.kernels.packing import pack_words
from qrun.native.kernels.results import PanelRun, Results
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Array, Ints, aligned, aligned_copy
from qrun.native.machine.operation import size
from qrun.native.proof.fold import Folded, wrap_to_int32

TABLE_ROWS = 2
FAR_WEIGHTS = 200 << 10
"""With more bytes of weights than this, the next panel's weights are prefetched."""
_FEW_BLOCKS = 3
"""With fewer blocks of rows, there is no time to prefetch the next panel while this one is multiplied."""
_NEAR, _GAIN = 16 << 10, 0.6
"""Bytes of activations that stay in the first-level cache beside weights; and the share to which walking panels inside
such chunks must reduce the bytes from the second-level cache, to be worth the loops."""
_ROWS = 4
_FEW_VECTORS = {2: 2, 4: 1}
"""By taps per iteration: up to this many vectors of channels after the last whole panel run on the plain kernel."""
_THREE = 3
_LONGER = 8
"""The time of one product of a depthwise kernel, in products of a dense kernel."""


@frozen
class RelocatableCall:
    """A planned kernel call that can be placed on operands with different layouts.

    taps:     for each tap of the kernel, the number of the layout's tap that it reads.
    later:    if neighbouring rows share the activations they read: for each tap of the kernel, the row to which it
              belongs, counted from the first of the rows that share; else empty.
    start:    bytes from each of the layout's offsets to where the kernel reads. read: bytes that it reads there.
    itemsize: bytes of a result.
    """

    section: KernelCall
    taps: tuple[int, ...]
    read: int
    itemsize: int
    later: tuple[int, ...] = ()
    start: int = 0

    def place(self, layout: Layout) -> KernelCall:
        """The call on activations and results with this layout; constants are shared."""
        section = self.section
        first, end, share = section.first, section.first + section.channels, section.spec.unroll if self.later else 1
        key = section.spec.rows, share, self.taps, self.later, self.start, self.read, self.itemsize, first, end
        words, offsets, extents = layout.memo.once(key, lambda: self._words(layout, first, end, share))
        return section.with_changes(words, {"offsets*": offsets}, extents=extents)

    def _words(
        self, layout: Layout, first: int, end: int, share: int
    ) -> tuple[Mapping[str, int], Array, tuple[int, int]]:
        """The layout's argument words for these channels, the table of offsets, and the extents of the operands."""
        words = {"x*": self.start, "x_image": layout.x_image}
        words |= {"y*": first * self.itemsize, "y_image": layout.y_image, "y_row": layout.y_row}
        table = layout.table(self.section.spec.rows, self.taps, self.later, share)
        return words, table, (layout.x_bytes(self.start + self.read), layout.y_bytes(end * self.itemsize))


@frozen
class Product:
    """An integer product: sums of activations times weights, and how they become results.

    x_zero: the activations' zero point, an element of their type; an offset of -1 reads it.
    window: the window that each row of the layout reads. stored: the image's padding is stored, and a tap is a whole
            kernel row.
    group:  groups of channels, each of which reads activations of its own.
    """

    engine: Engine
    layout: Layout
    folded: Folded
    results: Results
    x_zero: np.ndarray[Any, Any]
    window: Window
    stored: bool = False
    group: int = 1

    @property
    def isa(self) -> Isa:
        return self.engine.isa

    @property
    def k(self) -> int:
        """The number of activations per tap."""
        return self.folded.shape[2]

    @property
    def signed(self) -> bool:
        """Whether the activations are int8."""
        return bool(self.x_zero.dtype == np.int8)

    @property
    def each(self) -> int:
        """Output channels of a group."""
        return self.folded.shape[0] // self.group

    @property
    def panels(self) -> list[PanelRun]:
        """The runs of a group's panels."""
        return self.results.panels(self.isa.lanes, self.isa.vectors, self.each, self.group)

    def alone(self, group: int) -> Product:
        """The product of one group."""
        first, end = group * self.each, (group + 1) * self.each
        return replace(self, folded=self.folded.part(first, end), results=self.results.part(first, end), group=1)

    def by_lines(self) -> Product:
        """The same sums with a whole kernel row as one tap."""
        return replace(self, folded=self.folded.lines(self.window.kernel))

    def merge_groups(self) -> Product:
        """The product with neighbouring groups merged, with zero weights between them, if that fills vectors."""
        count = groups_to_merge(self.group, self.each, self.k, self.isa.lanes) if self.group > 1 else 1
        if count == 1:
            return self
        return replace(self, folded=self.folded.merge_groups(self.group, count), group=self.group // count)

    def dense(self) -> list[RelocatableCall]:
        """Kernel calls for [rows, taps, groups * k] activations and [N, taps, k] weights, N/groups for each group."""
        (weights, taps), groups, each = self.folded.taps, self.group, self.each
        unroll, steps = unroll_for(self.k)
        parts = []
        for first, vectors, panels, form in self.panels:
            width = vectors * self.isa.lanes
            pick = self.results.memo.once(
                ("lanes", first, panels, width, each, groups), partial(_lanes, first, (panels, width), each, groups)
            )
            rows = even_rows(self.layout.rows, TABLE_ROWS if form == "table" else self.isa.rows[vectors])
            packed = self.folded.memo.once(
                ("dense", first, panels, width, steps), partial(_dense, self.engine, weights, pick, 4 * steps)
            )
            blocks = -(-self.layout.rows // rows)
            chunk = self._near_chunk(packed.nbytes, len(pick), blocks)
            far = weights.nbytes > FAR_WEIGHTS and blocks >= _FEW_BLOCKS
            # an iteration's share, so that the next panel is in the cache when this one is done
            lines = -(-unroll * width * 4 // 64 // blocks) if far and not chunk else 0
            spec = KernelSpec("dense", self.isa.name, rows, vectors, unroll, form, self.results.out, self.signed, lines)
            macs = len(taps) * steps * 4 * rows * width
            words = {
                "taps": len(taps),
                "depth": steps // unroll,
                "panels": len(pick),
                "group_panels": panels,
                "x_group": self.k,
                "y_group": each * self.results.size,
                "weights_group": packed.nbytes // groups,
                "bias_group": 4 * width * panels,
                "constants_group": constant_bytes(form) * width * panels,
            }
            reads = taps, 4 * steps, (groups - 1) * self.k
            held = {"weights*": packed}
            parts.append(self.part(spec, pick, held, words, reads, macs, walks=len(pick), chunk=chunk))
        return parts

    def _near_chunk(self, weights: int, panels: int, blocks: int) -> int:
        """Blocks per chunk, if all panels of a chunk should follow each other so that its activations stay in the
        first-level cache; else 0. Compares the bytes of activations and weights from the second-level cache.
        """
        x = self.layout.x_image
        chunks = -(-x // _NEAR)
        if panels == 1 or weights > FAR_WEIGHTS or chunks < 2:
            return 0
        return max(1, blocks // chunks) if x + weights * chunks < _GAIN * (x * panels + weights) else 0

    def bias(self, form: str, pick: Ints, shift: int) -> np.ndarray[Any, Any]:
        """The start values of the sums of these channels, 0 for none (-1). shift: see Folded.starts."""
        bias = aligned_copy(np.where(pick < 0, 0, self.folded.starts(shift)[np.maximum(pick, 0)]), np.int32)
        if form == "y32":
            bias[...] = wrap_to_int32(bias.astype(np.int64) + MAGIC_BITS)
        return bias

    def part(
        self,
        spec: KernelSpec,
        pick: Ints,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        words: Mapping[str, int],
        reads: tuple[Sequence[int], int, int],
        macs: int,
        walks: int = 1,
        chunk: int = 0,
    ) -> RelocatableCall:
        """A kernel call for the channels `pick` [panels, lanes], -1 for none.

        arrays, words: the parts of its argument struct that are not common to all products.
        reads: the taps, the bytes read at each, and the bytes from the first group's channels to the last one's.
        macs:  products of a block of rows. walks: how often the blocks of an image are walked.
        chunk: blocks of a tile if all of its walks shall follow each other, else 0.
        """
        layout, (taps, read, beyond) = self.layout, reads
        arrays = {**arrays, "padding*": self.padding(read)}
        blocks = -(-layout.rows // spec.rows)
        each = chunk_blocks(blocks, walks * layout.images, macs, self.engine.threads, self.isa.lanes)
        each = min(each, chunk or each)
        chunks = -(-blocks // each)
        steps = {"chunk_step": walks, "panel_step": 1} if chunk else {"chunk_step": 1, "panel_step": chunks}
        cut = {"blocks": blocks, "chunks": chunks, "chunk": each, "tiles": layout.images * walks * chunks}
        known = {"last_row": layout.rows - spec.rows, **cut, **steps, **words}
        section = self.section(spec, pick, arrays, known)
        return RelocatableCall(section, tuple(taps), read + beyond, self.results.size)

    def padding(self, read: int) -> Array:
        """An array of `read` zero points."""
        make = partial(aligned, read, self.x_zero.dtype, int(self.x_zero))
        return self.folded.memo.once(("padding", read, self.x_zero.dtype, int(self.x_zero)), make)

    def section(
        self,
        spec: KernelSpec,
        pick: Ints,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        words: Mapping[str, int],
        scratch: int = 0,
    ) -> KernelCall:
        """A call for the channels `pick` [panels, lanes], without operands. scratch: bytes of memory per thread.

        arrays, words: the parts of its argument struct that are not common to all products; missing words are 0.
        """
        panel, shift = (spec.form, pick.shape, pick.tobytes()), self._shift(spec.kind)
        bias = self.folded.memo.once((*panel, shift), lambda: self.bias(spec.form, pick, shift))
        constants, mask, shown = self.results.memo.once(panel, lambda: self._of_channels(spec.form, pick))
        arrays = {**arrays, "bias*": bias, "constants*": constants}
        words = {"mask": mask, "zero_point!": self.results.zero_point, **words}
        return self.engine.kernels.call(
            spec, ("x*", "y*"), words, (0, 0), arrays, sparse=True, scratch=scratch, **shown
        )

    def _shift(self, kind: str) -> int:
        """The number that kernels of this kind add to activations when they read them."""
        if kind == "interleaved":
            return 128 if self.signed else 0
        return self.isa.shift(self.signed) if kind in ("dense", "clipped") else 0

    def _of_channels(self, form: str, pick: Ints) -> tuple[Array, int, Mapping[str, Any]]:
        """The data that all calls for these channels share: constants, mask of the last vector, fields of the call."""
        there, lanes = pick[-1] >= 0, self.isa.lanes
        if not (there[:-lanes].all() and there[-lanes:].any()):
            raise ValueError("a panel whose last vector is not the only one that is cut")
        first, why = int(pick[0, 0]), self.results.why(form, pick[pick >= 0])
        fields = {"first": first, "channels": int(pick.max()) + 1 - first, "pick": pick, "why": why}
        return self.results.constants(form, pick), (1 << int(there[-lanes:].sum())) - 1, fields


def even_rows(rows: int, most: int) -> int:
    """Rows of a block, at most `most`: the fewest blocks with the least overlap. 16 rows are 4 blocks of 4, not of
    5."""
    return -(-rows // -(-rows // most))


def lanes_of(first: int, count: int, channels: int, start: int = 0) -> Ints:
    """`count` channels of a group from its channel `first` on, -1 beyond its last. start: the group's first channel."""
    lanes = np.arange(first, first + count)
    return np.where(lanes < channels, start + lanes, -1)


def _lanes(first: int, panels: tuple[int, int], channels: int, groups: int) -> Ints:
    """The channels [groups * panels, lanes] of panels in each group, from its channel `first` on; -1 for none."""
    count = size(panels)
    pick = np.concatenate([lanes_of(first, count, channels, g * channels) for g in range(groups)])
    return pick.reshape(groups * panels[0], panels[1])


def _dense(engine: Engine, weights: Reloadable, pick: Ints, depth: int) -> Array:
    """Pack weights for kernels that multiply all taps."""
    return pack(engine, weights.array, pick, depth)


def pack(engine: Engine, weights: Array, pick: Ints, depth: int, dtype: Any = np.int8) -> Array:
    """Pack channels of weights [N, taps, k] by `pack_words`. pick: the channels [panels, lanes], -1 for none."""
    return pack_words(engine, weights, channels_of(pick), pick.shape[1], depth, np.dtype(dtype).name)


def channels_of(pick: Ints) -> tuple[tuple[int, int], ...]:
    """The first channel and the number of channels of each panel. pick: the channels [panels, lanes], -1 for none."""
    return tuple(zip(pick[:, 0].tolist(), np.count_nonzero(pick >= 0, axis=1).tolist(), strict=True))


def groups_to_merge(groups: int, outputs: int, inputs: int, lanes: int) -> int:
    """The number of neighbouring groups to compute as one product, with zero weights between them, to fill vectors."""

    def cost(count: int) -> tuple[int, int]:
        steps = unroll_for(inputs * count)[1]
        return groups // count * -(-outputs * count // lanes) * steps, -count

    return min((count for count in range(1, groups + 1) if groups % count == 0), key=cost)


def depthwise(product: Product) -> list[RelocatableCall]:
    """Kernel calls for [rows, taps, N] activations and [N, taps, 1] weights."""
    lanes, n = product.isa.lanes, product.folded.shape[0]
    width = INTERLEAVED * lanes
    if n < width or not _interleaves(product):
        return [_plain(product, 0)]
    rest = n % width
    if rest > _FEW_VECTORS[taps_per_turn(product.isa)] * lanes:
        rest = 0
    parts = [_interleave(product, n - rest)]
    return [*parts, _plain(product, n - -(-rest // lanes) * lanes)] if rest else parts


def _interleaves(product: Product) -> bool:
    """Whether the weights fit the instruction that adds several products, and the interleaved kernel has the results'
    form."""
    w, step = product.folded.centred, taps_per_turn(product.isa)
    if step == 1 or product.results.form(slice(None)) == "table":
        return False
    return step < 4 or bool(w.min() >= -128 and w.max() <= 127)


def _plain(product: Product, start: int) -> RelocatableCall:
    """The call of the plain kernel for the channels from `start` on."""
    centred, lanes, results = product.folded.centred, product.isa.lanes, product.results
    count, form = len(centred) - start, results.form(slice(start, None))
    vectors = min(range(product.isa.vectors, 0, -1), key=lambda v: (v * lanes > count, -(-count // (v * lanes)) * v))
    pick = _pick(start, len(centred), vectors * lanes)
    rows = min(TABLE_ROWS if form == "table" else _ROWS, product.layout.rows)
    spec = KernelSpec("depthwise", product.isa.name, rows, vectors, 1, form, results.out, product.signed)
    packed = product.folded.memo.once(("plain", start, vectors), lambda: _pack(centred, pick))
    return _part(product, spec, pick, packed, range(centred.shape[1]))


def _pack(centred: Array, pick: Ints) -> Array:
    """The weights as int32 [panels, taps, lanes], each in the low 16 bits."""
    weights = np.where(pick < 0, 0, centred[np.maximum(pick, 0), :, 0].transpose(2, 0, 1)).astype(np.int32) & 0xFFFF
    return aligned_copy(weights.swapaxes(0, 1))


def _interleave(product: Product, count: int) -> RelocatableCall:
    """The call of the interleaved kernel for the first `count` channels.

    If an iteration has four taps, and the window is three pixels wide, two neighbouring results share the four pixels
    that they read in a line: the weights of the first are (a, b, c, 0), those of the second (0, a, b, c).
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
        for pixel, index in enumerate(places):
            weights[pixel, index] = centred[pick, :, 0].transpose(2, 0, 1)
        made = weights.reshape(len(places), -1, step, *pick.shape).transpose(3, 1, 0, 4, 2)
        return aligned_copy(np.ascontiguousarray(made).view(np.int32))

    packed = product.folded.memo.once(("interleaved", count, len(places), step), turns)
    rows = min(_ROWS if lanes == 16 else _ROWS // 2, product.layout.rows)
    form, out = product.results.form(slice(count)), product.results.out
    spec = KernelSpec("interleaved", product.isa.name, rows, INTERLEAVED, len(places), form, out, product.signed)
    return _part(product, spec, pick, packed, taps, later)


def _pick(start: int, end: int, width: int) -> Ints:
    """Channels [panels, width] from `start` on. Panels overlap rather than run over, unless not even one is filled."""
    last = max(end - width, start)
    return np.stack([lanes_of(min(first, last), width, end) for first in range(start, end, width)])


def _part(
    product: Product, spec: KernelSpec, pick: Ints, weights: Array, taps: Sequence[int], later: Sequence[int] = ()
) -> RelocatableCall:
    """The call of one group of channels that share their nonzero taps."""
    start, last = int(pick[0, 0]), int(pick[-1, 0])
    words = {"taps": len(taps), "panels": len(pick), "last_channel": last - start}
    macs, reads = _LONGER * len(taps) * spec.rows * pick.size, (taps, last - start + pick.shape[1], 0)
    part = product.part(spec, pick, {"weights*": weights}, words, reads, macs)
    return replace(part, later=tuple(later), start=start)
