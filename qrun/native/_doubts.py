"""Generated lists of rows whose results float64 does not decide: settle.py makes them, some at a time."""

from __future__ import annotations

from qrun.native._flow import Flow

_ROOM = 128
"""Rows in the list: with all else that is on the stack it is less than a page."""


class Doubts:
    """Rows of `x` elements, each with a result of `y`; settle: the address of what makes them. Made in the entry block."""

    def __init__(self, w: Flow, settle: str, x: int | str, y: int | str) -> None:
        self.w, self.settle, self.sizes = w, settle, f"i64 {x}, i64 {y}"
        self.rows = w.let(f"alloca [{_ROOM} x [2 x i64]], align 16")
        self.count, self.done = (w.let("alloca i64, align 8") for _ in range(2))
        w.store("i64", "0", self.count, 8)

    def add(self, x: str, y: str) -> None:
        w = self.w
        count = w.load("i64", self.count, 8)
        row = w.at(self.rows, w.mul(count, 16))
        for place, pointer in ((0, x), (8, y)):
            w.store("ptr", pointer, w.at(row, place), 8)
        w.store("i64", w.add(count, 1), self.count, 8)
        with w.when(w.let(f"icmp eq i64 {count}, {_ROOM - 1}")):
            self._settle(str(_ROOM))

    def end(self) -> None:
        """Make those that are left, before a tile is done."""
        w = self.w
        count = w.load("i64", self.count, 8)
        with w.when(w.let(f"icmp ne i64 {count}, 0")):
            self._settle(count)

    def _settle(self, count: str) -> None:
        w = self.w
        w.store("i64", "0", self.done, 8)
        w.do(f"call i64 {self.settle}(ptr {self.rows}, ptr {self.done}, i64 {count}, {self.sizes})")
        w.store("i64", "0", self.count, 8)
        with w.when(w.let(f"icmp eq i64 {w.load('i64', self.done, 8)}, 0")):
            w.undecided()
