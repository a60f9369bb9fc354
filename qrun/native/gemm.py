"""Planned matrix products with constant weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.native.conv import Conv
from qrun.native.engine import Engine
from qrun.native.epilogue import Target

Array = np.ndarray[Any, Any]


class Gemm:
    """The product of 8-bit activations [rows, K] with constant 8-bit weights [K, N].

    Parameters and result as for Conv, with one zero point and scale per column. `run` takes [..., K] of `rows` rows.
    """

    def __init__(
        self,
        engine: Engine,
        rows: int,
        w: Array,
        *,
        x_zero_point: Array,
        w_zero_point: Array | None = None,
        bias: Array | None = None,
        target: Target | None = None,
    ) -> None:
        self.conv = Conv(
            engine,
            (1, w.shape[0], max(rows, 1)),
            np.ascontiguousarray(w.T)[:, :, None],
            x_zero_point=x_zero_point,
            w_zero_point=w_zero_point,
            bias=bias,
            target=target,
        )
        self.k, self.rows = w.shape[0], rows

    def run(self, x: Array) -> Array:
        """[..., K] to [..., N], contiguous."""
        if not x.ndim or x.shape[-1] != self.k:
            raise ValueError(f"x is {list(x.shape)}, planned [..., {self.k}]")
        columns = self.conv.y_shape[1]
        if not self.rows or not columns:
            return np.zeros((*x.shape[:-1], columns), self.conv.y_type)
        y = self.conv.run(x.reshape(self.rows, self.k).T[None])
        return np.ascontiguousarray(y[0].T).reshape(*x.shape[:-1], columns)
