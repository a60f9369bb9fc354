"""Planned instance and group normalization of float32."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.spec import NARROW
from qrun.native.kernels.normalize import LayerNorm
from qrun.native.machine.call import Rechecker
from qrun.native.machine.engine import Engine, Ints
from qrun.native.machine.memory import Array

Normalized = Callable[[Array, Ints], Array]
"""float32 rows [count, length], and which group of channels each is of, to their results."""


class GroupRecheck(Rechecker):
    """Makes rows as the reference does. length: elements of a row; groups: of channels, a row each."""

    def __init__(self, length: int, groups: int, function: Normalized) -> None:
        super().__init__()
        self.length, self.groups, self.function = length, groups, function

    def make(self, entries: Ints, x: int, y: int) -> None:
        """entries: addresses of rows, and of their results; x: that of the first row's results."""
        sources = [np.ctypeslib.as_array((ctypes.c_float * self.length).from_address(int(at))) for at in entries[:, 0]]
        numbers = (entries[:, 1] - x) // (4 * self.length) % self.groups
        for at, row in zip(entries[:, 1].tolist(), self.function(np.stack(sources), numbers), strict=True):
            np.ctypeslib.as_array((ctypes.c_float * self.length).from_address(at))[...] = row


class ChannelNorm(LayerNorm):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias of x [N, C, spatial...], in rows of a group of channels each.

    scale, bias: float64 [C]. The results are those of `function`: float64 decides most rows, `function` makes
    the others.
    """

    kind, together = "standardize_channels", 1

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        groups: int,
        scale: Array,
        bias: Array,
        epsilon: float,
        function: Normalized,
    ) -> None:
        self._epsilon, self._affine, self.function, self.groups = epsilon, (scale, bias), function, groups
        channels = shape[1] // groups
        length = int(np.prod(shape[1:])) // groups
        super(LayerNorm, self).__init__(engine, shape, length, _never)
        self.recheck = GroupRecheck(length, groups, function)
        self.words = {"groups": groups, "channels": channels, "piece": length // channels}

    def narrowed(self, dtype: np.dtype[Any]) -> ChannelNorm:
        def function(rows: Array, numbers: Ints) -> Array:
            return self.function(rows.astype(dtype), numbers).astype(np.float32)

        return self.again(out=NARROW[dtype.name], recheck=GroupRecheck(self.length, self.groups, function))


def _never(rows: Array) -> Array:
    raise ValueError("which channels rows are of is to be known")
