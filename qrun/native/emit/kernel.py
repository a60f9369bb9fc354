"""The base class of kernel emitters, and the registry that finds an emitter by the kind in a specification."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from qrun.declare.registry import Registry
from qrun.native.emit.conversions import FORMATS, round_to_format
from qrun.native.emit.flow import Flow
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import KernelSpec, names
from qrun.native.emit.values import Value


class Arguments:
    """The words of the argument struct as attributes: pointers (names end in '*'), i32 (names end in '!'), else i64."""

    def __init__(self, struct: Value, names: Sequence[str]) -> None:
        self._loaded: dict[str, Value] = {}
        for position, name in enumerate(names):
            value = (struct + 8 * position).load("ptr" if name.endswith("*") else "i64", 8)
            self._loaded[name.rstrip("*!")] = value.trunc("i32") if name.endswith("!") else value

    def __getattr__(self, name: str) -> Value:
        return self._loaded[name]

    def __getitem__(self, name: str) -> Value:
        return self._loaded[name]


class KernelEmitter:
    """Base of all emitters. It loads the arguments in the entry block; subclasses write the rest in `tile` or `text`.

    names: names of the arguments. own_memory: whether the kernel's third parameter is memory of the calling thread.
    frozen: the value of `Flow.frozen`. feature: a CPU feature that this kernel needs in addition to those of its
    instruction set; "" for none.
    """

    names: tuple[str, ...]
    own_memory = False
    frozen = False
    feature = ""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w = spec, isa, Flow(isa.fma, isa.permutes)
        self.w.frozen = self.frozen
        if spec.out in FORMATS:
            self.w.narrowing = partial(round_to_format, form=FORMATS[spec.out])
        self.w.label("entry")
        self.struct, self.scratch = self.w.value("ptr", "%args"), self.w.value("ptr", "%scratch")
        self.a = Arguments(self.struct, self.names)

    def write_tile(self, tile: Value) -> None:
        """Write the code that makes one tile. tile: its number."""
        raise NotImplementedError

    def text(self) -> str:
        """The LLVM IR of the kernel."""
        with self.w.tiles(self.a.tiles) as turn:
            self.write_tile(turn.index)
        return self.end_kernel()

    def end_kernel(self) -> str:
        """Return from the kernel, after all tiles. Returns the LLVM IR of everything written so far."""
        self.w.do(f"ret i64 {self.w.done}")
        more = ", ptr noalias %scratch" if self.own_memory else ""
        features = ",".join(f for f in (self.isa.features, f"+{self.feature}") if f)
        also = f' "target-features"="{features}"' if self.feature else ""
        return self.w.function(f"define i64 @kernel(ptr noalias %args, ptr noalias %next{more}){also}")


_EMITTERS: Registry[str, type[KernelEmitter]] = Registry("qrun.native.emit")
E = TypeVar("E", bound=type[KernelEmitter])


def emitter(*kinds: str) -> Callable[[E], E]:
    """Register a class as the emitter of these kinds. Raises TypeError if another class has one of them."""

    def declare(made: E) -> E:
        for kind in kinds:
            other = _EMITTERS.declared.setdefault(kind, made)
            if other is not made:
                raise TypeError(f"both {other.__name__} and {made.__name__} write kernels of kind {kind!r}")
        return made

    return declare


def emitters() -> Mapping[str, type[KernelEmitter]]:
    """The emitters by kind. Looking one up imports the module of this package that has it."""
    return _EMITTERS


def row_at(x: Value, address: Value, padding: Value) -> Value:
    """The address of a row: x plus the int32 offset in bytes that is stored at `address`; `padding` if that is < 0."""
    offset = address.load("i32", 4)
    inside = x + offset.sext("i64")
    return offset.test("slt", 0).select(padding, inside)


__all__ = ["Arguments", "Isa", "KernelEmitter", "KernelSpec", "Value", "emitter", "emitters", "names", "row_at"]
