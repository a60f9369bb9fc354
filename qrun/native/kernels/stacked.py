"""Plans int8 products of two operands of the run: stacks of matrices whose right operand is packed in each run.

For known shapes, a Stack says which matrices are multiplied, and where packed ones lie. The kernels `pack`, `row_terms`
and `dense` do the work. emit/prepare.py explains how zero points enter the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.spec import CODES, DTYPE_OF, MAGIC_BITS, constant_bytes
from qrun.native.errors import Declined
from qrun.native.kernels.layout import Layout, chunk_blocks, unroll_for
from qrun.native.kernels.product import TABLE_ROWS, lanes_of
from qrun.native.kernels.results import Results
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Operation, row_tiles, size
from qrun.native.machine.memory import Array, address, align_up, aligned
from qrun.native.proof.fold import wrap_to_int32
from qrun.shapes import broadcast_shapes

_CALLS = 1 << 10
"""The most runs of products (`Meeting`); each has a call of its own."""
Requantized = Callable[[int, int], Results | None]
"""Maps (K, N) to the results of sums; None if these must be planned anew."""
Zero = Operand | int
"""A zero point: an 8-bit operand of one element, or its value."""
_INT32 = np.dtype(np.int32)
_FLIP = 0x80808080
"""xor with this turns four int8 into uint8 that are 128 higher, and back."""


@frozen
class PanelRun:
    """Columns that share a kernel: the first column, vectors of a panel, panels, form; and the offsets in the packed
    buffer, in bytes, of their weights and their start values, each matrix after the other."""

    first: int
    vectors: int
    panels: int
    form: str
    weights: int
    starts: int


@frozen
class Meeting:
    """A run of `count` products: the numbers of the first one's left, right and resulting matrix, and the steps of left
    and right from one product to the next."""

    count: int
    left: int
    right: int
    result: int
    left_step: int
    right_step: int


class Stack:
    """The products a [..., M, K] x b [..., K, N] of 8-bit codes, whose leading axes broadcast, K at least 1.

    results: how sums become results, with one channel per column, or one per column of every right matrix.
    requantized: returns the results for other sizes, where these are known.

    Raises Declined for operands that are not 8-bit, empty products, and more than 1024 runs of products.
    """

    def __init__(
        self,
        engine: Engine,
        a: Operand,
        b: Operand,
        results: Results,
        matrices: int = 1,
        requantized: Requantized | None = None,
    ) -> None:
        if a.dtype not in CODES or b.dtype not in CODES:
            raise Declined("not 8-bit operands")
        self.engine, self.a, self.b, self.results, self.requantized = engine, a, b, results, requantized
        left = a.shape if len(a.shape) > 1 else (1, *a.shape)
        right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
        self.lead = broadcast_shapes(left[:-2], right[:-2])
        (self.m, self.k), self.n = left[-2:], right[-1]
        self.y_shape = (*self.lead, self.m, self.n)
        if not self.k or not size(self.y_shape):
            raise Declined("an empty product")
        self.rows = size(left[:-1])
        self.count, self.matrices = size(right[:-2]), matrices
        self.unroll, self.quads = unroll_for(self.k)
        self.meetings = tuple(self._meet(left[:-2], right[:-2]))
        if len(self.meetings) > _CALLS:
            raise Declined(f"more than {_CALLS} pairings of matrices")
        self.panels, self.packed = self._panels()
        self.shift = 128 if b.dtype == np.uint8 else 0

    def with_sizes_of(self, other: Stack) -> Stack | None:
        """A stack with the sizes of `other` and the results of this one; None if these are not known, or need another
        packing."""
        own = (self.a.dtype, self.b.dtype, self.results.out, self.matrices)
        if own != (other.a.dtype, other.b.dtype, other.results.out, 1) or self.requantized is None:
            return None
        results = self.requantized(other.k, other.n)
        if results is None:
            return None
        made = copy(other)
        made.results, made.requantized = results, self.requantized
        made.panels, made.packed = made._panels()
        return made if (made.panels, made.packed) == (other.panels, other.packed) else None

    def _meet(self, left: Sequence[int], right: Sequence[int]) -> Iterator[Meeting]:
        """The runs of products. If all share one right matrix, they are a single product with more rows."""
        if self.count == 1:
            self.m *= size(self.lead)
            yield Meeting(1, 0, 0, 0, 0, 0)
            return
        lefts, rights = (np.broadcast_to(np.arange(size(s)).reshape(s), self.lead).reshape(-1) for s in (left, right))
        steps = np.stack([np.diff(lefts), np.diff(rights)], axis=1).tolist()
        first = 0
        while first < len(lefts):
            end = first + 1
            while end < len(lefts) and steps[end - 1] == steps[first]:
                end += 1
            step = steps[first] if end - first > 1 else (0, 0)
            yield Meeting(end - first, int(lefts[first]), int(rights[first]), first, *step)
            first = end

    def _panels(self) -> tuple[tuple[PanelRun, ...], int]:
        """The runs of panels, and the bytes that all packed matrices take."""
        lanes, at = self.engine.isa.lanes, 0
        shared = self.results.alike and self.matrices == 1
        columns = -(-self.n // lanes) * lanes if shared else self.n
        runs = self.results.panels(lanes, self.engine.isa.vectors, columns, self.matrices)
        weights: list[int] = []
        starts: list[int] = []
        for places, each in ((weights, 4 * self.quads), (starts, 4)):
            for _, vectors, panels, _ in runs:
                places.append(at)
                at += align_up(self.count * panels * vectors * lanes * each)
        return tuple(PanelRun(*run, w, s) for run, w, s in zip(runs, weights, starts, strict=True)), at

    @property
    def result(self) -> Operand:
        """The result's operand."""
        return Operand(self.y_shape, DTYPE_OF[self.results.out])


def _zero(zero: Zero, name: str) -> tuple[str, int, tuple[Operand, ...]]:
    """(`name`, 0, the operand) if the zero point is an operand; else ("", its value, no operand)."""
    return ("", zero, ()) if isinstance(zero, int) else (name, 0, (zero,))


def _zero_like(own: Zero, other: Zero) -> Zero:
    """`own` if it is a value; else `other`, the same operand in the plan for other sizes."""
    return own if isinstance(own, int) else other


def _stack_with_sizes_of(own: Pack | RowTerms | StackProduct, other: Operation, memo: Memo) -> Stack | None:
    """The stack of `own` with the sizes of `other`, computed once for all operations of a kernel; or None."""
    if type(other) is not type(own) or not isinstance(other, (Pack, RowTerms, StackProduct)):
        return None
    sizes = other.stack
    return memo.once("stack", lambda: own.stack.with_sizes_of(sizes))


class Pack(Operation):
    """Packs b, and folds in the zero point of a, for a StackProduct. addend: int32 [N], added to all sums."""

    def __init__(self, stack: Stack, zero: Zero, addend: Array | None = None) -> None:
        self.stack, self.zero, self.addend = stack, zero, addend
        self.operands = (stack.b, *_zero(zero, "")[2], Operand((stack.packed,), np.dtype(np.uint8)))

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        stack = _stack_with_sizes_of(self, other, memo)
        if stack is None or not isinstance(other, Pack) or self.addend is not None or other.addend is not None:
            return None
        return other if self.zero == other.zero else Pack(stack, _zero_like(self.zero, other.zero))._like(other)

    def _like(self, other: Pack) -> Self:
        """Give this operation the calls of `other`, with its own known zero point of a. Returns the operation."""
        factor = {"factor!": _zero(self.zero, "")[1] + self.stack.engine.isa.shift(bool(self.stack.a.dtype == np.int8))}
        self._made[(0,) * len(self.operands)] = tuple([call.with_changes(factor, {}) for call in other.tight])
        return self

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return tuple(self._call(panels) for panels in self.stack.panels)

    def _first(self, panels: PanelRun) -> Array:
        """The start values of these panels before zero points are added."""
        width = panels.panels * panels.vectors * self.stack.engine.isa.lanes
        made = np.zeros(width, np.int64)
        if self.addend is not None:
            own = self.addend[panels.first : panels.first + width]
            made[: len(own)] = own
        held = aligned(width, np.int32)
        held[...] = wrap_to_int32(made + (MAGIC_BITS if panels.form == "y32" else 0))
        return held

    def _call(self, panels: PanelRun) -> KernelCall:
        """The call that packs the right matrices of one run of panels."""
        stack, isa = self.stack, self.stack.engine.isa
        named, value, given = _zero(self.zero, "zero")
        signed = stack.a.dtype == np.int8
        spec = KernelSpec("pack", isa.name, 4, panels.vectors, 1, "pack", "i8", bool(signed), operands=named)
        words = {
            "b*": panels.first,
            "weights*": panels.weights,
            "starts*": panels.starts,
            "matrix": stack.k * stack.n,
            "line": stack.n,
            "depth": stack.k,
            "quads": stack.quads,
            "panels": panels.panels,
            "tiles": stack.count * panels.panels,
            "factor!": value + isa.shift(bool(signed)),
            "flip!": _FLIP if stack.shift else 0,
        }
        over = panels.first + panels.panels * panels.vectors * isa.lanes - stack.n
        result = 1 + len(given)
        operands = {"b*": 0, "weights*": result, "starts*": result, **dict.fromkeys(["zero*"][: len(given)], 1)}
        extents = size(stack.b.shape) + max(over, 0), *[1] * len(given), stack.packed
        return stack.engine.kernels.call(spec, operands, words, extents, {"first*": self._first(panels)}, sparse=True)


class RowTerms(Operation):
    """The terms that rows of a add to the sums, int32 [rows of a]. Zero points are operands or known values."""

    def __init__(self, stack: Stack, a_zero: Zero, b_zero: Zero) -> None:
        self.engine, self.stack, self.zeros = stack.engine, stack, (a_zero, b_zero)
        given = tuple(operand for zero in self.zeros for operand in _zero(zero, "")[2])
        self.operands = (stack.a, *given, Operand((stack.rows,), _INT32))

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        stack = _stack_with_sizes_of(self, other, memo)
        if stack is None or not isinstance(other, RowTerms):
            return None
        zeros = [_zero_like(*pair) for pair in zip(self.zeros, other.zeros, strict=True)]
        return other if self.zeros == other.zeros else RowTerms(stack, zeros[0], zeros[1])._like(other)

    def _like(self, other: RowTerms) -> Self:
        """Give this operation the calls of `other`, with its own known zero points. Returns the operation."""
        values = {f"{name}_value!": _zero(zero, "")[1] for name, zero in zip("ab", self.zeros, strict=True)}
        self._made[(0,) * len(self.operands)] = tuple([call.with_changes(values, {}) for call in other.tight])
        return self

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        stack = self.stack
        (a, a_value, a_given), (b, b_value, b_given) = (_zero(z, n) for z, n in zip(self.zeros, "ab", strict=True))
        signed, b_type = bool(stack.a.dtype == np.int8), CODES[stack.b.dtype]
        spec = KernelSpec("row_terms", self.engine.isa.name, 1, 1, 1, b_type, "i32", signed, operands=a + b)
        words = row_tiles(stack.rows, stack.k, self.engine.threads) | {"depth": stack.k}
        words |= {"a_value!": a_value, "b_value!": b_value, "shift!": stack.shift}
        names = ["a*", *["a_zero*"] * len(a_given), *["b_zero*"] * len(b_given), "y*"]
        return (self.engine.kernels.call(spec, names, words, self.whole, sparse=True),)


class StackProduct(Operation):
    """The stack's results, from a, the packed b, and the result of RowTerms if `terms`."""

    def __init__(self, stack: Stack, terms: bool, y_shape: Sequence[int] | None = None) -> None:
        self.stack, self.terms = stack, terms
        y = stack.result if y_shape is None else Operand(tuple(y_shape), stack.result.dtype)
        packed, rows = Operand((stack.packed,), np.dtype(np.uint8)), Operand((stack.rows,), _INT32)
        self.operands = (stack.a, packed, *[rows] * terms, y)

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        stack = _stack_with_sizes_of(self, other, memo)
        if stack is None or not isinstance(other, StackProduct) or self.terms != other.terms:
            return None
        made = StackProduct(stack, self.terms, other.result.shape)
        made._made[(0,) * len(made.operands)] = made._like(other.tight)
        return made

    def _like(self, calls: Sequence[KernelCall]) -> tuple[KernelCall, ...]:
        """These calls with the constants and the zero point of this stack's results."""
        stack, found, made = self.stack, {}, []
        for panels in stack.panels:
            found[panels.first] = panels, self._constants(panels, panels.vectors * stack.engine.isa.lanes)
        for call in calls:
            panels, constants = found[call.first]
            words, arrays = {"zero_point!": stack.results.zero_point}, {"constants*": constants}
            why = stack.results.why(panels.form, lanes_of(panels.first, call.channels, stack.n))
            made.append(call.with_changes(words, arrays, keep=(*call.keep[:-1], constants), why=why))
        return tuple(made)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return tuple(call for panels in self.stack.panels for call in self._calls(panels))

    def _calls(self, panels: PanelRun) -> Iterator[KernelCall]:
        """One call for each run of products, for this run of panels."""
        stack, isa, kernels = self.stack, self.stack.engine.isa, self.stack.engine.kernels
        rows = min(TABLE_ROWS if panels.form == "table" else isa.rows[panels.vectors], stack.m)
        out, signed = stack.results.out, bool(stack.a.dtype == np.int8)
        block, more = (rows, panels.vectors, stack.unroll), "rows" if self.terms else ""
        spec = KernelSpec("dense", isa.name, *block, panels.form, out, signed, operands=more)
        itemsize, width = stack.results.size, panels.vectors * isa.lanes
        channels = min(panels.panels * width, stack.n - panels.first)
        offsets = Layout(1, np.arange(stack.m)[:, None] * stack.k, 0, 0, stack.n * itemsize, stack.k)
        table = offsets.table(rows, (0,))
        constants = self._constants(panels, width)
        known = {
            "y_row": stack.n * itemsize,
            "last_row": stack.m - rows,
            "taps": 1,
            "blocks": -(-stack.m // rows),
            "depth": stack.quads // stack.unroll,
            "group_panels": panels.panels,
            "mask": (1 << (channels - 1) % isa.lanes + 1) - 1,
            "zero_point!": stack.results.zero_point,
            "y_group": stack.m * stack.n * itemsize,
        }
        for meeting in stack.meetings:
            words = {**known, **self._words(panels, meeting, width, rows)}
            words["constants*"] += address(constants)
            places = {"x*": 0, "weights*": 1, "bias*": 1, "y*": len(self.operands) - 1}
            places |= {"rows*": 2} if self.terms else {}
            extents = self._extents(meeting, panels, channels)
            why = stack.results.why(panels.form, lanes_of(panels.first, channels, stack.n))
            given, first = (spec, places, words, extents, {"offsets*": table}), panels.first
            made = kernels.call(*given, sparse=True, first=first, channels=channels, why=why)
            yield replace(made, keep=(*made.keep, constants))

    def _constants(self, panels: PanelRun, width: int) -> Array:
        """The constants of the panels' channels, in the order in which kernels read them; for each right matrix in turn
        if they differ."""
        stack, results, count = self.stack, self.stack.results, panels.panels * width
        shared = results.alike if stack.matrices == 1 else 0
        n = shared or stack.n

        def make() -> Array:
            pick = [lanes_of(panels.first, count, n, g * n) for g in range(stack.matrices)]
            return results.constants(panels.form, np.concatenate(pick).reshape(-1, width))

        return results.memo.once(("constants", panels.first, count, width), make) if shared else make()

    def _words(self, panels: PanelRun, meeting: Meeting, width: int, rows: int) -> Mapping[str, int]:
        """The words for the addresses of these products' operands, and for their cut into tiles."""
        stack, engine = self.stack, self.stack.engine
        itemsize, walks = stack.results.size, meeting.count * panels.panels
        blocks = -(-stack.m // rows)
        matrix, starts = panels.panels * 4 * stack.quads * width, panels.panels * 4 * width
        constants = panels.panels * constant_bytes(panels.form) * width if stack.matrices > 1 else 0
        chunk = chunk_blocks(blocks, walks, stack.quads * 4 * rows * width, engine.threads, engine.isa.lanes)
        chunks = -(-blocks // chunk)
        words = {
            "y*": meeting.result * stack.m * stack.n * itemsize + panels.first * itemsize,
            "panels": walks,
            "chunks": chunks,
            "chunk": chunk,
            "tiles": walks * chunks,
            "chunk_step": 1,
            "panel_step": chunks,
        }
        left, right = (meeting.left, meeting.left_step), (meeting.right, meeting.right_step)
        for name, (number, step), nbytes, start in (
            ("x", left, stack.m * stack.k, 0),
            ("rows", left, 4 * stack.m, 0),
            ("weights", right, matrix, panels.weights),
            ("bias", right, starts, panels.starts),
            ("constants", right, constants, 0),
        ):
            words |= {f"{name}*": start + number * nbytes, f"{name}_group": step * nbytes}
        return words

    def _extents(self, meeting: Meeting, panels: PanelRun, channels: int) -> tuple[int, ...]:
        """The bytes that one call reads or writes of each operand."""
        stack = self.stack
        last = meeting.left + (meeting.count - 1) * max(meeting.left_step, 0)
        # Rows are read in whole quads, so that the last row is read beyond its end.
        read = (last + 1) * stack.m * stack.k - stack.k + 4 * stack.quads
        end = (meeting.result + meeting.count) * stack.m * stack.n - stack.n + panels.first + channels
        rows = [4 * stack.rows] if self.terms else []
        return (read, stack.packed, *rows, end * stack.results.size)
