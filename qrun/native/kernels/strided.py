"""Kernel calls that copy or fill elements along axes with strides in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import OUTER
from qrun.native.errors import Declined
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, aligned, share
from qrun.native.machine.operation import TILE_BYTES

SIZES = (1, 2, 4, 8)
_SECTIONS = 64
"""Calls that a copy along more axes than a kernel has may be."""
_FILL = 4096
"""Bytes of a constant row that fills borders."""
_LINE, _VECTOR, _UNROLL = 64, 16, 4
"""Bytes of a cache line and of a block's row, vectors per turn."""
_UNIT = 1 << 12
"""Bytes of a transposition that stay in the first-level cache."""
_PAGE, _WAYS = 4096, 8
"""Rows a page apart fall into one set of the first-level cache, which holds so many of them."""


@frozen
class Loop:
    """count: how often; steps: bytes from one element to the next in each operand, the result last."""

    count: int
    steps: tuple[int, ...]

    @property
    def x(self) -> int:
        return self.steps[0]

    @property
    def y(self) -> int:
        return self.steps[-1]

    def continues(self, inner: Loop) -> bool:
        return all(step == inner.count * own for step, own in zip(self.steps, inner.steps, strict=True))


def merged(loops: Iterable[Loop]) -> list[Loop]:
    """The same loops, outermost in the result first, neighbours that continue each other as one."""
    found: list[Loop] = []
    for loop in sorted((loop for loop in loops if loop.count != 1), key=lambda loop: -loop.steps[-1]):
        if found and found[-1].continues(loop):
            loop = Loop(found.pop().count * loop.count, loop.steps)
        found.append(loop)
    return found


def outer_words(
    names: Sequence[str], outer: Sequence[Loop], chunks: tuple[int, int], unit_bytes: int, threads: int
) -> dict[str, int]:
    """Words of emit/strided.py: of the outer loops, at most OUTER, and of tiles.
    chunks: how many, and elements of each."""
    loops = [Loop(1, (0,) * len(names))] * (OUTER - len(outer)) + list(outer)
    units = math.prod(loop.count for loop in loops) * chunks[0]
    each = share(units, unit_bytes, threads)
    words = {f"{name}_{axis}": loop.steps[n] for n, name in enumerate(names) for axis, loop in enumerate(loops)}
    words |= {"n1": loops[1].count, "n2": loops[2].count, "chunks": chunks[0], "chunk": chunks[1]}
    return words | {"units": units, "share": each, "tiles": -(-units // each)}


def copies(engine: Engine, axes: Sequence[Loop], starts: tuple[int, int], itemsize: int) -> Iterator[KernelCall]:
    """Kernel calls that copy elements of `itemsize` bytes along `axes`, from byte starts[0] to byte starts[1]."""
    if any(axis.count == 0 for axis in axes):
        return
    yield from _copies(engine, merged(axes), starts, itemsize, None)


def fills(engine: Engine, axes: Sequence[Loop], start: int, value: Array) -> Iterator[KernelCall]:
    """Kernel calls that write one value along `axes`, whose x does not count, from byte `start` on."""
    itemsize = value.dtype.itemsize
    if any(axis.count == 0 for axis in axes):
        return
    *outer, run = [Loop(axis.count, (0, axis.y)) for axis in merged(axes)] or [Loop(1, (0, itemsize))]
    row = aligned(_FILL // itemsize, value.dtype)
    row[...] = value
    if run.y != itemsize:
        yield from _copies(engine, [*outer, run], (0, start), itemsize, row)
        return
    whole, rest = divmod(run.count, len(row))
    parts = [(whole, len(row), start), (1, rest, start + whole * row.nbytes)]
    for rows, count, first in parts:
        if rows and count:
            own = [Loop(rows, (0, row.nbytes)), Loop(count, (itemsize, itemsize))]
            yield from _copies(engine, merged([*outer, *own]), (0, first), itemsize, row)


def stores(engine: Engine, array: Array) -> Iterator[KernelCall]:
    """Kernel calls that write this array, which lies in C order."""
    if array.size:
        own = [Loop(array.size, (array.itemsize, array.itemsize))]
        yield from _copies(engine, merged(own), (0, 0), array.itemsize, array)


@frozen
class _Call:
    """A kernel for some axes: the axes left to its outer loops, and the first of its own axes in chunks.

    words: of the argument struct. count: of the own first axis; each: bytes for each of its elements.
    """

    kind: str
    block: tuple[int, int, int]
    form: str
    outer: tuple[Loop, ...]
    words: Mapping[str, int]
    count: int
    each: int
    multiple: int = 1


def _copies(
    engine: Engine, axes: list[Loop], starts: tuple[int, int], itemsize: int, source: Array | None
) -> Iterator[KernelCall]:
    """axes: merged. source: what to read instead of the operand."""
    call = _chosen(engine, axes, itemsize)
    if len(call.outer) <= OUTER:
        yield _section(engine, call, axes, starts, itemsize, source)
        return
    first = call.outer[0]
    if first.count > _SECTIONS:
        raise Declined("a copy along too many axes")
    rest = [axis for axis in axes if axis is not first]
    for i in range(first.count):
        yield from _copies(engine, rest, (starts[0] + i * first.x, starts[1] + i * first.y), itemsize, source)


def _chosen(engine: Engine, axes: list[Loop], itemsize: int) -> _Call:
    last = axes[-1] if axes else Loop(1, (itemsize, itemsize))
    if last.x == last.y == itemsize:
        run = last.count * itemsize
        blocks = _blocks(engine, axes[:-1], run) if run in SIZES else None
        return blocks or _runs(engine, axes[:-1], run)
    return _blocks(engine, axes, itemsize) or _elements(axes, itemsize)


def _runs(engine: Engine, axes: list[Loop], run: int) -> _Call:
    vector = _power(min(run, 4 * engine.isa.lanes))
    block = _UNROLL * vector
    unroll = _UNROLL if run >= block and -(-run // block) * block * 4 <= -(-run // vector) * vector * 5 else 1
    outer, rows = _rows(axes)
    words = {"rows": rows.count, "x_row": rows.x, "y_row": rows.y, "bytes": run}
    return _Call("runs", (0, unroll, vector), "copy", outer, words, rows.count, run)


def _elements(axes: list[Loop], itemsize: int) -> _Call:
    outer, rows = _rows(axes[:-1])
    words = {"rows": rows.count, "x_row": rows.x, "y_row": rows.y}
    words |= {"columns": axes[-1].count, "x_column": axes[-1].x, "y_column": axes[-1].y}
    return _Call("elements", (0, 0, itemsize), "copy", outer, words, rows.count, axes[-1].count * itemsize)


def _rows(axes: list[Loop]) -> tuple[tuple[Loop, ...], Loop]:
    """The axis to walk inside the outer ones: the innermost, or the longest if that is short."""
    if not axes:
        return (), Loop(1, (0, 0))
    rows = axes[-1] if axes[-1].count >= 8 else max(axes[::-1], key=lambda axis: axis.count)
    return tuple(axis for axis in axes if axis is not rows), rows


def _blocks(engine: Engine, axes: list[Loop], itemsize: int) -> _Call | None:
    """A transposition: one axis is contiguous in the destination, another one in the source."""
    j = next((axis for axis in axes if axis.y == itemsize), None)
    i = next((axis for axis in axes if axis.x == itemsize and axis is not j), None)
    if i is None or j is None:
        return None
    outer = tuple(axis for axis in axes if axis is not i and axis is not j)
    full = _VECTOR // itemsize
    wide = 2 * full if engine.isa.lanes >= 8 and itemsize <= 2 and i.count >= 2 * full else full
    if j.count in (2, 3, 4, 8) and i.y == j.count * itemsize and i.count >= full:
        return _dense(outer, i, j, full if j.count == 3 else wide, itemsize)
    rows = _power(min(j.count, full))
    columns = _power(min(i.count, wide if rows == full else full))
    far = abs(j.x) >= i.y
    if not far and i.y % _PAGE == 0:
        columns = min(columns, _WAYS)
    a, a_block, b, b_block = (i, columns, j, rows) if far else (j, rows, i, columns)
    words = _block_words((a, a_block), (b, b_block), j.x, i.y)
    multiple = max(_LINE // itemsize, a_block)
    return _Call("blocks", (rows, columns, itemsize), "copy", outer, words, a.count, b.count * itemsize, multiple)


def _block_words(a: tuple[Loop, int], b: tuple[Loop, int], x_step: int, y_step: int) -> dict[str, int]:
    """Words of the kernel that copies blocks: its two axes, and how much of each is a block."""
    words = {"x_step": x_step, "y_step": y_step}
    for name, (axis, block) in (("a", a), ("b", b)):
        words |= {name: axis.count, f"{name}_block": block, f"{name}_x": axis.x, f"{name}_y": axis.y}
    return words


def _dense(outer: tuple[Loop, ...], i: Loop, j: Loop, columns: int, itemsize: int) -> _Call:
    """A few rows interleaved: each block takes all of j, so that the kernel's second axis walks rows of the copy."""
    left, rows = _rows(list(outer))
    fits = [n for n in range(1, rows.count + 1) if rows.count % n == 0]
    least = next((n for n in fits if n * i.count * j.count * itemsize >= _UNIT), rows.count)
    if least < rows.count and len(left) < OUTER:
        left = (*left, Loop(rows.count // least, (rows.x * least, rows.y * least)))
        rows = replace(rows, count=least)
    words = _block_words((i, columns), (rows, 1), j.x, i.y)
    each = rows.count * j.count * itemsize
    return _Call("blocks", (j.count, columns, itemsize), "dense", left, words, i.count, each, columns)


def _section(
    engine: Engine, call: _Call, axes: list[Loop], starts: tuple[int, int], itemsize: int, source: Array | None
) -> KernelCall:
    chunk = call.count
    if engine.threads > 1 or (call.kind == "blocks" and call.count * call.each > 4 * _UNIT):
        work = TILE_BYTES if engine.threads > 1 else _UNIT
        chunk = -(-max(1, work // max(call.each, 1)) // call.multiple) * call.multiple
    unit = min(chunk, call.count) * call.each
    shared = outer_words(("x", "y"), call.outer, (-(-call.count // chunk), chunk), unit, engine.threads)
    words = {**call.words, **shared, "x*": starts[0], "y*": starts[1]}
    extents = [start + itemsize for start in starts]
    for axis in axes:
        for operand, step in enumerate((axis.x, axis.y)):
            extents[operand] += max(0, (axis.count - 1) * step)
    lowest = [start + sum(min(0, (axis.count - 1) * axis.x) for axis in axes) for start in starts[:1]]
    if min(*lowest, starts[1]) < 0:
        raise ValueError("a copy begins before its operand")
    rows, vectors, unroll = call.block
    spec = KernelSpec(call.kind, engine.isa.name, rows, vectors, unroll, call.form, "bytes", False)
    arrays = {} if source is None else {"x*": source}
    operands = {"x*": 0, "y*": 1} if source is None else {"y*": 1}
    return engine.kernels.call(spec, operands, words, (extents[0] if source is None else 0, extents[1]), arrays)


def _power(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << (n.bit_length() - 1)
