"""What kernels call where their float64 does not decide how float32 results round."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from qrun.native.errors import Undecided

Array = np.ndarray[Any, Any]
_CALL = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)


class Settle:
    """`function` of float32 [rows, x], to float32 [rows, y], at an address. It must live as long as kernels that call it.

    A kernel that comes back without a result puts a mark into its struct (_runner.DOUBT); then `failure` tells why.
    """

    def __init__(self, function: Callable[[Array], Array]) -> None:
        self.function = function
        self._failed: BaseException | None = None
        self._call = _CALL(self._settle)
        self.address = int(ctypes.cast(self._call, ctypes.c_void_p).value or 0)

    def failure(self) -> BaseException:
        """What is to be raised: an interrupt, if there was one, else Undecided."""
        failed, self._failed = self._failed, None
        if failed is None:
            return KeyboardInterrupt()
        return Undecided() if isinstance(failed, Exception) else failed

    def _settle(self, places: int, done: int, count: int, x: int, y: int) -> int:
        """places: addresses of `count` rows of x elements, and of their results, by turns. done: gets 1 at the end.

        Nothing may be raised into machine code; an interrupt that comes before the first line leaves no trace but
        that the end is not reached.
        """
        try:
            sources, targets = (
                np.ctypeslib.as_array((ctypes.c_int64 * (2 * count)).from_address(places)).reshape(-1, 2).T
            )
            source, target = _Rows(sources, x), _Rows(targets, y)
            target.all[target.index] = self.function(source.all[source.index])
            ctypes.c_int64.from_address(done).value = 1
        except BaseException as error:
            self._failed = error
        return 0


class _Rows:
    """Rows of float32 at these addresses: elements of an array from the first to the last of them."""

    def __init__(self, places: Array, length: int) -> None:
        first = int(places.min())
        offsets = (places - first) // 4
        kind = ctypes.c_float * (int(offsets.max()) + length)
        self.all = np.ctypeslib.as_array(kind.from_address(first))
        self.index = offsets[:, None] + np.arange(length)
