"""The order of a dump's axes: channels last or padded at the end, axes of size 1 left out, or no shape at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import shape_text

LETTERS = ("", "C", "NC", "NCL", "NCHW", "NCDHW")
"""The letters of a model's axes, by their number; tensors of more axes have no other layout than their own."""
PADS = (4, 8, 16, 32)
"""Devices pad channels to a multiple of these."""


@frozen
class AxisLayout:
    """letters: the model's axes in the dump's order, such as ``NHWC``; "" for the model's own order.

    channels: how many channels the dump has with its padding; None if they are not padded.
    """

    letters: str = ""
    channels: int | None = None

    def arrange(self, data: Array, shape: tuple[int, ...]) -> Array:
        """The data in the model's layout and `shape`. Raises ValueError, which says why, if it does not fit."""
        own = LETTERS[len(shape)] if len(shape) < len(LETTERS) else ""
        letters = self.letters or own
        sizes = dict(zip(own, shape, strict=False))
        absent = [letter for letter in own if letter not in letters]
        if set(letters) - set(own) or len(set(letters)) < len(letters) or any(sizes[letter] != 1 for letter in absent):
            raise ValueError(f"layout {letters} does not fit {shape_text(shape)}: its axes are {own or 'not named'}")
        if self.channels is not None and ("C" not in letters or self.channels < sizes["C"]):
            raise ValueError(f"{self.channels} channels do not fit {shape_text(shape)}")
        stored = tuple(self.channels if letter == "C" and self.channels else sizes[letter] for letter in letters)
        if prod(stored if own else shape) != data.size:
            raise ValueError(f"{data.size} elements do not fit {shape_text(stored if own else shape)}")
        if not own:
            return data.reshape(shape)
        cut = data.reshape(stored)[tuple(slice(sizes[letter]) for letter in letters)]
        back = [letters.index(letter) for letter in own if letter in letters]
        return np.ascontiguousarray(cut.transpose(back)).reshape(shape)


def layouts(data: Array, shaped: bool, shape: tuple[int, ...]) -> Iterator[AxisLayout]:
    """Yield the layouts in which data may hold a tensor of `shape`, each way to order its elements once.

    shaped: is the shape of `data` that of the tensor? If not, the number of elements counts alone.
    """
    own = LETTERS[len(shape)] if len(shape) < len(LETTERS) else ""
    orders = [own, own[0] + own[2:] + "C"] if len(own) > 2 else [own]
    channels = dict(zip(own, shape, strict=False)).get("C", 0)
    padded = dict.fromkeys([None, *(size for pad in PADS if (size := -(-channels // pad) * pad) > channels)])
    seen = set()
    for letters in orders:
        for count in padded:
            sizes = {**dict(zip(own, shape, strict=False)), **({"C": count} if count else {})}
            stored = [sizes[letter] for letter in letters] if own else list(shape)
            wide = tuple(letter for letter, size in zip(letters, stored, strict=False) if size > 1)
            if _holds(data, shaped, stored, count) and (wide, count) not in seen:
                seen.add((wide, count))
                yield AxisLayout(letters, count)


def _holds(data: Array, shaped: bool, stored: Sequence[int], count: int | None) -> bool:
    """May data of this shape be a tensor stored with these sizes? Axes of size 1 do not count; a flat tensor may have
    lost its axes, but for padded channels."""
    if data.size != prod(stored):
        return False
    axes, wanted = ([n for n in sizes if n != 1] for sizes in (data.shape, stored))
    return not shaped or axes == wanted or (len(axes) < 2 and count is None)
