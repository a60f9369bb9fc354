"""Constants in the order in which kernels read them."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import as_strided

from qrun.native.kernels.strided import Loop, copies
from qrun.native.machine.engine import Array, Engine

LARGE = 1 << 20
"""Bytes from which on native kernels copy constants, on all threads; compiling them takes longer than a small copy."""


def copy_into(engine: Engine, target: Array, source: Array) -> None:
    """target[...] = source, two arrays of one shape and element size that share no memory."""
    if target.nbytes < LARGE:
        target[...] = source
        return
    loops = [Loop(*axis) for axis in zip(target.shape, zip(source.strides, target.strides, strict=True), strict=True)]
    engine.execute(tuple(copies(engine, loops, (0, 0), target.itemsize)), [_span(source), _span(target)])


def pack_panels(engine: Engine, packed: Array, matrices: Array, width: int, block: int) -> None:
    """Matrices [number, K, N] to packed [number, K * panels * width], which holds zeros: for each block of K one panel
    of `width` columns after the other, each row after row."""
    number, depth, columns = matrices.shape
    panels, whole, blocks = -(-columns // width), columns // width, depth // block
    for first, count, size in ((0, blocks, block), (blocks * block, 1, depth % block)):
        if not count * size:
            continue
        own = matrices[:, first : first + count * size]
        target = packed[:, first * panels * width :][:, : count * size * panels * width]
        target = target.reshape(number, count, panels, size, width)
        full = own[..., : whole * width].reshape(number, count, size, whole, width)
        copy_into(engine, target[:, :, :whole], full.transpose(0, 1, 3, 2, 4))
        if whole < panels:
            rest = own[..., whole * width :].reshape(number, count, size, columns % width)
            copy_into(engine, target[:, :, whole, :, : columns % width], rest)


def _span(array: Array) -> Array:
    """The bytes from the first to the last element of an array that is not empty and has no negative strides."""
    last = sum((count - 1) * step for count, step in zip(array.shape, array.strides, strict=True))
    first = as_strided(array, (1,), (array.itemsize,)).view(np.uint8)
    return as_strided(first, (last + array.itemsize,), (1,))
