"""Random shapes of quantized tensors and of their scales."""

from __future__ import annotations

import numpy as np


def granularity(rng: np.random.Generator, version: int) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Shape of x, shape of the scale, attributes."""
    shape = tuple(
        int(n) for n in rng.choice([0, 1, 2, 3, 5, 7], rng.integers(0, 4), p=[0.04, 0.16, 0.2, 0.2, 0.2, 0.2])
    )
    kind = rng.integers(3) if shape else 0
    if version < 13 or kind == 0:
        return shape, [(), (1,)][rng.integers(2)], {}
    axis = int(rng.integers(-len(shape), len(shape)))
    if kind == 1 or version < 21:
        return shape, (shape[axis],), {"axis": axis}
    block = int(rng.integers(1, 5))
    blocks = list(shape)
    blocks[axis] = -(-shape[axis] // block)
    return shape, tuple(blocks), {"axis": axis, "block_size": block}
