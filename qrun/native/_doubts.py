"""Generated lists of rows whose results float64 does not decide: settle.py makes them, some at a time."""

from __future__ import annotations

from qrun.native._flow import Flow
from qrun.native._values import Value

_ROOM = 128
"""Rows in the list: 2 KiB. With all else that is on the stack it is less than a page."""


class Recheck:
    """Rows of `x` elements, each with a result of `y`; settle: the address of what makes them. Made in the entry block."""

    def __init__(self, w: Flow, settle: Value, x: Value | int, y: Value | int) -> None:
        self.w, self.settle, self.sizes = w, settle, f"i64 {x}, i64 {y}"
        self.zero = w.value("i64", 0)
        self.rows = w.let("ptr", f"alloca [{_ROOM} x [2 x i64]], align 16")
        self.count, self.done = (w.let("ptr", "alloca i64, align 8") for _ in range(2))
        self.count.store(self.zero, 8)

    def add(self, x: Value, y: Value) -> None:
        """List a row; when the list is full, make its rows."""
        w, count = self.w, self.count.load("i64", 8)
        row = self.rows + count * 16
        row.store(x, 8)
        (row + 8).store(y, 8)
        self.count.store(count + 1, 8)
        with w.when(count.test("eq", _ROOM - 1)):
            self._settle(w.value("i64", _ROOM))

    def end(self) -> None:
        """Make those that are left, before a tile is done."""
        count = self.count.load("i64", 8)
        with self.w.when(count.test("ne", 0)):
            self._settle(count)

    def _settle(self, count: Value) -> None:
        w = self.w
        self.done.store(self.zero, 8)
        w.do(f"call i64 {self.settle}(ptr {self.rows}, ptr {self.done}, i64 {count}, {self.sizes})")
        self.count.store(self.zero, 8)
        with w.when(self.done.load("i64", 8).test("eq", 0)):
            w.undecided()
