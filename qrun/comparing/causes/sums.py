"""Causes in sums: the order of float additions, sums of no terms, negative padding of windows, and the divisor of a
pool's window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, compute_node, in_known_order, part, recompute
from qrun.comparing.causes._formulas import UNIT
from qrun.comparing.differences import same
from qrun.ir import Array, Node
from qrun.ops import Arith
from qrun.ops._window import PoolGeometry
from qrun.ops.matmulnbits import check_weights

_UNIT = 2.0**-24
SUMS = {
    "Conv": (0, 1, 2),
    "ConvTranspose": (0, 1, 2),
    "MatMul": (0, 1),
    "Gemm": (0, 1, 2),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), (0, 1)),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "CumSum"), (0,)),
    "Einsum": (),
    "MatMulNBits": (0,),
}
"""Operators that sum, with the places of the inputs whose magnitudes bound the terms; () means all inputs."""


_HIGHAM = "Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1: gamma_n bounds every order"


@cause("float-order", rank=47, source=f"numerics, F1 and A1; {_HIGHAM}")
def float_order(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime adds the terms of a float32 sum in a different order. For MatMul, Gemm and Conv, qrun recomputes
    every known order bit for bit. For other sums the order is unknown: every element must be within the rounding-error
    bound that holds for any order.

    To confirm: Run qrun compare MODEL -i X --against ort --arith ort. For MatMul, Gemm and Conv this node is then
    equal. For other sums, the largest difference is a few units in the last place of the largest term.

    To do: Nothing is wrong with the model: compare floats with a tolerance (--rtol, --atol), and later integers with
    --lsb 1.
    """
    if in_known_order(s):
        yield from _known_orders(s)
    elif (share := _share_of_any_order(s)) is not None and share <= 1:
        yield Hypothesis(
            None,
            f"adds {_terms(s)} float32 terms in a different order; "
            f"the largest difference is {part(share)} of the rounding-error bound, which holds for any order",
        )


@cause("unknown-order", rank=51, source=_HIGHAM)
def unknown_order(s: Suspect) -> Iterator[Hypothesis]:
    """A sum of float32 products differs, and no order of additions that qrun knows gives these bits.

    To confirm: The cause's text compares the largest difference with the rounding-error bound for any order. Within the
    bound, the runtime may add in a different order. Beyond it, the runtime computes something else.

    To do: Within the bound, compare with a tolerance (--rtol, --atol). Beyond it, run the node alone with small inputs.
    """
    share = _share_of_any_order(s) if in_known_order(s) else None
    if share is not None:
        far = f"{part(share)} of" if share <= 1 else f"{share:.3g} times"
        yield Hypothesis(
            None,
            "no known order of additions produces these bits; "
            f"the largest difference is {far} the rounding-error bound, which holds for any order",
        )


def _known_orders(s: Suspect) -> Iterator[Hypothesis]:
    """Recompute the node in onnxruntime's order, once with the second input stored and once not, and in F1's order."""
    turned = tuple(index == 1 and not stored for index, stored in enumerate(s.stored))
    tried: tuple[tuple[Arith, tuple[bool, ...], str], ...] = (
        ("ort", s.stored, "onnxruntime's"),
        ("ort", turned, "onnxruntime's"),
        ("exact", (), "F1's"),
    )
    for arith, fixed, whose in tried:
        sums: list[str] = []
        made = compute_node(s.node, s.args, arith, fixed=fixed, sums=sums)
        if made is not None and sums:
            array = made[s.node.outputs.index(s.tensor)]
            yield Hypothesis(array, f"adds the products in {whose} order: {sums[0]}")


def _share_of_any_order(s: Suspect) -> float | None:
    """The largest ratio of a difference to the error bound for any order of additions; None if no bound is known."""
    if not s.is_op(*SUMS) or s.theirs is None or s.theirs.dtype != np.float32 or s.theirs.shape != s.mine.shape:
        return None
    terms, size = _terms(s), _sizes(s)
    if size is None or not np.isfinite(size).all() or not np.isfinite(s.theirs).all():
        return None
    bound = 2 * (terms + 2) * _UNIT / (1 - (terms + 2) * _UNIT) * size.astype(np.float64)
    apart = np.abs(s.mine.astype(np.float64) - s.theirs.astype(np.float64))
    share = np.divide(apart, bound, out=np.where(apart > 0, np.inf, 0.0), where=bound > 0)
    return float(np.max(share, initial=0.0))


def _terms(s: Suspect) -> int:
    """The number of terms of each sum of the node."""
    a, b = s.args[0], s.args[1] if len(s.args) > 1 else None
    assert a is not None
    if s.is_op("GlobalAveragePool", "ReduceMean", "ReduceSum"):
        return a.size // max(s.mine.size, 1)
    if s.is_op("CumSum"):
        return max(a.shape, default=0)
    if s.is_op("Einsum"):
        counts = _compute_output(s, [None if x is None else np.ones_like(x) for x in s.args])
        return len(s.args) + (int(counts.max(initial=0)) if counts is not None else 0)
    if s.is_op("AveragePool"):
        kernel = s.node.attributes.get("kernel_shape")
        return int(np.prod(kernel, dtype=np.int64)) if isinstance(kernel, tuple) else 0
    if s.is_op("Conv", "ConvTranspose"):
        assert b is not None
        summed = b.shape[1:] if s.is_op("Conv") else (a.shape[1], *b.shape[2:])
        return int(np.prod(summed, dtype=np.int64))
    turned, apart = (s.node.attributes.get(name) for name in ("transA", "transBatchA"))
    return int(a.shape[-1 if not turned or a.ndim == 1 else 0 if apart else -2])


def _sizes(s: Suspect) -> Array | None:
    """The same sums, of the magnitudes of the terms; None if the kernel refuses the node."""
    if s.is_op("MatMulNBits"):
        return block_sizes(s)
    places = SUMS[s.node.op_type] or range(len(s.args))
    return _compute_output(s, [np.abs(a) if a is not None and index in places else a for index, a in enumerate(s.args)])


def block_sizes(s: Suspect) -> Array:
    """The sums of the magnitudes of a MatMulNBits's products, bias included, as float64."""
    a, *rest = (*s.args, None, None, None)[:6]
    assert a is not None
    given: dict[str, Any] = {"bits": 4, **s.node.attributes}
    weights = check_weights(a, rest, [given[name] for name in ("K", "N", "bits", "block_size")], 0)
    rows = np.abs(a.reshape(-1, given["K"])).astype(np.float64)
    bias = 0.0 if rest[4] is None else np.abs(rest[4]).astype(np.float64)
    return np.asarray((rows @ np.abs(weights.values(given["K"])).astype(np.float64).T + bias).reshape(s.mine.shape))


def _compute_output(s: Suspect, args: Sequence[Array | None]) -> Array | None:
    """The node's output for other inputs; alpha and beta are taken as positive."""
    factors = {k: abs(v) for k, v in s.node.attributes.items() if k in ("alpha", "beta") and isinstance(v, float)}
    outputs = compute_node(replace(s.node, attributes={**s.node.attributes, **factors}), args)
    return None if outputs is None else outputs[s.node.outputs.index(s.tensor)]


_SPEC = "ONNX operators, Conv and MaxPool: auto_pad; onnx shape inference clamps the padding at 0"


@cause("negative-padding", rank=22, source=_SPEC)
def negative_padding(s: Suspect) -> Iterator[Hypothesis]:
    """With auto_pad SAME_* and strides longer than the kernel, the computed padding is negative. The runtime crops the
    input by it.

    To confirm: Replace auto_pad with explicit pads of 0. The difference disappears.

    To do: Replace auto_pad with explicit pads.
    """
    x, auto_pad = (s.args[0] if s.args else None), s.node.attributes.get("auto_pad")
    w = s.arg("w")
    if x is None or x.ndim < 3 or auto_pad not in ("SAME_UPPER", "SAME_LOWER") or s.definition is None:
        return
    rank = x.ndim - 2
    kernel = s.node.attributes.get("kernel_shape") or (w.shape[2:] if w is not None else ())
    strides = s.node.attributes.get("strides") or (1,) * rank
    dilations = s.node.attributes.get("dilations") or (1,) * rank
    if not isinstance(kernel, tuple) or not isinstance(strides, tuple) or not isinstance(dilations, tuple):
        return
    cut = []
    for size, k, step, apart in zip(x.shape[2:], kernel, strides, dilations, strict=True):
        total = (-(-size // step) - 1) * step + (k - 1) * apart + 1 - size
        if total > 0:
            return
        half = -total // 2
        cut.append(half if auto_pad == "SAME_UPPER" else -total - half)
    if any(cut):
        cropped = np.ascontiguousarray(x[(slice(None), slice(None), *(slice(c, None) for c in cut))])
        yield from recompute(
            s.evaluate(attributes={"auto_pad": "VALID"}, inputs={s.definition.inputs[0].name: cropped}),
            f"negative padding crops {cut[0] if len(cut) == 1 else cut} elements at the start",
        )


_TRIES = 3


@cause("empty-sum", rank=5, source="numerics: a product over K = 0 is y_zero_point, or the bias")
def empty_sum(s: Suspect) -> Iterator[Hypothesis]:
    """A sum without terms is 0, whatever the data. The other side returns something else.

    qrun fills and frees memory of the result's size, then runs the other side again. If the result changes, it is
    uninitialised memory. If it does not, the runtime may have returned the int32 sum unconverted, or written nothing.

    To confirm: An input has a 0 in its shape along the summed axis. Run the other side twice with other memory in use;
    the values may change.

    To do: Do not feed this runtime tensors with an empty summed axis, or remove the node from the graph. Report the bug
    to the runtime's maintainers.
    """
    operands = [a for a in s.args[:6] if a is not None and a.ndim > 1]
    if s.theirs is None or not s.mine.size or not operands or all(a.size for a in operands):
        return
    start = "the sum has no terms (K = 0), so the result cannot depend on the data"
    if _changes(s):
        yield Hypothesis(None, f"{start}; the result changes from run to run: uninitialised memory")
        return
    for bias in (s.arg("C"), s.arg("bias"), s.arg("B")):
        if bias is not None and s.mine.dtype == np.float32 and bias.dtype == np.int32:
            raw = np.ascontiguousarray(np.broadcast_to(bias, s.mine.shape)).view(np.float32)
            if s.is_explained_by(raw):
                yield Hypothesis(raw, f"{start}; the bits of the int32 bias are returned as float32")
                return
    zeros = np.zeros_like(s.mine)
    text = (
        "all elements are 0, like fresh memory: nothing was computed"
        if s.is_explained_by(zeros)
        else "the result is arbitrary"
    )
    yield Hypothesis(None, f"{start}; {text}")


def _changes(s: Suspect) -> bool:
    """Does the other side's result change after memory of this size was filled with other bytes?"""
    if s.again is None:
        return False
    for fill in range(1, _TRIES + 1):
        held = [np.full(max(s.mine.nbytes, 1) * size, 85 * fill % 256, np.uint8) for size in (1, 1, 2, 4, 8)]
        del held
        made = s.again()
        if made is not None and s.theirs is not None and not same(made, s.theirs):
            return True
    return False


_ARITHMETICS: tuple[Arith, ...] = ("exact", "ort")
_LEFT_OUT = ("auto_pad", "pads", "ceil_mode", "count_include_pad")


@cause("pool-divisor", rank=24, source="ONNX operators, AveragePool-22: count_include_pad and ceil_mode")
def pool_divisor(s: Suspect) -> Iterator[Hypothesis]:
    """The pool divides a window's sum by the wrong number of elements. It counts padding that it must not count,
    ignores padding that it must count, or treats a window that reaches past the padding as full.

    To confirm: Only windows at the border differ. Without pads and with ceil_mode 0 the difference disappears.

    To do: Put a Pad node before the pool, and remove pads and ceil_mode from the pool. Every window is then full.
    """
    if s.fused_node is not None and s.fused_node.is_op("QLinearAveragePool"):
        yield from pool_divisor.function(s.fused_node)
    if not s.is_op("AveragePool", "QLinearAveragePool") or s.theirs is None or not s.args or s.args[0] is None:
        return
    for node, x, text in _divide(s, s.args[0]):
        args = [x, *s.args[1:]]
        exact, own = compute_node(node, args), s.evaluate()
        if exact is None or own is None or same(exact[0], own):
            continue  # no window has another divisor
        for arith in _ARITHMETICS:
            made = compute_node(node, args, arith)
            if made is not None and made[0].shape == s.mine.shape:
                yield Hypothesis(made[0], text)
        share = _share(s, node, args)
        if share is not None:
            yield Hypothesis(None, f"{text}; the rest is {part(share)} of the rounding-error bound of float32 sums")


def _divide(s: Suspect, x: Array) -> Iterator[tuple[Node, Array, str]]:
    """Yield the node with each other divisor: the changed node, its input, and a description."""
    a = s.node.attributes
    included = bool(a.get("count_include_pad", 0))
    other = replace(s.node, attributes={**a, "count_include_pad": int(not included)})
    counts = "does not count padding in the divisor, although count_include_pad is 1"
    yield other, x, counts if included else "counts padding in the divisor, although count_include_pad is 0"
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
    yield whole, padded, f"divides by all {size} elements of the kernel, even in windows that reach past the input"


def _share(s: Suspect, node: Node, args: list[Array | None]) -> float | None:
    """The other side's largest distance from this divisor's means, as a share of the error bound of float32 sums in any
    order; None if it is beyond the bound, or if qrun's result is within the bound too."""
    x = args[0]
    if s.theirs is None or s.theirs.dtype != np.float32 or x is None or x.dtype != np.float32:
        return None
    made, size = compute_node(node, args), compute_node(node, [np.abs(x), *args[1:]])
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
