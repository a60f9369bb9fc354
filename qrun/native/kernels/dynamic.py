"""Matrix products whose zero points, scales or right operand are known at run time only."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import MAGIC_BITS
from qrun.native.errors import Declined
from qrun.native.kernels.conv import Gemm
from qrun.native.kernels.finish import Finish, Term
from qrun.native.kernels.packing import Packing, as_int8, offsets
from qrun.native.kernels.results import Results
from qrun.native.kernels.stack import Products, Shape, StackPart, first_values, order
from qrun.native.machine.batch import Buffer, BufferPool, buffer
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import address
from qrun.native.machine.operation import Operand, size

Array = np.ndarray[Any, Any]
Room = dict[Any, Any]
_INT32 = np.dtype(np.int32)
_EIGHT = (np.dtype(np.uint8), np.dtype(np.int8))
_PRODUCTS = 1 << 14
_STRIDES = 8
_CONSTANT, _PACKED = frozenset({"tiled", "widened"}), frozenset[str]()
"""The kernels for weights that are constant, where it is not known how small activations are, and for others."""


@frozen
class _Left:
    """Address of the left matrix, or of each product's; bytes between rows (0: no gaps); the array that holds them."""

    starts: Any
    stride: int
    keep: Array


class Matmul:
    """Sums over k of (a - a_zero) * (b - b_zero) [+ addend] in int32, wrapping, for 8-bit a [..., M, K], b [..., K, N]
    of two axes or more, and what a Finish makes of them.

    a, b:    operands; weights: b itself if it is a matrix and constant; zero: its zero point [1] or [N] if constant too.
    results, form: of the Finish; results have one channel, or one per column (of all right matrices, one after another).

    May be used by several threads at once: each run takes memory of its own, kept for the next one.
    """

    def __init__(
        self,
        engine: Engine,
        a: Operand,
        b: Operand,
        *,
        weights: Array | None = None,
        zero: Array | None = None,
        form: str = "i32",
        results: Results | None = None,
        groups: int = 1,
    ) -> None:
        if a.dtype not in _EIGHT or b.dtype not in _EIGHT:
            raise Declined("not 8-bit operands")
        self.engine, self.a, self.b = engine, a, b
        self.shape = shape = Shape.of(a.shape, b.shape)
        if len(shape.lefts) > _PRODUCTS:
            raise Declined(f"more than {_PRODUCTS} matrices")
        self.y_shape = (*shape.lead, shape.m, shape.n)
        self.empty = not size(self.y_shape)
        self._rows, self._matrices = size(self.y_shape[:-1]), size(b.shape[:-2])
        self.shift = 128 if b.dtype == np.uint8 else 0
        self._raised = engine.isa.shift(a.dtype == np.int8)
        self.finish = Finish(engine, shape.n, form, results, groups)
        constant = np.zeros((0, shape.n), b.dtype) if not shape.k else weights
        self.centred = False
        codes = np.zeros((shape.k, shape.n), np.int8)
        if constant is not None:
            codes, self.centred = as_int8(constant, zero)
        self.packs = constant is None
        self.columns = -(-shape.n // engine.isa.lanes) * engine.isa.lanes
        self.sums = np.zeros((1, self.columns), np.int32)
        self.sums[0, : shape.n] = codes.sum(axis=0, dtype=np.int64)
        if groups > 1:
            self.finish.repeat(shape.rights)
        self.gemm = self._gemm(codes, _CONSTANT if constant is not None else _PACKED)
        self._parts: dict[tuple[int, bool], tuple[StackPart, ...]] = {}
        self.sections = tuple(part.section for part in self.parts)
        self._start, self._lanes = (None, None) if self.packs else (first_values(self.parts), order(self.parts))
        self.packing: Packing | None = None
        if self.packs and not self.empty:
            panels = tuple(part.panels for part in self.parts)
            self.packing = Packing(engine, b.shape, b.dtype, panels)
        self._reaches: dict[bool, int] = {}
        self._rooms: BufferPool[Room] = BufferPool(dict)
        self._last: tuple[Array | None, Array | None] = (None, None)

    @property
    def parts(self) -> tuple[StackPart, ...]:
        """The product's kernels for left matrices without gaps."""
        return () if self.empty else self._placed(0)

    @property
    def a_bytes(self) -> int:
        """How far kernels may read from a left matrix without gaps."""
        return self._reach(False)

    @property
    def scratch_bytes(self) -> int:
        """About what a run needs besides its operands and its result."""
        shape = self.shape
        packed = size(self.b.shape[:-2]) * (self.packing.nbytes + 80 * shape.n) if self.packing else 0
        return size(self.y_shape) * 4 + size(self.a.shape) + len(shape.lefts) * 2048 + packed + shape.n * 64

    def simple(self, b_zero: Array) -> bool:
        """Whether a run with this zero point of constant weights stores one product's sums, and adds nothing to them."""
        single = not self.packs and len(self.shape.rights) == 1
        return single and self.finish.form == "i32" and self._correction(b_zero) is None

    def starts(self) -> tuple[Array, Array]:
        """Two int32 arrays [lanes]: the start value of each lane for a zero point of 0, and the sum of its weights."""
        sums = self.sums[0] if self._lanes is None else self.sums[0, self._lanes]
        return np.zeros(sums.shape, np.int32) if self._start is None else self._start[0], sums

    def _gemm(self, codes: Array, kinds: frozenset[str]) -> Gemm:
        rows = (max(self.shape.rows, 1), self.shape.k)
        return Gemm(self.engine, rows, codes, x_zero_point=np.zeros((), self.a.dtype), kinds=kinds)

    @cached_property
    def _ones(self) -> Gemm:
        """What sums the rows of a."""
        return self._gemm(np.ones((self.shape.k, 1), np.int8), _PACKED)

    def _placed(self, stride: int, ones: bool = False) -> tuple[StackPart, ...]:
        """The product's kernels for rows of a that lie `stride` bytes apart, 0 for no gaps."""
        found = self._parts.get((stride, ones))
        if found is None:
            gemm = self._ones if ones else self.gemm
            first = 0, 0
            made = []
            for section in gemm.sections((stride, 0)):
                made.append(StackPart.of(section, first, self.packs and not ones))
                first = first[0] + made[-1].panels.nbytes, first[1] + made[-1].columns.size
            found = self._parts[stride, ones] = tuple(made)
        return found

    def _reach(self, ones: bool) -> int:
        """How far the product's kernels, and with `ones` those that sum rows, read from a left matrix without gaps."""
        found = self._reaches.get(ones)
        if found is None:
            parts = () if self.empty else (*self._placed(0), *(self._placed(0, True) if ones else ()))
            found = self._reaches[ones] = max((part.section.extents[0] for part in parts), default=0)
        return found

    def run(
        self,
        a: Array,
        b: Array,
        a_zero: Array,
        b_zero: Array,
        held: Array | None = None,
        addend: Array | None = None,
        beyond: int = 0,
    ) -> Array:
        """The result [..., M, N] for a, b of any strides; a constant b is not read.

        a_zero: int32 [1], or one for each row of the result. b_zero: int32 [1 or right matrices, 1 or N].
        held: the Finish's constants. addend: int32 [N]. beyond: bytes that may be read after a's last one.

        Raises ValueError if something has not the planned shape and type.
        """
        self._check(a, b, a_zero, b_zero, held, addend)
        result = Buffer.empty(self.y_shape, self.finish.dtype)
        if self.empty:
            return result.array
        room = self._rooms.take()
        correction = self._correction(b_zero)
        x = self._left(room, a, beyond, self._reach(correction is not None))
        packed, sums = None, self.sums
        if self.packing is not None:
            packer = room.get("packer")
            if packer is None:
                packer = room["packer"] = self.packing.room()
            packer.run(b)
            packed, sums = packer.packed, packer.sums
        terms, bias = self._terms(room, x, sums, a_zero, correction, addend)
        self._compute(room, x, packed, terms, bias, result, held)
        self._rooms.give(room)
        return result.array

    def _check(
        self, a: Array, b: Array, a_zero: Array, b_zero: Array, held: Array | None, addend: Array | None
    ) -> None:
        """Raises ValueError for arguments that are not as planned: kernels check nothing."""
        n, rows, matrices = self.shape.n, self._rows, self._matrices
        fits = (
            (a.shape, a.dtype) == (self.a.shape, self.a.dtype)
            and (not self.packs or (b.shape, b.dtype) == (self.b.shape, self.b.dtype))
            and a_zero.shape in ((1,), (rows,))
            and b_zero.ndim == 2
            and len(b_zero) in (1, matrices)
            and b_zero.shape[1] in (1, n)
            and a_zero.dtype == b_zero.dtype == _INT32
            and (addend is None or (addend.shape == (n,) and addend.dtype == _INT32))
            and (self.finish.takes(held, (1, matrices)) or self.empty)
        )
        if not fits:
            raise ValueError("the operands or parameters of a product are not as planned")

    def _terms(
        self, room: Room, x: _Left, sums: Array, a_zero: Array, correction: Array | None, addend: Array | None
    ) -> tuple[list[Term], Buffer]:
        """What the zero points add to the bare products: terms for the finish, and start values of the sums.

        For weights w = b - shift and d = shift - b_zero, per row and column:
        sum (a - a_zero) * (b - b_zero) = sum a * w - a_zero * sum w + (sum a - K * a_zero) * d.
        """
        shape = self.shape
        terms: list[Term] = []
        raised = self._raised if self.packs else 0
        if len(a_zero) > 1:
            terms.append((a_zero, self._per_product(-sums[:, : shape.n])))
        else:
            raised += int(a_zero[0])
        bias = buffer(room, "bias", sums.shape, np.int32)
        np.multiply(sums, -raised, out=bias.array)
        if addend is not None:
            bias.array[:, : shape.n] += addend
        if self._lanes is not None:
            ordered = buffer(room, "ordered bias", (1, self._lanes.size), np.int32)
            np.take(bias.array, self._lanes, axis=1, out=ordered.array, mode="clip")
            bias = ordered
        if self._start is not None:
            bias.array[...] += self._start
        if self.finish.form == "y32":
            bias.array[...] += MAGIC_BITS
        if correction is not None:
            totals = self._totals(room, x) - shape.k * a_zero
            terms.append((totals, self._per_product(correction)))
        return terms, bias

    def _correction(self, b_zero: Array) -> Array | None:
        """shift - b_zero [1 or right matrices, N], None if that is 0; remembered for the same array."""
        if self.centred:
            return None
        seen, correction = self._last
        if b_zero is not seen:
            differences = self.shift - b_zero
            correction = np.broadcast_to(differences, (len(b_zero), self.shape.n)) if differences.any() else None
            self._last = (b_zero, correction)
        return correction

    def _compute(
        self,
        room: Room,
        x: _Left,
        packed: Buffer | None,
        terms: list[Term],
        bias: Buffer,
        y: Buffer,
        held: Array | None,
    ) -> None:
        shape = self.shape
        direct = self.finish.form == "i32" and not terms
        acc = y if direct else buffer(room, "acc", (y.array.size + self.engine.isa.lanes,), np.int32)
        self._products(room, x.stride, False).run(x.starts, acc, packed, bias, x)
        if not direct:
            if held is not None and len(held) > 1:
                held = held[shape.rights]
            self.finish.run(room, acc, y, y.array.size // shape.n, terms, held)

    def _products(self, room: Room, stride: int, ones: bool) -> Products:
        """The product, or the sums of a's rows, in this room."""
        found = room.get(("products", stride, ones))
        if found is None:
            rows, columns = self.shape.rows, 1 if ones else self.shape.n
            packing = None if ones else self.packing
            strides = (packing.nbytes, 4 * packing.columns) if packing else (0, 0)
            parts = self._placed(stride, ones)
            found = Products(self.engine, parts, self.shape.rights, 4 * rows * columns, strides)
            room["products", stride, ones] = found
        return found

    def _per_product(self, values: Array) -> Array:
        """[right matrices, N] as [products, N]; what is the same for all matrices stays one row."""
        return values[self.shape.rights] if len(values) > 1 else values

    def _left(self, room: Room, a: Array, beyond: int, reach: int) -> _Left:
        """a where kernels can read it, that reach so far from the start of a matrix without gaps."""
        shape = self.shape
        one = len(shape.lefts) == 1
        if one:
            a = a.reshape(1, shape.rows, shape.k)
        stride = a.strides[-2] if shape.rows > 1 else shape.k
        over = reach - shape.rows * shape.k
        gaps = stride != shape.k
        known = not gaps or (stride, False) in self._parts or len(self._parts) < _STRIDES
        if (a.strides[-1] != 1 and shape.k > 1) or stride < shape.k or over > (0 if gaps else beyond) or not known:
            held = buffer(room, f"a and {over}", (a.size + max(over, 0),), a.dtype).array
            tight = held[: a.size].reshape(a.shape)
            tight[...] = a
            a, stride, gaps = tight, shape.k, False
        starts = address(a) if one else address(a) + offsets(a)[shape.lefts]
        return _Left(starts, stride if gaps else 0, a)

    def _totals(self, room: Room, x: _Left) -> Array:
        """int32: the sum of every row of a, for each product."""
        acc = buffer(room, "totals", (self.shape.rows * len(self.shape.lefts),), np.int32)
        bias = buffer(room, "totals bias", (1, self.engine.isa.lanes), np.int32)
        start = first_values(self._placed(0, True))
        bias.array[...] = 0 if start is None else start
        self._products(room, x.stride, True).run(x.starts, acc, None, bias, x)
        return acc.array
