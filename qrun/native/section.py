"""One call of a kernel: its specification and its argument struct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.native.spec import KernelSpec
from qrun.native.thresholds import Ints

COUNTER = 256
WORDS = COUNTER // 8 + 1


@dataclass(frozen=True, slots=True)
class Section:
    """A kernel call, complete but for the addresses of the operation's operands.

    arguments: int64 struct; its last word, COUNTER bytes from the start, is the tile counter of a run.
    pointers:  (word, operand): the operand's address is to be added to that word, which holds an offset.
    extents:   for each operand, how many bytes from its start the kernel may touch (0 if it does not use it).
    tiles:     how often threads can share the work.
    first, channels: the output channels it computes.
    keep:      the arrays that the struct points into.
    why:       why spec.form is not a cheaper one; "" if it is the cheapest, or the only one.
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

    def bound(self, addresses: Sequence[int]) -> Ints:
        """A new struct for one run on operands at these addresses."""
        arguments = self.arguments.copy()
        for word, operand in self.pointers:
            arguments[word] += addresses[operand]
        return arguments


def struct(names: Sequence[str], words: Mapping[str, int], arrays: Mapping[str, np.ndarray[Any, Any]]) -> Ints:
    """An argument struct: a word for each name, the address of an array where the name is one's."""
    filled = np.zeros(WORDS, np.int64)
    filled[: len(names)] = [arrays[n].__array_interface__["data"][0] if n in arrays else words[n] for n in names]
    return filled
