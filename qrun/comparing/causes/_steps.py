"""How far float32 steps can be from the real value of a node's formula, by the magnitudes of its operands."""

from __future__ import annotations

import math

import numpy as np

from qrun.comparing.causes._bounds import OFF, UNIT
from qrun.comparing.causes._cause import Suspect
from qrun.comparing.differences import distances
from qrun.comparing.ties import real_operands
from qrun.ir import Array
from qrun.ops import Context, quantizers, real_operator
from qrun.ops._quantize import is_integer, limits

_STEPS = 32
"""Roundings of a formula outside its sums."""


def share_of_bound(s: Suspect, made: Array) -> float | None:
    """The largest part that `made` takes of the bound on float32 steps; None if it is beyond, or no bound is known."""
    if made.shape != s.mine.shape or made.dtype != s.mine.dtype:
        return None
    limit = _reach(s)
    if limit is None:
        return None
    apart = _apart(s, made)
    finite = np.isfinite(apart)
    if not (apart[finite] <= np.broadcast_to(limit, apart.shape)[finite]).all():
        return None
    return float(np.max(np.divide(apart, limit, out=np.zeros_like(apart), where=finite & (limit > 0)), initial=0.0))


_BESIDE_TIE = 0.25
"""Steps within which a float32 product of a code's size lies, many times over."""


def rounds_alike(s: Suspect, made: Array) -> bool:
    """Whether `made` are codes to which the real value of this node rounds, in whatever float32 steps; true where
    nothing is known of that value."""
    if s.exact is None or made.shape != s.exact.shape or not is_integer(made.dtype):
        return True
    apart, limit = _apart(s, made), _reach(s)
    beside = np.maximum(_BESIDE_TIE, 0.0 if limit is None else limit)
    return bool((apart[np.isfinite(apart)] <= np.broadcast_to(beside, apart.shape)[np.isfinite(apart)]).all())


def _apart(s: Suspect, made: Array) -> Array:
    """Distances: of integers in steps, of float8 in neighbouring codes, else absolute. Where the real value is known,
    integers are measured from it, less the half step of rounding."""
    if is_integer(s.mine.dtype):
        if s.exact is None:
            return np.asarray(np.maximum(np.abs(made.astype(np.float64) - s.mine.astype(np.float64)) - 1, 0))
        low, high = limits(s.mine.dtype)
        return np.asarray(np.maximum(np.abs(made.astype(np.float64) - np.clip(s.exact, low, high)) - 0.5, 0))
    if s.mine.dtype.itemsize == 1:
        return np.asarray(np.maximum(np.abs(made.view(np.int8).astype(float) - s.mine.view(np.int8)) - 1, 0))
    return distances(made, s.mine)


def _reach(s: Suspect) -> Array | None:
    """The bound in the unit of `_apart`; None where it is not known."""
    if s.is_op("DequantizeLinear"):
        x, scale, zero = (*s.args, None)[:3]
        if x is None or scale is None:
            return None
        shift = 0.0 if zero is None else np.abs(s.along(zero))
        return np.asarray(_STEPS * UNIT * (np.abs(x.astype(np.float64)) + shift) * np.abs(s.along(scale)))
    if s.is_op("DynamicQuantizeLinear", "QuantizeLinear") and s.mine.dtype.itemsize == 1 and s.exact is None:
        return np.zeros(())
    if s.is_op("DynamicQuantizeLinear"):
        return np.asarray(_STEPS * UNIT * np.abs(s.mine.astype(np.float64)))
    sizes = _sizes(s)
    if sizes is None or not (is_integer(s.mine.dtype) or s.mine.dtype == np.float32):
        return None
    if not is_integer(s.mine.dtype):
        return sizes
    out = next((q for q in quantizers(s.node) if q.is_output and q.scale), None)
    scale = s.args[out.scale.place] if out is not None and out.scale is not None else None
    if scale is None:
        return None
    step = np.abs(s.along(scale))
    return np.asarray((sizes + OFF) / step + _STEPS * UNIT * np.abs(s.zero))


def _sizes(s: Suspect) -> Array | None:
    """The bound on the real numbers that the node computes: one rounding for each term of the same formula, with the
    operands' magnitudes."""
    function = real_operator(s.node)
    try:
        operands = real_operands(s.node, s.args)
        if function is None or operands is None:
            return None
        last = bool(s.node.attributes.get("channels_last", 0)) and operands[0].ndim > 2
        real = [np.abs(np.moveaxis(x, -1, 1) if last else x).astype(np.float64) for x in operands]
        attributes = {k: v for k, v in s.node.attributes.items() if k in function.attributes}
        made, ones = (
            np.asarray(function(*each, **attributes, ctx=Context(observing=False)))
            for each in (real, [np.ones_like(x) for x in real])
        )
    except (ValueError, IndexError, TypeError):
        return None
    made = np.moveaxis(made, 1, -1) if last else made
    bias = s.arg("bias")
    made = made + (np.abs(bias).astype(np.float64) if bias is not None and bias.dtype.kind == "f" else 0.0)
    terms = max(float(ones.max(initial=0)), _window(s))
    return np.asarray(2 * (_STEPS + terms) * UNIT * made) if made.shape == s.mine.shape else None


def _window(s: Suspect) -> float:
    """How many elements a pool takes together."""
    kernel = s.node.attributes.get("kernel_shape")
    if isinstance(kernel, tuple):
        return float(math.prod(kernel))
    x = s.args[0]
    return x.size / max(s.mine.size, 1) if x is not None and "Pool" in s.node.op_type else 1.0
