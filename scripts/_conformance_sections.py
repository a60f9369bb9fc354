"""The sections of the law that bear on a case of ai.onnx, found from what is in the case.

A case names the section that it is about. What else is in it may be left open by the text (a NaN, a sum that wraps, a
type whose precision is not stated), and then the case is no stronger than that. So the basis of a case does not depend
on who wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from oracle import quantize
from oracle.quantize import RANGES, Real, multiply, real, to_float

from qrun.conform.suite import REFUSAL
from qrun.ir.types import DTYPES

LENIENT = ("C2/mixed", "G9/one", "M1/mixed", "M1/other", "D2")
"""Sections about forms that the text excludes."""
Array = np.ndarray[Any, Any]


def sections(draft: Any) -> list[str]:
    """The sections that bear on a draft, beginning with the one that it names, unless a part of that one is found."""
    found: list[str] = []
    if draft.expects != REFUSAL and not draft.domain and draft.profile != "graph" and draft.op in FACTS:
        with np.errstate(all="ignore"):
            found += FACTS[draft.op](draft)
    own = [] if any(section.startswith(f"{draft.clause}/") for section in found) else [draft.clause]
    return list(dict.fromkeys(own + found))


def is_lenient(draft: Any) -> bool:
    """Does the text exclude the form of this draft?"""
    return not set(LENIENT).isdisjoint(sections(draft))


def _scales(*scales: Any) -> Iterator[str]:
    """Sections about scales that no calibration makes."""
    for scale in map(np.asarray, scales):
        if scale.dtype.kind == "i":
            continue
        values = scale.astype(np.float64)
        if np.isnan(values).any():
            yield "G5"
        elif np.any(values <= 0) or np.isinf(values).any():
            yield "G6"
        elif np.any(values < float(ml_dtypes.finfo(scale.dtype).smallest_normal)):
            yield "G6/subnormal"


def _zero(value: Any) -> Array:
    return np.zeros((), np.int64) if value is None else np.asarray(value).astype(np.int64)


def _geometry(draft: Any, x: Array, w: Array) -> Iterator[str]:
    """Sections about padding, and about what has no elements."""
    auto, rank = draft.attributes.get("auto_pad", "NOTSET"), x.ndim - 2
    strides, dilations = (draft.attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    if auto.startswith("SAME"):
        yield "C4"
        spans = [
            (n, s, (k - 1) * d + 1) for n, s, k, d in zip(x.shape[2:], strides, w.shape[2:], dilations, strict=True)
        ]
        if any((-(-n // s) - 1) * s + span < n for n, s, span in spans):
            yield "C4/negative"
    if auto.startswith("SAME") or any(draft.attributes.get("pads", ())):
        yield "G8"
    if not x.shape[0] or not w.shape[0]:
        yield "G11/empty"
    elif not x.shape[1]:
        yield "G11/sum"


def _may_wrap(x: Array, w: Array, x_zero: Array, w_zero: Array, bias: Any) -> bool:
    """May a sum of the convolution leave int32?"""
    if not x.size or not w.size:
        return False
    far = [
        int(np.abs(codes.astype(np.int64).reshape(-1, 1) - zero.reshape(1, -1)).max())
        for codes, zero in ((x, x_zero), (w, w_zero))
    ]
    most = 0 if bias is None or not np.size(bias) else int(np.abs(np.asarray(bias, np.int64)).max())
    return far[0] * far[1] * prod(w.shape[1:]) + most > 2**31 - 1


def _qlinear_conv(draft: Any) -> Iterator[str]:
    x, xs, xz, w, ws, wz, ys, yz, bias = (*draft.inputs, None)[:9]
    yield from _scales(xs, ws, ys)
    if any(np.shape(p) != () for p in (xs, xz, ys, yz)) or any(np.shape(p) not in ((), w.shape[:1]) for p in (ws, wz)):
        yield "G9/one"
    if np.shape(ws) != np.shape(wz):
        yield "C2/mixed"
    yield from _geometry(draft, x, w)
    if _may_wrap(x, w, _zero(xz), _zero(wz), bias):
        yield "G7/wrap"


def _conv_integer(draft: Any) -> Iterator[str]:
    x, w, xz, wz = (*draft.inputs, None, None)[:4]
    if np.shape(_zero(xz)) != () or np.shape(_zero(wz)) not in ((), w.shape[:1]):
        yield "G9/one"
    yield from _geometry(draft, x, w)
    if _may_wrap(x, w, _zero(xz), _zero(wz), None):
        yield "G7/wrap"


def _parameter(operand: Array, shape: tuple[int, ...], columns: bool) -> str:
    """The section about a parameter of a matrix product; empty if its shape is one that the text lists."""
    if shape == () or (operand.ndim == 2 and shape == (operand.shape[1 if columns else 0],)):
        return ""
    if shape == (1,):
        return "G9/one"
    full = (*operand.shape[:-2], 1, operand.shape[-1]) if columns else (*operand.shape[:-1], 1)
    return ("M1/matrix" if operand.ndim == 2 else "") if operand.ndim >= 2 and shape == full else "M1/other"


def _product(a: Array, b: Array, a_zero: Any, b_zero: Any) -> Iterator[str]:
    """Sections about the integer sums of a matrix product."""
    az, bz = _zero(a_zero), _zero(b_zero)
    az = az.reshape(-1, 1) if az.ndim == 1 and a.ndim > 1 else az
    total = np.matmul(a.astype(np.int64) - az, b.astype(np.int64) - bz)
    if not total.size:
        yield "G11/empty"
    elif not a.shape[-1]:
        yield "G11/sum"
    elif total.max() > 2**31 - 1 or total.min() < -(2**31):
        yield "G7/wrap"


def _qlinear_matmul(draft: Any) -> Iterator[str]:
    a, sa, za, b, sb, zb, sy, zy = draft.inputs
    if a.dtype.name.startswith("float8"):
        yield "M2"
        return
    yield from _scales(sa, sb, sy)
    for operand, columns, scale, zero in ((a, False, sa, za), (b, True, sb, zb)):
        yield from filter(None, (_parameter(operand, np.shape(p), columns) for p in (scale, zero)))
        if np.shape(scale) != np.shape(zero):
            yield "M1/mixed"
    if np.shape(sy) or np.shape(zy):
        yield "G9/one"
    halves = [s for s in map(np.asarray, (sa, sb, sy)) if s.dtype.itemsize == 2]
    if any(np.any(np.frexp(s.astype(np.float64))[0] != 0.5) for s in halves):
        yield "G3/half"
    yield from _product(a, b, za, zb)


def _matmul_integer(draft: Any) -> Iterator[str]:
    a, b, za, zb = (*draft.inputs, None, None)[:4]
    for operand, columns, zero in ((a, False, za), (b, True, zb)):
        if zero is not None:
            yield from filter(None, (_parameter(operand, np.shape(zero), columns),))
    yield from _product(a, b, za, zb)


def _grains(draft: Any, x: Array, scale: Array) -> Iterator[str]:
    """Sections about the shape of a scale of QuantizeLinear or DequantizeLinear."""
    block = draft.attributes.get("block_size", 0)
    if block and scale.ndim:
        if scale.shape[draft.attributes.get("axis", 1) % x.ndim] == 1:
            yield "Q5/one-block"
    elif scale.shape == (1,) and (
        draft.version < 13 or x.ndim <= draft.attributes.get("axis", 1) or x.shape[draft.attributes.get("axis", 1)] != 1
    ):
        yield "G9/one"
    if x.ndim == 1 and scale.ndim and draft.version >= 19:
        yield "Q4/vector"
    if not x.size:
        yield "G11/empty"


def _quantize_linear(draft: Any) -> Iterator[str]:
    x, scale, zero = (*map(_array, draft.inputs), None)[:3]
    kind = zero.dtype if zero is not None else DTYPES[draft.attributes.get("output_dtype", 0) or 2]
    target = kind.name
    yield from _grains(draft, x, scale)
    yield from _scales(scale)
    values = x.astype(np.float64)
    if target.startswith("float8"):
        yield "Q6"
        if target.endswith("fnuz") and draft.attributes.get("saturate", 1) and np.isinf(values).any():
            yield "Q6/infinite"
    elif target.startswith("float"):
        yield "Q6/float4"
        if not np.isfinite(values).all():
            yield "G5"
    elif np.isnan(values).any():
        yield "G5"
    elif np.isinf(values).any():
        yield "G4/infinite"
    if scale.dtype.kind == "i":
        yield "Q2/int32"
    if "e8m0" in scale.dtype.name:
        yield "Q2/e8m0"
    if not _same_quotients(draft, x, scale, zero, kind):
        stated = (
            draft.version >= 23 and x.dtype.kind != "i" and scale.dtype.kind != "i" and "e8m0" not in scale.dtype.name
        )
        yield "Q1/type" if stated else "Q1/open"


def _array(value: Any) -> Any:
    return None if value is None else np.asarray(value)


def _same_quotients(draft: Any, x: Array, scale: Array, zero: Array | None, target: Any) -> bool:
    """Does every type in which one might divide give the same codes?"""
    own = [a.dtype.name for a in (x, scale) if a.dtype.kind != "i" and "e8m0" not in a.dtype.name]
    kinds = dict.fromkeys(["real", "float32", *own, *filter(None, [draft.attributes.get("_precision")])])
    made = [
        quantize.quantize_linear(
            x, scale, zero, target, axis=draft.attributes.get("axis", 1),
            block=draft.attributes.get("block_size", 0), saturating=bool(draft.attributes.get("saturate", 1)), division=kind,
        )
        for kind in kinds
    ]  # fmt: skip
    return all(same.tobytes() == made[0].tobytes() for same in made)


def _dequantize_linear(draft: Any) -> Iterator[str]:
    x, scale, zero = (*map(_array, draft.inputs), None)[:3]
    yield from _grains(draft, x, scale)
    yield from _scales(scale)
    if x.dtype == np.int32 and zero is not None and zero.any():
        yield "D2"
    if not np.isfinite(x.astype(np.float64)).all():
        yield "D1/special"
    made = {name: _products(draft, x, scale, zero, name) for name in ("once", "typed", "steps")}
    if not all(np.isfinite(v).all() for v in made.values()):
        yield "D1/special"
    same = {name: values.tobytes() == made["steps"].tobytes() for name, values in made.items()}
    if not all(same.values()):
        yield "D1/type" if draft.version >= 23 and same["typed"] else "D1/open"


def _products(draft: Any, x: Array, scale: Array, zero: Array | None, reading: str) -> Array:
    """The results by a reading of the formula.

    reading: ``once``, the real product, rounded to the output's type; ``typed``, both factors and the product rounded
    to the output's type; ``steps``, both factors and the product rounded to float32, then to the output's type.
    """
    axis, block = draft.attributes.get("axis", 1), draft.attributes.get("block_size", 0)
    target = str(np.dtype(draft.outputs[0]) if draft.outputs else scale.dtype)
    scale_at = quantize.parameter(scale, x.shape, axis, block)
    zero_at = quantize.parameter(zero, x.shape, axis, block) if zero is not None else None
    y = np.zeros(x.shape, np.float64)
    for index in quantize.indices(x.shape):
        a: Real = real(x[index])
        if zero_at is not None and x.dtype.name in RANGES:
            a = real(int(x[index]) - int(zero_at(index)))
        b = real(scale_at(index))
        if reading != "once":
            kind = target if reading == "typed" else "float32"
            product = to_float(multiply(to_float(a, kind), to_float(b, kind)), kind)
        else:
            product = multiply(a, b)
        y[index] = float(to_float(product, target))
    return y


def _cast(draft: Any) -> Iterator[str]:
    """Sections about what Cast converts, and to what."""
    x, target = draft.inputs[0], DTYPES[draft.attributes["to"]]
    values, name = x.astype(np.float64), target.name
    if "e8m0" in name:
        yield "Q6/e8m0"
    elif name.startswith("float8"):
        fnuz = name.endswith("fnuz") and draft.version < 24 and draft.attributes.get("saturate", 1)
        infinite = np.isinf(values) & bool(fnuz)
        if not infinite.all():
            yield "Q6"
        if infinite.any():
            yield "Q6/infinite"
    elif name.startswith(("float4", "float6")):
        inside = np.abs(values) <= float(ml_dtypes.finfo(target).max)
        yield "Q6/float4" if inside.all() else "Q6/float4-ends"
    elif name in RANGES and x.dtype.name not in RANGES and x.dtype.kind not in "iub":
        low, high = RANGES[name]
        cut = np.trunc(values)
        yield (
            "F10/range"
            if not np.all((cut >= low) & (cut <= high))
            else "F10/fraction"
            if np.any(cut != values)
            else "F10/float"
        )


def _dynamic(draft: Any) -> Iterator[str]:
    x = np.asarray(draft.inputs[0], np.float64)
    span = float(max(x.max(initial=0.0), 0.0) - min(x.min(initial=0.0), 0.0))
    if not span:
        yield "Y2"
    elif span / 255 < float(np.finfo(np.float32).smallest_normal):
        yield "Y1/subnormal"
    elif _exact_steps(x):
        yield "Y1/exact"


def _exact_steps(x: Array) -> bool:
    """Does no step of DynamicQuantizeLinear round in float32, apart from those that are stated to?"""
    if not np.isfinite(x).all():
        return False
    values = [Fraction(float(v)) for v in x.ravel()]
    low, high = min(values + [Fraction(0)]), max(values + [Fraction(0)])
    scale = (high - low) / 255
    steps = [high - low, scale, *((value / scale) for value in [*values, low])]
    return all(Fraction(float(np.float32(step))) == step for step in steps)


FACTS: dict[str, Callable[[Any], Iterator[str]]] = {
    "QLinearConv": _qlinear_conv,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _qlinear_matmul,
    "MatMulInteger": _matmul_integer,
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic,
    "Cast": _cast,
}
"""For each operator, the function that finds the sections."""
