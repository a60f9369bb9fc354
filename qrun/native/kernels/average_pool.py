"""Planned means of float32 over windows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.pool import AVERAGE
from qrun.native.kernels.pool import Pool, Taps
from qrun.native.machine.call import Rechecker
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Ints, aligned

Array = np.ndarray[Any, Any]
_FLOAT = np.dtype(np.float32)
_UNIT = 2.0**-53
Windows = Callable[[Array, Array], Array]
"""Windows of float32, [count, taps], 0 in the padding, and what their sums are divided by, float64 [count], to means."""


class WindowRecheck(Rechecker):
    """Means of windows, as the reference has them."""

    def __init__(self, taps: Taps, divisors: Array, means: Windows) -> None:
        super().__init__()
        self.taps, self.divisors, self.means = taps, divisors, means

    def make(self, entries: Ints, x: int, y: int) -> None:
        """entries: addresses of results; x: that of the argument struct."""
        words = np.ctypeslib.as_array((ctypes.c_int64 * len(AVERAGE)).from_address(x))
        names = ("x*", "y*", "x_image", "y_image", "y_row", "offsets*", "taps")
        source, result, x_image, y_image, y_row, offsets, taps = (int(words[AVERAGE.index(name)]) for name in names)
        image, inner = divmod(entries[:, 0] - result, y_image)
        pixel, column = divmod(inner, y_row)
        table = np.ctypeslib.as_array((ctypes.c_int32 * (self.taps.pixels * taps)).from_address(offsets))
        found = table.reshape(-1, taps)[pixel].astype(np.int64)
        places = np.where(found < 0, -1, found + (image * x_image + column)[:, None])
        memory = np.ctypeslib.as_array((ctypes.c_float * (int(places.max(initial=0)) // 4 + 1)).from_address(source))
        windows = np.where(places < 0, np.float32(0), memory[np.maximum(places, 0) // 4])
        for place, mean in zip(entries[:, 0].tolist(), self.means(windows, self.divisors[pixel]).tolist(), strict=True):
            ctypes.c_float.from_address(place).value = mean


class AveragePool(Pool):
    """The sum of each window of float32 [N, C, spatial...] / divisors [pixels], which are 1 or more; padding counts as 0."""

    kind = "average_pool"
    types = (_FLOAT,)
    most_vectors = 2

    def __init__(self, engine: Engine, x_shape: Sequence[int], taps: Taps, divisors: Array, means: Windows) -> None:
        super().__init__(engine, x_shape, _FLOAT, taps, "channels")
        self.constants = aligned((taps.pixels, 2), np.float64)
        self.constants[:, 0] = divisors
        self.constants[:, 1] = (4 * taps.count + 16) * _UNIT / divisors
        self.rechecks = (WindowRecheck(taps, self.constants[:, 0], means),)

    def _padding(self) -> float:
        return 0.0

    def _special(self, taps: int) -> tuple[str, Mapping[str, int], Mapping[str, Array]]:
        return "mean", {"recheck*": self.rechecks[0].address}, {"constants*": self.constants}
