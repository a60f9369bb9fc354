"""Planned work on float32 rows: layer normalization, softmax, means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.native._normalize import MEAN, SHARES, STANDARDIZE
from qrun.native.engine import Engine
from qrun.native.operation import Operand, Order, size
from qrun.native.planned import Planned, share
from qrun.native.rows import packed
from qrun.native.section import Section, struct
from qrun.native.settle import Settle
from qrun.native.spec import KernelSpec

Array = np.ndarray[Any, Any]
_FLOAT = np.dtype(np.float32)
_UNIT = 2.0**-53


class _Rows(Planned):
    """y = what each row of `length` elements of x makes: another row, or one number (y_shape); both float32 in C order.

    reference: makes rows' results [count, ...] of their elements [count, length]. It decides where float64 here does not:
               both are within a reach of each other that grows with the additions that follow each other in a sum.
    """

    order: Order = "plain"
    kind: str
    names: tuple[str, ...]

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        length: int,
        reference: Callable[[Array], Array],
        y_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        shapes = shape, shape if y_shape is None else y_shape
        self.operands = tuple(Operand(tuple(s), _FLOAT) for s in shapes)
        self.engine, self.length = engine, length
        self.settle = Settle(reference)
        lanes = engine.isa.lanes
        self.additions = length // lanes + 2 * lanes + 64 + length // 4096
        self.numbers, self.arrays = self._constants()

    def _constants(self) -> tuple[Array, Mapping[str, Array]]:
        raise NotImplementedError

    def _plan(self, strides: Sequence[int]) -> tuple[Section, ...]:
        rows = size(self.operands[0].shape) // self.length if self.length else 0
        if not rows:
            return ()
        isa = self.engine.isa
        spec = KernelSpec(self.kind, isa.name, isa.lanes, 1, 1, self.kind, "f32", False)
        chunk = share(rows, 32 * self.length, self.engine.threads)
        words = {"x*": 0, "y*": 0, "rows": rows, "chunk": chunk, "tiles": -(-rows // chunk), "length": self.length,
                 "settle*": self.settle.address}  # fmt: skip
        arrays = {"numbers*": self.numbers, **self.arrays}
        return (
            Section(
                spec, self.engine.kernels.get(spec), struct(self.names, words, arrays), ((0, 0), (1, 1)),
                tuple(4 * size(operand.shape) for operand in self.operands), words["tiles"], keep=tuple(arrays.values()), scratch=8 * self.length,
                decides=False, settle=self.settle,
            ),
        )  # fmt: skip


class Standardize(_Rows):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; scale and bias (None for none) float32 [length]."""

    kind, names = "standardize", STANDARDIZE

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        scale: Array,
        bias: Array | None,
        epsilon: float,
        reference: Callable[[Array], Array],
    ) -> None:
        self._epsilon = epsilon
        self._affine = scale, np.full(scale.shape, -0.0, _FLOAT) if bias is None else bias
        super().__init__(engine, shape, scale.size, reference)

    def _constants(self) -> tuple[Array, Mapping[str, Array]]:
        of_size, of_scale = ((2 * self.additions + more) * _UNIT for more in (64, 0))
        numbers = np.array([of_size, of_scale, self._epsilon, self.length])
        return numbers, dict(zip(("scale*", "bias*"), map(packed, self._affine), strict=True))


class Shares(_Rows):
    """exp(x) / sum exp(x)."""

    kind, names = "shares", SHARES

    def _constants(self) -> tuple[Array, Mapping[str, Array]]:
        return np.array([(2 * self.additions + 80) * _UNIT]), {}


class Mean(_Rows):
    """sum x / length, of shape y_shape."""

    kind, names = "mean", MEAN

    def _constants(self) -> tuple[Array, Mapping[str, Array]]:
        return np.array([(2 * self.additions + 16) * _UNIT]), {}
