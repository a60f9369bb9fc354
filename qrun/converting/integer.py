"""Turns products of quantized tensors into ConvInteger and MatMulInteger, an int32 bias, and a requantization that
computes with integers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.arithmetics.family import Arithmetic, Scales
from qrun.converting.conversion import (
    CLIP,
    DIFFERS,
    EQUAL,
    NOT_EQUAL,
    Agreement,
    ConvertedModel,
    Group,
    KeptNode,
    NewTensors,
)
from qrun.converting.elsewhere import refused_groups
from qrun.converting.qoperator import to_qoperator
from qrun.converting.requantize import DOMAIN, constants, name_of
from qrun.converting.verdicts import OperandRange, Values, bias_of, product_sums, quantized_tensors
from qrun.ir import Array, Model, Node
from qrun.ir.schema import version
from qrun.ir.types import NUMBERS
from qrun.native.proof.search import exact_steps
from qrun.ops._quantized import bias, operands, quantizers
from qrun.passes._qdq import FORMS
from qrun.passes._shapes import known_shapes
from qrun.shapes import broadcast_shapes

_PRODUCTS = ("Conv", "MatMul", "Gemm")
_INTEGER = ("QLinearConv", "QLinearMatMul", "QGemm")
_NOT_PRODUCT = "only Conv, MatMul and Gemm have this form"
_INT32 = 2**31


class _Refused(Exception):
    """Raised where an operator stays; the text says why."""


def to_integer(model: Model, family: Arithmetic, *, strict: bool = False) -> ConvertedModel:
    """The model with products as ConvInteger or MatMulInteger, whose sums a family's arithmetic requantizes. strict:
    only those whose codes are the same for all inputs."""
    refused = {
        name: _NOT_PRODUCT
        for node in model.nodes
        if node.op_type in FORMS and node.op_type not in _PRODUCTS
        for name in node.outputs
    }
    kept: dict[str, str] = {}
    while True:
        writer = _Writer(to_qoperator(model, refused=refused), family, strict, kept)
        made = writer.convert()
        unrun = refused_groups(made)
        if not writer.refused and not unrun:
            return made
        refused |= writer.refused
        kept |= unrun


class _Writer:
    """The new nodes and constants. kept: reasons why groups stay, by their output. refused: the groups of the source
    that stay in float, as for `to_qoperator`."""

    def __init__(self, base: ConvertedModel, family: Arithmetic, strict: bool, kept: Mapping[str, str]) -> None:
        self.base = base
        self.family = family
        self.strict = strict
        self.kept = kept
        self.refused: dict[str, str] = {}
        self.tensors = NewTensors(base.model, base.source)
        self.values = Values(base.model.constant, known_shapes(base.source).get)

    def convert(self) -> ConvertedModel:
        """The conversion."""
        base, nodes, groups, left = self.base, list[Node](), list[Group](), list(self.base.left)
        old = {group.new[0].outputs[0]: group for group in base.groups}
        limits = {name for group in base.groups for node in group.new[1:] for name in node.outputs}
        for node in base.model.nodes:
            if node.op_type not in _INTEGER:
                nodes += [] if limits.intersection(node.outputs) else [node]
                if node.op_type != "QuantizeLinear" and any(each.is_output for each in quantizers(node)):
                    left.append(KeptNode(node.label, node.op, _NOT_PRODUCT))
                continue
            source = old.get(node.outputs[0])
            try:
                groups.append(self._group(node, source))
                nodes += groups[-1].new
            except _Refused as reason:
                if source is None:
                    nodes.append(node)
                    left.append(KeptNode(node.label, node.op, str(reason)))
                else:
                    floats = (each for each in source.old if each.label == source.name)
                    self.refused |= {name: str(reason) for each in floats for name in each.outputs}
        opsets = {**base.model.opsets, **({DOMAIN: 1} if groups else {})}
        model = replace(self.tensors.model(nodes), opsets=opsets)
        return ConvertedModel("integer", base.source, model, tuple(groups), tuple(left), self.family.name)

    def _group(self, node: Node, source: Group | None) -> Group:
        """The group of a QLinearConv, QLinearMatMul or QGemm. source: its QDQ form, if the file has that."""
        output = source.output if source else node.outputs[0]
        if output in self.kept:
            raise _Refused(self.kept[output])
        if self.base.model.opsets.get("", 1) < CLIP:
            raise _Refused(f"requantization by integers takes opset {CLIP}")
        self._check_constants(node)
        x, w, y = quantized_tensors(node, self.values)
        if max(x.scale.size, x.zero.size, y.scale.size, y.zero.size) > 1 or any(
            each.size > 1 and each.ndim > 1 for each in (w.scale, w.zero)
        ):
            raise _Refused("it has scales or zero points beside those of tensors and output channels")
        if not (x.scale > 0).all() or not (w.scale > 0).all() or not (y.scale > 0).all():
            raise _Refused("a scale is not positive")
        literal = source.old if source else ()
        sums = product_sums(node, literal, self.values)
        if sums.low.min(initial=0) < -_INT32 or sums.high.max(initial=0) >= _INT32:
            raise _Refused("its sums may leave int32")
        info = np.iinfo(y.zero.dtype)
        low, high = int(info.min), int(info.max)
        if source and source.new[1:]:
            low, high = (int(np.asarray(self.values.constant(name)).item()) for name in source.new[1].inputs[1:3])
        apart = deviation(self.family, (x, w, y), sums.low, sums.high, (low, high))
        verdict = _verdict(self.family, apart, source)
        if self.strict and verdict.kind != EQUAL:
            raise _Refused(f"{NOT_EQUAL}: {verdict.reason}")
        nodes, acc = self._sums(node, (x, w, y))
        nodes.append(self._requantize(node, (x, w, y), acc, output, (low, high)))
        op = source.op if source else node.op
        becomes = "ConvInteger" if node.op_type == "QLinearConv" else "MatMulInteger"
        return Group(node.label, op, becomes, output, literal or (node,), tuple(nodes), verdict)

    def _check_constants(self, node: Node) -> None:
        """Raise _Refused unless scales, zero points, weights and bias are constants."""
        used = quantizers(node)
        names = [slot.tensor for q in used for slot in (q.scale, q.zero_point) if slot]
        names += [operands(node)[1][0], *([added.bias.tensor] if (added := bias(node)) else [])]
        if any(self.values.constant(name) is None for name in names) or any(q.scale is None for q in used):
            raise _Refused("its weights, bias, scales or zero points are not all constant")
        if not any(q.is_output for q in used):
            raise _Refused("its result is not quantized")
        if node.attributes.get("alpha", 1.0) != 1 or node.attributes.get("transA", 0):
            raise _Refused("alpha is not 1, or A is transposed")

    def _sums(self, node: Node, tensors: tuple[OperandRange, OperandRange, OperandRange]) -> tuple[list[Node], str]:
        """The nodes that make the int32 sums, with the bias; and the sums' name."""
        x, w, _ = tensors
        conv, nodes, name, zero = node.op_type == "QLinearConv", list[Node](), x.name, x.zero.reshape(())
        if conv and x.zero.dtype == np.int8:  # onnxruntime has ConvInteger of uint8 alone
            nodes, name = self._unsigned(x.name)
            zero = (zero.astype(np.int16) + 128).astype(np.uint8)
        weights = np.asarray(self.values.constant(w.name))
        if node.attributes.get("transB", 0):
            weights_name = self.tensors.add(np.ascontiguousarray(weights.T), f"{w.name}_transposed")
        else:
            weights_name = w.name
        if conv and w.zero.any() and w.zero.size > 1:
            raise _Refused("its weights have several zero points")
        inputs = [name, weights_name, self.tensors.add(zero, f"{x.name}_zero_point")]
        if w.zero.any():
            inputs.append(
                self.tensors.add(w.zero.reshape(-1) if w.zero.size > 1 else w.zero.reshape(()), f"{w.name}_zero_point")
            )
        acc = self.tensors.name(f"{node.outputs[0]}_sum")
        kind = "ConvInteger" if conv else "MatMulInteger"
        kept = node.attributes if conv else {}
        nodes.append(self._node(kind, inputs, acc, kept, node.label))
        added = bias_of(node, self.values)
        if added.any():
            shaped = added.astype(np.int32).reshape(_channels(weights, conv))
            biased = self.tensors.name(f"{node.outputs[0]}_biased")
            nodes.append(self._node("Add", [acc, self.tensors.add(shaped, f"{node.outputs[0]}_bias")], biased))
            acc = biased
        return nodes, acc

    def _unsigned(self, name: str) -> tuple[list[Node], str]:
        """Nodes that shift int8 codes by 128 to uint8."""
        wide, raised, codes = (self.tensors.name(f"{name}_{what}") for what in ("int32", "raised", "uint8"))
        offset = self.tensors.add(np.array(128, np.int32), "offset_128")
        nodes = [
            self._node("Cast", [name], wide, {"to": 6}),
            self._node("Add", [wide, offset], raised),
            self._node("Cast", [raised], codes, {"to": 2}),
        ]
        return nodes, codes

    def _requantize(
        self,
        node: Node,
        tensors: tuple[OperandRange, OperandRange, OperandRange],
        acc: str,
        output: str,
        limits: tuple[int, int],
    ) -> Node:
        """The call of the family's function."""
        x, w, y = tensors
        conv = node.op_type == "QLinearConv"
        shape = _channels(np.asarray(self.values.constant(w.name)), conv) if w.scale.size != 1 else ()
        scales = Scales(x.scale.reshape(()), w.scale.reshape(shape), y.scale.reshape(()))
        low = limits[0] if self.family.low is None else max(limits[0], self.family.low)
        values = {
            **constants(self.family, scales),
            "zero": np.int64(y.zero.item()),
            "low": np.int64(low),
            "high": np.int64(limits[1]),
        }
        names = [self.tensors.add(np.asarray(value), f"{output}_{what}") for what, value in values.items()]
        made = self._node(name_of(self.family), [acc, *names], output, {"to": NUMBERS[y.zero.dtype]})
        return replace(made, domain=DOMAIN, version=1, name=f"{node.label}_requantize")

    def _node(self, op_type: str, inputs: list[str], output: str, attributes: Any = None, name: str = "") -> Node:
        number = version("", op_type, self.base.model.opsets.get("", 1))
        return Node(-1, name or output, "", op_type, number, tuple(inputs), (output,), attributes or {})


def _channels(weights: Array, conv: bool) -> tuple[int, ...]:
    """The shape with which one number for each output channel broadcasts with the sums."""
    return (-1, *[1] * (weights.ndim - 2)) if conv else (-1,)


def _verdict(family: Arithmetic, apart: int | None, source: Group | None) -> Agreement:
    """The verdict on a group, from the family's distance to the exact codes and the verdict on its QDQ form."""
    if apart is None:
        return Agreement(DIFFERS, None, f"{family.name} may wrap")
    if apart:
        reason = f"{family.name} is up to {apart} from the exact code"
    else:
        reason = f"{family.name} gives the exact code of every sum"
    if source is None:
        return Agreement(DIFFERS if apart else EQUAL, apart, reason)
    inner = source.verdict
    if not apart:
        return Agreement(inner.kind, inner.bound, f"{reason}; {inner.reason}" if inner.kind != EQUAL else reason)
    return Agreement(DIFFERS, None if inner.bound is None else apart + inner.bound, f"{reason}; {inner.reason}")


_CHANNELS = 128
"""Channels that are proved at once: about 500 sums each, in a dozen arrays of 8 bytes a sum."""


def deviation(
    family: Arithmetic,
    tensors: tuple[OperandRange, OperandRange, OperandRange],
    low: Array,
    high: Array,
    limits: tuple[int, int],
) -> int | None:
    """The largest difference of a family's codes from the exact ones, over all sums from low to high, by channel; None
    if a product may wrap.

    Both are step functions that never decrease. So the difference is largest at a step of the exact one or just below
    it, or at an end. limits: the least and the greatest code.
    """
    _, w, _ = tensors
    (count,) = broadcast_shapes(low.shape, (w.scale.size,))
    largest = 0
    for first in range(0, count, _CHANNELS):
        part = slice(first, first + _CHANNELS)
        ends = [np.broadcast_to(end, count).astype(np.int64)[part, None] for end in (low, high)]
        found = _deviation(family, tensors, np.broadcast_to(w.scale.reshape(-1), count)[part], ends, limits)
        if found is None:
            return None
        largest = max(largest, found)
    return largest


def _deviation(
    family: Arithmetic,
    tensors: tuple[OperandRange, OperandRange, OperandRange],
    scales: Array,
    ends: Sequence[Array],
    limits: tuple[int, int],
) -> int | None:
    """`deviation` of channels with these scales [N] of the weights and these ends [N,1] of the sums."""
    x, _, y = tensors
    info = np.iinfo(y.zero.dtype)
    steps = exact_steps(np.float32(x.scale.item()), scales, np.float32(y.scale.item()), info.min, int(y.zero.item()))
    at = steps.steps.astype(np.int64)
    points = np.clip(np.concatenate([at - 1, at, *ends], axis=1), *ends)
    exact = info.min + np.array([np.searchsorted(row, sums, "right") for row, sums in zip(at, points, strict=True)])
    given = Scales(x.scale.reshape(()), scales[:, None], y.scale.reshape(()))
    if (
        family.steps == "high half"
        and float((np.abs(points) * constants(family, given)["left"]).max(initial=0)) >= _INT32
    ):
        return None
    codes = family.codes(points, given, int(y.zero.item()), *limits)
    return int(np.abs(codes - np.clip(exact, *limits)).max(initial=0))
