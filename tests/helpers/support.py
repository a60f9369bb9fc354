"""Shared by the tests: single-node models from numpy arrays, and other runtimes to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import qrun
from qrun.ir.types import NUMBERS

MS = "com.microsoft"


def node_model(
    op_type: str,
    inputs: Sequence[np.ndarray | np.generic | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    opset: int = 21,
    domain: str = "",
    outputs: Sequence[np.dtype | type | int] = (TensorProto.FLOAT,),
    constants: bool | Sequence[int] = False,
    ir_version: int | None = None,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and its feeds.

    op_type:   ``domain::name`` is that of a domain.
    inputs:    arrays in order; None is an omitted input. Named i0, i1, ...; outputs y0, y1, ...
    outputs:   element types of the outputs (numpy dtype or ONNX number); shapes are left open.
    constants: True, or places of the inputs that become initializers instead of graph inputs.
    """
    names, graph_inputs, initializers, feeds = [], [], [], {}
    if "::" in op_type:
        domain, _, op_type = op_type.rpartition("::")
    for place, value in enumerate(inputs):
        if value is None:
            names.append("")
            continue
        array = np.asarray(value)
        name = f"i{place}"
        names.append(name)
        if constants is True or (constants is not False and place in constants):
            initializers.append(onnx.numpy_helper.from_array(array, name))
        else:
            graph_inputs.append(helper.make_tensor_value_info(name, NUMBERS[array.dtype], array.shape))
            feeds[name] = array
    while names and not names[-1]:
        names.pop()
    made = [f"y{place}" for place in range(len(outputs))]
    numbers = [o if isinstance(o, int) else NUMBERS[np.dtype(o)] for o in outputs]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, made, name="n", domain=domain, **dict(attributes or {}))],
        "g",
        graph_inputs,
        [helper.make_tensor_value_info(name, number, None) for name, number in zip(made, numbers, strict=True)],
        initializers,
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = ir_version or min(onnx.helper.find_min_ir_version_for(opsets[:1]), onnx.IR_VERSION)
    return model, feeds


def run_qrun(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], **options: Any) -> list[np.ndarray]:
    """The outputs of qrun's reference backend, or as the options say, in graph order."""
    return list(qrun.Session(model, **{"backend": "reference", **options}).run(feeds).values())


def run_ort(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
) -> list[np.ndarray]:
    """The outputs of onnxruntime on the CPU with all graph optimizations off. Raises its exceptions."""
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(outputs, dict(feeds)))


@cache
def pairs_saturate() -> bool:
    """Whether onnxruntime on this processor adds two uint8 * int8 products in int16,
    which saturates (x86 without VNNI)."""
    inputs = [np.full((1, 2), 255, np.uint8), np.full((2, 1), 127, np.int8)]
    return int(run_ort(*node_model("MatMulInteger", inputs, outputs=[np.int32]))[0][0, 0]) != 2 * 255 * 127


def exact_pairs(weights: np.ndarray) -> np.ndarray:
    """The weights; int8 ones in 7 bits, -64 .. 63, where pairs_saturate(): onnxruntime then multiplies them exactly."""
    return weights >> 1 if weights.dtype == np.int8 and pairs_saturate() else weights


def with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with every intermediate tensor as a graph output."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    present = {v.name for v in wide.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in present:
                wide.graph.output.append(onnx.ValueInfoProto(name=name))
    return wide


def assert_equal(got: np.ndarray, want: np.ndarray, message: str = "", *, signed_zeros: bool = True) -> None:
    """Same type, shape and bits; every NaN equals every NaN, and without `signed_zeros` -0 equals 0,
    as in fractions."""
    assert got.dtype == want.dtype, f"{message}: type {got.dtype}, want {want.dtype}"
    assert got.shape == want.shape, f"{message}: shape {got.shape}, want {want.shape}"
    bits = [np.frombuffer(a.tobytes(), np.dtype((np.void, max(1, a.itemsize)))).reshape(a.shape) for a in (got, want)]
    differ = bits[0] != bits[1]
    if differ.any() and got.dtype.kind in "fcV":
        differ &= ~((got != got) & (want != want))
        if not signed_zeros:
            differ &= got != want
    if differ.any():
        first = tuple(int(i) for i in np.argwhere(differ)[0])
        raise AssertionError(
            f"{message}: {int(differ.sum())} of {got.size} differ, first at {first}: {got[first]}, want {want[first]}"
        )
