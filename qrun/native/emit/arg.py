"""Generated ArgMax and ArgMin: where along an axis the greatest or least element is."""

from __future__ import annotations

from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter
from qrun.native.emit.spec import names
from qrun.native.emit.strided import StridedEmitter, outer_names
from qrun.native.emit.values import constants

NAMES = (*outer_names(("x", "y")), *names("count x_step y_step length along"))
"""One 8-byte word each.

count           results of the kernel's own axis
x_step, y_step  bytes from one of them to the next
length, along   elements that each is of, and bytes from one to the next
"""
_LOADED = {"f": ("float", "i32"), "i": ("i32", "i32"), "l": ("i64", "i64"), "u": ("i8", "i32"), "s": ("i8", "i32")}
_LEAST = {"i32": -(1 << 31), "i64": -(1 << 63)}
_SIZE = (1 << 31) - 1


@emitter("arg")
class ArgEmitter(StridedEmitter):
    """form: ``max`` or ``min``, with ``_last`` for the last one of equals, else the first one; then, behind a colon, ``rows`` of
    elements that follow each other, `rows` of which are looked at together, or ``columns``, of which that many are neighbours.

    What is compared are integers that grow as elements do, or, for a minimum, as these get less: all that is NaN has the
    greatest one, and both zeros have the same.
    """

    names = NAMES
    frozen = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.what, self.how = spec.form.split(":")
        self.element, self.whole = _LOADED[spec.operands]
        self.last = self.what.endswith("_last")
        self.size = {"i64": 8, "i8": 1}.get(self.element, 4)

    def _chunk(self, first: Value, end: Value) -> None:
        w, a = self.w, self.a
        end, x, y = end.least(a.count), self.starts["x"], self.starts["y"]
        if self.how == "rows":
            with w.loop(first, end, 1) as turn:
                self._row(x + turn.index * a.x_step, y + turn.index * a.y_step)
            return
        for at, n in w.runs(first, end, (self.spec.rows, 1) if self.spec.rows > 1 else (1,)):
            self._column(n, x + at * a.x_step, y + at * a.y_step)

    def _row(self, x: Value, y: Value) -> None:
        """The place in a row: of each lane's elements, then of the lanes, then of what fills no vector."""
        w, n, length = self.w, self.spec.rows, self.a.length
        whole = length & -n
        places = w.value(f"<{n} x i32>", constants("i32", range(n)))
        with w.loop(0, whole, n, [w.value(f"<{n} x {self.whole}>", _LEAST[self.whole]), places, places]) as turn:
            most, place, here = turn.carried
            more = self._key((x + turn.index * self.size).load(f"<{n} x {self.element}>", self.size))
            turn.next(*self._better(more, here, most, place), here + n)
        most, place = turn.carried[:2]
        while n > 1:
            n //= 2
            pairs = [(v.shuffled(range(n)), v.shuffled(range(n, 2 * n))) for v in (most, place)]
            most, place = self._folded(pairs[0], pairs[1])
        with w.loop(whole, length, 1, [most, place]) as rest:
            more = self._key((x + rest.index * self.size).load(f"<1 x {self.element}>", self.size))
            here = w.value("<1 x i32>", "poison").insert(rest.index.trunc("i32"), 0)
            rest.next(*self._better(more, here, *rest.carried))
        y.store(rest.carried[1].sext("i64"), 8)

    def _column(self, n: int, x: Value, y: Value) -> None:
        """The places of n neighbours, each in its own column."""
        w = self.w
        places = w.zero(f"<{n} x i32>")
        least = w.value(f"<{n} x {self.whole}>", _LEAST[self.whole])
        with w.loop(0, self.a.length, 1, [x, least, places, places]) as turn:
            source, most, place, here = turn.carried
            more = self._key(source.load(f"<{n} x {self.element}>", self.size))
            turn.next(source + self.a.along, *self._better(more, here, most, place), here + 1)
        y.store(turn.carried[2].sext("i64"), 8)

    def _better(self, key: Value, place: Value, most: Value, at: Value) -> tuple[Value, Value]:
        """The greater key and its place, of one that comes later and the greatest so far."""
        later = key.test("sge" if self.last else "sgt", most)
        return later.select(key, most), later.select(place, at)

    def _folded(self, keys: tuple[Value, Value], places: tuple[Value, Value]) -> tuple[Value, Value]:
        """The same of two that may come in any order."""
        equal = keys[1].test("eq", keys[0]) & places[1].test("sgt" if self.last else "slt", places[0])
        other = keys[1].test("sgt", keys[0]) | equal
        return other.select(keys[1], keys[0]), other.select(places[1], places[0])

    def _key(self, x: Value) -> Value:
        if self.element == "i8":
            x = x.extended("i32", self.spec.operands == "s")
        key = key_of(x, self.what)
        return nan_of(x).select(_SIZE, key) if self.element == "float" else key


def key_of(x: Value, what: str) -> Value:
    """Integers that grow as float32 or integers do, both zeros alike and NaN the greatest; or, for ``min``, as these get less."""
    if x.element != "float":
        return x ^ -1 if what.startswith("min") else x
    bits = (x + 0.0).bitcast("i32")
    key = nan_of(x).select(_SIZE, bits ^ (bits.ashr(31) & _SIZE))
    return key ^ -1 if what.startswith("min") else key


def nan_of(x: Value) -> Value:
    """An i1 in each lane: whether a float32 is NaN."""
    return x.test("uno", x)
