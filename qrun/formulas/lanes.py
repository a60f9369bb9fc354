"""Lanes: numpy's arrays with the methods of generated code's vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
_TYPES = {"double": np.float64, "float": np.float32, "i64": np.int64, "i32": np.int32}
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


class Number(Protocol):
    """A vector of numbers, of either backend. Comparisons have LLVM's names, and give vectors of bool."""

    def __add__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __truediv__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __rtruediv__(self, other: Any, /) -> Any: ...
    def __and__(self, other: Any, /) -> Any: ...
    def __or__(self, other: Any, /) -> Any: ...
    def __lshift__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __abs__(self) -> Any: ...
    def lshr(self, other: Any, /) -> Any:
        """Shift bits right; zeros come in."""

    def ashr(self, other: Any, /) -> Any:
        """Shift bits right; the sign bit comes in."""

    def like(self, other: Any, /) -> Any:
        """Another number in this one's type and shape."""

    def test(self, how: str, other: Any, /) -> Any:
        """Compare by LLVM's name of the comparison, such as "olt"."""

    def select(self, yes: Any, no: Any, /) -> Any:
        """Choose `yes` where this is true, else `no`."""

    def sqrt(self) -> Any:
        """The square root."""

    def copysign(self, other: Any, /) -> Any:
        """This magnitude with the other's sign."""

    def bitcast(self, element: str, /) -> Any:
        """The same bits as another element type."""


class Lanes:
    """Elements of one type: double, float, i64, i32 or i1."""

    __slots__ = ("x",)

    def __init__(self, x: Array) -> None:
        self.x = x

    def like(self, other: Any) -> Lanes:
        """The other operand as elements of this type."""
        return other if isinstance(other, Lanes) else Lanes(np.asarray(other, self.x.dtype))

    def __add__(self, other: Any) -> Lanes:
        return Lanes(np.add(self.x, self.like(other).x))

    def __sub__(self, other: Any) -> Lanes:
        return Lanes(np.subtract(self.x, self.like(other).x))

    def __mul__(self, other: Any) -> Lanes:
        return Lanes(np.multiply(self.x, self.like(other).x))

    def __truediv__(self, other: Any) -> Lanes:
        return Lanes(np.divide(self.x, self.like(other).x))

    def __radd__(self, other: Any) -> Lanes:
        return self.like(other) + self

    def __rsub__(self, other: Any) -> Lanes:
        return self.like(other) - self

    def __rtruediv__(self, other: Any) -> Lanes:
        return self.like(other) / self

    def __and__(self, other: Any) -> Lanes:
        return Lanes(self.x & self.like(other).x)

    def __or__(self, other: Any) -> Lanes:
        return Lanes(self.x | self.like(other).x)

    def __lshift__(self, places: int) -> Lanes:
        return Lanes(self.x << self.like(places).x)

    def lshr(self, places: int) -> Lanes:
        """Shift bits right; zeros come in."""
        unsigned = f"u{self.x.dtype.itemsize}"
        return Lanes((self.x.view(unsigned) >> np.array(places, unsigned)).view(self.x.dtype))

    def ashr(self, places: int) -> Lanes:
        """Shift bits right; the sign bit comes in."""
        return Lanes(self.x >> self.like(places).x)

    def __neg__(self) -> Lanes:
        return Lanes(np.negative(self.x))

    def __abs__(self) -> Lanes:
        return Lanes(np.abs(self.x))

    def test(self, how: str, other: Any) -> Lanes:
        """Compare element by element. With NaN an ordered comparison is false, an unordered one true."""
        a, b = self.x, self.like(other).x
        if how == "uno":
            return Lanes(np.isnan(a) | np.isnan(b))
        met = _COMPARE[how[-2:]](a, b)
        return Lanes(met | np.isnan(a) | np.isnan(b) if how[0] == "u" and a.dtype.kind == "f" else met)

    def select(self, yes: Any, no: Any) -> Lanes:
        """Choose `yes` where this is true, else `no`."""
        known = yes if isinstance(yes, Lanes) else no
        return Lanes(np.where(self.x, known.like(yes).x, known.like(no).x))

    def sqrt(self) -> Lanes:
        """The square root."""
        return Lanes(np.sqrt(self.x))

    def copysign(self, other: Any) -> Lanes:
        """This magnitude with the other's sign."""
        return Lanes(np.copysign(self.x, self.like(other).x))

    def bitcast(self, element: str) -> Lanes:
        """The same bits as another element type."""
        return Lanes(self.x.view(_TYPES[element]))
