"""Functions of arrays as docs/numerics.md (F41) defines them: those of qrun/formulas, of float32 and of float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from qrun.formulas import single, wide
from qrun.formulas.lanes import Lanes
from qrun.ir import Array
from qrun.ops._float import narrow, rounded, widen
from qrun.ops._rounding import fma32

_BLOCK = 1 << 14
"""Elements that stay in the cache from step to step."""
_FLOAT = np.dtype(np.float32)


def _made(function: Callable[..., Any], x: Array, *others: Any) -> Array:
    flat = np.ascontiguousarray(x).reshape(-1)
    made = np.empty(flat.shape, flat.dtype)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            made[part] = function(Lanes(flat[part]), *others).x
    made[np.isnan(made)] = np.nan
    return made.reshape(x.shape)


def _fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    return Lanes(fma32(a.x, b.x, c.x))


def in_single(function: Callable[..., Any], x: Array, *constants: float) -> Array:
    """A float32 function of every element, of float32."""
    return _made(partial(function, fma=_fma), x, *_as_lanes(constants, _FLOAT))


def rounded_single(function: Callable[..., Any], double: Callable[[Array], Any], x: Array, *constants: float) -> Array:
    """A float32 function of every element, rounded to x's type; `double` of float64."""
    if x.dtype == np.float64:
        return _plain(double, x)
    with np.errstate(all="ignore"):
        return rounded(in_single(function, x.astype(_FLOAT), *constants), x.dtype)


def rounded_double(function: Callable[..., Any], double: Callable[[Array], Any], x: Array, *constants: float) -> Array:
    """A float64 function of every element, rounded once to x's type; `double` of float64."""
    if x.dtype == np.float64:
        return _plain(double, x)
    with np.errstate(all="ignore"):
        return narrow(in_lanes(function, widen(x), *constants), x.dtype)


def in_lanes(function: Callable[..., Any], x: Array, *constants: float) -> Array:
    """A float64 function of every element, of float64."""
    return _made(function, x, *_as_lanes(constants, np.dtype(np.float64)))


def _plain(double: Callable[[Array], Any], x: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(double(widen(x)))


def _as_lanes(constants: Sequence[float], dtype: np.dtype[Any]) -> list[Lanes]:
    return [Lanes(np.array(number, dtype)) for number in constants]


exp, share, sigmoid, tanh = (
    partial(in_single, function) for function in (single.exp, single.share, single.sigmoid, single.tanh)
)


def log(x: Array) -> Array:
    """log(x) of float64."""
    return _made(wide.log, x)
