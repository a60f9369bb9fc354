"""What tests of float32 convolutions share, transposed ones too: operands, and a run in memory that the test places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from helpers.native import Array, engine
from helpers.placed import run_placed
from helpers.sums import F, assert_bits, operands


def filled(
    kind: str, rng: np.random.Generator, x_shape: Sequence[int], w_shape: Sequence[int], channels: int
) -> tuple[Array, Array, Array]:
    """x and W of these shapes, with numbers of one of helpers.sums.SPECIAL, and a bias [channels]."""
    x, w = operands(kind, rng, int(np.prod(x_shape)), 1, int(np.prod(w_shape)))
    bias = rng.choice(np.array([0, -0.0, 1.5, -0.37], F), channels)
    return x.reshape(x_shape), w.reshape(w_shape), bias


def assert_placed(
    isa: str, plan: Callable[[int], Any], x: Array, want: Array, at_end: bool, room: tuple[int, int] = (0, 0)
) -> None:
    """The operation that `plan` makes for one and two threads gives `want`, also with rows `room` bytes apart."""
    for threads in (1, 2):
        operation = plan(threads)
        top, left, bottom, right = operation.operands[0].border
        sides = [(top, bottom), (left, right)][4 - x.ndim :] if x.ndim <= 4 else [(0, 0)] * (x.ndim - 2)
        padded = np.pad(x, [(0, 0), (0, 0), *sides])
        apart = (0, room[1]) if operation.operands[0].tight else room
        for strides in dict.fromkeys([(0, 0), apart]):
            got = run_placed(engine(isa, threads), operation, [padded], strides, at_end)
            assert_bits(got, want, f"{threads} {strides}")
        assert_bits(operation.engine.run(operation, [x]), want, f"{threads}")
