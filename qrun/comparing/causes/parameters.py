"""Scales and zero points on the wrong axis, left out, or used where they do not belong."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, recomputed
from qrun.ir import Array
from qrun.ops import Context, find

_SPEC = "ONNX operators: QLinearConv-10, QLinearMatMul-21, QuantizeLinear-21, axis"


@cause("wrong-scale-axis", rank=20, source=_SPEC)
def wrong_scale_axis(s: Suspect) -> Iterator[Hypothesis]:
    """Scales or zero points of channels, rows or columns are applied along another axis.

    To confirm: Use the same scale for all channels: the difference is gone.

    To do: Use one scale per tensor for this node, or a layout whose scales the runtime applies rightly; report it
    to the runtime.
    """
    if s.is_op("QuantizeLinear", "DequantizeLinear"):
        yield from _other_axis(s)
    elif s.is_op("QLinearConv"):
        yield from _flat_channels(s)
    elif s.is_op("MatMulInteger"):
        yield from _turned_rows(s)


def _other_axis(s: Suspect) -> Iterator[Hypothesis]:
    scale = s.args[1]
    axis = s.node.attributes.get("axis", 1)
    if scale is None or scale.size < 2 or not isinstance(axis, int):
        return
    for other in range(s.mine.ndim):
        if other != axis % max(s.mine.ndim, 1) and s.mine.shape[other] == scale.size:
            yield from recomputed(
                s.evaluate(attributes={"axis": other}), f"applies the scales along axis {other}, not {axis}"
            )


def _flat_channels(s: Suspect) -> Iterator[Hypothesis]:
    """w_scale as [1,M,1,1] whatever the rank: right for 2-D convolutions only."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*s.args, None, None)[:9]
    integer = find("", "ConvInteger", 10)
    if w_scale is None or w_scale.size < 2 or s.mine.ndim == 4 or integer is None or y_zero is None:
        return
    geometry = {k: v for k, v in s.node.attributes.items() if k != "channels_last"}
    acc = integer(x, w, x_zero, w_zero, **geometry, ctx=Context(observing=False)).astype(np.float64)
    if bias is not None:
        acc = acc + bias.reshape(-1, *(1,) * (acc.ndim - 2))
    assert x_scale is not None
    assert y_scale is not None
    try:
        real = acc * (x_scale.item() * w_scale.reshape(1, -1, 1, 1).astype(np.float64) / y_scale.item())
    except ValueError:
        return
    for whole, zero in ((np.rint(real), float(y_zero.item())), (np.rint(real + float(y_zero.item())), 0.0)):
        yield from recomputed(
            s.coded(whole, zero), f"w_scale is applied as [1,{w_scale.size},1,1] to a result of rank {s.mine.ndim}"
        )


def _turned_rows(s: Suspect) -> Iterator[Hypothesis]:
    """A zero point per row of A subtracted along K."""
    a, b, a_zero, b_zero = (*s.args, None, None)[:4]
    if a is None or b is None or a_zero is None or a_zero.ndim != 1 or a_zero.size != a.shape[-1] or a.ndim != 2:
        return
    right = b.astype(np.int64) - (0 if b_zero is None else b_zero.astype(np.int64))
    made = (a.astype(np.int64) - a_zero.astype(np.int64)) @ right
    yield Hypothesis(made.astype(np.int32), "subtracts the zero points of A's rows along its columns")


@cause("wrong-parameter", rank=48, source=_SPEC)
def wrong_parameter(s: Suspect) -> Iterator[Hypothesis]:
    """A scale, zero point or bias is left out, or one is applied that must not be.

    To confirm: Set the parameter that is named to 0 (or a scale to 1) in the model: the other side gives the same
    as before.

    To do: Fold the parameter into another one, such as the bias, or remove it; report it to the runtime.
    """
    for place, param in enumerate(s.definition.inputs if s.definition else ()):
        array = s.args[place] if place < len(s.args) else None
        plain = None if array is None else _without(param.name, array)
        if plain is not None and array is not None and np.any(plain != array):
            yield from recomputed(s.evaluate(inputs={param.name: plain}), f"ignores {param.name}")
    scale, zero = s.arg("y_scale"), s.arg("y_zero_point")
    if s.is_op("QGemm") and scale is not None and zero is None:
        yield Hypothesis(np.asarray(s.mine / scale), "divides a float result by y_scale, though y_zero_point is absent")


def _without(name: str, array: Array) -> Array | None:
    """A parameter that has no effect; None for what is none."""
    if "zero_point" in name.lower() or name in ("B", "C", "bias"):
        return np.zeros_like(array)
    return np.ones_like(array) if "scale" in name.lower() else None
