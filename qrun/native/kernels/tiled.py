"""Plans integer products on AMX tiles: the start of each tile of rows, and the activations that are copied first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.stored import Reloadable
from qrun.native.emit.amx import STEP, TILE, groups, scratch_bytes
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels.layout import Layout, Window
from qrun.native.kernels.packing import pack_groups
from qrun.native.kernels.product import FAR_WEIGHTS, Product, channels_of, lanes_of
from qrun.native.kernels.results import PanelRun
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Array, Ints, aligned_copy
from qrun.native.proof.fold import Int8s

Mode = Literal["in place", "pixels", "lines"]
_RUN = 24
"""k-steps of a run: its weights for 16 channels, 1 KB per step, stay in the first-level cache."""
_COPY = 512 << 10
"""Bytes of copied activations that stay in the second-level cache."""
_WORTH = 1.2
"""Copying pays if tiles in place cost more than this many times the tiles of a copy."""
_WASTE = 6
"""Tiles may compute up to this many times the products that are needed; beyond that, dense kernels are used."""
_SCRATCH = 1 << 20
"""The most bytes of a thread's memory."""
_SHARED_WEIGHTS = 512 << 10
"""With more bytes of weights than this, threads share out channels instead of rows."""
_UNITS_PER_THREAD, _UNIT_MACS = 8, 1 << 22
"""Units per thread, so that threads finish together; and products of a unit, so that taking it costs little."""
_GROUPS, _INPUTS = 8, 32
"""At most this many groups, with at least this many inputs each, run group by group."""


@frozen
class TileGrid:
    """Rows on a grid, in ascending order: row (y, x) is read y * down + x * across bytes after the first one."""

    height: int
    width: int
    down: int
    across: int

    @classmethod
    def of(cls, height: int, width: int, down: int, across: int) -> TileGrid:
        """The grid; it has a single line if all its rows are equally far apart."""
        if width == 1:
            height, width, across = 1, height, down if height > 1 else across
        if height == 1 or down == width * across:
            width *= height
            return cls(1, width, width * across, across)
        return cls(height, width, down, across)

    @property
    def last(self) -> int:
        """The pixels from the first to the last of a tile."""
        return (self.height - 1) * self.down + (self.width - 1) * self.across

    def numbers(self, places: Ints) -> Ints:
        """The number of the row that is read at each place, -1 for none. places: bytes from the first row."""
        y, rest = np.divmod(places, self.down)
        x, off = np.divmod(rest, self.across)
        return np.where((off == 0) & (x < self.width) & (y < self.height), y * self.width + x, -1)

    def tiles(self) -> tuple[int, Ints]:
        """(rows per tile, the place of each tile's first row): as few tiles as possible, as short as possible.

        Rows of a tile that lie between two lines are discarded.
        """
        rows, starts = TILE, self._cover_starts(TILE)
        while rows > 1 and len(shorter := self._cover_starts(rows - 1)) == len(starts):
            rows, starts = rows - 1, shorter
        while True:
            over = np.maximum(starts + (rows - 1) * self.across - self.last, 0)
            moved = starts - -(-over // self.across) * self.across
            if moved.min() >= 0:
                return rows, moved
            rows -= 1
            starts = self._cover_starts(rows)

    def _cover_starts(self, rows: int) -> Ints:
        """The places of tiles' first rows: each tile begins at the first row that earlier tiles do not cover."""
        period, off = divmod(self.down, self.across)
        if off or period >= self.width + rows:
            lines = np.arange(self.height, dtype=np.int64) * self.down
            return (lines[:, None] + np.arange(0, self.width, rows) * self.across).reshape(-1)
        starts, position, end = [], 0, (self.height - 1) * period + self.width
        while position < end:
            starts.append(position)
            position += rows
            if position % period >= self.width:
                position += period - position % period
        return np.array(starts, np.int64) * self.across


@frozen
class Tiling:
    """The places at which output rows are read, to be covered by tiles of equidistant rows.

    taps:    int64 [taps]: the place of each tap of the first row.
    depth:   bytes of a tap; more are read, up to a multiple of 64, with zero weights.
    sources: int64: the pieces that are copied, in bytes from the image's start, -1 for padding; None to read in place.
    pitch:   bytes from one copied piece to the next; `piece` bytes of each are copied.
    """

    grid: TileGrid
    taps: Ints
    depth: int
    sources: Ints | None = None
    pitch: int = 0
    piece: int = 0

    @property
    def steps(self) -> int:
        """The number of AMX steps over the depth."""
        return -(-self.depth // STEP)

    def cost(self) -> int:
        """k-steps of all tiles."""
        return len(self.grid.tiles()[1]) * len(self.taps) * self.steps

    def runs(self) -> tuple[Ints, int]:
        """The kernel's taps and steps. A single long tap is cut into several runs."""
        if len(self.taps) > 1:
            return self.taps, self.steps
        parts = -(-self.steps // _RUN)
        steps = -(-self.steps // parts)
        return self.taps[0] + np.arange(parts) * steps * STEP, steps


@frozen
class Tables:
    """Arguments of one kernel: see ARGUMENTS of emit/amx.py.

    taps, steps: runs of k, and steps in each. copy: bytes of scratch memory for the copy.
    read: bytes of an image that are touched.
    """

    rows: int
    high: int
    taps: int
    steps: int
    line: int
    pitch: int
    piece: int
    places: Array
    targets: Array
    gather: Array
    chunk: int
    copy: int
    read: int


def plan_tiling(window: Window, pixel: int, depth: int, mode: Mode, stored: bool) -> Tiling | None:
    """The tiling of a window's rows; None if they cannot be read in place as `mode` asks.

    pixel, depth: bytes from pixel to pixel, and bytes read of each pixel, or of each line if `stored`.
    mode:   whether pixels are read in place or copied; "lines": copied, and a tap is a whole kernel row (dilation 1).
    stored: padding is stored around the image, and a tap is a whole kernel row.
    """
    return _in_place(window, pixel, depth, stored) if mode == "in place" else _copy_tiling(window, pixel, depth, mode)


def _in_place(window: Window, pixel: int, depth: int, stored: bool) -> Tiling | None:
    """Tiles in the image itself; None if a row reads padding that is not stored."""
    top, left, bottom, right = window.pads
    line = (window.image[1] + (left + right if stored else 0)) * pixel
    kernel_y, kernel_x = (np.arange(k) * d for k, d in zip(window.kernel, window.dilations, strict=True))
    out, strides = window.out, window.strides
    taps = kernel_y * line
    if not stored:
        far = ((n - 1) * s + int(k[-1]) for n, s, k in zip(out, strides, (kernel_y, kernel_x), strict=True))
        if top or left or any(f >= n for f, n in zip(far, window.image, strict=True)):
            return None
        taps = (taps[:, None] + kernel_x * pixel).reshape(-1)
    return Tiling(TileGrid.of(*out, strides[0] * line, strides[1] * pixel), taps, depth)


def _copy_tiling(window: Window, pixel: int, depth: int, mode: Mode) -> Tiling:
    """Tiles in a copy of the padded image, with `depth` bytes of every pixel.

    Unless a tap is a whole kernel row, the copy groups pixels by their phase modulo the strides.
    """
    (height, width), (down, across) = window.image, window.strides
    top, left, bottom, right = window.pads
    rows, columns = height + top + bottom, width + left + right
    if mode == "pixels":
        rows, columns = -(-rows // down) * down, -(-columns // across) * across
    y, x = np.arange(rows)[:, None] - top, np.arange(columns)[None] - left
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    sources = np.where(inside, (y * width + x) * pixel, -1)
    kernel_y, kernel_x = (np.arange(k) * d for k, d in zip(window.kernel, window.dilations, strict=True))
    if mode == "lines":
        grid = TileGrid.of(*window.out, down * columns * depth, across * depth)
        return Tiling(grid, kernel_y * columns * depth, len(kernel_x) * depth, sources.reshape(-1), depth, depth)
    pitch = -(-depth // STEP) * STEP
    used_y, used_x = (np.flatnonzero(np.bincount(k % s)) for k, s in ((kernel_y, down), (kernel_x, across)))
    phases = sources.reshape(rows // down, down, columns // across, across).transpose(1, 3, 0, 2)[used_y][:, used_x]
    size = (rows // down) * (columns // across)
    phase = np.searchsorted(used_y, kernel_y % down)[:, None] * len(used_x)
    phase = phase + np.searchsorted(used_x, kernel_x % across)
    taps = (phase * size + (kernel_y // down)[:, None] * (columns // across) + kernel_x // across) * pitch
    grid = TileGrid.of(*window.out, columns // across * pitch, pitch)
    return Tiling(grid, taps.reshape(-1), depth, phases.reshape(-1), pitch, depth)


@lru_cache(1024)
def choose(window: Window, pixel: int, depth: int, stored: bool) -> tuple[Mode, int]:
    """The cheapest mode of tiling, and its k-steps."""
    in_place = plan_tiling(window, pixel, depth, "in place", stored)
    best: tuple[Mode, int] | None = ("in place", in_place.cost()) if in_place else None
    rows = window.out[0] * window.out[1]
    if in_place and (stored or len(in_place.grid.tiles()[1]) == -(-rows // TILE)):
        return "in place", in_place.cost()
    merges = window.dilations[1] == 1 and window.kernel[1] > 1
    modes: tuple[Mode, ...] = ("pixels", "lines") if merges else ("pixels",)
    for mode in modes:
        cost = _copy_tiling(window, pixel, depth, mode).cost()
        if best is None or cost * _WORTH < best[1]:
            best = (mode, cost)
    assert best
    return best


@lru_cache(256)
def tables(
    window: Window, depth: int, mode: Mode, stored: bool, taps: tuple[int, ...], chunks: int, pixel: int
) -> Tables:
    """Tables for about `chunks` chunks of blocks, or more. taps: for each tap of the kernel, the window's tap that it
    reads. pixel, depth, mode, stored: as for `plan_tiling`."""
    made = plan_tiling(window, pixel, depth, mode, stored)
    assert made
    grid, used = made.grid, Tiling(made.grid, made.taps[list(taps)], made.depth)
    rows, starts = grid.tiles()
    high = min(2, len(starts))
    count = -(-len(starts) // high)
    chunk = -(-count // min(chunks, count))
    order = np.minimum(np.arange(count * high), len(starts) - 1).reshape(count, high)
    first = starts[order]
    targets = np.full((count, TILE * high), -1)
    covered = (first[..., None] + np.arange(rows) * grid.across).reshape(count, -1)
    targets[:, : rows * high] = grid.numbers(covered)
    runs, steps = used.runs()
    places = first[:, None] + runs[None, :, None]
    gather, copy = np.zeros((1, 0), np.int64), 0
    read = grid.last + int(made.taps.max()) + (len(runs) * steps if len(taps) == 1 else steps) * STEP
    if made.sources is not None:
        chunk, gather, places, copy = _chunk(made, places, rows, chunk)
        copy += steps * len(runs) * STEP
        read = int(gather.max()) + made.piece if gather.max(initial=-1) >= 0 else 0
    int32s = (aligned_copy(places, np.int32), aligned_copy(targets, np.int32), aligned_copy(gather, np.int32))
    return Tables(rows, high, len(runs), steps, grid.across, made.pitch, made.piece, *int32s, chunk, copy, read)


def _chunk(tiling: Tiling, places: Ints, rows: int, chunk: int) -> tuple[int, Ints, Ints, int]:
    """(blocks per chunk, the pieces that each chunk copies, places in the copy, bytes of a copy), chosen so that copies
    stay in a cache."""
    assert tiling.sources is not None
    reach = (rows - 1) * tiling.grid.across + tiling.steps * STEP
    count, pitch = len(places), tiling.pitch

    def spans(size: int) -> list[tuple[int, int]]:
        parts = [places[i : i + size] for i in range(0, count, size)]
        return [(int(p.min()) // pitch, -(-(int(p.max()) + reach) // pitch)) for p in parts]

    while chunk > 1 and max(b - a for a, b in spans(chunk)) * pitch > _COPY:
        chunk = -(-chunk // 2)
    ranges = spans(chunk)
    longest = max(b - a for a, b in ranges)
    padded = np.concatenate([tiling.sources, np.full(longest, -1)])
    gather = np.stack([padded[a : a + longest] for a, _ in ranges])
    base = np.repeat([a * pitch for a, _ in ranges], chunk)[:count]
    return chunk, gather, places - base[:, None, None], longest * pitch


@frozen
class TiledPart:
    """A planned kernel call that can be placed on operands with different layouts.

    tables: returns the tables for pixels this many bytes apart. itemsize: bytes of a result. x_start: the first input
            channel of its group.
    """

    section: KernelCall
    tables: Callable[[int], Tables]
    itemsize: int
    x_start: int = 0

    def of_group(self, group: int, inputs: int, outputs: int) -> TiledPart:
        """The same call for group number `group`. inputs, outputs: channels of a group."""
        section = replace(self.section, first=self.section.first + group * outputs)
        return replace(self, section=section, x_start=group * inputs)

    def place(self, layout: Layout) -> KernelCall:
        """The call on activations and results with this layout; constants are shared."""
        section, made = self.section, self.tables(layout.pixel)
        words = {"x*": self.x_start, "x_image": layout.x_image, "line": made.line}
        words |= {"y*": section.first * self.itemsize, "y_image": layout.y_image, "y_row": layout.y_row}
        arrays = {"places*": made.places, "targets*": made.targets, "gather*": made.gather}
        read = self.x_start + (layout.images - 1) * layout.x_image + made.read if made.read else 0
        written = layout.y_bytes((section.first + section.channels) * self.itemsize)
        return section.with_changes(words, arrays, extents=(read, written))


def tiled_calls(product: Product) -> list[TiledPart]:
    """Kernel calls, group by group or for all groups merged; none if tiles would compute too many products that are not
    needed."""
    if product.group == 1:
        return _tile_calls(product)
    if product.group <= _GROUPS and product.k >= _INPUTS:
        made = [_tile_calls(product.alone(group)) for group in range(product.group)]
        if all(made):
            return [part.of_group(g, product.k, product.each) for g, parts in enumerate(made) for part in parts]
    merged = product.merge_groups()
    return _tile_calls(merged) if merged.group == 1 else []


def _tile_calls(product: Product) -> list[TiledPart]:
    """The calls for a product with a single group."""
    layout, folded, window, stored = product.layout, product.folded, product.window, product.stored
    n, taps, k = folded.shape
    if not k:
        return []
    mode, cost = choose(window, layout.pixel, k, stored)
    macs = cost * TILE * STEP * -(-n // TILE) * TILE
    if macs >= _WASTE * layout.rows * taps * k * n:
        return []
    product = product.by_lines() if mode == "lines" else product
    weights, sources = product.folded.taps
    chunks, shares = _cut(product, macs, weights.nbytes)
    laid = partial(tables, window, k, mode, stored, tuple(sources), chunks)
    parts = [_part(product, run, weights, laid, shares) for run in product.panels]
    return parts if all(part.section.scratch <= _SCRATCH for part in parts) else []


def _cut(product: Product, macs: int, weights: int) -> tuple[int, int]:
    """(chunks, shares): about eight units of work per thread, cut along rows or, with many weights, along channels."""
    if product.engine.threads == 1:
        return 1, 1
    units = min(_UNITS_PER_THREAD * product.engine.threads, macs * product.layout.images // _UNIT_MACS)
    units = max(1, -(-units // product.layout.images))
    blocks = -(-product.layout.rows // (2 * TILE))
    panels = -(-product.folded.shape[0] // (product.isa.vectors * product.isa.lanes))
    if weights > _SHARED_WEIGHTS:
        shares = min(panels, units)
        return -(-units // shares), shares
    chunks = min(blocks, units)
    return chunks, -(-units // chunks)


def _part(
    product: Product, run: PanelRun, weights: Reloadable, laid: Callable[[int], Tables], shares: int
) -> TiledPart:
    """The call for one run of panels. laid: the `tables` of the TiledPart."""
    first, vectors, panels, form = run
    results, n, made = product.results, weights.shape[0], laid(product.layout.pixel)
    pick = lanes_of(first, panels * vectors * TILE, n).reshape(panels, -1)
    kind = "amx_copy" if made.piece else "amx"
    spec = KernelSpec(kind, product.isa.name, TILE * made.high, vectors, 1, form, results.out, product.signed)
    turns = made.chunk * len(groups(spec))
    if weights.nbytes > FAR_WEIGHTS and turns > 1:
        spec = replace(
            spec, prefetch=next(lines for lines in (1, 4, 16) if lines * turns >= TILE * vectors or lines == 16)
        )
    share = -(-panels // min(shares, panels))
    known = {
        "gathered": made.gather.shape[1],
        "depth": max(made.piece, 1),
        "pitch": made.pitch,
        "blocks": len(made.places),
        "taps": made.taps,
        "steps": made.steps,
        "rows": made.rows,
        "panels": panels,
        "shares": -(-panels // share),
        "share": share,
        "chunks": -(-len(made.places) // made.chunk),
        "chunk": made.chunk,
    }
    known["tiles"] = product.layout.images * known["chunks"] * known["shares"]
    total = made.taps * made.steps * STEP
    key = "tiled", pick.shape, pick.tobytes(), spec.rows, spec.vectors, total
    arrays = {
        "weights*": product.folded.memo.once(key, lambda: _pack(product.engine, weights.array, pick, spec, total)),
        "padding*": product.padding(max(made.piece, 1)),
    }
    scratch = -(-scratch_bytes(spec, made.copy) // STEP) * STEP
    section = product.section(spec, pick, arrays, known, scratch)
    return TiledPart(section, laid, results.size)


def _pack(engine: Engine, weights: Int8s, pick: Ints, spec: KernelSpec, total: int) -> Array:
    """Pack weights, int8 [N, taps, k], into panels of groups of vectors: [total / 4][channels of the group][4], zero
    where there are none."""
    picks = [pick[:, group.start * TILE : group.stop * TILE] for group in groups(spec)]
    widths = tuple(own.shape[1] for own in picks)
    depth = total // weights.shape[1]
    return pack_groups(engine, weights, tuple(map(channels_of, picks)), widths, depth, "int8")
