"""Rules on onnxruntime's default session, which rewrites DequantizeLinear and QuantizeLinear: where its results differ
from what the model says, and where it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, ints, number, scopes
from qrun.comparing.rewrites import (
    Rewrite,
    StoredParameters,
    bias_rewrites,
    dequantizers_with_movers,
    int32_rewrites,
    is_quantized,
    misread_axes,
    only_reader,
    pair_rewrites,
    parameters,
    slice_rewrites,
    weight_only_rewrites,
)
from qrun.ir import Model, Node
from qrun.ir.types import shape_text

_PLAIN = 'or stop onnxruntime from rewriting them: options.add_session_config_entry("session.disable_quant_qdq", "1")'
_SPEC = "https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html"


def _rewrites(model: Model, kind: Callable[[Model], Iterator[Rewrite]]) -> Iterator[tuple[Scope, Rewrite]]:
    return ((scope, found) for scope in scopes(model) for found in kind(scope.model))


def _rewrite_finding(scope: Scope, found: Rewrite, place: str, **fields: Any) -> Finding:
    where = scope.at(found.node, f"{found.tensor} ({place})")
    return Finding(f"the default session of onnxruntime {found.text}", **where, **fields)


def _each(model: Model, kind: Callable[[Model], Iterator[Rewrite]], place: str, **fields: str) -> Iterator[Finding]:
    """Yield a finding for each rewrite; {op} in the fields is replaced by the operator."""
    for scope, found in _rewrites(model, kind):
        told = {name: text.format(op=found.node.op_type) for name, text in fields.items()}
        yield _rewrite_finding(scope, found, place, **told)


_SINCE_1_20 = "seen with onnxruntime 1.20 to 1.32."


@rule(
    "QR608",
    "warning",
    spec=_SPEC,
    fix=f"store the bias as int32 codes of x_scale * w_scale with a DequantizeLinear, {_PLAIN}",
    applies=("Conv", "ConvTranspose", "Gemm", "MatMul"),
)
def float_bias(model: Model) -> Iterator[Finding]:
    """Between DequantizeLinear and QuantizeLinear, a Conv, ConvTranspose or Gemm has a float bias, a float vector is
    added to a MatMul, or a ConvTranspose has float weights.

    Why is this bad?
        The default session of onnxruntime turns such a bias into int32 codes of x_scale * w_scale, which rounds it.
        Where the weights of a channel are close to 0, so is the product of the scales: the codes overflow int32, and
        the channel gets a wrong bias. Seen with onnxruntime 1.22 to 1.32 on x86; 1.20 leaves the bias as it is. It
        turns float weights into int8 codes with one scale. QR601 reports the float weights of Conv and Gemm.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[1,1,1,1] w = {3}, float ws = {0.5}, int8 wz = {0}, float[1] b = {0.3}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, ws, wz)
            c = Conv(xf, wf, b)
            y = QuantizeLinear(c, xs, xz)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[1,1,1,1] w = {3}, float ws = {0.5}, int8 wz = {0},
         int32[1] b = {1}, float bs = {0.25}, int32 bz = {0}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, ws, wz)
            bf = DequantizeLinear(b, bs, bz)
            c = Conv(xf, wf, bf)
            y = QuantizeLinear(c, xs, xz)
        }
    """
    for scope, found in _rewrites(model, bias_rewrites):
        node, overflows = found.node, "overflow" in found.text
        weights = any(array.dtype == np.int8 and array.ndim for array in found.constants.values())
        if weights and node.op_type != "ConvTranspose":
            continue  # QR601 reports float weights
        place = node.inputs.index(found.tensor)
        is_bias = place != 1 or node.op_type == "Add"
        larger = f"use a larger scale for the weights of that channel, {_PLAIN}"
        yield _rewrite_finding(
            scope,
            found,
            f"input {place}",
            expected=f"stored codes of {'int32, scale x_scale * w_scale' if is_bias else 'int8'}, and a DequantizeLinear",
            got="float32, stored",
            why="seen with onnxruntime 1.22 to 1.32; 1.20 leaves the bias as it is." if is_bias else _SINCE_1_20,
            fix=larger if overflows else "" if is_bias else f"quantize the weights, {_PLAIN}",
            cause="" if overflows else "QR608",
        )


@rule("QR609", "error", spec=_SPEC, fix=f"express the nodes differently, {_PLAIN}", replaces=("QR317", "QR601"))
def default_session_fails(model: Model) -> Iterator[Finding]:
    """The default session of onnxruntime rewrites the nodes into others that it refuses, or that fail in every run.

    These forms fail: weights of Conv whose scales are neither one nor one per output channel; such weights of MatMul
    after DequantizeLinear and not before QuantizeLinear, or its activations with one scale per slice of an axis; int32
    codes with a zero point, dequantized before Reshape, Transpose, Squeeze, Unsqueeze, Slice or MaxPool; output_dtype
    int8 with a zero point; AveragePool with dilations; one scale per slice of an axis before or after Conv, Sigmoid,
    LeakyRelu, AveragePool, GlobalAveragePool or Where.

    Why is this bad?
        The specification allows the model, and onnxruntime runs it as written with its optimizations off. With default
        settings, the session does not start, or fails on the first input. Seen with onnxruntime 1.20 to 1.32 on x86.

    Bad
        main (uint8[1,2,2,2] x) => (uint8[1,3,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[3,2,1,1] w = {1, 2, 3, 4, 5, 6}, float[2] ws = {0.5, 0.25},
         int8[2] wz = {0, 0}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear<axis = 1>(w, ws, wz)
            c = Conv(xf, wf)
            y = QuantizeLinear(c, xs, xz)
        }

    Good
        main (uint8[1,2,2,2] x) => (uint8[1,3,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[3,2,1,1] w = {1, 2, 3, 4, 5, 6}, float[3] ws = {0.5, 0.25, 0.5},
         int8[3] wz = {0, 0, 0}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear<axis = 0>(w, ws, wz)
            c = Conv(xf, wf)
            y = QuantizeLinear(c, xs, xz)
        }
    """
    for scope in scopes(model):
        for judge in (_other_axes, _moved_codes, _int8_outputs, _dilated_pools, _sliced_activations):
            yield from judge(scope)


def _fails(scope: Scope, node: Node, tensor: str, got: str, expected: str, fix: str, *, runs: bool) -> Finding:
    how = "fails in each run of it" if runs else "does not start"
    return Finding(
        f"the default session of onnxruntime {how}: {got}",
        **scope.at(node, tensor),
        expected=expected,
        got=got,
        why="seen with onnxruntime 1.20 to 1.32; with optimizations off it runs the model.",
        fix=f"{fix}, {_PLAIN}",
    )


def _other_axes(scope: Scope) -> Iterator[Finding]:
    for node, w, axis, size in misread_axes(scope.model):
        if w.scale.size == size and (node.op_type != "MatMul" or len(scope.shape(w.node.inputs[0]) or ()) == 2):
            continue  # it runs, and computes something else: QR317
        codes = w.node.inputs[0]
        got = f"{w.scale.size} scales along axis {axis} of its weights {codes} {shape_text(scope.shape(codes) or ())}"
        expected = f"one scale, or one for each of {size} output channels"
        named = f"{node.op_type} {node.label} with {got}"
        yield _fails(scope, w.node, codes, named, expected, "quantize along the output channels", runs=True)


def _moved_codes(scope: Scope) -> Iterator[Finding]:
    for p, mover in dequantizers_with_movers(scope.model):
        if p.zero is not None and scope.dtype(p.node.inputs[0]) == np.int32:
            got = f"{mover.op_type} of int32 codes {p.node.inputs[0]} that {p.node.label} dequantized with a zero point"
            fix = f"put {mover.op_type} before {p.node.label}"
            yield _fails(scope, mover, p.node.outputs[0], got, "int32 codes that are moved first", fix, runs=False)


def _int8_outputs(scope: Scope) -> Iterator[Finding]:
    for node in scope.model.nodes:
        p = parameters(scope.model, node, "QuantizeLinear") if number(node, "output_dtype") else None
        reader = only_reader(scope.model, node) if p is not None else None
        dequantized = reader is not None and reader.op_type == "DequantizeLinear"
        if p is not None and p.is_scalar and p.zero is not None and p.zero.dtype == np.int8 and dequantized:
            got = "QuantizeLinear with output_dtype int8 and a zero point"
            yield _fails(scope, node, node.outputs[0], got, "one of the two", "remove output_dtype", runs=False)


def _dilated_pools(scope: Scope) -> Iterator[Finding]:
    for node, _, _ in _groups(scope, ("AveragePool",)):
        dilations = ints(node, "dilations")
        if dilations:
            got = f"AveragePool with dilations {list(dilations)} between DequantizeLinear and QuantizeLinear"
            fix = "keep its tensors in float" if any(d != 1 for d in dilations) else "remove dilations"
            yield _fails(scope, node, node.outputs[0], got, "AveragePool without dilations", fix, runs=False)


_ONE_SCALE = {"Conv": True, "GlobalAveragePool": True} | dict.fromkeys(
    ("Sigmoid", "LeakyRelu", "AveragePool", "Where"), False
)
"""Operators whose integer form has one scale per tensor. The value: does the session start and then fail in a run?"""


def _sliced_activations(scope: Scope) -> Iterator[Finding]:
    for node, before, after in _groups(scope, tuple(_ONE_SCALE)):
        sides = [before[:1] if node.op_type == "Conv" else before, [after]]
        sliced = next((p for side in sides for p in side if not p.is_scalar), None)
        if sliced is not None:
            yield _sliced_finding(scope, node, sliced, runs=_ONE_SCALE[node.op_type])
    for node in scope.model.nodes:
        if node.op_type == "MatMul" and not node.domain and not is_quantized(scope.model, node):
            x, w = (parameters(scope.model, scope.model.producers.get(name)) for name in node.inputs)
            if x is not None and w is not None and not x.is_scalar and _is_small(scope, [x, w]):
                yield _sliced_finding(scope, node, x, runs=True)


def _sliced_finding(scope: Scope, node: Node, sliced: StoredParameters, *, runs: bool) -> Finding:
    made = sliced.node.outputs[0]
    got = f"{node.op_type} with one scale per slice of {made}, {sliced.scale.size} in all"
    return _fails(scope, node, made, got, "one scale", "use one scale", runs=runs)


def _groups(
    scope: Scope, operators: tuple[str, ...]
) -> Iterator[tuple[Node, list[StoredParameters], StoredParameters]]:
    """Yield each of these operators between DequantizeLinear and QuantizeLinear of 8 bits, with their parameters."""
    model = scope.model
    for node in model.nodes:
        if node.op_type not in operators or node.domain or not node.outputs:
            continue
        after = parameters(model, only_reader(model, node), "QuantizeLinear")
        names = node.inputs[1:] if node.op_type == "Where" else node.inputs[:2]
        before = [p for p in (parameters(model, model.producers.get(name)) for name in names) if p is not None]
        if after is not None and len(before) == len(names) and _is_small(scope, before, after.node.outputs):
            yield node, before, after


def _is_small(scope: Scope, before: Sequence[StoredParameters], results: Sequence[str] = ()) -> bool:
    """Do the tensors that are dequantized and these results all have 8 bits?"""
    types = [scope.dtype(name) for name in (*(p.node.inputs[0] for p in before), *results)]
    return all(dtype in (np.int8, np.uint8) for dtype in types)


@rule(
    "QR610",
    "warning",
    spec=_SPEC,
    fix='in the session options, add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1") keeps both '
    "in float",
    applies=("MatMul", "Gemm"),
)
def rounded_activations(model: Model) -> Iterator[Finding]:
    """A float tensor is multiplied by dequantized weights of 8 bits or fewer, and is not quantized to 8 bits itself.

    Why is this bad?
        onnxruntime's default session turns the two nodes into MatMulNBits with accuracy_level 4. That rounds the
        float tensor to int8 in blocks, which the model does not ask for. Seen with onnxruntime 1.20 to 1.32 for blocks
        of 2 and 4 bits before MatMul, and with 1.31 and 1.32 for one scale per column or tensor, 8 bits, and Gemm.
        Where QuantizeLinear to 8 bits reads the result, 1.32 leaves both nodes as they are.

    Bad
        main (float[1,2] x) => (float[1,2] y)
        <int8[2,2] w = {1, 2, 3, 4}, float s = {0.5}>
        {
            wf = DequantizeLinear(w, s)
            y = MatMul(x, wf)
        }

    Good
        main (uint8[1,2] x) => (float[1,2] y)
        <int8[2,2] w = {1, 2, 3, 4}, float s = {0.5}, float xs = {0.25}, uint8 xz = {128}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, s)
            y = MatMul(xf, wf)
        }
    """
    yield from _each(
        model,
        weight_only_rewrites,
        "input 0",
        expected="activations that stay float",
        got="accuracy_level 4",
        why="seen with onnxruntime 1.31 and 1.32; earlier ones do so for blocks of 4 bits before MatMul only.",
        cause="QR610",
    )


@rule(
    "QR611",
    "warning",
    spec=_SPEC,
    fix="remove one of the pairs, or give both the same scale and zero point",
    applies=("QuantizeLinear",),
    replaces=("QR320",),
)
def merged_pairs(model: Model) -> Iterator[Finding]:
    """A QuantizeLinear-DequantizeLinear pair is followed immediately by another with a different scale or zero point.

    Why is this bad?
        The model rounds twice. The default session of onnxruntime rounds once: it merges both pairs into one, with the
        range that they share. Seen with onnxruntime 1.20 to 1.32.

    Bad
        main (float[4] x) => (float[4] y)
        <float s = {0.03}, uint8 z = {128}, float t = {0.05}>
        {
            a = QuantizeLinear(x, s, z)
            b = DequantizeLinear(a, s, z)
            c = QuantizeLinear(b, t, z)
            y = DequantizeLinear(c, t, z)
        }

    Good
        main (float[4] x) => (float[4] y)
        <uint8 z = {128}, float t = {0.05}>
        {
            c = QuantizeLinear(x, t, z)
            y = DequantizeLinear(c, t, z)
        }
    """
    yield from _each(
        model,
        pair_rewrites,
        "input 0, x",
        expected="one pair, or two with the same scale and zero point",
        got="two pairs with different scales or zero points",
        why=_SINCE_1_20,
    )


@rule(
    "QR612",
    "warning",
    spec=_SPEC,
    fix=f"move the codes first and dequantize them afterwards, {_PLAIN}",
    applies=("DequantizeLinear",),
    replaces=("QR607",),
)
def moved_codes(model: Model) -> Iterator[Finding]:
    """int32 codes without a zero point are dequantized before an operator that only moves elements.

    Why is this bad?
        The default session of onnxruntime repeats the pair after Reshape, Transpose, Squeeze, Unsqueeze, Slice and
        MaxPool, and QuantizeLinear without a zero point makes uint8: codes below 0 become 0, and codes above 255 become
        255. With a zero point, the session does not start (QR609). Seen with onnxruntime 1.20 to 1.32.

    Bad
        main (int32[2,2] b) => (float[4] y)
        <float s = {0.01}, int64[1] shape = {4}>
        {
            f = DequantizeLinear(b, s)
            y = Reshape(f, shape)
        }

    Good
        main (int32[2,2] b) => (float[4] y)
        <float s = {0.01}, int64[1] shape = {4}>
        {
            c = Reshape(b, shape)
            y = DequantizeLinear(c, s)
        }
    """
    yield from _each(
        model,
        int32_rewrites,
        "output 0",
        expected="{op} of int32 codes, then DequantizeLinear",
        got="DequantizeLinear before {op}",
        why=_SINCE_1_20,
    )


@rule("QR613", "warning", spec=_SPEC, fix=f"use one scale, {_PLAIN}", applies=("Softmax",), replaces=("QR602",))
def first_scale_only(model: Model) -> Iterator[Finding]:
    """A Softmax between DequantizeLinear and QuantizeLinear has a result with one scale per slice of an axis.

    Why is this bad?
        The default session of onnxruntime turns the three nodes into QLinearSoftmax. It quantizes all slices with the
        scale and the zero point of the first one. Seen with onnxruntime 1.32.

    Bad
        main (uint8[2,2] x) => (uint8[2,2] y)
        <float s = {0.05}, uint8 z = {128}, float[2] t = {0.004, 0.002}, uint8[2] tz = {0, 0}>
        {
            f = DequantizeLinear(x, s, z)
            c = Softmax(f)
            y = QuantizeLinear(c, t, tz)
        }

    Good
        main (uint8[2,2] x) => (uint8[2,2] y)
        <float s = {0.05}, uint8 z = {128}, float t = {0.004}, uint8 tz = {0}>
        {
            f = DequantizeLinear(x, s, z)
            c = Softmax(f)
            y = QuantizeLinear(c, t, tz)
        }
    """
    yield from _each(
        model,
        slice_rewrites,
        "output 0",
        expected="one scale",
        got="one scale per slice",
        why="seen with onnxruntime 1.32.",
    )
