"""Random numbers: RandomNormal, RandomUniform, those like another tensor, Bernoulli and Multinomial.

Every page leaves the generator open. Here it is numpy's MT19937, whose streams stay the same in all its versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qrun.ir.types import DTYPES, type_name
from qrun.ops._float import is_integer, narrow, single, widen
from qrun.ops._op import Array, Context, bad_attribute, bad_shape, op, refuse, require

_FLOATS = (1, 10, 11, 16)
_FLOAT, _INT32 = 1, 6


@op("RandomNormal", since=1, draws=True)
def random_normal(
    *,
    dtype: int = _FLOAT,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: tuple[int, ...],
    ctx: Context,
) -> Array:
    """mean + scale * z for numbers z of the normal distribution: float64, rounded once to dtype, a floating-point type.

    The page leaves the generator open; this is numpy's MT19937, its ``randn``, from the whole part of `seed` modulo
    2**32, or without one from the CRC-32 of the node's name, as qrun shows it, so that every run, and every time the
    node runs, gives the same numbers. Raises OperatorError for a shape with negative numbers, another dtype,
    and a seed that is not finite.
    """
    return _normal(_shape(shape), _float_type(dtype), mean, scale, seed, ctx)


@op("RandomUniform", since=1, draws=True)
def random_uniform(
    *,
    dtype: int = _FLOAT,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    shape: tuple[int, ...],
    ctx: Context,
) -> Array:
    """low + (high - low) * u for numbers u of [0, 1): float64, rounded once to dtype, so that it may be high.

    The generator is as in RandomNormal, its ``rand``.
    Raises OperatorError for a shape with negative numbers, another dtype, and a seed that is not finite.
    """
    return _uniform(_shape(shape), _float_type(dtype), low, high, seed, ctx)


@op("RandomNormalLike", since=1, draws=True)
def random_normal_like(
    input: Array,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    ctx: Context,
) -> Array:
    """RandomNormal of the input's shape; of its type, a floating-point one, if there is no dtype."""
    return _normal(input.shape, _type_like(input, dtype), mean, scale, seed, ctx)


@op("RandomUniformLike", since=1, draws=True)
def random_uniform_like(
    input: Array,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    ctx: Context,
) -> Array:
    """RandomUniform of the input's shape; of its type, a floating-point one, if there is no dtype."""
    return _uniform(input.shape, _type_like(input, dtype), low, high, seed, ctx)


@op("Bernoulli", since=15, draws=True)
def bernoulli(input: Array, *, dtype: int | None = None, seed: float | None = None, ctx: Context) -> Array:
    """1 where u < input, else 0, for numbers u of [0, 1) as in RandomUniform; of the input's type if there is no dtype.

    NaN gives 0. Raises OperatorError for a seed that is not finite.
    """
    made = input.dtype if dtype is None else _type(dtype, lambda t: t == np.bool_ or is_integer(t) or _floating(t))
    ctx.claim(input.shape, 17 + made.itemsize)
    with np.errstate(all="ignore"):
        return np.asarray(_generator(seed).random_sample(input.shape) < widen(input)).astype(made)


@op("Multinomial", since=7, draws=True)
def multinomial(
    input: Array, *, dtype: int = _INT32, sample_size: int = 1, seed: float | None = None, ctx: Context
) -> Array:
    """Classes drawn for each row of input [batch,classes], logarithms of what is proportional to their probabilities.

    int32 or int64 [batch,sample_size]: the first class whose sum of exp(input - the row's greatest) with all before it
    is above u times the sum of all, for u of [0, 1) as in RandomUniform; in float64.
    Raises OperatorError for a row without a finite greatest number, for other shapes and types, and for a seed that is
    not finite.
    """
    if input.ndim != 2:
        raise bad_shape("input", "[batch,classes]", input)
    require("sample_size", sample_size >= 1, "1 or more", sample_size)
    made = _type(dtype, lambda t: t in (np.int32, np.int64))
    ctx.claim((len(input), sample_size), 24)
    ctx.claim(input.shape, 24)
    drawn = _generator(seed).random_sample((len(input), sample_size))
    chosen = np.zeros(drawn.shape, made)
    for number, row in enumerate(widen(input)):
        greatest = row.max(initial=-np.inf)
        if not np.isfinite(greatest):
            expected = "numbers with a finite greatest one"
            raise refuse(
                f"row {number} has no probabilities", "input", expected, f"{float(greatest)!r} as the greatest"
            )
        sums = np.cumsum(np.exp(row - greatest))
        last = np.searchsorted(sums, sums[-1], side="left")  # that has a probability
        chosen[number] = np.minimum(np.searchsorted(sums, drawn[number] * sums[-1], side="right"), last)
    return chosen


def _normal(
    shape: Sequence[int], dtype: np.dtype[Any], mean: float, scale: float, seed: float | None, ctx: Context
) -> Array:
    ctx.claim(shape, 24 + dtype.itemsize)
    drawn = _generator(seed).standard_normal(shape)
    with np.errstate(all="ignore"):
        return narrow(single(mean) + single(scale) * np.asarray(drawn), dtype)


def _uniform(
    shape: Sequence[int], dtype: np.dtype[Any], low: float, high: float, seed: float | None, ctx: Context
) -> Array:
    ctx.claim(shape, 24 + dtype.itemsize)
    drawn = _generator(seed).random_sample(shape)
    with np.errstate(all="ignore"):
        return narrow(single(low) + (single(high) - single(low)) * np.asarray(drawn), dtype)


def _generator(seed: float | None) -> np.random.RandomState:
    if seed is not None and not np.isfinite(seed):
        raise bad_attribute("seed", "a finite number", seed)
    return np.random.RandomState(int(seed or 0) % 2**32)


def _shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    require("shape", all(size >= 0 for size in shape), "sizes of 0 and more", list(shape))
    return shape


def _floating(dtype: np.dtype[Any]) -> bool:
    return any(dtype == DTYPES[code] for code in _FLOATS)


def _float_type(dtype: int) -> np.dtype[Any]:
    return _type(dtype, _floating)


def _type_like(input: Array, dtype: int | None) -> np.dtype[Any]:
    if dtype is None and not _floating(input.dtype):
        given = type_name(input.dtype)
        raise refuse(
            "the type of the output is not known", "dtype", "a floating-point type", f"input of {given}, no dtype"
        )
    return input.dtype if dtype is None else _float_type(dtype)


def _type(dtype: int, allowed: Callable[[np.dtype[Any]], bool]) -> np.dtype[Any]:
    found = DTYPES.get(dtype)
    if found is None or not allowed(found):
        raise bad_attribute("dtype", "a type that the operator's output may have", dtype)
    return found
