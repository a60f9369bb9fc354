"""Planned products of float32 rows with weights that stay codes of 2, 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.coded import GROUP
from qrun.native.emit.float_panels import UNROLL
from qrun.native.emit.floats import DEPTH
from qrun.native.emit.isa import Isa, host_architecture, host_features
from qrun.native.emit.row_digits import DIGITS, LANES, PIECE
from qrun.native.emit.spec import VBMI
from qrun.native.errors import Declined
from qrun.native.kernels.float_product import Cut, even, scratch_places
from qrun.native.kernels.floats import (
    ElementRecheck,
    Exact,
    FloatStack,
    FloatTerms,
    LeftRows,
    column_lengths,
    stack_call,
)
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec, Operand, Operation, size

_FLOAT = np.dtype(np.float32)
_DIGIT_BITS = 4
"""Bits of the codes that kernels multiply with digits of the rows."""
_MOST_ROWS = 6
"""Up to so many rows, strips of one row take less time than converting the weights, where digits are added in 16
bits."""
_ORDINARY = np.float32(2.0**100)
_SUMS = 1 << 18
"""Bytes of sums that wait between two blocks of k."""
_CHUNK = 1 << 20
"""Weights that are converted at once, where their lengths are found."""


@frozen
class CodedWeights:
    """Columns of a product's right operand: (code - zero) * scale in float32 steps.

    codes:  uint8 [N, bytes], packed along K from the low bits up, whole blocks.
    scales: float32 [N, blocks]. zeros: as many, uint8 or float32, or None for the middle of the codes.
    bits, block: of a code, and how many k share a scale, a power of two from 16 on. depth: K.
    values: of some columns, by number, what they are, float32 [n, blocks * block].
    """

    codes: Array
    scales: Array
    zeros: Array | None
    bits: int
    block: int
    depth: int
    values: Callable[[Ints], Array]

    @property
    def how(self) -> str:
        """Where zero points are, as the emitter names it."""
        return "half" if self.zeros is None else "bytes" if self.zeros.dtype == np.uint8 else "floats"


class CodedMatmul(Operation):
    """a @ weights + bias of float32, a [..., K], each element rounded once.

    a: its shape. bias: float32 [N], or None. exact: makes elements that the kernel does not decide. memo: the weights
    as the kernel reads them, for other shapes of a.
    """

    def __init__(
        self,
        engine: Engine,
        a: tuple[int, ...],
        weights: CodedWeights,
        exact: Exact,
        *,
        bias: Array | None = None,
        memo: Memo | None = None,
    ) -> None:
        super().__init__()
        self.engine, self.weights, self.exact, self._memo = engine, weights, exact, memo or Memo()
        self.columns = len(weights.scales)
        self.bias = None if bias is None else np.ascontiguousarray(bias)
        self.operands = (Operand(a, _FLOAT), Operand((*a[:-1], self.columns), _FLOAT))
        self.vectors, self.most = _strip(engine.isa)
        self.width = self.vectors * engine.isa.lanes // 2
        self.panels = -(-self.columns // self.width)
        self.lengths = self._memo.once("lengths", lambda: _lengths(weights, self.panels * self.width))
        if not np.isfinite(self.lengths).all():
            raise Declined("a weight is not finite")
        left = LeftRows(size(a[:-1]), weights.depth, 4 * weights.depth, whole=True)
        self.stack = FloatStack(np.zeros((1, 4), np.int64), left, self.columns, 0, 0, 4 * self.columns)

    @cached_property
    def recheck(self) -> ElementRecheck:
        return _CodedRecheck(self.stack, self.exact, self.weights)

    def _plan(self, strides: object) -> tuple[KernelCall, ...]:
        left, isa = self.stack.left, self.engine.isa
        if not left.rows:
            return ()
        most, lanes = self.most, isa.lanes // 2
        digits = self._digits()
        direct = digits is not None or left.rows < most
        rows = digits[1] if digits else left.rows if direct else most
        cut = self._shared() if digits else self._cut(rows)
        places, scratch = scratch_places(left, cut, (rows, self.vectors), lanes, direct)
        terms = FloatTerms("sum" if self.bias is None else "bias")
        how = f"rows-{'known' if direct else 'packed'}-{self.weights.bits}-{self.weights.how}"
        kind, unroll = (digits[0], self._piece // LANES) if digits else ("coded_product", UNROLL)
        # One thread alone does not wait for memory; several do.
        ahead = int(bool(digits) and self.engine.threads > 1)
        spec = KernelSpec(kind, isa.name, rows, self.vectors, unroll, terms.form, "f32", False, ahead, how)
        words = {"tap_step": 1, "depth_step": left.steps[1], "block": self.weights.block, **places}
        words |= {"row_block": cut.rows, "panels": self.panels, "panel_block": cut.panels}
        words["tiles"] = -(-left.rows // cut.rows) * -(-self.panels // cut.panels)
        held = {**self._arrays(), "known*": self.lengths}
        if self.bias is not None:
            held["addend*"] = self.bias
        given = (self.stack, terms, self.recheck, words, held, ("a*", "y*"), self.whole, scratch)
        return (stack_call(self.engine, spec, *given),)

    def _cut(self, rows: int) -> Cut:
        """Tiles of strips of so many rows."""
        left = self.stack.left
        return Cut.of(1, (left.rows, self.columns, left.depth), (rows, self.width), self.engine.threads, False)

    def _shared(self) -> Cut:
        """Tiles of all rows, one for each thread: each makes the rows' digits anew, which takes as long as a panel."""
        rows = self.stack.left.rows
        near = max(1, _SUMS // (8 * rows * self.width))
        share = -(-self.panels // self.engine.threads)
        return Cut(rows, even(self.panels, min(near, share), 1))

    def _digits(self) -> tuple[str, int] | None:
        """The kind of kernel that makes digits of the rows, where there are few, and rows of a strip; None if none
        serves the weights."""
        isa, weights, rows = self.engine.isa, self.weights, self.stack.left.rows
        most, strip = (2 * isa.real_rows[1] // DIGITS, rows) if isa.dots else (_MOST_ROWS, 1)
        if not (isa.dots_of_nibbles and weights.bits == _DIGIT_BITS and weights.how != "floats"):
            return None
        if self._memo.once("unrounded", lambda: _unrounded(weights)):
            return ("digit_product", strip) if rows <= most else None
        kind, most = _with_tables(isa)
        serves = rows <= most and weights.how == "half"
        serves = serves and self._memo.once("ordinary", lambda: _ordinary(weights.scales))
        return (kind, rows) if serves else None

    @property
    def _piece(self) -> int:
        """Elements of a row that share a quantum."""
        return min(self.weights.block, PIECE)

    def _arrays(self) -> dict[str, Array]:
        """The weights as the kernel reads them."""
        run = max(1, DEPTH // self.weights.block)
        made = {"b*": self._memo.once("codes", lambda: packed(self.weights, self.width))}
        made["scales*"] = self._memo.once("scales", lambda: _by_block(self.weights.scales, self.width, run))
        if self.weights.zeros is not None:
            zeros = self.weights.zeros
            made["zeros*"] = self._memo.once("zeros", lambda: _by_block(zeros, self.width, run))
        return made


class _CodedRecheck(ElementRecheck):
    def __init__(self, stack: FloatStack, exact: Exact, weights: CodedWeights) -> None:
        super().__init__(stack, exact)
        self.weights = weights

    def columns(self, b: int, starts: Ints, column: Ints) -> Array:
        return self.weights.values(column)[:, : self.weights.depth]


def packed(weights: CodedWeights, width: int) -> Array:
    """Codes as emit/coded.py has them: words [blocks of DEPTH k][panels][groups][columns of a panel], and some zeros,
    as whole pieces are read (emit/row_digits.py)."""
    group = GROUP[weights.bits]
    words = np.ascontiguousarray(weights.codes).view(f"<u{group * weights.bits // 8}")
    columns, panels = len(words), -(-len(words) // width)
    groups = -(-weights.depth // group)
    made = np.zeros((groups * panels + PIECE // LANES) * width, words.dtype)
    for first in range(0, groups, DEPTH // group):
        last = min(first + DEPTH // group, groups)
        part = made[first * panels * width : last * panels * width].reshape(panels, last - first, width)
        for panel in range(panels):
            own = words[panel * width : min((panel + 1) * width, columns), first:last]
            part[panel, :, : len(own)] = own.T
    return made


def _strip(isa: Isa) -> tuple[int, int]:
    """Vectors of columns of a strip, and rows of one that is multiplied in float64. In vectors of 256 bits codes are of
    twice as many columns as other strips have, so that a digit is loaded half as often."""
    return (4, 3) if isa.lanes == 8 else max(isa.real_rows.items())


def _with_tables(isa: Isa) -> tuple[str, int]:
    """The kind of kernel that looks up what rounding adds to weights, and up to how many rows it pays."""
    if isa.permutes:
        return "rounded_digits", 2 * (isa.dots and VBMI in host_features(host_architecture()))
    return "rounded_digits_256", int(isa.lanes == 8)


def _unrounded(weights: CodedWeights) -> bool:
    """Whether (code - zero) * scale is a float32 number for all codes and zeros that there may be."""
    most = 2 ** (weights.bits - 1) if weights.zeros is None else 2**weights.bits
    wide = weights.scales.astype(np.float64)
    with np.errstate(all="ignore"):
        return all(bool((weights.scales * _FLOAT.type(n) == wide * n).all()) for n in range(3, most, 2))


def _ordinary(scales: Array) -> bool:
    """Whether neither scales nor the last bits of their products are too small or too large for float32."""
    sizes = np.abs(scales)
    return bool(((sizes > 1 / _ORDINARY) & (sizes < _ORDINARY)).all())


def _by_block(values: Array, width: int, run: int) -> Array:
    """Values [N, blocks], in the order of scales in emit/coded.py; `run`: blocks of a run."""
    columns, blocks = values.shape
    lines = np.pad(values.T, [(0, 0), (0, -columns % width)]).reshape(blocks, -(-columns // width), width)
    made = np.empty(lines.shape, lines.dtype)
    for first in range(0, blocks, run):
        own = lines[first : first + run].swapaxes(0, 1)
        made[first : first + run].reshape(own.shape)[...] = own
    return made


def _lengths(weights: CodedWeights, columns: int) -> Array:
    """The length of each column of all panels, float64. The weights of codes beyond K count as well."""
    made, step = np.zeros(columns), max(1, _CHUNK // weights.depth)
    for first in range(0, len(weights.scales), step):
        numbers = np.arange(first, min(first + step, len(weights.scales)))
        made[numbers] = column_lengths(weights.values(numbers).T)
    return made
