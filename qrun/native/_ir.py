"""A small writer of LLVM IR text: values get numbers, intrinsics declare themselves."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

Typed = tuple[str, str]
"""(type, value) of an operand."""


class Writer:
    """Instructions of one function, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.count = 0

    def do(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def let(self, expression: str, name: str = "") -> str:
        if not name:
            self.count += 1
            name = f"%v{self.count}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def call(self, result: str, function: str, *operands: Typed, name: str = "") -> str:
        """Call an intrinsic; a void one returns ''."""
        self.declared.add(f"declare {result} @{function}({', '.join(t for t, _ in operands)})")
        call = f"call {result} @{function}({', '.join(f'{t} {v}' for t, v in operands)})"
        if result == "void":
            self.do(call)
            return ""
        return self.let(call, name)

    def load(self, kind: str, pointer: str, align: int = 1) -> str:
        return self.let(f"load {kind}, ptr {pointer}, align {align}")

    def store(self, kind: str, value: str, pointer: str, align: int = 1) -> None:
        self.do(f"store {kind} {value}, ptr {pointer}, align {align}")

    def at(self, pointer: str, offset: int | str, name: str = "") -> str:
        """pointer plus a number of bytes."""
        if offset == 0 and not name:
            return pointer
        return self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}", name)

    def mul(self, a: str, b: int | str) -> str:
        return self.let(f"mul i64 {a}, {b}")

    def div(self, a: str, b: int | str) -> str:
        return self.let(f"udiv i64 {a}, {b}")

    def rem(self, a: str, b: int | str) -> str:
        return self.let(f"urem i64 {a}, {b}")

    def add(self, a: str, b: int | str) -> str:
        return self.let(f"add i64 {a}, {b}")

    def least(self, a: str, b: str) -> str:
        return self.call("i64", "llvm.smin.i64", ("i64", a), ("i64", b))

    def splat(self, lanes: int, kind: str, value: str) -> str:
        """A vector of `lanes` copies of a scalar value."""
        one = self.let(f"insertelement <{lanes} x {kind}> poison, {kind} {value}, i32 0")
        return self.let(
            f"shufflevector <{lanes} x {kind}> {one}, <{lanes} x {kind}> poison, <{lanes} x i32> zeroinitializer"
        )

    def hide(self, pointer: str) -> str:
        """The same pointer, unknown to the optimiser: loads through it stay where they are."""
        return self.let(f'call ptr asm "", "=r,0"(ptr {pointer})')

    def function(self, head: str) -> str:
        """The text of a module with this one function."""
        return "\n".join([*sorted(self.declared), "", f"{head} {{", *self.lines, "}", ""])


def real(value: float) -> str:
    """A constant of float or double, bit by bit; for float one that it can hold."""
    return f"0x{struct.pack('>d', value).hex().upper()}"


def every(kind: str, value: int | str, lanes: int) -> str:
    """A constant vector of one value."""
    return f"<{', '.join([f'{kind} {value}'] * lanes)}>"


def indices(numbers: Iterable[int]) -> str:
    """A constant vector of i32."""
    return constants("i32", numbers)


def constants(kind: str, numbers: Iterable[int]) -> str:
    return f"<{', '.join(f'{kind} {n}' for n in numbers)}>"


def argument_loader(w: Writer, names: Sequence[str]) -> dict[str, str]:
    """Load the argument struct, one 8-byte word for each name; names ending in '*' are pointers, in '!' int32."""
    loaded = {}
    for place, name in enumerate(names):
        pointer = w.at("%args", 8 * place)
        kind = "ptr" if name.endswith("*") else "i64"
        value = w.load(kind, pointer, 8)
        loaded[name.rstrip("*!")] = w.let(f"trunc i64 {value} to i32") if name.endswith("!") else value
    return loaded
