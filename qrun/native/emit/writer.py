"""A small writer of LLVM IR text: values get numbers, intrinsics declare themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qrun.native.emit.values import Instructions, Value


class Writer(Instructions):
    """Instructions of one function in labelled blocks."""

    def __init__(self, fused: bool = False, permutes: bool = False) -> None:
        super().__init__(fused, permutes)
        self.here = ""
        """The label of the block that is being written."""

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
        """The value that belongs to the block executed before. Values are given with their blocks' labels."""
        kind = cases[0][0].kind
        return self.let(kind, f"phi {kind} {', '.join(f'[{value}, %{label}]' for value, label in cases)}")

    def turn(self, name: str, first: Value, before: str, following: str, after: str) -> Value:
        """A value with a name: `first` if its block is entered from label `before`, `following` if from `after`."""
        return self.let(first.kind, f"phi {first.kind} [{first}, %{before}], [{following}, %{after}]", name)

    def function(self, head: str) -> str:
        """The LLVM IR of a module with this one function."""
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
