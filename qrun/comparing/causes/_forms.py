"""Other readings of a node's parameters and attributes, with the real values that they give: the first is the
specification's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Suspect, broadcast
from qrun.comparing.ties import before_rounding
from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.ops import Context, real_operator


@frozen
class Form:
    """One reading of a node. text: how it deviates, "" if it does not. exact: the real values, zero point added."""

    text: str
    node: Node
    args: Sequence[Array | None]
    exact: Array


def forms(s: Suspect) -> Iterator[Form]:
    """Yield the node as the specification reads it, if its real values are known, then in other readings."""
    if s.exact is None:
        return
    yield Form("", s.node, s.args, s.exact)
    if not s.alone:
        return
    yield from _uncentred(s)
    yield from _other_bias(s)
    yield from along_depth(s)
    yield from along_kernel(s)
    for text, node, args in readings(s):
        made = before_rounding(node, args)
        made = None if made is None else np.asarray(made)
        if made is not None and made.shape == s.mine.shape and not np.array_equal(made, s.exact, equal_nan=True):
            yield Form(text, node, args, made)


def _uncentred(s: Suspect) -> Iterator[Form]:
    """Readings of a QLinearConv that multiplies the codes of x, padded with the zero point, without subtracting it;
    also without its bias, or without the zero points of the weights."""
    if not s.is_op("QLinearConv") or s.node.attributes.get("channels_last"):
        return
    x_zero, w, w_zero = s.args[2], s.args[3], s.args[5]
    if x_zero is None or w is None or s.exact is None:
        return
    lanes = (-1, *(1,) * (s.mine.ndim - 2))
    for index, name in ((None, ""), (8, "B"), (5, "w_zero_point")):
        old = s.args[index] if index is not None and index < len(s.args) else None
        if index is not None and (old is None or not np.any(old)):
            continue
        args = list(s.args) if index is None or old is None else _with(s, index, np.zeros_like(old))
        exact = s.exact if index is None else before_rounding(s.node, args)
        scales = [np.asarray(s.args[at], np.float64) for at in (1, 4, 6)]
        factor = scales[0] * scales[1].reshape(lanes if scales[1].size > 1 else ()) / scales[2]
        shift = 0 if w_zero is None or index == 5 else w_zero.astype(np.int64).reshape(-1, *(1,) * (w.ndim - 1))
        sums = (w.astype(np.int64) - shift).sum(axis=tuple(range(1, w.ndim))).reshape(lanes)
        if exact is not None:
            more = f" and {name}" if name else ""
            yield Form(
                f"ignores x_zero_point{more}",
                s.node,
                args,
                exact + x_zero.astype(np.float64).reshape(()) * sums * factor,
            )


def _other_bias(s: Suspect) -> Iterator[Form]:
    """The reading of a QLinearConv that scales the bias by x_scale alone, not by x_scale * w_scale."""
    bias = s.arg("B")
    if not s.is_op("QLinearConv") or bias is None or s.exact is None or s.node.attributes.get("channels_last"):
        return
    lanes = (-1, *(1,) * (s.mine.ndim - 2))
    x_scale, w_scale, y_scale = (np.asarray(s.args[at], np.float64) for at in (1, 4, 6))
    more = x_scale * (1 - w_scale.reshape(lanes if w_scale.size > 1 else ())) / y_scale
    exact = s.exact + bias.astype(np.float64).reshape(lanes) * more
    yield Form("scales the bias by x_scale instead of x_scale * w_scale", s.node, s.args, exact)


def along_depth(s: Suspect) -> Iterator[Form]:
    """The reading of a QLinearMatMul that applies the parameters of A's rows along its columns, as if it dequantized A
    with them."""
    if not s.is_op("QLinearMatMul") or s.args[0] is None or s.args[3] is None or s.args[0].ndim != 2:
        return
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale = (np.asarray(each, np.float64) for each in s.args[:7])
    names = [n for n, p in (("scales", a_scale), ("zero points", a_zero)) if p.ndim == 1 and p.size == a.shape[1] > 1]
    if names and a_scale.ndim < 2 and a_zero.ndim < 2:
        made = ((a - a_zero) * a_scale) @ ((b - b_zero) * b_scale) / y_scale + s.zero
        if made.shape == s.mine.shape:
            yield Form(f"applies the row {' and '.join(names)} of A along its columns", s.node, s.args, made)


def along_kernel(s: Suspect) -> Iterator[Form]:
    """Readings of a QLinearConv that applies the parameters of its filters along another axis of the weights."""
    function, w, bias = real_operator(s.node), s.arg("w"), s.arg("B")
    if not s.is_op("QLinearConv") or s.node.attributes.get("channels_last") or function is None or w is None:
        return
    x, x_scale, x_zero, _, w_scale, w_zero, y_scale = (np.asarray(a, np.float64) for a in s.args[:7])
    attributes = {k: v for k, v in s.node.attributes.items() if k in function.attributes}
    names = [name for name, p in (("w_scale", w_scale), ("w_zero_point", w_zero)) if p.size > 1]
    lanes = (-1, *(1,) * (w.ndim - 2))
    more = 0.0 if bias is None else (bias * x_scale.reshape(()) * w_scale).reshape(lanes)
    for axis in range(1, w.ndim) if names else ():
        if w.shape[axis] == w.shape[0]:
            scale, zero = (broadcast(p, w, axis) for p in (w_scale, w_zero))
            real = (x - x_zero.reshape(())) * x_scale.reshape(()), (w - zero) * scale
            made = (np.asarray(function(*real, **attributes, ctx=Context(observing=False))) + more) / y_scale + s.zero
            yield Form(f"applies {' and '.join(names)} along axis {axis} of w, not 0", s.node, s.args, made)


def readings(s: Suspect) -> Iterator[tuple[str, Node, list[Array | None]]]:
    """Yield other readings of the node: what deviates, the node, and its inputs."""
    yield from _attributes(s)
    yield from _parameters(s)
    yield from _turned(s)


_PADS = {"SAME_LOWER": "SAME_UPPER", "SAME_UPPER": "SAME_LOWER"}


def _attributes(s: Suspect) -> Iterator[tuple[str, Node, list[Array | None]]]:
    """Readings with other attributes."""
    a: dict[str, Any] = dict(s.node.attributes)
    tried: list[tuple[str, dict[str, Any]]] = []
    if (pad := a.get("auto_pad")) in _PADS:
        tried.append((f"pads {pad} as {_PADS[pad]}", {"auto_pad": _PADS[pad]}))
        tried += [
            (f"puts all padding of {pad} {where}", {"auto_pad": pad, "pads": each}) for where, each in _one_sided(s)
        ]
    if "pads" in a:
        rank = len(a["pads"]) // 2
        turned = (*a["pads"][rank:], *a["pads"][:rank])
        tried.append(("swaps the pads at the beginning and the end", {"pads": turned}))
    if s.is_op("AveragePool", "QLinearAveragePool"):
        counted = a.get("count_include_pad", 0)
        text = "excludes padding from the divisor" if counted else "includes padding in the divisor"
        tried.append((text, {"count_include_pad": 1 - counted}))
    if a.get("channels_last"):
        tried.append(("ignores channels_last", {"channels_last": 0}))
    if "alpha" in a:
        tried += [("uses 1 for alpha", {"alpha": 1.0}), ("uses 0 for alpha", {"alpha": 0.0})]
    if a.get("transB"):
        tried.append(("ignores transB", {"transB": 0}))
    for text, changed in tried:
        given = {**a, **changed}
        if "pads" in changed:
            given.pop("auto_pad", None)
        yield text, replace(s.node, attributes=given), list(s.args)


def _one_sided(s: Suspect) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The pads of SAME_UPPER or SAME_LOWER, all at the beginning or all at the end."""
    x, w = s.args[0], s.arg("w")
    if x is None or w is None or s.node.attributes.get("channels_last"):
        return
    rank = x.ndim - 2
    strides, dilations = (s.node.attributes.get(name) or (1,) * rank for name in ("strides", "dilations"))
    assert isinstance(strides, tuple)
    assert isinstance(dilations, tuple)
    sizes = zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True)
    total = tuple(max(0, (-(-n // step) - 1) * step + (k - 1) * apart + 1 - n) for n, k, step, apart in sizes)
    none = (0,) * rank
    yield "at the end", (*none, *total)
    yield "at the beginning", (*total, *none)


def _parameters(s: Suspect) -> Iterator[tuple[str, Node, list[Array | None]]]:
    """Readings that ignore a parameter, or use its first value for all channels."""
    for index, param in enumerate(s.definition.inputs if s.definition else ()):
        array = s.args[index] if index < len(s.args) else None
        name = param.name
        if array is None or not array.size or name.lower() in ("y_zero_point", "c_zero_point", "z_zero_point"):
            continue
        if "zero_point" in name.lower() or name in ("B", "C", "bias"):
            if array.ndim < 2 and np.any(array):
                yield f"ignores {name}", s.node, _with(s, index, np.zeros_like(array))
        elif "scale" in name.lower() and np.any(array != 1):
            yield f"ignores {name}", s.node, _with(s, index, np.ones_like(array))
            if name.lower().startswith("y"):
                yield (
                    f"multiplies by {name}",
                    s.node,
                    _with(s, index, (1 / array.astype(np.float64)).astype(array.dtype)),
                )
        if array.size > 1 and array.ndim == 1 and ("zero_point" in name or "scale" in name):
            yield (
                f"uses the first value of {name} for all channels",
                s.node,
                _with(s, index, np.full_like(array, array[0])),
            )


def _with(s: Suspect, index: int, array: Array) -> list[Array | None]:
    """The node's inputs with another one at a place."""
    return [array if at == index else old for at, old in enumerate(s.args)]


def _turned(s: Suspect) -> Iterator[tuple[str, Node, list[Array | None]]]:
    """Readings of a square QLinearMatMul that apply the scales, or the zero points, of A's rows to columns."""
    if not s.is_op("QLinearMatMul") or s.mine.ndim != 2 or len(set(s.mine.shape)) > 1:
        return
    a, a_scale, a_zero, b, b_scale, b_zero = s.args[:6]
    assert a is not None
    assert a_scale is not None
    assert b_scale is not None
    rows, zeros = a_scale.size > 1, a_zero is not None and a_zero.size > 1
    ones = np.ones((), a_scale.dtype)
    columns = (b_scale.astype(np.float64) * a_scale).astype(b_scale.dtype)
    if rows:
        yield "applies the row scales of A to columns", s.node, [a, ones, a_zero, b, columns, *s.args[5:]]
    if zeros and a_zero is not None and a.shape[1] == a_zero.size:
        plain = a.astype(np.int32) - a_zero.astype(np.int32)
        text = "subtracts the row zero points of A along its columns"
        yield text, s.node, [plain, a_scale, None, *s.args[3:]]
        if rows:
            text = "applies the row scales and zero points of A to columns"
            yield text, s.node, [plain, ones, None, b, columns, *s.args[5:]]
