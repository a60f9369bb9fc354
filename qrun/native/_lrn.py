"""Generated local response normalization of float32 rows of channels, in float64."""

from __future__ import annotations

from qrun.native._flow import Flow
from qrun.native._ir import argument_loader
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

NAMES = (
    "x*", "y*", "x_row", "y_row", "rows", "chunk", "channels", "last", "before", "after", "taps", "tiles", "factor*",
    "bias*",
)  # fmt: skip
"""One 8-byte word each.

chunk             rows of a tile
channels, last    of a row, and where its last block starts: it overlaps
before, after     channels summed on either side; taps: before + 1 + after
factor, bias      float64: of the sum of squares, and what is added to it
"""


class Lrn:
    """`rows` channels at once. The squares of a row lie in the thread's memory, zeros on either side."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.w, self.n = spec, Flow(), spec.rows
        self.kind = f"<{self.n} x double>"
        self.w.label("entry")
        self.a = argument_loader(self.w, NAMES)
        self.factor, self.bias = (
            self.w.splat(self.n, "double", self.w.load("double", self.a[name], 8)) for name in ("factor", "bias")
        )

    def text(self) -> str:
        w, a = self.w, self.a
        squares = w.at("%scratch", w.mul(a["before"], 8))
        with w.tiles(a["tiles"]) as tile:
            for start, count in (("%scratch", a["before"]), (w.at(squares, w.mul(a["channels"], 8)), a["after"])):
                with w.loop("0", count, 1) as at:
                    w.store("double", "0.0", w.at(start, w.mul(at.index, 8)), 8)
            first = w.mul(tile, a["chunk"])
            with w.loop(first, w.least(w.add(first, a["chunk"]), a["rows"]), 1) as row:
                x, y = (w.at(a[name], w.mul(row.index, a[f"{name}_row"])) for name in ("x", "y"))
                with w.loop("0", a["channels"], self.n) as at:
                    self._square(x, squares, w.least(at.index, a["last"]))
                with w.loop("0", a["channels"], self.n) as at:
                    self._divide(x, y, w.least(at.index, a["last"]))
        return w.function("define i64 @kernel(ptr noalias %args, ptr noalias %next, ptr noalias %scratch)")

    def _numbers(self, x: str, channel: str) -> str:
        w = self.w
        singles = w.load(f"<{self.n} x float>", w.at(x, w.mul(channel, 4)), 4)
        return w.let(f"fpext <{self.n} x float> {singles} to {self.kind}")

    def _square(self, x: str, squares: str, channel: str) -> None:
        w, value = self.w, self._numbers(x, channel)
        w.store(self.kind, w.let(f"fmul {self.kind} {value}, {value}"), w.at(squares, w.mul(channel, 8)), 8)

    def _divide(self, x: str, y: str, channel: str) -> None:
        w, kind = self.w, self.kind
        start = w.at("%scratch", w.mul(channel, 8))
        with w.loop("1", self.a["taps"], 1, [(kind, w.load(kind, start, 8))]) as tap:
            square = w.load(kind, w.at(start, w.mul(tap.index, 8)), 8)
            tap.next([w.let(f"fadd {kind} {tap.carried[0]}, {square}")])
        base = w.let(f"fadd {kind} {self.bias}, {w.let(f'fmul {kind} {self.factor}, {tap.carried[0]}')}")
        root = self._root(base)
        power = w.let(f"fmul {kind} {root}, {self._root(root)}")
        quotient = w.let(f"fdiv {kind} {self._numbers(x, channel)}, {power}")
        singles = w.let(f"fptrunc {kind} {quotient} to <{self.n} x float>")
        w.store(f"<{self.n} x float>", singles, w.at(y, w.mul(channel, 4)), 4)

    def _root(self, value: str) -> str:
        return self.w.call(self.kind, f"llvm.sqrt.v{self.n}f64", (self.kind, value))
