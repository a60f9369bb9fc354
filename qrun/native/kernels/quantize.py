"""Plans quantization of float32 arrays to 8 bits, and dequantization. Also dynamic quantization: ranges of tiles, the
scale and zero point of a tensor, its codes; and multiplication of integer sums by scales of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.spec import CODES, FACTOR_BYTES, OUT_OF, PIECE
from qrun.native.errors import Declined
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, Order, share, size
from qrun.native.machine.memory import aligned, aligned_copy
from qrun.native.machine.operation import TILE_BYTES, row_tiles
from qrun.native.proof.fits import fused_add

_NORMAL = (2.0**-100, 2.0**100)
"""The range of scales for which no intermediate number is subnormal or infinite."""
_NEAR = np.arange(-8, 9, dtype=np.int32)
"""The float32 numbers around a tie to compare, by their bits: others are farther from it than all rounding errors."""
_FLOAT, _INT32 = np.dtype(np.float32), np.dtype(np.int32)
_BLOCK = 64
RESULTS = {
    "scale": Operand((), _FLOAT),
    "zero": Operand((), np.dtype(np.uint8)),
    "parameters": Operand((3,), np.dtype(np.int32)),
}
"""The result of Parameters, by its form."""


@frozen
class _Grid:
    """Rows of columns, and the rows (chunk) and columns (part) of a tile. steps: bytes from row to row of x and y."""

    rows: int
    columns: int
    steps: tuple[int, int]
    chunk: int
    part: int

    @classmethod
    def of(cls, rows: int, columns: int, steps: tuple[int, int], row_bytes: int, threads: int) -> _Grid:
        """Rows and columns cut into tiles, small enough for all threads to have work."""
        if threads == 1:
            return cls(rows, columns, steps, rows, columns)
        wanted = max(-(-rows * row_bytes // (threads * 8)), TILE_BYTES)
        if wanted >= row_bytes:
            return cls(rows, columns, steps, min(rows, wanted // max(row_bytes, 1)), columns)
        each = row_bytes // columns
        return cls(rows, columns, steps, 1, -(-wanted // (256 * each)) * 256)

    def words(self, width: int) -> dict[str, int]:
        """The grid as words of a call; `width` is the columns of one vector."""
        chunks, parts = -(-self.rows // self.chunk), -(-self.columns // self.part)
        return {
            "x_row": self.steps[0],
            "y_row": self.steps[1],
            "rows": self.rows,
            "chunk": self.chunk,
            "chunks": chunks,
            "columns": self.columns,
            "part": self.part,
            "parts": parts,
            "last": max(self.columns - width, 0),
            "tiles": chunks * parts,
        }


class _Elementwise(Operation):
    """Base of Quantize and Dequantize: an array to another type, with scale and zero point per tensor, or per column of
    axis 1 or the last one."""

    why = ""
    own_words = ("constants*", "zero!")

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        types: tuple[Any, Any],
        parameters: tuple[Array, Array],
        axis: int | None,
    ) -> None:
        self.engine, self.axis = engine, axis
        shape = tuple(int(n) for n in shape)
        self.operands = (Operand(shape, np.dtype(types[0])), Operand(shape, np.dtype(types[1])))
        self.order: Order = "any"
        if axis is not None:
            if axis not in (1, len(shape) - 1):
                raise Declined(f"scales along axis {axis}")
            self.order = "rows" if axis == len(shape) - 1 else "channels"
        lanes = () if axis is None else (shape[axis],)
        if any(values.shape != lanes for values in parameters):
            raise ValueError("scale and zero point have not one value, or one per column")

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        return self.with_operands_of(other) if isinstance(other, _Elementwise) and other.axis == self.axis else None

    def _grid(self, strides: Sequence[int]) -> _Grid:
        """The rows and columns that a call walks over."""
        x, y = self.operands
        if self.order == "any" and not any(strides):
            columns = size(x.shape)
        else:
            columns = x.columns(self.order)
        sizes = [o.dtype.itemsize * columns for o in self.operands]
        steps = (strides[0] or sizes[0], strides[1] or sizes[1])
        return _Grid.of(size(x.shape) // columns, columns, steps, sum(sizes), self.engine.threads)

    def _section(
        self, kind: str, block: tuple[int, int], form: str, grid: _Grid, zero: int, constants: Array, read: int
    ) -> KernelCall:
        """The kernel call. read: columns that it reads of a row, perhaps more than there are."""
        x, y = self.operands
        words = {**grid.words(block[0]), "fields": 4 * constants.shape[-1], "zero!": zero}
        extents = (
            (grid.rows - 1) * grid.steps[0] + read * x.dtype.itemsize,
            (grid.rows - 1) * grid.steps[1] + grid.columns * y.dtype.itemsize,
        )
        codes = x if kind == "dequantize" else y
        signed = codes.dtype == np.int8
        spec = KernelSpec(kind, self.engine.isa.name, *block, 1, form, OUT_OF[codes.dtype], bool(signed))
        channels = grid.columns if self.axis is not None else 1
        given = spec, ("x*", "y*"), words, extents, {"constants*": constants}
        return self.engine.kernels.call(*given, channels=channels, why=self.why)


class Quantize(_Elementwise):
    """y = saturate(RNE(fl32(x / scale)) + zero_point) for float32 x of any shape; NaN becomes the least code.

    scale float32, zero_point uint8 or int8: rank 0, or one value per column of `axis`.

    form ``div`` computes just that. ``mul`` multiplies by r + s, two float32 numbers whose sum is near 1 / scale:

        q = fl32(x * r + fl32(x * s))                one rounding of the sum

    Both q and fl32(x / scale) are within 2**-23.9 of x / scale, relatively, so that they round to different integers
    only if x / scale is that near to a tie. `reciprocal` compares both there, for eight float32 on either side.
    """

    def __init__(
        self, engine: Engine, shape: Sequence[int], scale: Array, zero_point: Array, axis: int | None = None
    ) -> None:
        if zero_point.dtype not in CODES or scale.dtype != np.float32:
            raise Declined("not float32 scales and 8-bit results")
        super().__init__(engine, shape, (np.float32, zero_point.dtype), (scale, zero_point), axis)
        self.scale, self.zero_point = scale, zero_point
        info, zero = np.iinfo(zero_point.dtype), zero_point.astype(np.int32)
        fields: list[Any] = [scale, info.min - zero, info.max - zero]
        self.form = "div"
        if axis is None:
            ends = int(fields[1]), int(fields[2])
            proven = reciprocal(np.float32(scale), *ends) if engine.isa.fma else None
            if proven is not None:
                self.form, fields = "mul", [scale, *proven]
            else:
                self.why = "an unusual scale" if engine.isa.fma else f"{engine.isa.name} has no fused multiply-add"
            self.constants = np.asarray(fields, np.float32)
        else:
            self.form, columns = "div-axis", self.operands[0].shape[axis]
            self.constants = aligned((4, max(columns, PIECE)), np.float32, 1)
            self.constants[:, :columns] = [*fields, zero]

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        grid = self._grid(strides)
        block = _block(grid.columns, 4 * self.engine.isa.lanes)
        zero = int(self.zero_point) if self.axis is None else 0
        read = max(grid.columns, block[0])
        return (self._section("quantize", block, self.form, grid, zero, self.constants, read),)

    def writing_to(self, operand: Operand, order: Order) -> Operation | None:
        """As `Operation.writing_to`, for images of one to four planes: channels-last, perhaps with a border."""
        shape = operand.shape
        fits = order == "channels" and len(shape) in (3, 4) and shape == self.result.shape
        if not fits or self.axis is not None or shape[1] not in (1, 2, 3, 4) or shape[-1] < PIECE:
            return None
        return QuantizeImage(self, operand)


class QuantizeImage(Operation):
    """A Quantize from planes to pixels: x is in C order, the result channels-last. Its border is not written."""

    order: Order = "channels"
    gaps = False

    def __init__(self, plain: Quantize, result: Operand) -> None:
        self.plain, self.operands = plain, (plain.operands[0], result)

    @property
    def source_order(self) -> Order:
        """The source's order: planes of channels."""
        return "plain"

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, y = self.operands
        engine, planes = self.plain.engine, y.shape[1]
        images, width = y.shape[0], y.shape[-1]
        lines = size(y.shape[2:-1])
        stored = y.memory_shape("channels")
        y_line, y_image = stored[-2] * planes, size(stored[1:])
        start = self._operand_strides(strides)[-1].start
        block = _block(width, 4 * engine.isa.lanes)[0]
        plane, row = 4 * lines * width, width * planes * 5
        chunk = lines if engine.threads == 1 else min(lines, share(images * lines, row, engine.threads))
        chunks = -(-lines // chunk)
        words = {
            "y*": start,
            "x_image": planes * plane,
            "x_plane": plane,
            "x_line": 4 * width,
            "y_image": y_image,
            "y_line": y_line,
            "lines": lines,
            "chunk": chunk,
            "chunks": chunks,
            "columns": width,
            "last": width - block,
            "tiles": images * chunks,
            "fields": 0,
            "zero!": int(self.plain.zero_point),
        }
        constants = self.plain.constants
        out = CODES[y.dtype]
        spec = KernelSpec("quantize_image", engine.isa.name, block, planes, 1, self.plain.form, out, out == "s8")
        written = start + (images - 1) * y_image + (lines - 1) * y_line + width * planes
        given = spec, ("x*", "y*"), words, (images * planes * plane, written), {"constants*": constants}
        return (engine.kernels.call(*given, channels=planes, why=self.plain.why),)


class Dequantize(_Elementwise):
    """y = fl32(float32(x - zero_point) * scale) for uint8, int8 or int32 x of any shape; int32 has no zero point.

    scale float32, zero_point of x's type: rank 0, or one value per column of `axis`.
    """

    def __init__(
        self, engine: Engine, shape: Sequence[int], scale: Array, zero_point: Array, axis: int | None = None
    ) -> None:
        if zero_point.dtype not in (*CODES, np.int32) or scale.dtype != np.float32:
            raise Declined("not 8-bit or int32 codes with float32 scales")
        if zero_point.dtype == np.int32 and zero_point.any():
            raise Declined("int32 codes with a zero point")
        super().__init__(engine, shape, (zero_point.dtype, np.float32), (scale, zero_point), axis)
        self.zero = int(zero_point) if axis is None else 0
        self.constants = np.asarray([scale, zero_point], np.float32)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        grid, lanes = self._grid(strides), self.engine.isa.lanes
        width = next(n for n in (4 * lanes, lanes, 4, 1) if n <= grid.columns)
        form = "mul" if self.axis is None else "mul-axis"
        constants = self.constants
        return (self._section("dequantize", (width, 0), form, grid, self.zero, constants, grid.columns),)


def reciprocal(scale: np.float32, low: int, high: int) -> tuple[np.float32, ...] | None:
    """The limits of x, and r and s of form ``mul``, if it is proven for results from `low` to `high`, before the zero
    point; else None."""
    if not _NORMAL[0] <= scale <= _NORMAL[1]:
        return None
    exact = np.float64(scale)
    r = np.float32(1 / exact)
    s = np.float32((1 - np.float64(r) * exact) / exact)
    ties = np.arange(low, high) + 0.5
    near = (ties * exact).astype(np.float32).view(np.int32)[:, None] + _NEAR
    x = near.view(np.float32)
    product = fused_add(x.astype(np.float64) * np.float64(r), (x * s).astype(np.float64))
    if (np.rint(x / scale) != np.rint(product)).any():
        return None
    ends = (np.float64(end) * exact for end in (low, high))
    return (*(np.float32(end) for end in ends), r, s)


def _block(columns: int, widest: int) -> tuple[int, int]:
    """(elements at a time, 1), or (16, 0) if there are fewer than 16."""
    if columns < PIECE:
        return PIECE, 0
    return next(n for n in (64, 32, 16) if n <= min(columns, widest)), 1


class _Step(Operation):
    """Base of operations of one kernel call over whole operands. places: the words that point to them, in order."""

    places: tuple[str, ...]
    decides = True

    def __init__(self, engine: Engine, operands: Sequence[Operand], spec: KernelSpec, words: Mapping[str, int]) -> None:
        self.engine, self.operands, self.spec, self.words = engine, tuple(operands), spec, dict(words)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return (self.engine.kernels.call(self.spec, self.places, self.words, self.whole, decides=self.decides),)


def _tiles(engine: Engine, count: int) -> dict[str, int]:
    """The words that cut `count` elements, at least one, into tiles."""
    chunk = share(-(-count // _BLOCK), 4 * _BLOCK, engine.threads) * _BLOCK
    return {"count": count, "chunk": chunk, "tiles": -(-count // chunk)}


class _Elements(_Step):
    """Base of operations over all elements of their operands, in any order in memory."""

    order: Order = "any"
    gaps = False


class Range(_Elements):
    """The ranges of tiles of float32 x, which is not empty: float32 [tiles, 4], as `found` in emit/quantize.py."""

    places = ("x*", "found*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        words = _tiles(engine, size(shape))
        spec = KernelSpec("range", engine.isa.name, 1, 4, 1, "range", "f32", False)
        super().__init__(
            engine, (Operand(tuple(shape), _FLOAT, tight=True), Operand((words["tiles"], 4), _FLOAT)), spec, words
        )


class Parameters(_Step):
    """The scale, the zero point, or both for Quantized (RESULTS[form]), from the ranges of tiles. A run is undecided if
    a range is not finite."""

    places = ("found*", "y*")
    decides = False

    def __init__(self, engine: Engine, ranges: Operand, form: str) -> None:
        spec = KernelSpec("parameters", engine.isa.name, 1, 1, 1, form, "f32", False)
        super().__init__(engine, (ranges, RESULTS[form]), spec, {"ranges": ranges.shape[0], "tiles": 1})


class Quantized(_Elements):
    """The uint8 codes of float32 x, which is not empty, by its parameters."""

    places = ("x*", "parameters*", "y*")

    def __init__(self, engine: Engine, shape: Sequence[int]) -> None:
        x = Operand(tuple(shape), _FLOAT, tight=True)
        spec = KernelSpec("codes", engine.isa.name, 1, 4, 1, "codes", "u8", False)
        operands = x, RESULTS["parameters"], Operand(x.shape, np.dtype(np.uint8))
        super().__init__(engine, operands, spec, _tiles(engine, size(shape)))


@frozen
class Scaling:
    """sums * left * right * slope + bias, for sums of `columns` columns whose magnitude is at most `most`.

    left, right, bias: constant float32 arrays, or operands that come with the run. left has one element; right has one,
    or one per column; bias has one per column, or is None.
    form: ``real`` rounds the real value once; ``ort`` rounds each float32 step.
    """

    columns: int
    form: str
    left: Array | Operand
    right: Array | Operand
    bias: Array | Operand | None = None
    most: int = 1 << 31
    slope: float | None = None

    def run_operands(self) -> list[tuple[str, Operand]]:
        """The operands that come with the run, each with the word of the kernel that points to it."""
        return [(word, value) for word, value in self._sources() if isinstance(value, Operand)]

    def constants(self) -> dict[str, Array]:
        """The constant arrays, by the word that points to them."""
        made = {}
        for word, value in self._sources():
            if isinstance(value, np.ndarray):
                made[word] = aligned_copy(value.reshape(-1), _FLOAT)
        return made

    def _sources(self) -> tuple[tuple[str, Array | Operand | None], ...]:
        """The names of the factors and bias, with a constant or an operand each."""
        return ("left*", self.left), ("right*", self.right), ("bias*", self.bias)

    @property
    def operands(self) -> str:
        """The field `operands` of the kernel's specification (emit/quantize.py)."""
        each = "s" if size(self.right.shape) == 1 else "v"
        return each + "b" * (self.bias is not None) + "m" * (self.slope is not None)


class Factors(Operation):
    """The multipliers and the bias that Scaled reads, from the operands of a Scaling that come with the run."""

    def __init__(self, engine: Engine, scaling: Scaling) -> None:
        self.engine, self.scaling = engine, scaling
        self.panels = -(-scaling.columns // engine.isa.lanes)
        nbytes = self.panels * engine.isa.lanes * FACTOR_BYTES[scaling.form]
        operands = [operand for _, operand in scaling.run_operands()]
        self.operands = (*operands, Operand((nbytes,), np.dtype(np.uint8)))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        scaling, arrays = self.scaling, self.scaling.constants()
        spec = KernelSpec(
            "factors", self.engine.isa.name, 1, 1, 1, scaling.form, "f32", False, operands=scaling.operands
        )
        slope = np.array(1 if scaling.slope is None else scaling.slope, np.float32)
        words = {"columns": scaling.columns, "panels": self.panels, "tiles": 1}
        words |= {"most!": scaling.most, "slope!": int(slope.view(np.int32))}
        names = [*(name for name, _ in scaling.run_operands()), "y*"]
        return (self.engine.kernels.call(spec, names, words, self.whole, arrays=arrays, sparse=True),)


class Scaled(Operation):
    """float32 results of the shape `y_shape`, from as many int32 sums [..., columns] and the result of Factors."""

    def __init__(self, factors: Factors, sums: Sequence[int], y_shape: Sequence[int]) -> None:
        self.factors = factors
        self.operands = (Operand(tuple(sums), _INT32), factors.result, Operand(tuple(y_shape), _FLOAT))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        engine, columns, panels = self.factors.engine, self.factors.scaling.columns, self.factors.panels
        count, lanes = size(self.operands[0].shape), engine.isa.lanes
        scaling = self.factors.scaling
        sloped = "m" if scaling.slope is not None else ""
        spec = KernelSpec("scale", engine.isa.name, 1, 1, 1, scaling.form, "f32", False, operands=sloped)
        words = row_tiles(count // columns, 8 * columns, engine.threads)
        words |= {"panels": panels, "acc_row": 4 * columns, "y_row": 4 * columns}
        words["mask"] = (1 << (columns - 1) % lanes + 1) - 1
        read = 4 * (count + panels * lanes - columns)
        extents = read, self.factors.result.shape[0], 4 * count
        return (engine.kernels.call(spec, ("acc*", "factors*", "y*"), words, extents, sparse=True),)
