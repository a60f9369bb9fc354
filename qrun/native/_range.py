"""Generated dynamic quantization: the range of float32 values, and their codes for a scale known at run time."""

from __future__ import annotations

import math

from qrun.native._flow import Flow
from qrun.native._ir import argument_loader, indices, real
from qrun.native._requantize_ir import Requantizer
from qrun.native.forms import MAGIC_BITS
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

RANGE = ("x*", "found*", "count", "chunk", "tiles")
CODES = ("x*", "parameters*", "y*", "count", "chunk", "tiles")
PARAMETERS = ("found*", "y*", "ranges", "tiles")
"""One 8-byte word each.

found       float32 [ranges][4]: least value or 0, greatest or 0, NaN if one is infinite or NaN
chunk       elements per tile
parameters  float32 scale; fl32(1 / scale), or NaN where that has not full precision; int32 zero point
"""
LEAST = 2.0**-100
"""The least scale whose inverse has full precision, and the inverse of the greatest."""
_MAGIC = "0x4168000000000000"
_SURE = "0x3FDFFF0000000000"
_UNROLL = 4


class _Elements:
    """Walks over float32 elements, four vectors at a time, then one."""

    names: tuple[str, ...]

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w = spec, isa, Flow()
        self.kind, self.ints = f"<{isa.lanes} x float>", f"<{isa.lanes} x i32>"
        self.w.label("entry")
        self.a = argument_loader(self.w, self.names)

    def _bounds(self, tile: str) -> tuple[str, str, str]:
        """Of a tile: its first element, the first after whole blocks, and the end."""
        w, a = self.w, self.a
        first = w.mul(tile, a["chunk"])
        end = w.least(w.add(first, a["chunk"]), a["count"])
        block = str(_UNROLL * self.isa.lanes)
        cut = w.let(f"urem i64 {w.let(f'sub i64 {end}, {first}')}, {block}")
        return first, w.let(f"sub i64 {end}, {cut}"), end

    def _mask(self, index: str, end: str) -> str:
        """The lanes from `index` on that lie before `end`."""
        w, n = self.w, self.isa.lanes
        left = w.let(f"trunc i64 {w.least(w.let(f'sub i64 {end}, {index}'), str(n))} to i32")
        return w.let(f"icmp slt {self.ints} {indices(range(n))}, {w.splat(n, 'i32', left)}")

    def _masked(self, pointer: str, mask: str) -> str:
        """A vector with 0 in the lanes that are off."""
        n = self.isa.lanes
        return self.w.call(self.kind, f"llvm.masked.load.v{n}f32.p0", ("ptr", pointer), ("i32", "4"),
                           (f"<{n} x i1>", mask), (self.kind, "zeroinitializer"))  # fmt: skip

    def _select(self, compare: str, a: str, b: str) -> str:
        """a if it compares so with b, else b; b if one is NaN."""
        condition = self.w.let(f"fcmp {compare} {self.kind} {a}, {b}")
        return self.w.let(f"select <{self.isa.lanes} x i1> {condition}, {self.kind} {a}, {self.kind} {b}")


class Range(_Elements):
    names = RANGE

    def text(self) -> str:
        w, a, n = self.w, self.a, self.isa.lanes
        zero = (self.kind, "zeroinitializer")
        with w.tiles(a["tiles"]) as tile:
            first, cut, end = self._bounds(tile)
            with w.loop(first, cut, _UNROLL * n, [zero] * 3 * _UNROLL) as block:
                values = []
                for number in range(_UNROLL):
                    x = w.load(self.kind, w.at(a["x"], w.mul(w.add(block.index, number * n), 4)), 4)
                    values += self._taken(x, block.carried[3 * number : 3 * number + 3])
                block.next(values)
            state = [(self.kind, value) for value in block.carried[:3]]
            with w.loop(cut, end, n, state) as one:
                x = self._masked(w.at(a["x"], w.mul(one.index, 4)), self._mask(one.index, end))
                one.next(self._taken(x, one.carried))
            found = one.carried
            for number in range(1, _UNROLL):
                found = self._joined(found, block.carried[3 * number : 3 * number + 3])
            step = n // 2
            while step:
                order = indices([*range(step, n), *range(step)])
                turned = [
                    w.let(f"shufflevector {self.kind} {v}, {self.kind} poison, {self.ints} {order}") for v in found
                ]
                found = self._joined(found, turned)
                step //= 2
            to = w.at(a["found"], w.mul(tile, 16))
            for number, value in enumerate(found):
                w.store("float", w.let(f"extractelement {self.kind} {value}, i32 0"), w.at(to, 4 * number), 4)
        return w.kernel()

    def _taken(self, x: str, state: list[str]) -> list[str]:
        nothing = self.w.let(f"fsub {self.kind} {x}, {x}")
        return self._joined([x, x, nothing], state)

    def _joined(self, values: list[str], state: list[str]) -> list[str]:
        least, most = (self._select(c, v, s) for c, v, s in zip(("olt", "ogt"), values, state, strict=False))
        return [least, most, self.w.let(f"fadd {self.kind} {values[2]}, {state[2]}")]


class Codes(_Elements):
    """y = saturate(RNE(fl32(x / scale)) + zero_point), uint8; NaN becomes 0.

    x * inverse, cut to what does not saturate, differs from the quotient by less than 2**-14. Where it is farther than
    that from a tie, the nearest integer is the result; a block with another element, or without an inverse, is divided.
    """

    names = CODES

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        w, n = self.w, isa.lanes
        scale, inverse = (w.load("float", w.at(self.a["parameters"], place), 4) for place in (0, 4))
        zero = w.load("i32", w.at(self.a["parameters"], 8), 4)
        self.epilogue = Requantizer(w, isa, "ort", "u8", _UNROLL, zero, "0")
        self.scale, self.inverse = (w.splat(n, "float", value) for value in (scale, inverse))
        nothing = w.let(f"fmul float {inverse}, 0.0")
        self.sure = w.splat(n, "float", w.let(f"fadd float {nothing}, {_SURE}"))
        limits = (w.let(f"sub i32 {end}, {zero}") for end in (0, 255))
        self.low, self.high = (w.splat(n, "float", w.let(f"sitofp i32 {limit} to float")) for limit in limits)
        self.magic = w.splat(n, "float", _MAGIC)
        self.shift = w.splat(n, "i32", w.let(f"sub i32 {zero}, {MAGIC_BITS}"))

    def text(self) -> str:
        w, a, n = self.w, self.a, self.isa.lanes
        with w.tiles(a["tiles"]) as tile:
            first, cut, end = self._bounds(tile)
            with w.loop(first, cut, _UNROLL * n) as block:
                at = w.at(a["x"], w.mul(block.index, 4))
                values = [w.load(self.kind, w.at(at, 4 * n * i), 4) for i in range(_UNROLL)]
                self.epilogue.store(self.epilogue.finish(self._block(values)), w.at(a["y"], block.index), True)
            with w.loop(cut, end, n) as one:
                mask = self._mask(one.index, end)
                x = self._masked(w.at(a["x"], w.mul(one.index, 4)), mask)
                code = self._shifted(self._raised(self._cut(w.let(f"fdiv {self.kind} {x}, {self.scale}"))))
                narrow = w.let(f"trunc {self.ints} {code} to <{n} x i8>")
                w.call("void", f"llvm.masked.store.v{n}i8.p0", (f"<{n} x i8>", narrow),
                       ("ptr", w.at(a["y"], one.index)), ("i32", "1"), (f"<{n} x i1>", mask))  # fmt: skip
        return w.kernel()

    def _block(self, values: list[str]) -> list[str]:
        """Codes of some vectors, before saturation."""
        w, n = self.w, self.isa.lanes
        raised, doubts = [], ""
        for x in values:
            guess = self._cut(w.let(f"fmul {self.kind} {x}, {self.inverse}"))
            raised.append(self._raised(guess))
            whole = w.let(f"fsub {self.kind} {raised[-1]}, {self.magic}")
            rest = w.let(f"fsub {self.kind} {guess}, {whole}")
            size = w.call(self.kind, f"llvm.fabs.v{n}f32", (self.kind, rest))
            far = w.let(f"fcmp ugt {self.kind} {size}, {self.sure}")
            doubts = w.let(f"or <{n} x i1> {doubts}, {far}") if doubts else far
        bits = w.let(f"bitcast <{n} x i1> {doubts} to i{n}")
        before = w.here
        w.do(f"br i1 {w.let(f'icmp ne i{n} {bits}, 0')}, label %divide, label %sure")
        w.label("divide")
        divided = [self._raised(self._cut(w.let(f"fdiv {self.kind} {x}, {self.scale}"))) for x in values]
        w.jump("sure")
        w.label("sure")
        chosen = [
            w.let(f"phi {self.kind} [{a}, %{before}], [{b}, %divide]") for a, b in zip(raised, divided, strict=True)
        ]
        return [self._shifted(value) for value in chosen]

    def _cut(self, quotient: str) -> str:
        return self._select("olt", self._select("ogt", quotient, self.low), self.high)

    def _raised(self, quotient: str) -> str:
        return self.w.let(f"fadd {self.kind} {quotient}, {self.magic}")

    def _shifted(self, raised: str) -> str:
        bits = self.w.let(f"bitcast {self.kind} {raised} to {self.ints}")
        return self.w.let(f"add {self.ints} {bits}, {self.shift}")


class Parameters:
    """What a range says of its quantization. form: ``scale``, the ``zero`` point, or the ``parameters`` of codes.

    scale = (top - bottom) / 255, 1 where that is 0; zero point = RNE(0 - bottom / scale) within 0..255; each step is
    one of float32. A range that is not finite is not decided.
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.w = spec, Flow()
        self.w.label("entry")
        self.a = argument_loader(self.w, PARAMETERS)

    def text(self) -> str:
        w = self.w
        with w.tiles(self.a["tiles"]):
            bottom, top = self._range()
            scale = w.let(f"fdiv float {w.let(f'fsub float {top}, {bottom}')}, 255.0")
            nothing = w.let(f"fcmp oeq float {scale}, 0.0")
            zero = w.let(f"fsub float 0.0, {w.let(f'fdiv float {bottom}, {scale}')}")
            zero = self._least(zero, "255.0")
            zero = w.let(f"fsub float {w.let(f'fadd float {zero}, {_MAGIC}')}, {_MAGIC}")
            zero = w.let(f"fptosi float {w.let(f'select i1 {nothing}, float 0.0, float {zero}')} to i32")
            self._store(w.let(f"select i1 {nothing}, float 1.0, float {scale}"), zero)
        return w.kernel()

    def _range(self) -> tuple[str, str]:
        w = self.w
        with w.loop("0", self.a["ranges"], 1, [("float", "0.0")] * 3) as turn:
            at = w.at(self.a["found"], w.mul(turn.index, 16))
            low, high, bad = (w.load("float", w.at(at, 4 * place), 4) for place in range(3))
            bottom, top, unknown = turn.carried
            less = w.let(f"fcmp olt float {low}, {bottom}")
            more = w.let(f"fcmp ogt float {high}, {top}")
            turn.next([
                w.let(f"select i1 {less}, float {low}, float {bottom}"),
                w.let(f"select i1 {more}, float {high}, float {top}"),
                w.let(f"fadd float {unknown}, {bad}"),
            ])  # fmt: skip
        bottom, top, unknown = turn.carried
        with w.when(w.let(f"fcmp une float {unknown}, 0.0")):
            w.undecided()
        return bottom, top

    def _least(self, x: str, limit: str) -> str:
        """The lesser one; the limit where x is NaN."""
        below = self.w.let(f"fcmp olt float {x}, {limit}")
        return self.w.let(f"select i1 {below}, float {x}, float {limit}")

    def _store(self, scale: str, zero: str) -> None:
        w, y = self.w, self.a["y"]
        if self.spec.form == "zero":
            w.store("i8", w.let(f"trunc i32 {zero} to i8"), y)
            return
        w.store("float", scale, y, 4)
        if self.spec.form == "scale":
            return
        small, large = (
            w.let(f"fcmp {test} float {scale}, {real(limit)}") for test, limit in (("oge", LEAST), ("ole", 1 / LEAST))
        )
        inverse = w.let(f"fdiv float 1.0, {scale}")
        full = w.let(f"and i1 {small}, {large}")
        w.store("float", w.let(f"select i1 {full}, float {inverse}, float {real(math.nan)}"), w.at(y, 4), 4)
        w.store("i32", zero, w.at(y, 8), 4)
