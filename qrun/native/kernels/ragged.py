"""Planned steps of decoders whose sequences have different lengths: which rows of a cache are filled, and what is seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.kernels.rotary import Heads
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Order, Planned, row_tiles, size

_FLOAT, _INT = np.dtype(np.float32), np.dtype(np.int32)


class _Ragged(Planned):
    """What the ends of sequences decide: an int32 operand of shape `ends` has the last place of each.

    bounds: the least and the greatest end. A sequence keeps as many rows as its end is above the least one. A run with an end
    outside of them is undecided.
    """

    order: Order = "plain"
    kind = ""

    def __init__(self, engine: Engine, ends: Sequence[int], batch: int, bounds: tuple[int, int]) -> None:
        self.engine, self.bounds = engine, bounds
        if size(ends) != batch or not 0 <= bounds[0] <= bounds[1]:
            raise ValueError(f"{list(ends)} ends from {bounds[0]} to {bounds[1]} for {batch} sequences")

    def _called(self, names: Sequence[str], rows: int, width: int, words: dict[str, int]) -> tuple[KernelCall, ...]:
        """A call that makes so many rows of so many elements."""
        isa, (least, last) = self.engine.isa, self.bounds
        words |= row_tiles(rows, 8 * width, self.engine.threads) | {"least": least, "span": last - least}
        spec = KernelSpec(self.kind, isa.name, isa.lanes, 1, 1, "", "f32", False)
        return (self._whole(spec, names, words, decides=False),)


class RaggedPresent(_Ragged):
    """A cache [batch,heads,room,size]: of each sequence the kept rows of `past` [batch,heads,rows,size], then the new
    ones, then zeros."""

    kind = "present"

    def __init__(
        self,
        engine: Engine,
        past: Sequence[int],
        new: Heads,
        ends: Sequence[int],
        bounds: tuple[int, int],
        room: int,
    ) -> None:
        batch, count, places, length = new.shape
        super().__init__(engine, ends, batch, bounds)
        self.new, self.room, self.past_rows = new, room, past[2]
        most = bounds[1] - bounds[0]
        if tuple(past) != (batch, count, past[2], length) or most > past[2] or most + places > room:
            raise ValueError(f"{most} rows of {list(past)} and {places} new ones in {room}")
        made = Operand((batch, count, room, length), _FLOAT)
        self.operands = (Operand(tuple(past), _FLOAT), new.operand, Operand(tuple(ends), _INT), made)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        batch, count, places, length = self.new.shape
        words = {
            "new*": self.new.start, "heads": count, "room": self.room, "past_rows": self.past_rows, "places": places,
            "size": length, **dict(zip(("batch_step", "head_step", "place_step"), self.new.steps, strict=True)),
        }  # fmt: skip
        return self._called(("past*", "new*", "ends*", "y*"), batch * count * self.room, length, words)


class RaggedMask(_Ragged):
    """What is added to the scores of the new places: float32 of `shape`, [batch,places,total] in C order, 0 where a place is
    seen, else -infinity. causal: later places are not; window: nor those before the last so many, 0 for all."""

    kind = "hidden"

    def __init__(
        self,
        engine: Engine,
        ends: Sequence[int],
        bounds: tuple[int, int],
        sizes: tuple[int, int, int],
        shape: Sequence[int],
        causal: bool,
        window: int = 0,
    ) -> None:
        batch, places, total = self.sizes = sizes
        super().__init__(engine, ends, batch, bounds)
        if size(shape) != batch * places * total or bounds[1] - bounds[0] + places > total:
            raise ValueError(f"a mask {list(shape)} of {batch} times {places} places in {total}")
        self.ahead, self.window = 0 if causal else places, window or total
        self.operands = (Operand(tuple(ends), _INT), Operand(tuple(shape), _FLOAT))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        batch, places, total = self.sizes
        words = {"places": places, "total": total, "window": self.window, "ahead": self.ahead}
        return self._called(("ends*", "y*"), batch * places, total, words)
