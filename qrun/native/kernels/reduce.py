"""Planned reductions of float32 rows to one number each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qrun.native.kernels.normalize import UNIT, FloatRows
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Array

KINDS = ("sum", "mean", "sum_abs", "sum_square", "norm", "log_sum", "log_sum_exp", "greatest", "least")


class Reduction(FloatRows):
    """What a row of `length` elements comes to, of shape y_shape.

    kind: of KINDS. ``sum``, ``mean``, ``sum_abs`` (of magnitudes), ``sum_square`` (of squares), ``norm`` (the root of that),
          ``log_sum`` (its logarithm), ``log_sum_exp`` (that of the exponentials' sum),
          ``greatest`` or ``least`` (NaN if there is one; -0 is less than +0).
    reference: makes rows' results [count, ...] of their elements [count, length].
    """

    reduces = True

    def __init__(
        self,
        engine: Engine,
        kind: str,
        shape: Sequence[int],
        length: int,
        reference: Callable[[Array], Array],
        y_shape: Sequence[int],
    ) -> None:
        self.kind = kind
        super().__init__(engine, shape, length, reference, y_shape)

    def _constants(self) -> tuple[Array, Mapping[str, Array]]:
        more = 80 if self.kind == "log_sum_exp" else 16
        return np.array([(2 * self.additions + more) * UNIT, 2.0**-47]), {}
