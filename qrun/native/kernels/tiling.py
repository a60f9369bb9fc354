"""How the rows of a product fall into AMX tiles: where each tile starts, and what is copied first."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.amx import STEP, TILE
from qrun.native.kernels.layout import Window
from qrun.native.machine.memory import Array, Ints, aligned_copy

Mode = Literal["in place", "pixels", "lines"]
_RUN = 24
"""k-steps of a run: its weights for 16 channels, a kilobyte a step, stay in the first-level cache."""
_COPY = 512 << 10
"""Bytes of copied activations that stay in the second-level cache."""
_WORTH = 1.2
"""What tiles in place may cost more than copied ones, for which copying pays."""


@frozen
class TileGrid:
    """Rows on a grid: row (y, x) is read y * down + x * across bytes after the first one; in ascending order."""

    height: int
    width: int
    down: int
    across: int

    @classmethod
    def of(cls, height: int, width: int, down: int, across: int) -> TileGrid:
        """The grid; one of a single line if all its rows are equally far apart."""
        if width == 1:
            height, width, across = 1, height, down if height > 1 else across
        if height == 1 or down == width * across:
            width *= height
            return cls(1, width, width * across, across)
        return cls(height, width, down, across)

    @property
    def last(self) -> int:
        return (self.height - 1) * self.down + (self.width - 1) * self.across

    def numbers(self, places: Ints) -> Ints:
        """The number of the row that is read at each place, in bytes from the first row; -1 where none is."""
        y, rest = np.divmod(places, self.down)
        x, off = np.divmod(rest, self.across)
        return np.where((off == 0) & (x < self.width) & (y < self.height), y * self.width + x, -1)

    def tiles(self) -> tuple[int, Ints]:
        """(rows per tile, the place of each tile's first row): as few tiles as can be, and those as short as can be.

        Rows of a tile that lie between two lines are nobody's.
        """
        rows, starts = TILE, self._cover(TILE)
        while rows > 1 and len(shorter := self._cover(rows - 1)) == len(starts):
            rows, starts = rows - 1, shorter
        while True:
            over = np.maximum(starts + (rows - 1) * self.across - self.last, 0)
            moved = starts - -(-over // self.across) * self.across
            if moved.min() >= 0:
                return rows, moved
            rows -= 1
            starts = self._cover(rows)

    def _cover(self, rows: int) -> Ints:
        """Places of first rows: each tile begins at the first row that those before it leave out."""
        period, off = divmod(self.down, self.across)
        if off or period >= self.width + rows:
            lines = np.arange(self.height, dtype=np.int64) * self.down
            return (lines[:, None] + np.arange(0, self.width, rows) * self.across).reshape(-1)
        starts, place, end = [], 0, (self.height - 1) * period + self.width
        while place < end:
            starts.append(place)
            place += rows
            if place % period >= self.width:
                place += period - place % period
        return np.array(starts, np.int64) * self.across


@frozen
class Tiling:
    """Output rows by where they are read, to be covered by tiles of rows at equal distance.

    taps:    int64 [taps]: where each tap of the first row lies.
    depth:   bytes read per tap that count; more are read, up to a multiple of 64, with zero weights.
    sources: int64 of what is copied, in bytes from the image's start, -1 for padding; None to read in place.
    pitch:   bytes from one copied piece to the next; `piece` bytes are copied.
    """

    grid: TileGrid
    taps: Ints
    depth: int
    sources: Ints | None = None
    pitch: int = 0
    piece: int = 0

    @property
    def steps(self) -> int:
        return -(-self.depth // STEP)

    def cost(self) -> int:
        """k-steps of all tiles."""
        return len(self.grid.tiles()[1]) * len(self.taps) * self.steps

    def runs(self) -> tuple[Ints, int]:
        """Taps and steps of the kernel: a single long tap in several runs."""
        if len(self.taps) > 1:
            return self.taps, self.steps
        parts = -(-self.steps // _RUN)
        steps = -(-self.steps // parts)
        return self.taps[0] + np.arange(parts) * steps * STEP, steps


@frozen
class Tables:
    """Arguments of one kernel: see ARGUMENTS of emit/amx.py.

    taps, steps: runs of k, and steps in each. copy: bytes of scratch for what is copied.
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


def tiling(window: Window, pixel: int, depth: int, mode: Mode, stored: bool) -> Tiling | None:
    """Where the rows of a window lie, `pixel` bytes to a pixel, of which `depth` are read, or of a line if `stored`.

    mode:   whether pixels are read in place or copied, and then whether a tap is a whole kernel row (dilation 1).
    stored: padding is stored around the image, and a tap is a whole kernel row.
    """
    return _in_place(window, pixel, depth, stored) if mode == "in place" else _copied(window, pixel, depth, mode)


def _in_place(window: Window, pixel: int, depth: int, stored: bool) -> Tiling | None:
    """Tiles in the image itself, if nothing is padding."""
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


def _copied(window: Window, pixel: int, depth: int, mode: Mode) -> Tiling:
    """Tiles in a copy of the padded image, `depth` bytes of every pixel.

    Unless a tap is a whole kernel row, pixels of the same phase of the strides lie together.
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
    """The cheapest way to tile rows, and its k-steps."""
    place = tiling(window, pixel, depth, "in place", stored)
    best: tuple[Mode, int] | None = ("in place", place.cost()) if place else None
    rows = window.out[0] * window.out[1]
    if place and (stored or len(place.grid.tiles()[1]) == -(-rows // TILE)):
        return "in place", place.cost()
    merges = window.dilations[1] == 1 and window.kernel[1] > 1
    modes: tuple[Mode, ...] = ("pixels", "lines") if merges else ("pixels",)
    for mode in modes:
        cost = _copied(window, pixel, depth, mode).cost()
        if best is None or cost * _WORTH < best[1]:
            best = (mode, cost)
    assert best
    return best


@lru_cache(256)
def tables(
    window: Window, depth: int, mode: Mode, stored: bool, taps: tuple[int, ...], chunks: int, pixel: int
) -> Tables:
    """Tables for about `chunks` chunks of blocks or more; taps: which tap each one of the kernel reads.
    pixel, depth, mode and
    stored: as `tiling` takes them."""
    made = tiling(window, pixel, depth, mode, stored)
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
        chunk, gather, places, copy = _chunked(made, places, rows, chunk)
        copy += steps * len(runs) * STEP
        read = int(gather.max()) + made.piece if gather.max(initial=-1) >= 0 else 0
    int32s = (aligned_copy(places, np.int32), aligned_copy(targets, np.int32), aligned_copy(gather, np.int32))
    return Tables(rows, high, len(runs), steps, grid.across, made.pitch, made.piece, *int32s, chunk, copy, read)


def _chunked(tiling: Tiling, places: Ints, rows: int, chunk: int) -> tuple[int, Ints, Ints, int]:
    """(blocks per chunk, what each chunk copies, places in the copy, its bytes): copies not larger than a cache."""
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
