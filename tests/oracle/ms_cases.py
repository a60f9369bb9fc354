"""Seeded inputs for the com.microsoft quantized operators: scales that make ties, both types, every parameter form."""

from __future__ import annotations

import numpy as np

KINDS = ("generic", "pow2", "equal", "ninety", "two55", "ratio", "hair", "overflow", "bad")


def scales(rng: np.random.Generator, kind: str, n: int = 3) -> list[np.ndarray]:
    """n float32 scales, the output's last, in one of the two legal shapes."""
    if kind == "generic":
        found = list(np.exp(rng.uniform(-4, 1, n)))
    elif kind == "pow2":
        found = list(2.0 ** rng.integers(-3, 2, n))
    elif kind == "equal":
        found = [2.0 ** rng.integers(-9, 1) * rng.choice([1, 3, 0.7])] * (n - 1)
        found += [found[0] * rng.choice([1, 2, 4, 6])]
    elif kind == "ninety":
        found = [np.float32(rng.uniform(0.001, 0.1))] * (n - 1)
        found += [found[0] * np.float32(rng.choice([90, 1 / 90, 45]))]
    elif kind == "two55":
        found = [np.float32(rng.choice([1 / 255, 2 / 255, 1 / 510])) for _ in range(n)]
    elif kind == "ratio":
        found = list(rng.choice([3, 5, 7, 10, 1.5], n - 1)) + [rng.choice([82, 90, 98, 250, 6, 14])]
    elif kind == "hair":
        found = list(rng.choice([0.5, 1, 1e-17, 2.0**-60, 3e-20], n - 1)) + [rng.choice([1, 2, 4])]
    elif kind == "overflow":
        found = list(rng.choice([1e9, 3e38, 1.0, 0.1], n - 1)) + [rng.choice([0.1, 1e-30, 1e-42])]
    else:
        found = list(rng.choice([0, -0.5, np.inf, -np.inf, np.nan, 1e-42, 1.0], n))
    with np.errstate(all="ignore"):
        return [np.array(np.float32(s)).reshape(rng.choice([0, 1]) * (1,)) for s in found]


def dtype_of(rng: np.random.Generator) -> type:
    return [np.uint8, np.int8][rng.integers(2)]


def codes(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Random codes, a quarter of them at the ends of the range; sometimes not contiguous."""
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, shape)
    x = np.where(rng.random(shape) < 0.25, rng.choice([info.min, info.max], shape), x).astype(dtype)
    if shape and rng.random() < 0.3:
        wide = np.repeat(x, 2, axis=-1)
        return wide[..., ::2]
    return x.T.copy().T if rng.random() < 0.3 else x


def zero(rng: np.random.Generator, dtype: type, optional: bool = False) -> np.ndarray | None:
    """A zero point: the ends, odd or any; rank 0 or [1]; perhaps omitted."""
    if optional and rng.random() < 0.2:
        return None
    info = np.iinfo(dtype)
    value = rng.choice([info.min, info.max, 1, 7, rng.integers(info.min, info.max + 1)])
    return np.array(value, dtype).reshape(rng.choice([0, 1]) * (1,))


def broadcast_pair(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast, perhaps of different rank, perhaps empty."""
    full = tuple(int(d) for d in rng.choice([0, 1, 2, 3, 5], rng.integers(0, 4), p=[0.05, 0.25, 0.3, 0.2, 0.2]))
    pair = [tuple(1 if rng.random() < 0.25 else d for d in full[rng.integers(0, len(full) + 1) * (rng.random() < 0.3) :])
            for _ in range(2)]  # fmt: skip
    return pair[0], pair[1]
