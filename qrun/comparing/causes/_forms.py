"""Other readings of a node's parameters and attributes, with the real values that they give: the first is the
specification's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Suspect
from qrun.comparing.ties import before_rounding
from qrun.declare.frozen import frozen
from qrun.ir import Array, Node


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
    for text, node, args in readings(s):
        made = before_rounding(node, args)
        if made is not None and made.shape == s.mine.shape and not np.array_equal(made, s.exact, equal_nan=True):
            yield Form(text, node, args, made)


def readings(s: Suspect) -> Iterator[tuple[str, Node, list[Array | None]]]:
    """Yield other readings of the node: what deviates, the node, and its inputs."""
    yield from _attributes(s)
    yield from _parameters(s)
    if s.is_op("QLinearMatMul"):
        yield from _turned(s)


_PADS = {"SAME_LOWER": "SAME_UPPER", "SAME_UPPER": "SAME_LOWER"}


def _attributes(s: Suspect) -> Iterator[tuple[str, Node, list[Array | None]]]:
    """Readings with other attributes."""
    a: dict[str, Any] = dict(s.node.attributes)
    tried: list[tuple[str, dict[str, Any]]] = []
    if (pad := a.get("auto_pad")) in _PADS:
        tried.append((f"pads {pad} as {_PADS[pad]}", {"auto_pad": _PADS[pad]}))
    if "pads" in a:
        rank = len(a["pads"]) // 2
        turned = (*a["pads"][rank:], *a["pads"][:rank])
        tried.append(("takes the pads of the beginning for those of the end", {"pads": turned}))
    if s.is_op("AveragePool", "QLinearAveragePool"):
        counted = a.get("count_include_pad", 0)
        text = "leaves padding out of the divisor" if counted else "counts padding in the divisor"
        tried.append((text, {"count_include_pad": 1 - counted}))
    if "alpha" in a:
        tried.append(("ignores alpha", {"alpha": 1.0}))
    if a.get("transB"):
        tried.append(("ignores transB", {"transB": 0}))
    for text, changed in tried:
        yield text, replace(s.node, attributes={**a, **changed}), list(s.args)


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
                yield f"multiplies by {name}", s.node, _with(s, index, (1 / array.astype(np.float64)).astype(array.dtype))
        if array.size > 1 and array.ndim == 1 and ("zero_point" in name or "scale" in name):
            yield f"uses the first value of {name} for all", s.node, _with(s, index, np.full_like(array, array[0]))


def _with(s: Suspect, index: int, array: Array) -> list[Array | None]:
    """The node's inputs with another one at a place."""
    return [array if at == index else old for at, old in enumerate(s.args)]


def _turned(s: Suspect) -> Iterator[tuple[str, Node, list[Array | None]]]:
    """Readings of a square QLinearMatMul that apply the scales or zero points of rows to columns, or the reverse."""
    a_scale, b_scale, y = s.args[1], s.args[4], s.mine
    if a_scale is None or b_scale is None or y.ndim != 2:
        return
    if a_scale.ndim == 1 and a_scale.size == y.shape[1] > 1 and b_scale.size == 1:
        args = list(s.args)
        args[1], args[4] = b_scale.reshape(()), a_scale.astype(b_scale.dtype)
        yield "applies the scales of A's rows to columns", s.node, args
