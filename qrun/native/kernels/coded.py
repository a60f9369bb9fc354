"""Plans products of float32 rows with quantized weights that stay codes of 2, 4 or 8 bits (MatMulNBits)."""

from __future__ import annotations

from functools import partial

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.declare.stored import Reloadable
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
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, size

_FLOAT = np.dtype(np.float32)


@frozen
class CodedWeights:
    """The quantized right operand of a product: weights are (code - zero) * scale in float32 steps.

    codes:  uint8 [N, bytes], packed along K from the low bits up, whole blocks.
    scales: float32 [N, blocks]. zeros: the same shape, uint8 or float32, or None for the middle of the codes.
    bits, block: bits of a code, and how many k share a scale, a power of two >= 16. depth: K.
    """

    codes: Array
    scales: Array
    zeros: Array | None
    bits: int
    block: int
    depth: int

    @property
    def how(self) -> str:
        """The emitter's name for how zero points are given."""
        return "half" if self.zeros is None else "bytes" if self.zeros.dtype == np.uint8 else "floats"


class CodedPanels(RightPanels):
    """Quantized weights, panel after panel. memo: keeps the packed arrays, for products with other rows."""

    kind = "coded_product"

    def __init__(self, weights: CodedWeights, memo: Memo) -> None:
        self.memo, group, blocks = memo, GROUP[weights.bits], max(1, BLOCK // weights.block)
        self.coding, self.words = f"-{weights.bits}-{weights.how}", {"block": weights.block}
        words = np.ascontiguousarray(weights.codes).view(f"<u{group * weights.bits // 8}")
        self._parts: dict[str, tuple[Reloadable, int, int]] = {
            name: (Reloadable(values.T[None]), rows, beyond)
            for name, values, rows, beyond in (
                ("b*", words[:, : -(-weights.depth // group)], BLOCK // group, BEYOND),
                ("scales*", weights.scales, blocks, 0),
                ("zeros*", weights.zeros, blocks, 0),
            )
            if values is not None
        }

    def layout_name(self, direct: bool) -> str:
        """The form of the weights in memory: "codes" to decode on the way, "decoded" to decode once per block."""
        return "codes" if direct else "decoded"

    def strip(self, isa: Isa, rows: int, columns: int, vectors: int) -> tuple[int, int]:
        """At most as many vectors as the widest panel: decoding takes registers, and longer than multiplying."""
        high, _ = strip_of(isa, rows, columns, vectors)
        panels = -(-columns // (vectors * isa.lanes))
        return high, vectors * max(1, min(panels, max(isa.real_rows) // (high * vectors)))

    def arrays(self, engine: Engine, width: int) -> dict[str, Array]:
        """The weights in the layout of emit/coded.py: codes in words, and the scales and zero points of each block."""
        return {
            name: self.memo.once((name, width), partial(_panels, engine, values, width, rows, beyond))
            for name, (values, rows, beyond) in self._parts.items()
        }


def _panels(engine: Engine, values: Reloadable, width: int, block: int, beyond: int) -> Array:
    """Pack weights into panels of `width` columns; `block` is the depth of one pass."""
    return pack_panels(engine, values.array, width, block, beyond)


class CodedMatmul(FloatProduct):
    """a @ weights + bias of float32, a [..., K].

    a: the shape of a. bias: float32 [N], or None. memo: keeps the packed weights, for other shapes of a.
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

    def _plan_calls(self, strides: object) -> tuple[KernelCall, ...]:
        if not self.stack.left.rows:
            return ()
        return (product_call(self, self.stack, ("a*", "y*"), self.whole, weights=self.weights),)
