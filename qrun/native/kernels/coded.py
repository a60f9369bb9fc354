"""Planned products of float32 rows with weights that stay codes of 2, 4 or 8 bits."""

from __future__ import annotations

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo, remembered
from qrun.native.emit.coded import BEYOND, GROUP
from qrun.native.emit.fma_product import BLOCK
from qrun.native.emit.isa import Isa
from qrun.native.kernels.fma_product import (
    FloatProduct,
    FloatStack,
    FloatTerms,
    LeftRows,
    RightPanels,
    product_call,
    strip_of,
)
from qrun.native.kernels.packing import pack_panels
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, aligned, size

_FLOAT = np.dtype(np.float32)


@frozen
class CodedWeights:
    """Columns of a product's right operand: (code - zero) * scale in float32 steps.

    codes:  uint8 [N, bytes], packed along K from the low bits up, whole blocks.
    scales: float32 [N, blocks]. zeros: as many, uint8 or float32, or None for the middle of the codes.
    bits, block: of a code, and how many k share a scale, a power of two from 16 on. depth: K.
    """

    codes: Array
    scales: Array
    zeros: Array | None
    bits: int
    block: int
    depth: int

    @property
    def how(self) -> str:
        """Where zero points are, as the emitter names it."""
        return "half" if self.zeros is None else "bytes" if self.zeros.dtype == np.uint8 else "floats"


class CodedPanels(RightPanels):
    """Weights in codes, panel after panel. memo: what is made of them, for products that differ in their rows."""

    kind = "coded_product"

    def __init__(self, weights: CodedWeights, memo: Memo) -> None:
        self.weights, self.memo = weights, memo
        self.coding, self.words = f"-{weights.bits}-{weights.how}", {"block": weights.block}

    def lying(self, direct: bool) -> str:
        return "codes" if direct else "decoded"

    def strip(self, isa: Isa, rows: int, columns: int, vectors: int) -> tuple[int, int]:
        """No more vectors than the widest panel has, as making weights takes registers, and longer than multiplying."""
        high, _ = strip_of(isa, rows, columns, vectors)
        panels = -(-columns // (vectors * isa.lanes))
        return high, vectors * max(1, min(panels, max(isa.real_rows) // (high * vectors)))

    def arrays(self, engine: Engine, width: int) -> dict[str, Array]:
        """The weights as the kernel reads them."""
        packed = self.memo.once(("packed", width), lambda: self._packed(engine, width))
        made = {"b*": packed, "scales*": self.scales(width)}
        return made if self.weights.zeros is None else {**made, "zeros*": self.zeros(width)}

    def _packed(self, engine: Engine, width: int) -> Array:
        """Codes as emit/coded.py has them: words [blocks of BLOCK k][panels][groups][columns of a panel]."""
        weights = self.weights
        group = GROUP[weights.bits]
        words = np.ascontiguousarray(weights.codes).view(f"<u{group * weights.bits // 8}")
        groups, padded = -(-weights.depth // group), -(-len(words) // width) * width
        made = aligned((groups * padded + BEYOND,), words.dtype, 0)
        pack_panels(engine, made[None, : groups * padded], words.T[None, :groups], width, BLOCK // group)
        return made

    @remembered
    def scales(self, width: int) -> Array:
        return self._by_block(self.weights.scales, width)

    @remembered
    def zeros(self, width: int) -> Array:
        assert self.weights.zeros is not None
        return self._by_block(self.weights.zeros, width)

    def _by_block(self, values: Array, width: int) -> Array:
        """Values [N, blocks], in the order of scales in emit/coded.py."""
        columns, blocks = values.shape
        run = max(1, BLOCK // self.weights.block)
        lines = np.pad(values.T, [(0, 0), (0, -columns % width)]).reshape(blocks, -(-columns // width), width)
        made = aligned(lines.shape, lines.dtype, 0)
        for first in range(0, blocks, run):
            own = lines[first : first + run].swapaxes(0, 1)
            made[first : first + run].reshape(own.shape)[...] = own
        return made


class CodedMatmul(FloatProduct):
    """a @ weights + bias of float32, a [..., K].

    a: its shape. bias: float32 [N], or None. memo: the weights as the kernel reads them, for other shapes of a.
    """

    def __init__(
        self,
        engine: Engine,
        a: tuple[int, ...],
        weights: CodedWeights,
        *,
        bias: Array | None = None,
        memo: Memo | None = None,
    ) -> None:
        columns, depth = len(weights.scales), weights.depth
        self.engine, self.weights = engine, CodedPanels(weights, memo or Memo())
        self.arrays = {} if bias is None else {"addend*": np.ascontiguousarray(bias)}
        self.terms = FloatTerms("sum" if bias is None else "bias")
        self.operands = (Operand(a, _FLOAT), Operand((*a[:-1], columns), _FLOAT))
        left = LeftRows(size(a[:-1]), depth, 4 * depth)
        self.stack = FloatStack(np.zeros((1, 4), np.int64), left, columns, 0, 0, 4 * columns)

    def _plan(self, strides: object) -> tuple[KernelCall, ...]:
        if not self.stack.left.rows:
            return ()
        return (product_call(self, self.stack, ("a*", "y*"), self.whole, weights=self.weights),)
