"""Typed values of generated LLVM IR. Python operators on them write instructions into their function. Also the text of
types and constants."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TypeAlias, Union

REAL = {"double": "f64", "float": "f32"}
"""LLVM types of real numbers, and their suffixes in the names of intrinsics."""

Operand: TypeAlias = Union["Value", str, int, float]
"""A value, the text of a constant, or a number that becomes a constant of the other operand's type."""
Typed = tuple[str, str]
"""(type, text) of a constant operand."""

ZERO = "zeroinitializer"
MAGIC32, MAGIC64 = 1.5 * 2.0**23, 1.5 * 2.0**52
"""Numbers of float32 and float64 whose last bit counts ones: adding x to them rounds x to an integer, ties to even, in
the low bits of the sum. The factor 1.5 leaves room below for negative integers."""


@cache
def parts(kind: str) -> tuple[int, str]:
    """The number of lanes (0 for a scalar) and the element type of a type."""
    if not kind.startswith("<"):
        return 0, kind
    count, _, element = kind[1:-1].partition(" x ")
    return int(count), element


def suffix(kind: str) -> str:
    """The suffix for a type in the names of overloaded intrinsics."""
    lanes, element = parts(kind)
    return (f"v{lanes}" if lanes else "") + REAL.get(element, element)


def real(value: float) -> str:
    """The text of a float or double constant, as the bits of a double. A float's value must be a float32 number."""
    return f"0x{struct.pack('>d', value).hex().upper()}"


def splat_constant(kind: str, value: int | str, lanes: int) -> str:
    """A constant vector with the same value in every lane."""
    return f"<{', '.join([f'{kind} {value}'] * lanes)}>"


def _integer(name: str) -> Callable[[Value, Operand], Value]:
    """A method that writes the instruction of this name, on two integers of one type."""
    return lambda value, other: value.op(name, other)


def _cast(name: str) -> Callable[[Value, str], Value]:
    """A method that writes the conversion of this name, to an element type in each lane or to a whole vector type."""

    def cast(value: Value, element: str) -> Value:
        kind = value.type_of(element)
        return value.w.let(kind, f"{name} {value.kind} {value} to {kind}")

    return cast


class Value:
    """A value of the function that `w` writes: its LLVM type, and its name or the text of a constant.

    Operators write the instruction that fits the type: ``+`` is add, fadd, or for a pointer a step in bytes. ``//`` and
    ``%`` are unsigned. Instructions are written in the order of Python's evaluation: operands from left to right.
    """

    __slots__ = ("kind", "name", "w")

    def __init__(self, w: Instructions, kind: str, name: str) -> None:
        self.w, self.kind, self.name = w, kind, name

    def __str__(self) -> str:
        return self.name

    @property
    def lanes(self) -> int:
        """The number of lanes of a vector; 0 for a scalar."""
        return parts(self.kind)[0]

    @property
    def element(self) -> str:
        """The type of a vector's elements, or of the scalar itself."""
        return parts(self.kind)[1]

    @property
    def real(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return parts(self.kind)[1] in REAL

    def type_of(self, element: str) -> str:
        """The type with this value's lanes and this element; a vector type is returned unchanged."""
        lanes = parts(self.kind)[0]
        return f"<{lanes} x {element}>" if lanes and element[0] != "<" else element

    def like(self, other: Operand) -> Value:
        """The other operand as a value. A number, or the text of a constant, gets this value's type."""
        return other if isinstance(other, Value) else self.w.value(self.kind, other)

    def op(self, name: str, other: Operand) -> Value:
        """The result of the instruction `name` on this value and another one of its type."""
        return self.w.let(self.kind, f"{name} {self.kind} {self.name}, {self.like(other).name}")

    def _arithmetic(self, name: str, other: Operand) -> Value:
        """An operation that has one instruction for floats and one for integers."""
        return self.op(f"f{name}" if self.real else name, other)

    def __add__(self, other: Operand) -> Value:
        return self.w.at(self, other) if self.kind == "ptr" else self._arithmetic("add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._arithmetic("sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self.op("fdiv", other)

    def __radd__(self, other: Operand) -> Value:
        return self.like(other) + self

    def __rsub__(self, other: Operand) -> Value:
        return self.like(other) - self

    def __rtruediv__(self, other: Operand) -> Value:
        return self.like(other) / self

    def __divmod__(self, other: Operand) -> tuple[Value, Value]:
        return self // other, self % other

    __floordiv__, __mod__ = _integer("udiv"), _integer("urem")
    __and__, __or__, __xor__ = _integer("and"), _integer("or"), _integer("xor")
    __lshift__, lshr, ashr = _integer("shl"), _integer("lshr"), _integer("ashr")

    def __invert__(self) -> Value:
        """The negation of an i1."""
        return self ^ "true"

    def __neg__(self) -> Value:
        return self.w.let(self.kind, f"fneg {self.kind} {self}")

    def __abs__(self) -> Value:
        return self.intrinsic("fabs")

    def test(self, how: str, other: Operand) -> Value:
        """The comparison `how`, in the words of icmp or fcmp: an i1 in each lane."""
        compare = "fcmp" if self.real else "icmp"
        return self.w.let(self.type_of("i1"), f"{compare} {how} {self.kind} {self}, {self.like(other)}")

    def select(self, yes: Operand, no: Operand) -> Value:
        """`yes` where this i1 is true, else `no`, in each lane. At least one of the two is a Value."""
        known = next(value for value in (yes, no) if isinstance(value, Value))
        yes, no = known.like(yes), known.like(no)
        return self.w.let(yes.kind, f"select {self.kind} {self}, {yes.kind} {yes}, {no.kind} {no}")

    def where(self, how: str, other: Operand) -> Value:
        """This value where `self how other` holds, else the other one, in each lane."""
        other = self.like(other)
        return self.test(how, other).select(self, other)

    def within(self, low: Operand, high: Operand) -> Value:
        """A real number clipped to two limits; NaN becomes the lower one."""
        return self.where("ogt", low).where("olt", high)

    def bits(self) -> Value:
        """The lanes of a vector of i1 as one integer, the first one lowest."""
        return self.w.let(f"i{self.lanes}", f"bitcast {self.kind} {self} to i{self.lanes}")

    def any(self) -> Value:
        """Whether some lane of a vector of i1 is true."""
        return self.bits().test("ne", 0)

    bitcast, trunc, sext, zext = _cast("bitcast"), _cast("trunc"), _cast("sext"), _cast("zext")
    sitofp, uitofp, fptosi, fptoui = _cast("sitofp"), _cast("uitofp"), _cast("fptosi"), _cast("fptoui")
    _fpext, _fptrunc = _cast("fpext"), _cast("fptrunc")

    def extend(self, element: str, signed: bool) -> Value:
        """An integer extended to a wider type, with its sign if `signed`, else with zeros."""
        return self.sext(element) if signed else self.zext(element)

    def double(self) -> Value:
        """float32 as float64."""
        return self._fpext("double")

    def single(self) -> Value:
        """float64 rounded to float32, or to the narrower type that `w.narrowing` rounds to."""
        return self.w.narrowing(self) if self.w.narrowing else self.float32()

    def float32(self) -> Value:
        """float64 rounded to float32."""
        return self._fptrunc("float")

    def through(self, element: str) -> Value:
        """This value rounded to a narrower float type, ties to even, and converted back."""
        return self._fptrunc(element)._fpext(self.element)

    def sqrt(self) -> Value:
        return self.intrinsic("sqrt")

    def copysign(self, other: Operand) -> Value:
        """This value's magnitude with the other one's sign."""
        return self.intrinsic("copysign", other)

    def intrinsic(self, name: str, *others: Operand) -> Value:
        """The result of llvm.NAME for this value and others of its type."""
        return self.w.call(self.kind, f"llvm.{name}.{suffix(self.kind)}", self, *(self.like(other) for other in others))

    def reduce_lanes(self, name: str, *first: Typed) -> Value:
        """The lanes reduced to one by llvm.vector.reduce.NAME. first: the start value that an fadd takes."""
        return self.w.call(self.element, f"llvm.vector.reduce.{name}.{suffix(self.kind)}", *first, self)

    def least(self, other: Operand) -> Value:
        """The lesser of two signed integers."""
        return self.intrinsic("smin", other)

    def part(self, size: Operand, end: Operand) -> tuple[Value, Value]:
        """The start and end of part number `self` of range(end). Parts have this size; the last one may be shorter."""
        first = self * size
        return first, (first + size).least(end)

    def fma(self, b: Operand, c: Operand) -> Value:
        """self * b + c, rounded once where the instruction set has a fused multiply-add, else twice."""
        return self.intrinsic("fma", b, c) if self.w.fused else self * b + c

    def splat(self, lanes: int) -> Value:
        """A vector with this scalar in every lane."""
        one = self.w.value(f"<{lanes} x {self.kind}>", "poison").insert(self, 0)
        return self.w.let(one.kind, f"shufflevector {one.kind} {one}, {one.kind} poison, <{lanes} x i32> {ZERO}")

    def extract(self, lane: int) -> Value:
        """The element of a lane."""
        return self.w.let(self.element, f"extractelement {self.kind} {self}, i32 {lane}")

    def insert(self, value: Value, lane: int) -> Value:
        """This vector with another element in a lane."""
        return self.w.let(self.kind, f"insertelement {self.kind} {self}, {value.kind} {value}, i32 {lane}")

    def shuffle(self, order: Iterable[int], other: Value | str = "poison") -> Value:
        """A vector of elements chosen by number from this vector followed by the other one; below 0: any value."""
        lanes = ["i32 poison" if i < 0 else f"i32 {i}" for i in order]
        kind, places = f"<{len(lanes)} x {self.element}>", f"<{len(lanes)} x i32> <{', '.join(lanes)}>"
        return self.w.let(kind, f"shufflevector {self.kind} {self}, {self.kind} {other}, {places}")

    def load(self, kind: str, align: int = 1) -> Value:
        """Load a value of this type from this pointer."""
        return self.w.let(kind, f"load {kind}, ptr {self}, align {align}")

    def store(self, value: Value, align: int = 1) -> None:
        """Store a value at this pointer."""
        self.w.do(f"store {value.kind} {value}, ptr {self}, align {align}")

    def masked_load(self, kind: str, mask: Value, align: int = 1) -> Value:
        """Load the lanes of a vector that are on in the mask. The others are not read, and become 0."""
        rest = (("i32", str(align)), mask, (kind, ZERO))
        return self.w.call(kind, f"llvm.masked.load.{suffix(kind)}.p0", self, *rest)

    def masked_store(self, value: Value, mask: Value) -> None:
        """Store the lanes of a vector that are on in the mask."""
        self.w.run(f"llvm.masked.store.{suffix(value.kind)}.p0", value, self, ("i32", "1"), mask)

    def gather(self, element: str, places: Value, on: Value, align: int) -> Value:
        """Load an i32 for each lane that is on, from its place after this pointer, counted in elements of this type."""
        kind, n = places.kind, places.lanes
        where = self.w.let(f"<{n} x ptr>", f"getelementptr {element}, ptr {self}, {kind} {places}")
        rest = (("i32", str(align)), on, (kind, "poison"))
        return self.w.call(kind, f"llvm.masked.gather.v{n}i32.v{n}p0", where, *rest)

    def address(self) -> Value:
        """This pointer as an i64."""
        return self.w.let("i64", f"ptrtoint ptr {self} to i64")

    def hide(self) -> Value:
        """The same pointer, unknown to the optimiser: loads through it stay where they are."""
        return self.w.let("ptr", f'call ptr asm "", "=r,0"(ptr {self})')


def constants(kind: str, numbers: Iterable[int]) -> str:
    """The text of a constant vector of these numbers."""
    return f"<{', '.join(f'{kind} {n}' for n in numbers)}>"


class Instructions:
    """The instructions of a function, in order. fused: whether `a.fma(b, c)` rounds once, as one instruction. permutes:
    as `Isa.permutes`. narrowing: a function that rounds results to a narrower type (conversions.py), or None."""

    narrowing: Callable[[Value], Value] | None = None

    def __init__(self, fused: bool = False, permutes: bool = False) -> None:
        self.fused, self.permutes = fused, permutes
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.count = 0

    def do(self, line: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {line}")

    def let(self, kind: str, expression: str) -> Value:
        """Write an instruction. Returns its result, of this type."""
        self.count += 1
        made = Value(self, kind, f"%v{self.count}")
        self.do(f"{made} = {expression}")
        return made

    def value(self, kind: str, what: float | str) -> Value:
        """A constant, in every lane of a vector type; or, for a string, the value of this name."""
        if isinstance(what, str):
            return Value(self, kind, what)
        lanes, element = parts(kind)
        text = real(what) if element in REAL else str(what)
        return Value(self, kind, splat_constant(element, text, lanes) if lanes else text)

    def zero(self, kind: str) -> Value:
        """A vector of zeros."""
        return Value(self, kind, ZERO)

    def call(self, result: str, function: str, *operands: Value | Typed) -> Value:
        """Call an intrinsic. Returns its result."""
        return self.let(result, self._call(result, function, operands))

    def run(self, function: str, *operands: Value | Typed) -> None:
        """Call an intrinsic that has no result."""
        self.do(self._call("void", function, operands))

    def _call(self, result: str, function: str, operands: Sequence[Value | Typed]) -> str:
        """Declare a function and return the text of a call of it."""
        typed = [(o.kind, o.name) if isinstance(o, Value) else o for o in operands]
        self.declared.add(f"declare {result} @{function}({', '.join(t for t, _ in typed)})")
        return f"call {result} @{function}({', '.join(f'{t} {v}' for t, v in typed)})"

    def read(self, *vectors: Value) -> None:
        """Write an empty instruction that keeps these vectors of 512 bits in registers up to here."""
        taken, typed = ",".join("v" for _ in vectors), ", ".join(f"{vector.kind} {vector}" for vector in vectors)
        self.do(f'call void asm sideeffect "", "{taken}"({typed})')

    def at(self, pointer: Value, offset: Operand) -> Value:
        """The pointer plus a number of bytes."""
        return pointer if offset == 0 else self.let("ptr", f"getelementptr i8, ptr {pointer}, i64 {offset}")
