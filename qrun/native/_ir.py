"""A small writer of LLVM IR text: values get numbers, intrinsics declare themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qrun.native._values import REAL, ZERO, Operand, Typed, Value, every, parts, real


class Writer:
    """Instructions of one function, in order. fused: whether `a.fma(b, c)` is one instruction with one rounding."""

    def __init__(self, fused: bool = False) -> None:
        self.fused = fused
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self.count = 0
        self.here = ""
        """The label of the block that is being written."""

    def do(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.here = name

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def either(self, condition: Value, yes: str, no: str, after: str) -> Iterator[bool]:
        """The body twice, with True for where the i1 is true and False for where it is not, then the label `after`."""
        self.branch(condition, yes, no)
        for name in (yes, no):
            self.label(name)
            yield name == yes
            self.jump(after)
        self.label(after)

    def phi(self, *cases: tuple[Value, str]) -> Value:
        """The value that belongs to the block that came before; each with that block's label."""
        kind = cases[0][0].kind
        return self.let(kind, f"phi {kind} {', '.join(f'[{value}, %{label}]' for value, label in cases)}")

    def turn(self, name: str, first: Value, before: str, following: str, after: str) -> Value:
        """A value with a name: `first` if its block is entered from label `before`, `following` if from `after`."""
        return self.let(first.kind, f"phi {first.kind} [{first}, %{before}], [{following}, %{after}]", name)

    def let(self, kind: str, expression: str, name: str = "") -> Value:
        """A value of this type, made by an instruction."""
        if not name:
            self.count += 1
            name = f"%v{self.count}"
        self.lines.append(f"  {name} = {expression}")
        return Value(self, kind, name)

    def value(self, kind: str, what: float | str) -> Value:
        """A constant (of a vector in every lane), or what already has a name."""
        if isinstance(what, str):
            return Value(self, kind, what)
        lanes, element = parts(kind)
        text = real(what) if element in REAL else str(what)
        return Value(self, kind, every(element, text, lanes) if lanes else text)

    def zero(self, kind: str) -> Value:
        """A vector of zeros."""
        return Value(self, kind, ZERO)

    def call(self, result: str, function: str, *operands: Value | Typed, name: str = "") -> Value:
        """The result of an intrinsic."""
        return self.let(result, self._call(result, function, operands), name)

    def run(self, function: str, *operands: Value | Typed) -> None:
        """Call an intrinsic that has no result."""
        self.do(self._call("void", function, operands))

    def _call(self, result: str, function: str, operands: Sequence[Value | Typed]) -> str:
        typed = [(o.kind, o.name) if isinstance(o, Value) else o for o in operands]
        self.declared.add(f"declare {result} @{function}({', '.join(t for t, _ in typed)})")
        return f"call {result} @{function}({', '.join(f'{t} {v}' for t, v in typed)})"

    def at(self, pointer: Value, offset: Operand, name: str = "") -> Value:
        """pointer plus a number of bytes."""
        if offset == 0 and not name:
            return pointer
        return self.let("ptr", f"getelementptr i8, ptr {pointer}, i64 {offset}", name)

    def function(self, head: str) -> str:
        """The text of a module with this one function."""
        return "\n".join([*sorted(self.declared), "", f"{head} {{", *self.lines, "}", ""])


class Arguments:
    """The words of the argument struct, each an attribute: pointers, i64, and i32 where the name ends in '!'."""

    def __init__(self, w: Writer, names: Sequence[str]) -> None:
        self._loaded: dict[str, Value] = {}
        struct = w.value("ptr", "%args")
        for place, name in enumerate(names):
            value = (struct + 8 * place).load("ptr" if name.endswith("*") else "i64", 8)
            self._loaded[name.rstrip("*!")] = value.trunc("i32") if name.endswith("!") else value

    def __getattr__(self, name: str) -> Value:
        return self._loaded[name]

    def __getitem__(self, name: str) -> Value:
        return self._loaded[name]
