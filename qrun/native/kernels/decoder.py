"""Plans steps of transformer decoders: rotary position embedding, key and value caches that grow by new rows, attention
masks; and constant arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.kernels.copy import Loop, copies, fills, stores
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, row_tiles, size
from qrun.native.machine.memory import aligned_copy

_FLOAT, _INT = np.dtype(np.float32), np.dtype(np.int32)


@frozen
class Heads:
    """Attention heads: a float32 [batch, heads, places, size] inside an array of another shape.

    lying: the array's shape. start: bytes before the first element; steps: bytes from one batch, head and place to the
    next."""

    shape: tuple[int, int, int, int]
    lying: tuple[int, ...]
    start: int
    steps: tuple[int, int, int]

    @classmethod
    def beside(cls, shape: tuple[int, int, int, int], first: int, heads: int) -> Heads:
        """The heads from number `first` on, in an array [batch, places, heads * size]."""
        batch, _, places, length = shape
        line = 4 * heads * length
        return cls(shape, (batch, places, heads * length), 4 * first * length, (places * line, 4 * length, line))

    @classmethod
    def plain(cls, shape: tuple[int, int, int, int]) -> Heads:
        """Heads that lie contiguously as [batch, heads, places, length]."""
        _, count, places, length = shape
        return cls(shape, shape, 0, (4 * count * places * length, 4 * places * length, 4 * length))

    @property
    def operand(self) -> Operand:
        """The operand in the shape in which the heads lie in memory."""
        return Operand(self.lying, _FLOAT)

    @property
    def words(self) -> dict[str, int]:
        """The argument words of kernels that describe the heads, except for the start."""
        _, count, places, length = self.shape
        steps = zip(("batch_step", "head_step", "place_step"), self.steps, strict=True)
        return {"heads": count, "places": places, "size": length, **dict(steps)}


class _Ragged(Operation):
    """Base of operations on sequences of different lengths: an int32 operand of shape `ends` has each one's last place.

    bounds: the least and the greatest end. A sequence keeps end - least rows of the past. A run with an end out of
    bounds is undecided.
    """

    kind = ""
    form = ""

    def __init__(self, engine: Engine, ends: Sequence[int], batch: int, bounds: tuple[int, int]) -> None:
        self.engine, self.bounds = engine, bounds
        if size(ends) != batch or not 0 <= bounds[0] <= bounds[1]:
            raise ValueError(f"{list(ends)} ends from {bounds[0]} to {bounds[1]} for {batch} sequences")

    def _calls(self, names: Sequence[str], rows: int, width: int, words: dict[str, int]) -> tuple[KernelCall, ...]:
        """The call that makes `rows` rows of `width` elements."""
        isa, (least, last) = self.engine.isa, self.bounds
        words |= row_tiles(rows, 8 * width, self.engine.threads) | {"least": least, "span": last - least}
        spec = KernelSpec(self.kind, isa.name, isa.lanes, 1, 1, self.form, "f32", False)
        return (self.engine.kernels.call(spec, names, words, self.whole, decides=False),)


class Rotary(_Ragged):
    """Rotary embedding of heads: pairs of elements become (cos*a - sin*b, sin*a + cos*b), each step rounded to float32.

    ends:   the shape of the second operand.
    angles: the shape [positions, half] of the last two operands, cos and sin; None: nothing is rotated. position: the
            position of the first place of a sequence with the least end; other positions are later by as much as their
            end. pairs: neighbours are rotated together, else elements of the first half with those of the second.
    shape:  the shape of the result, the heads in C order.
    """

    kind = "rotary"

    def __init__(
        self,
        engine: Engine,
        heads: Heads,
        ends: Sequence[int],
        bounds: tuple[int, int],
        angles: Sequence[int] | None,
        position: int,
        pairs: bool,
        shape: Sequence[int],
    ) -> None:
        batch, _, places, length = heads.shape
        super().__init__(engine, ends, batch, bounds)
        self.heads, self.position = heads, position
        self.form = "copy" if angles is None else "pairs" if pairs else "halves"
        self.half = angles[1] if angles else 0
        tables = [Operand(tuple(angles), _FLOAT)] * 2 if angles else []
        self.operands = (heads.operand, Operand(tuple(ends), _INT), *tables, Operand(tuple(shape), _FLOAT))
        if size(shape) != size(heads.shape):
            raise ValueError(f"{list(ends)} ends and a result {list(shape)} for heads {list(heads.shape)}")
        after = position + bounds[1] - bounds[0]
        if angles and (not 0 <= position <= after <= angles[0] - places or 2 * self.half > length):
            raise ValueError(
                f"no angles in {list(angles)} for {places} places from {position} on, of {length} elements"
            )

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        batch, count, places, length = self.heads.shape
        first = 4 * self.position * self.half
        words = self.heads.words | {"x*": self.heads.start, "cos*": first, "sin*": first, "half": self.half}
        names = ("x*", "ends*", *(("cos*", "sin*") if self.half else ()), "y*")
        return self._calls(names, batch * count * places, length, words)


class RaggedPresent(_Ragged):
    """A cache [batch,heads,room,size]: for each sequence, the kept rows of `past` [batch,heads,rows,size], then the new
    rows, then zeros."""

    kind = "present"

    def __init__(
        self, engine: Engine, past: Sequence[int], new: Heads, ends: Sequence[int], bounds: tuple[int, int], room: int
    ) -> None:
        batch, count, places, length = new.shape
        super().__init__(engine, ends, batch, bounds)
        self.new, self.room, self.past_rows = new, room, past[2]
        most = bounds[1] - bounds[0]
        if tuple(past) != (batch, count, past[2], length) or most > past[2] or most + places > room:
            raise ValueError(f"{most} rows of {list(past)} and {places} new ones in {room}")
        made = Operand((batch, count, room, length), _FLOAT)
        self.operands = (Operand(tuple(past), _FLOAT), new.operand, Operand(tuple(ends), _INT), made)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        batch, count, _, length = self.new.shape
        words = self.new.words | {"new*": self.new.start, "room": self.room, "past_rows": self.past_rows}
        return self._calls(("past*", "new*", "ends*", "y*"), batch * count * self.room, length, words)


class RaggedMask(_Ragged):
    """The mask that is added to the scores of new places: float32 of `shape`, [batch,places,total] in C order. It is 0
    where a place is visible, else -infinity. causal: later places are hidden; window: only the last `window` places are
    visible, 0 for all."""

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

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        batch, places, total = self.sizes
        words = {"places": places, "total": total, "window": self.window, "ahead": self.ahead}
        return self._calls(("ends*", "y*"), batch * places, total, words)


class Present(Operation):
    """A cache [batch, heads, room, size]: the first `kept` rows of another one, then new rows, then zeros.

    past: the shape of the first operand; None if there is none, since nothing is kept. new: the next operand.
    """

    def __init__(self, engine: Engine, past: Sequence[int] | None, kept: int, new: Heads, room: int) -> None:
        self.engine, self.new, self.kept, self.room = engine, new, kept, room
        batch, count, places, length = new.shape
        rows = past[2] if past else 0
        if kept > rows or kept + places > room or (past and tuple(past) != (batch, count, rows, length)):
            raise ValueError(f"{kept} rows of {past} and {places} new ones in {room}")
        before = [Operand(tuple(past), _FLOAT)] if past else []
        self.operands = (*before, new.operand, Operand((batch, count, room, length), _FLOAT))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        batch, count, places, length = self.new.shape
        row, whole = 4 * length, 4 * length * self.room
        one, last, after = Loop(length, (4, 4)), len(self.operands) - 1, self.kept + places
        steps = zip(self.new.steps, (count * whole, whole, row), strict=True)
        new = [*map(Loop, (batch, count, places), steps), one]
        parts = [(last - 1, copies(self.engine, new, (self.new.start, self.kept * row), 4))]
        if self.kept:
            gap = row * self.operands[0].shape[2]
            old = [Loop(batch * count, (gap, whole)), Loop(self.kept, (row, row)), one]
            parts.append((0, copies(self.engine, old, (0, 0), 4)))
        empty = [Loop(batch * count, (0, whole)), Loop((self.room - after) * length, (0, 4))]
        parts.append((0, fills(self.engine, empty, after * row, np.zeros((), _FLOAT))))
        return tuple(section.among((index, last), last + 1) for index, sections in parts for section in sections)


class Constant(Operation):
    """An array that is the same in every run."""

    def __init__(self, engine: Engine, array: Array) -> None:
        self.engine, self.array = engine, aligned_copy(array)
        self.operands = (Operand(array.shape, array.dtype),)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return tuple(section.among((0, 0), 1) for section in stores(self.engine, self.array))
