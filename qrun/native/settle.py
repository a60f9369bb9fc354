"""What kernels call where their float64 does not decide how a float32 result rounds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)


class Settle:
    """`function` of float32 [count], to float32 [made], at an address. It must live as long as kernels that call it."""

    def __init__(self, function: Callable[[Array], Array]) -> None:
        self.function = function
        self._call = _CALL(self._settle)
        self.address = int(ctypes.cast(self._call, ctypes.c_void_p).value or 0)

    def _settle(self, x: int, y: int, count: int, made: int) -> int:
        """0, or 1 if the function failed or was interrupted: nothing may be raised into machine code."""
        try:
            source, target = (
                np.ctypeslib.as_array((ctypes.c_float * size).from_address(place))
                for place, size in ((x, count), (y, made))
            )
            target[...] = self.function(source)
        except BaseException:
            return 1
        return 0
