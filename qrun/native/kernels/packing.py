"""Packs constants into the order in which kernels read them, at the speed of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
from numpy.lib.stride_tricks import as_strided

from qrun.declare.frozen import frozen
from qrun.declare.stored import Reloadable
from qrun.native.kernels.copy import Loop, copies
from qrun.native.machine.engine import Array, Engine, aligned

LARGE = 1 << 20
"""Constants of this many bytes or more are copied by native kernels, on all threads, and other processes pack them
again rather than read them from a file. For smaller ones, compiling the kernels takes longer than the copy."""


@frozen
class Packing:
    """The call that packed an array: `PACKINGS[kind](engine, source, *arguments)`. The arguments are plain values."""

    kind: str
    source: Reloadable
    arguments: tuple[Any, ...]


PACKINGS: dict[str, Callable[..., Array]] = {}
_packings: dict[int, Packing] = {}
_packed: WeakValueDictionary[Any, Array] = WeakValueDictionary()


def packing_of(array: Array) -> Packing | None:
    """The call that packed this very array, if a function of `PACKINGS` returned it and it is large; else None."""
    return _packings.get(id(array))


def _packing(make: Callable[..., Array]) -> Callable[..., Array]:
    """Add a function to `PACKINGS`. It packs the same large array only once, while the packed array is in use."""
    kind = make.__name__

    def packed(engine: Engine, source: Array, *arguments: Any) -> Array:
        held = Reloadable(source)
        key = kind, held.key, arguments
        found = _packed.get(key)
        if found is None:
            found = make(engine, source, *arguments)
            if found.nbytes >= LARGE:
                _packed[key], _packings[id(found)] = found, Packing(kind, held, arguments)
                finalize(found, _packings.pop, id(found), None)
        return found

    packed.__doc__ = make.__doc__
    PACKINGS[kind] = packed
    return packed


@_packing
def pack_words(
    engine: Engine, weights: Array, pick: tuple[tuple[int, int], ...], width: int, depth: int, dtype: str
) -> Array:
    """Pack channels of weights [N, taps, k] into words of four bytes: int32 [panels, taps * depth bytes / 4, width],
    zero where there is no channel or k.

    pick: for each panel, its first channel and its number of channels. dtype: of the packed weights.
    """
    taps, k = weights.shape[1:]
    apart = {second[0] - first[0] for first, second in zip(pick, pick[1:], strict=False)}
    whole, last = sum(count == width for _, count in pick), pick[-1][1]
    if weights.nbytes >= LARGE and weights.dtype == dtype and len(apart) <= 1:
        packed = aligned((len(pick), taps * depth // 4, width), np.int32, 0)
        places = packed.view(dtype).reshape(len(pick), taps, depth // 4, width, 4)
        if whole:
            steps = max(apart, default=0) * weights.strides[0], *weights.strides
            _words_into(engine, places[:whole], as_strided(weights[pick[0][0] :], (whole, width, taps, k), steps))
        if whole < len(pick) and last:
            _words_into(engine, places[-1:, :, :, :last], weights[pick[-1][0] :][None, :last])
        return packed
    weights, rows = in_order(engine, weights), np.zeros((width, taps, depth), dtype)
    packed = aligned((len(pick), rows[0].nbytes // 4, width), np.int32)
    for panel, (first, count) in enumerate(pick):
        if count < len(rows):
            rows[count:] = 0
        rows[:count, :, :k] = weights[first : first + count]
        packed[panel] = rows.reshape(len(rows), -1).view(np.int32).T
    return packed


@_packing
def pack_groups(
    engine: Engine,
    weights: Array,
    picks: tuple[tuple[tuple[int, int], ...], ...],
    widths: tuple[int, ...],
    depth: int,
    dtype: str,
) -> Array:
    """Pack weights by `pack_words` for several groups of channels, and join the groups of each panel: int32 [panels,
    words of all groups]. picks, widths: those of each group."""
    parts = [
        pack_words(engine, weights, pick, width, depth, dtype).reshape(len(pick), -1)
        for pick, width in zip(picks, widths, strict=True)
    ]
    return np.concatenate(parts, axis=1, out=aligned((len(picks[0]), sum(part.shape[1] for part in parts)), np.int32))


def _words_into(engine: Engine, places: Array, weights: Array) -> None:
    """Copy weights, int8 [panels, lanes, taps, k], to the bytes of words [panels, taps, steps, lanes, 4]."""
    panels, width, taps, k = weights.shape
    steps, rest = divmod(k, 4)
    whole = weights[..., : 4 * steps].reshape(panels, width, taps, steps, 4)
    copy_into(engine, places[:, :, :steps], whole.transpose(0, 2, 3, 1, 4))
    if rest:
        copy_into(engine, places[:, :, steps, :, :rest], weights[..., 4 * steps :].transpose(0, 2, 1, 3))


@_packing
def pack_panels(engine: Engine, matrices: Array, width: int, block: int, beyond: int) -> Array:
    """Pack matrices [number, K, N] as [number, K * panels * width + beyond]: for each block of K, one panel of `width`
    columns after the other, each row after row. Zeros fill the columns behind the last, and `beyond` more elements."""
    number, depth, columns = matrices.shape
    count, whole, blocks = -(-columns // width), columns // width, depth // block
    packed = aligned((number, depth * count * width + beyond), matrices.dtype, 0)
    for first, turns, size in ((0, blocks, block), (blocks * block, 1, depth % block)):
        if not turns * size:
            continue
        own = matrices[:, first : first + turns * size]
        target = packed[:, first * count * width :][:, : turns * size * count * width]
        target = target.reshape(number, turns, count, size, width)
        full = own[..., : whole * width].reshape(number, turns, size, whole, width)
        copy_into(engine, target[:, :, :whole], full.transpose(0, 1, 3, 2, 4))
        if whole < count:
            rest = own[..., whole * width :].reshape(number, turns, size, columns % width)
            copy_into(engine, target[:, :, whole, :, : columns % width], rest)
    return packed


def in_order(engine: Engine, array: Array) -> Array:
    """The array itself; or a C-order copy, if it is large and not contiguous."""
    if array.nbytes < LARGE or array.flags.c_contiguous:
        return array
    made = np.empty(array.shape, array.dtype)
    copy_into(engine, made, array)
    return made


def copy_into(engine: Engine, target: Array, source: Array) -> None:
    """target[...] = source, two arrays of one shape and element size that share no memory."""
    if target.nbytes < LARGE:
        target[...] = source
        return
    loops = [Loop(*axis) for axis in zip(target.shape, zip(source.strides, target.strides, strict=True), strict=True)]
    engine.execute(tuple(copies(engine, loops, (0, 0), target.itemsize)), [_span(source), _span(target)])


def _span(array: Array) -> Array:
    """The bytes from the first to the last element of an array that is not empty and has no negative strides."""
    last = sum((count - 1) * step for count, step in zip(array.shape, array.strides, strict=True))
    first = as_strided(array, (1,), (array.itemsize,)).view(np.uint8)
    return as_strided(first, (last + array.itemsize,), (1,))
