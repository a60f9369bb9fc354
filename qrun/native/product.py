"""A planned integer product: packed constants and argument structs of the kernels that compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qrun.native import _dense, _depthwise
from qrun.native.compile import Kernels
from qrun.native.fold import Folded, Int8s, aligned, int8_taps, wrapped
from qrun.native.forms import MAGIC_BITS
from qrun.native.isa import Isa
from qrun.native.layout import Layout, chunk_blocks, unroll_for
from qrun.native.results import Results
from qrun.native.spec import KernelSpec
from qrun.native.thresholds import Ints

COUNTER = 256
_TABLE_ROWS = 2
_DEPTHWISE_ROWS = 4
_FAR_WEIGHTS = 200 << 10
_FEW_BLOCKS = 3
_X, _Y = _dense.ARGUMENTS.index("x*"), _dense.ARGUMENTS.index("y*")


@dataclass(frozen=True, slots=True)
class Section:
    """One kernel call: the panels of channels that share a kernel.

    arguments: int64 struct, complete but for x and y, which hold offsets to add to the buffers' addresses; its last
               word, COUNTER bytes from the start, is the tile counter of a run.
    x_bytes, y_bytes: how far the kernel reads and writes from the buffers' starts.
    tiles:     how often threads can share the work.
    first, channels: the output channels it computes.
    keep:      the arrays that the struct points into.
    """

    spec: KernelSpec
    kernel: Any
    arguments: Ints
    x_bytes: int
    y_bytes: int
    tiles: int
    first: int
    channels: int
    keep: tuple[np.ndarray[Any, Any], ...]

    def bound(self, x: int, y: int) -> Ints:
        """A new struct for one run on buffers at these addresses."""
        arguments = self.arguments.copy()
        arguments[_X] += x
        arguments[_Y] += y
        return arguments


@dataclass(frozen=True, slots=True)
class Product:
    """Sums of activations times weights, and what becomes of them.

    x_zero: the activations' zero point, an element of their type; it is what an offset of -1 reads.
    """

    kernels: Kernels
    isa: Isa
    layout: Layout
    folded: Folded
    results: Results
    x_zero: np.ndarray[Any, Any]
    threads: int = 1

    @property
    def signed(self) -> bool:
        return bool(self.x_zero.dtype == np.int8)

    def dense(self) -> list[Section]:
        """Kernel calls for [rows, taps, k] activations and [N, taps, k] weights."""
        weights, taps = int8_taps(self.folded.centred)
        unroll, steps = unroll_for(self.layout.k)
        sections = []
        for first, vectors, panels, form in self._panels(len(weights)):
            pick = _lanes(first, panels * vectors * self.isa.lanes, len(weights)).reshape(panels, -1)
            rows = min(_TABLE_ROWS if form == "table" else self.isa.rows[vectors], self.layout.rows)
            lines = self._prefetch(weights.size, unroll * vectors * self.isa.lanes * 4, -(-self.layout.rows // rows))
            sign, out = self.signed, self.results.out
            spec = KernelSpec("dense", self.isa.name, rows, vectors, unroll, form, out, sign, lines)
            arrays = {"offsets*": self.layout.table(rows, taps), "weights*": _pack(weights, pick, 4 * steps)}
            macs = len(taps) * steps * 4 * rows * pick.shape[1]
            words = {"taps": len(taps), "depth": steps // unroll, "panels": panels}
            words["y*"] = self.layout.y_start + first * self.results.size
            sections.append(self._section(spec, _dense.ARGUMENTS, pick, arrays, words, panels, macs, 4 * steps))
        return sections

    def depthwise(self) -> list[Section]:
        """Kernel calls for [rows, taps, N] activations and [N, taps, 1] weights; k is N."""
        n, lanes = len(self.folded.centred), self.isa.lanes
        form = self.results.form(slice(None))
        interleaved = self._interleaves(form)
        sizes = (4,) if interleaved else range(self.isa.vectors, 0, -1)
        vectors = min(sizes, key=lambda v: (v * lanes > n, -(-n // (v * lanes)) * v))
        width = vectors * lanes
        panels, last = -(-n // width), max(n - width, 0)
        pick = np.stack([_lanes(min(p * width, last), width, n) for p in range(panels)])
        taps = list(range(self.folded.centred.shape[1]))
        this = self
        if interleaved:
            taps += taps[:1] * (-len(taps) % 4)
            pick = pick.reshape(panels, 4, 4, 4).swapaxes(1, 2).reshape(panels, width)
            this = replace(self, folded=self.folded.shifted()) if self.signed else self
        rows = min(_TABLE_ROWS if form == "table" else _DEPTHWISE_ROWS, self.layout.rows)
        kind = "interleaved" if interleaved else "depthwise"
        spec = KernelSpec(kind, self.isa.name, rows, vectors, 1, form, self.results.out, self.signed)
        weights = np.where(pick < 0, 0, self.folded.centred[np.maximum(pick, 0), :, 0].transpose(2, 0, 1))
        packed = _four_taps(weights) if interleaved else weights.astype(np.int32) & 0xFFFF
        arrays = {"offsets*": self.layout.table(rows, taps), "weights*": _copy(packed.transpose(1, 0, 2))}
        words = {"taps": len(taps), "panels": panels, "last_channel": last, "y*": self.layout.y_start}
        macs = len(taps) * rows * panels * width
        return [this._section(spec, _depthwise.ARGUMENTS, pick, arrays, words, 1, macs, max(n, width))]

    def _interleaves(self, form: str) -> bool:
        """Whether the dot product serves a depthwise kernel: whole panels of 64 channels, int8 weights."""
        w = self.folded.centred
        if self.isa.dot != "vnni512" or len(w) < 64 or form in ("i32", "table"):
            return False
        return bool(w.min() >= -128 and w.max() <= 127)

    def _prefetch(self, weights: int, turn: int, blocks: int) -> int:
        """Lines to prefetch per turn so that the next panel is there when this one is done; 0 if all weights stay near."""
        return -(-turn // 64 // blocks) if weights > _FAR_WEIGHTS and blocks >= _FEW_BLOCKS else 0

    def _panels(self, channels: int) -> list[tuple[int, int, int, str]]:
        """Runs of panels that share a kernel: (first channel, vectors, panels, form)."""
        runs: list[tuple[int, int, int, str]] = []
        left, first = -(-channels // self.isa.lanes), 0
        while left:
            vectors = min(self.isa.vectors, left)
            end = first + vectors * self.isa.lanes
            form = self.results.form(slice(first, end))
            if runs and runs[-1][1::2] == (vectors, form):
                start, _, panels, _ = runs.pop()
                runs.append((start, vectors, panels + 1, form))
            else:
                runs.append((first, vectors, 1, form))
            first, left = end, left - vectors
        return runs

    def _section(
        self,
        spec: KernelSpec,
        names: Sequence[str],
        pick: Ints,
        arrays: Mapping[str, np.ndarray[Any, Any]],
        words: Mapping[str, int],
        walks: int,
        macs: int,
        read: int,
    ) -> Section:
        """walks: how often the blocks are walked per image; macs: products per block; read: bytes at each offset."""
        layout = self.layout
        bias = aligned(pick.shape, np.int32)
        bias[...] = np.where(pick < 0, 0, self.folded.constant[np.maximum(pick, 0)])
        if spec.form == "y32":
            bias[...] = wrapped(bias.astype(np.int64) + MAGIC_BITS)
        constants = self.results.constants(spec.form, pick)
        padding = aligned(read, self.x_zero.dtype, int(self.x_zero))
        arrays = {**arrays, "bias*": bias, "constants*": constants, "padding*": padding}
        blocks = len(arrays["offsets*"])
        chunk = chunk_blocks(blocks, walks * layout.images, macs, self.threads)
        chunks = -(-blocks // chunk)
        tiles = layout.images * walks * chunks
        last_vector = pick[-1, -self.isa.lanes :]
        known = {
            "x*": layout.x_start, "x_image": layout.x_image, "y_image": layout.y_image, "y_row": layout.y_row,
            "last_row": layout.rows - spec.rows, "blocks": blocks, "chunks": chunks, "chunk": chunk, "tiles": tiles,
            "mask": (1 << int((last_vector >= 0).sum())) - 1, "zero_point!": self.results.zero_point, **words,
        }  # fmt: skip
        filled = [int(arrays[name].ctypes.data) if name in arrays else known[name] for name in names]
        y_bytes = layout.y_bytes((int(pick.max()) + 1) * self.results.size)
        kernel = self.kernels.get(spec)
        first, keep = int(pick[0, 0]), tuple(arrays.values())
        arguments = np.zeros(COUNTER // 8 + 1, np.int64)
        arguments[: len(filled)] = filled
        return Section(
            spec, kernel, arguments, layout.x_bytes(read), y_bytes, tiles, first, int(pick.max()) + 1 - first, keep
        )


def _lanes(first: int, count: int, channels: int) -> Ints:
    lanes = np.arange(first, first + count)
    return np.where(lanes < channels, lanes, -1)


def _copy(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A contiguous copy on a 64-byte boundary."""
    packed = aligned(values.shape, values.dtype)
    packed[...] = values
    return packed


def _four_taps(weights: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[taps, panels, lanes] to [taps/4, panels, lanes] of four int8 taps each, zero after the last."""
    count = -(-len(weights) // 4) * 4
    padded = np.zeros((count, *weights.shape[1:]), np.int8)
    padded[: len(weights)] = weights
    quads = padded.reshape(count // 4, 4, *weights.shape[1:])
    return np.ascontiguousarray(np.moveaxis(quads, 1, -1)).view(np.int32)[..., 0]


def _pack(weights: Int8s, pick: Ints, k: int) -> Int8s:
    """int8 [N, taps, k] to [panels, taps, k/4, lanes, 4], zero where there is no channel or no k."""
    _, taps, used = weights.shape
    panels, lanes = pick.shape
    padded = np.zeros((panels, lanes, taps, k), np.int8)
    padded[..., :used] = np.where((pick < 0)[..., None, None], np.int8(0), weights[np.maximum(pick, 0)])
    packed = aligned((panels, taps, k // 4, lanes, 4), np.int8)
    packed[...] = padded.reshape(panels, lanes, taps, k // 4, 4).transpose(0, 2, 3, 1, 4)
    return packed
