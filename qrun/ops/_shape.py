"""Shared by the shape operators: lists of integers from inputs, and shapes that numpy and the memory limit can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text, type_name
from qrun.ops._context import Context, refuse
from qrun.ops._op import Shape
from qrun.shapes import MOST_AXES


def ints(array: Array, name: str, *, scalar: bool = False) -> tuple[int, ...]:
    """The elements of a 1-D integer tensor (rank 0 too if `scalar`)."""
    if array.dtype.kind not in "iu" or array.ndim > 1 or (array.ndim == 0 and not scalar):
        raise refuse(
            f"{name} is not a list of integers",
            name,
            "a 1-D int64 tensor",
            f"{type_name(array.dtype)} {shape_text(array.shape)}",
            code="QR208",
        )
    if array.size > 2 * MOST_AXES:
        raise refuse(f"{name} has {array.size} numbers", name, f"at most {2 * MOST_AXES}", array)
    return tuple(int(v) for v in np.atleast_1d(array).tolist())


def scalar(array: Array, name: str) -> Any:
    """The one element of a scalar or a tensor [1], as a Python number."""
    if array.size != 1 or array.ndim > 1:
        raise refuse(f"{name} is not a scalar", name, "a scalar", array, code="QR208")
    return array.reshape(-1).tolist()[0]


def same_length(values: Sequence[Any], wanted: int, name: str, why: str) -> None:
    if len(values) != wanted:
        raise refuse(
            f"{name} has {len(values)} numbers",
            name,
            f"{wanted} numbers",
            shape_text(tuple(values)),
            why=why,
            code="QR208",
        )


def checked(shape: Sequence[int], itemsize: int, param: str) -> Shape:
    """The shape, if an array may have it: at most 64 axes, no overflow of the address space."""
    dims = tuple(int(n) for n in shape)
    if len(dims) > MOST_AXES:
        raise refuse(f"the output would have {len(dims)} axes", param, f"at most {MOST_AXES} axes", str(len(dims)))
    if math.prod(n for n in dims if n) * itemsize >= 2**63:
        raise refuse(f"the output would be {shape_text(dims)}", param, "a shape below 2^63 bytes", shape_text(dims))
    return dims


def claim(ctx: Context, shape: Sequence[int], dtype: np.dtype[Any], param: str) -> Shape:
    """The shape, after asking the memory limit for an array of it."""
    dims = tuple(int(n) for n in shape)
    ctx.claim(dims, dtype.itemsize)
    return checked(dims, dtype.itemsize, param)
