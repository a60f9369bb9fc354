"""By what the sum of a pool's window is divided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from qrun.comparing.causes._bounds import UNIT
from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, computed, part
from qrun.comparing.differences import same
from qrun.ir import Array, Node
from qrun.ops import Arith
from qrun.ops._window import PoolGeometry

_ARITHMETICS: tuple[Arith, ...] = ("exact", "ort")
_LEFT_OUT = ("auto_pad", "pads", "ceil_mode", "count_include_pad")


@cause("pool-divisor", rank=24, source="ONNX operators, AveragePool-22: count_include_pad and ceil_mode")
def pool_divisor(s: Suspect) -> Iterator[Hypothesis]:
    """The sum of a pool's window is divided by another number of elements: padding counts where it must not, or does
    not count where it must, or a window that reaches past the padding counts as a whole one.

    To confirm: Only windows at the border differ. Without pads and with ceil_mode 0 the difference is gone.

    To do: Put a Pad node before the pool, and give the pool neither pads nor ceil_mode: then every window is whole.
    """
    if s.fused_node is not None and s.fused_node.is_op("QLinearAveragePool"):
        yield from pool_divisor.function(s.fused_node)
    if not s.is_op("AveragePool", "QLinearAveragePool") or s.theirs is None or not s.args or s.args[0] is None:
        return
    for node, x, text in _divided(s, s.args[0]):
        args = [x, *s.args[1:]]
        exact, own = computed(node, args), s.evaluate()
        if exact is None or own is None or same(exact[0], own):
            continue  # no window has another divisor
        for arith in _ARITHMETICS:
            made = computed(node, args, arith)
            if made is not None and made[0].shape == s.mine.shape:
                yield Hypothesis(made[0], text)
        share = _share(s, node, args)
        if share is not None:
            yield Hypothesis(None, f"{text}; what is left is {part(share)} of the bound on float32 sums in any order")


def _divided(s: Suspect, x: Array) -> Iterator[tuple[Node, Array, str]]:
    """The node with other divisors, what it then reads, and in words."""
    a = s.node.attributes
    included = bool(a.get("count_include_pad", 0))
    other = replace(s.node, attributes={**a, "count_include_pad": int(not included)})
    counts = "leaves padding out of the divisor, though count_include_pad is 1"
    yield other, x, counts if included else "counts padding in the divisor, though count_include_pad is 0"
    last = bool(a.get("channels_last", 0)) and x.ndim > 2
    axes = range(1, x.ndim - 1) if last else range(2, x.ndim)
    dilations = a.get("dilations", ())
    assert isinstance(dilations, tuple)
    win = PoolGeometry.of(a).window([x.shape[axis] for axis in axes], dilations)
    pads = [(0, 0)] * x.ndim
    for at, axis in enumerate(axes):
        reach = (win.out[at] - 1) * win.strides[at] + win.extent[at]
        pads[axis] = (win.begin[at], max(0, reach - x.shape[axis] - win.begin[at]))
    zero = s.arg("x_zero_point")
    padded = np.pad(x, pads, constant_values=0 if zero is None else zero.reshape(()))
    whole = replace(s.node, attributes={k: v for k, v in a.items() if k not in _LEFT_OUT})
    size = int(np.prod(win.kernel))
    yield whole, padded, f"divides by all {size} elements of the kernel, also in windows that reach past the input"


def _share(s: Suspect, node: Node, args: list[Array | None]) -> float | None:
    """Of float32 sums: the part of the bound for any order by which the other side is off this divisor's means; None
    if it is beyond, or the sums in qrun's result are within it too."""
    x = args[0]
    if s.theirs is None or s.theirs.dtype != np.float32 or x is None or x.dtype != np.float32:
        return None
    made, size = computed(node, args), computed(node, [np.abs(x), *args[1:]])
    if made is None or size is None or made[0].shape != s.theirs.shape or not np.isfinite(s.theirs).all():
        return None
    kernel = s.node.attributes.get("kernel_shape")
    terms = int(np.prod(kernel)) if isinstance(kernel, tuple) else 0
    bound = 2 * (terms + 2) * UNIT * size[0].astype(np.float64)
    theirs = s.theirs.astype(np.float64)
    apart = np.abs(theirs - made[0])
    if (apart > bound).any() or (np.abs(theirs - s.mine) <= bound).all():
        return None
    return float(np.max(np.divide(apart, bound, out=np.zeros_like(apart), where=bound > 0), initial=0.0))
