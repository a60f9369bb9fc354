"""A compiled kernel, and one call of it: its specification and its argument struct."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.native.emit.spec import DOUBT, KernelSpec
from qrun.native.machine.memory import Array, Ints, address, aligned, forget
from qrun.native.machine.threads import Awaited

_KERNEL: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_void_p] * 3)


COUNTER = 256
WORDS = COUNTER // 8 + 1

_own = threading.local()


class CompiledKernel:
    """A kernel: (argument struct, tile counter, memory of the thread) -> tiles done, without the GIL. A caller waits
    until it is compiled.

    names: of its struct's int64 words, as its emitter explains them; those that end with * are addresses. They are kept
    with the code, so that filling the struct of a cached kernel needs no emitter.
    """

    def __init__(self, code: Awaited[Any], names: tuple[str, ...]) -> None:
        self.code, self.names = code, names
        self._numbers: dict[Sequence[str], Ints] = {}

    @cached_property
    def address(self) -> int:
        """The address of its code."""
        return int(self.code.get().get_function_address("kernel"))

    @cached_property
    def _function(self) -> Any:
        """The kernel as a ctypes function."""
        return _KERNEL(self.address)

    def __call__(self, *arguments: int | None) -> int:
        return int(self._function(*arguments))

    def struct(self, words: Mapping[str, int], arrays: Mapping[str, Array], sparse: bool = False) -> Ints:
        """A struct with these words, and the addresses of these arrays, by name; the struct need not have all of the
        names. sparse: whether missing words are 0; else a missing word raises KeyError."""
        places = self._places
        values: list[Any] = [0 if sparse else None] * len(self.names)
        for name, value in words.items():
            if name in places:
                values[places[name]] = value
        for name, array in arrays.items():
            if name in places:
                values[places[name]] = address(array)
        if None in values:
            raise KeyError(self.names[values.index(None)])
        if 8 * len(values) > DOUBT:
            raise ValueError(f"{len(values)} words in a struct for {DOUBT // 8}")
        filled = np.zeros(WORDS, np.int64)
        filled[: len(values)] = values
        return filled

    @cached_property
    def _places(self) -> Mapping[str, int]:
        """The numbers of words by name, with and without the mark of those that are read as int32."""
        marked = {name.rstrip("!"): index for index, name in enumerate(self.names)}
        return marked | {name: index for index, name in enumerate(self.names)}

    def word(self, name: str) -> int:
        """The number of a word."""
        return self._places[name]

    def words(self, names: Sequence[str]) -> Ints:
        """The numbers of the words with these names, as far as the struct has them."""
        found = self._numbers.get(names)
        if found is None:
            places = [self._places[name] for name in names if name in self._places]
            found = self._numbers[names] = np.array(places, np.int64)
        return found


@frozen
class KernelCall:
    """A kernel call, complete except for the addresses of the operation's operands.

    arguments: int64 struct; its last word, COUNTER bytes from the start, is the tile counter of a run. A kernel that
               cannot decide a result raises the word before it to a mark (emit/spec.py DOUBT, UNDECIDED).
    pointers:  (word, operand): the operand's address is to be added to that word, which holds an offset.
    extents:   for each operand, how many bytes from its start the kernel may touch (0 if it does not use it).
    tiles:     into how many parts threads can share the work.
    first, channels: the output channels it computes.
    keep:      the arrays that the struct points into.
    why:       why spec.form is not a cheaper one; "" if it is the cheapest, or the only one.
    scratch:   bytes of memory that a calling thread brings.
    decides:   whether the kernel decides every result.
    pick:      for a product: the channel of each lane of its panels, -1 for none.
    parts:     the calls that a tile makes itself (emit/calls.py), which only a program's plan lists for it.
    held:      makes the memory for the word `held*`, which each run of a program has for itself (plan/turns.py).
    """

    spec: KernelSpec
    kernel: Any
    arguments: Ints
    pointers: tuple[tuple[int, int], ...]
    extents: tuple[int, ...]
    tiles: int
    first: int = 0
    channels: int = 0
    keep: tuple[np.ndarray[Any, Any], ...] = ()
    why: str = ""
    scratch: int = 0
    decides: bool = True
    pick: Ints | None = None
    parts: tuple[KernelCall, ...] = ()
    held: Any = None

    def word(self, name: str) -> int:
        """The value of a word of the struct."""
        return int(self.arguments[self.kernel.word(name)])

    def with_changes(self, words: Mapping[str, int], arrays: Mapping[str, Array], **fields: Any) -> KernelCall:
        """The same call with other words in its struct, other arrays that words point to, and other fields."""
        arguments = self.arguments.copy()
        for name, value in (*words.items(), *((name, address(array)) for name, array in arrays.items())):
            arguments[self.kernel.word(name)] = value
        return replace(self, arguments=arguments, **{"keep": (*self.keep, *arrays.values()), **fields})

    def among(self, places: Sequence[int], count: int) -> KernelCall:
        """The call for an operation of `count` operands; places: the indices of its own operands among these."""
        extents = [0] * count
        for index, extent in zip(places, self.extents, strict=True):
            extents[index] = max(extents[index], extent)
        pointers = tuple((word, places[operand]) for word, operand in self.pointers)
        return replace(self, pointers=pointers, extents=tuple(extents))

    def with_constants(self, own: KernelCall, names: Sequence[str]) -> KernelCall:
        """This call with the constants of another call of the same form: the words of these names, as far as the kernel
        has them, and the arrays that they point to."""
        arguments = self.arguments.copy()
        arguments[self.kernel.words(names)] = own.arguments[own.kernel.words(names)]
        return KernelCall(
            self.spec,
            self.kernel,
            arguments,
            self.pointers,
            self.extents,
            self.tiles,
            self.first,
            self.channels,
            (*own.keep, *self.keep),
            own.why,
            self.scratch,
            self.decides,
            pick=own.pick,
        )

    def bind(self, addresses: Sequence[int]) -> Ints:
        """A new struct for one run on operands at these addresses."""
        arguments = self.arguments.copy()
        for word, operand in self.pointers:
            arguments[word] += addresses[operand]
        return arguments

    def run(self, start: int) -> None:
        """Run the remaining tiles; start: address of a bound struct."""
        invoke(self.kernel, start, self.scratch)


def invoke(kernel: Any, start: int, nbytes: int) -> None:
    """Call a kernel with the struct at this address and, if it needs any, memory of this thread."""
    kernel(start, start + COUNTER, scratch(nbytes) if nbytes else None)


def scratch(nbytes: int) -> int:
    """The address of at least `nbytes` of memory that belongs to the calling thread, on a 64-byte boundary.

    All calls of the thread share it, so that it stays in the cache, until a call needs more.
    """
    held: tuple[np.ndarray[Any, Any], int, int] | None = getattr(_own, "held", None)
    if held is None or held[1] < nbytes:
        made = aligned(nbytes, np.uint8)
        held = _own.held = made, nbytes, address(made)
    else:
        forget(held[0])
    return held[2]
