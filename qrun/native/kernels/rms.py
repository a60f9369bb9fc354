"""Planned normalization of float32 rows by their root mean square."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qrun.native.kernels.normalize import UNIT, FloatRows
from qrun.native.machine.engine import Array, Engine
from qrun.native.machine.memory import aligned_copy


class _Squares(FloatRows):
    """epsilon: what is added to the mean of the squares of a row of `length` elements."""

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        length: int,
        epsilon: float,
        reference: Callable[[Array], Array],
        y_shape: Sequence[int] | None = None,
    ) -> None:
        self._epsilon = epsilon
        super().__init__(engine, shape, length, reference, y_shape)

    def _numbers(self) -> Array:
        """The root halves the error of the sum; what follows it rounds five times, here and in the reference."""
        reach = (self.additions + 32) * UNIT
        return np.array([1 - reach, 1 + reach, self._epsilon, self.length])

    def _constants(self) -> tuple[Array, Mapping[str, Array]]:
        return self._numbers(), {}


class RmsNorm(_Squares):
    """x / sqrt(mean of the squares + epsilon) * scale; scale float32 [length]."""

    kind, together = "rms", 4

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        scale: Array,
        epsilon: float,
        reference: Callable[[Array], Array],
    ) -> None:
        self._scale = scale
        super().__init__(engine, shape, scale.size, epsilon, reference)

    def _constants(self) -> tuple[Array, Mapping[str, Array]]:
        return self._numbers(), {"scale*": aligned_copy(self._scale.astype(np.float64))}


class InverseRms(_Squares):
    """1 / sqrt(mean of the squares + epsilon), of shape y_shape."""

    kind, reduces = "inverse_rms", True
