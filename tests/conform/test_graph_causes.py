"""Deviations that all nodes of a graph share, planted in the model, which qrun runs: the cause names them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from defects.graphs import Change, answers, constant, maker, nodes
from onnx import TensorProto, helper, numpy_helper

from qrun.conform.judge import judge_case
from qrun.conform.results import CaseResult
from qrun.conform.runtimes import Response
from qrun.conform.suite import Suite

SUITE = Suite()
RANGES = {TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255)}
BEFORE = "adds the zero point before rounding in "
BIAS = "takes the codes of the bias as multiples of x_scale * w_scale instead of its own scale"


def zero_before(model: onnx.ModelProto) -> bool:
    """Each QuantizeLinear is Div, Add of the zero point, Round, Clip and Cast."""
    made: list[onnx.NodeProto] = []
    for node in model.graph.node:
        zero = constant(model, node.input[2]) if node.op_type == "QuantizeLinear" and len(node.input) > 2 else None
        if zero is None:
            made.append(node)
            continue
        y, low_high = node.output[0], RANGES[zero.data_type]
        wide = (numpy_helper.to_array(zero), *low_high)
        names = [f"{y}_{name}" for name in ("zero", "low", "high")]
        parts = zip(wide, names, strict=True)
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v, np.float32), n) for v, n in parts)
        made += [
            helper.make_node("Div", node.input[:2], [f"{y}_1"]),
            helper.make_node("Add", [f"{y}_1", names[0]], [f"{y}_2"]),
            helper.make_node("Round", [f"{y}_2"], [f"{y}_3"]),
            helper.make_node("Clip", [f"{y}_3", *names[1:]], [f"{y}_4"]),
            helper.make_node("Cast", [f"{y}_4"], [y], to=zero.data_type),
        ]
    changed = len(made) > len(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(made)
    return changed


def bias_of_sums(model: onnx.ModelProto) -> bool:
    """The codes of each bias have the scale of the integer sums."""
    changed = False
    for node in nodes(model, "Conv"):
        parts = [maker(model, name) for name in node.input]
        if len(parts) < 3 or any(part is None for part in parts):
            continue
        scales = [constant(model, part.input[1]) for part in parts if part is not None]
        x, w, b = (numpy_helper.to_array(tensor) for tensor in scales if tensor is not None)
        changed |= not np.array_equal(x * w, b)
        assert scales[2] is not None
        scales[2].CopyFrom(numpy_helper.from_array((x * w).astype(np.float32), scales[2].name))
    return changed


def renamed(op: str, other: str) -> Change:
    def change(model: onnx.ModelProto) -> bool:
        found = nodes(model, op)
        for node in found:
            node.op_type = other
        return bool(found)

    return change


def inner_pairs_skipped(model: onnx.ModelProto) -> bool:
    """Each DequantizeLinear after a QuantizeLinear gives what that one read."""
    changed = False
    for node in nodes(model, "DequantizeLinear"):
        source = maker(model, node.input[0])
        if source is not None and source.op_type == "QuantizeLinear":
            for reader in model.graph.node:
                for at, name in enumerate(reader.input):
                    if name == node.output[0]:
                        reader.input[at], changed = source.input[0], True
    return changed


def together(changes: Sequence[Change]) -> Change:
    return lambda model: all([change(model) for change in changes])  # noqa: C419 - each of them


def results(words: str, *changes: Change) -> Sequence[CaseResult]:
    """The judged cases that all these defects change."""
    found = []
    for info in SUITE.select([words]):
        case = SUITE.load(info)
        made = answers(case, together(changes))
        result = None if made is None else judge_case(case, Response(dict(made)))
        if result is not None and result.verdict != "exact":
            found.append(result)
    return found


@pytest.mark.parametrize(
    ("words", "changes", "texts"),
    [
        ("graph.conv-13/residual", [zero_before], [f"{BEFORE}every QuantizeLinear"]),
        ("graph.conv-13/chain", [zero_before, bias_of_sums], [f"{BEFORE}every QuantizeLinear", BIAS]),
        ("graph.elementwise-13/qdq", [renamed("Sub", "Add")], ["computes Add instead of Sub"]),
        ("graph.elementwise-13/sizes", [renamed("Sub", "Add"), zero_before], ["computes Add instead of Sub"]),
        ("graph.conv-13/residual", [inner_pairs_skipped], ["skips each QuantizeLinear whose codes"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_shared_deviation_is_named(words: str, changes: list[Change], texts: list[str]) -> None:
    found = results(words, *changes)
    named = [each for each in found if each.cause == "several-nodes" and all(text in each.text for text in texts)]
    assert len(named) >= 3, [(each.id, each.cause, each.text) for each in found]
    assert all(each.proved for each in named), [(each.id, each.text) for each in named]
    unknown = [each.id for each in found if each.cause == "unknown"]
    assert not unknown


def test_a_bit_contradicts_a_shared_deviation() -> None:
    for info in SUITE.select(["graph.conv-13/batch/conv-1d-stride-dilation-ss"]):
        case = SUITE.load(info)
        made = answers(case, bias_of_sums)
        assert made is not None
        (name,) = made
        wrong = made[name].copy()
        wrong.reshape(-1)[5] ^= 4
        assert judge_case(case, Response({name: wrong})).cause == "unknown"
