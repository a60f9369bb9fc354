"""Every operator on arrays of 33 to 64 axes: it computes, on both backends the same, or says why it does not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.native import ISAS
from helpers.node_cases import array, cases
from helpers.nodes import NODES
from onnx import helper, numpy_helper

from qrun import QrunError, Session
from qrun.ir.schema import ML, VENDORS
from qrun.ops import REGISTRY
from qrun.shapes import broadcast_shapes

RANKS = (33, 63, 64)
ALONG = {op_type for (_, op_type), found in REGISTRY.items() if any("axis" in d.attributes for d in found)}
BACKENDS = ["reference", *["native"] * bool(ISAS)]


def graphs() -> Iterator[tuple[str, onnx.ModelProto, dict[str, np.ndarray]]]:
    """An operator's name, a model of one such node, and its inputs."""
    for op_type, group in cases().items():
        for case in group[:3] if ("", op_type) in REGISTRY else ():
            if len(case.model.graph.node) == 1 and case.data_sets:
                names = [v.name for v in case.model.graph.input]
                given = dict(zip(names, map(array, case.data_sets[0][0]), strict=True))
                if all(isinstance(value, np.ndarray) for value in given.values()):
                    yield op_type, case.model, given
    for (domain, op_type), (inputs, attributes, _) in NODES.items():
        names = [f"x{place}" if value is not None else "" for place, value in enumerate(inputs)]
        given = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True) if value is not None}
        yield op_type, model_of(helper.make_node(op_type, names, ["y"], domain=domain, **attributes), given), given


def model_of(node: onnx.NodeProto, given: dict[str, np.ndarray]) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), None)
        for n, a in given.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info(n) for n in node.output if n])
    return helper.make_model(
        graph,
        opset_imports=[
            helper.make_opsetid("", 17),
            helper.make_opsetid("com.microsoft", 1),
            *(helper.make_opsetid(domain, 1) for domain in VENDORS),
            helper.make_opsetid(ML, 5 if node.op_type == "TreeEnsemble" else 1),
        ],
    )


def raised(
    model: onnx.ModelProto, given: dict[str, np.ndarray], rank: int, fixed: bool
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The same node on the same elements with axes of one element before them; fixed: small inputs are constants."""
    made, feeds = onnx.ModelProto(), {}
    made.CopyFrom(model)
    del made.graph.input[:]
    for name, value in given.items():
        value = np.asarray(value)
        if value.ndim > 1:
            value = value.reshape((1,) * (rank - value.ndim) + value.shape)
        if fixed and value.ndim <= 1 and value.dtype != object:
            made.graph.initializer.append(numpy_helper.from_array(value, name))
            continue
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        made.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        feeds[name] = value
    for output in made.graph.output:
        if output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.ClearField("shape")
    return made, feeds


def outcome(model: onnx.ModelProto, feeds: dict[str, np.ndarray], backend: str) -> Any:
    """The results of the second and the third run, or the text of the refusal."""
    try:
        session = Session(model, backend=backend, threads=1)
        return [session.run(feeds) for _ in range(3)][1:]
    except QrunError as error:
        return f"{error.code} {error.message}"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, str) or isinstance(b, str):
        return bool(a == b)
    return all(
        alike(x, y) for one, other in zip(a, b, strict=True) for x, y in zip(one.values(), other.values(), strict=True)
    )


def alike(x: Any, y: Any) -> bool:
    if isinstance(x, list):
        return len(x) == len(y) and all(alike(one, other) for one, other in zip(x, y, strict=True))
    return bool(x.dtype == y.dtype and x.shape == y.shape and (x.dtype == object or x.tobytes() == y.tobytes()))


@pytest.mark.parametrize("rank", RANKS)
def test_every_operator_on_many_axes(rank: int) -> None:
    bad, computed = [], 0
    for op_type, model, given in graphs():
        try:
            variants = [raised(model, given, rank, fixed) for fixed in (True, False)]
        except (ValueError, TypeError, KeyError):
            continue
        for made, feeds in variants:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = [outcome(made, feeds, backend) for backend in BACKENDS]
            except Exception as error:
                bad.append(f"{op_type}: {type(error).__name__}: {error}")
                continue
            computed += not isinstance(found[0], str)
            if not same(found[0], found[-1]):
                bad.append(f"{op_type}: {str(found[0])[:90]} / {str(found[-1])[:90]}")
            elif str(found[0]).startswith("QR210"):
                bad.append(f"{op_type}: {found[0]}")
    assert not bad, f"{len(bad)} of rank {rank}:\n" + "\n".join(dict.fromkeys(bad))
    assert computed > 200


def test_every_operator_along_every_kind_of_axis() -> None:
    """The first, one between, and the last two: numpy's functions may take fewer axes along one than along another."""
    bad, ran = [], 0
    for op_type, model, given in graphs():
        if op_type not in ALONG:
            continue
        try:
            made, feeds = raised(model, given, RANKS[0], False)
        except (ValueError, TypeError, KeyError):
            continue
        (node,) = made.graph.node
        for axis in (0, RANKS[0] // 2, -2, -1):
            kept = [a for a in node.attribute if a.name != "axis"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("axis", axis)])
            try:
                found = [outcome(made, feeds, backend) for backend in BACKENDS]
            except Exception as error:
                bad.append(f"{op_type} axis {axis}: {type(error).__name__}: {error}")
                continue
            ran += not isinstance(found[0], str)
            if not same(found[0], found[-1]) or str(found[0]).startswith("QR210"):
                bad.append(f"{op_type} axis {axis}: {str(found[0])[:90]} / {str(found[-1])[:90]}")
    assert not bad, "\n".join(dict.fromkeys(bad))
    assert ran > 100


def test_every_operator_is_there() -> None:
    seen = {op_type for op_type, _, _ in graphs()}
    tensors = {op_type for (_, op_type), found in REGISTRY.items() if found[-1].compounds != "makes"}
    missing = tensors - seen  # tests/ops/test_sequences.py has those of sequences and maps
    assert not missing, missing


def test_shapes_broadcast_as_in_numpy() -> None:
    rng = np.random.default_rng(7)
    for _ in range(2000):
        shapes = [
            tuple(int(n) for n in rng.choice([0, 1, 1, 2, 3], rng.integers(0, 5)))
            for _ in range(int(rng.integers(0, 4)))
        ]
        try:
            want: Any = np.broadcast_shapes(*shapes)
        except ValueError:
            with pytest.raises(ValueError, match="do not broadcast"):
                broadcast_shapes(*shapes)
            continue
        assert broadcast_shapes(*shapes) == want
    assert broadcast_shapes((2,) + (1,) * 63, (1,) * 63 + (3,)) == (2, *(1,) * 62, 3)
