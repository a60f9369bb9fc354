"""ONNX's own node cases, in memory, through qrun.Session: every case whose operators all run.

One test runs the cases of one operator, one more those of several nodes (the expanded bodies of function operators).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from conformance.ledger import LEDGER

import qrun
from qrun.ir.schema import DOMAINS, MS, OPSETS
from qrun.ops import find, operators

OPERATORS = sorted(op_type for domain, op_type in operators() if domain != MS)
SEVERAL = "(several nodes)"
LEAST = 600
FLOATS = ("float16", "bfloat16", "float32", "float64")


@cache
def cases() -> dict[str, list[Any]]:
    """The cases that qrun claims to run, by operator."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    by_operator: dict[str, list[Any]] = {}
    for case in found:
        if claimed(case.model):
            nodes = case.model.graph.node
            by_operator.setdefault(nodes[0].op_type if len(nodes) == 1 else SEVERAL, []).append(case)
    return by_operator


def claimed(model: onnx.ModelProto) -> bool:
    """All operators run, domains and opsets known."""
    local = {(f.domain, f.name) for f in model.functions}
    used = {("" if n.domain == "ai.onnx" else n.domain, n.op_type) for n in walk(model)}
    opsets = {o.domain: o.version for o in model.opset_import}
    return (
        used - local <= set(operators()) - {("", "ImageDecoder")}  # which needs Pillow
        and opsets.get("", 7) in OPSETS
        and all(find(n.domain, n.op_type, opsets.get("", 7)) for n in walk(model) if opsets.get("", 7) < 7)
        and {domain for domain, _ in used - local} <= set(DOMAINS)
    )


def walk(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    graphs: list[Any] = [model.graph, *model.functions]
    while graphs:
        for node in graphs.pop().node:
            yield node
            graphs += [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]


def array(value: Any) -> Any:
    """The value as `run` takes it: an array; a list of them of a sequence; None of an optional that is none."""
    if value is None or isinstance(value, list):
        return value and [array(element) for element in value]
    made = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return made.astype(object) if made.dtype.kind in "US" else made


def difference(case: Any) -> str:
    """What is wrong with the outputs; empty if nothing is."""
    names = [v.name for v in case.model.graph.input]
    try:
        session = qrun.Session(case.model)
        for inputs, expected in case.data_sets:
            got = session.run({name: array(v) for name, v in zip(names, inputs, strict=True)})
            for (name, made), value in zip(got.items(), expected, strict=True):
                wrong = unequal(made, array(value), case.rtol, case.atol)
                if wrong:
                    return f"{name}: {wrong}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def unequal(got: Any, want: Any, rtol: float, atol: float) -> str:
    if got is None or want is None or isinstance(want, list):
        if want is None or not isinstance(got, list) or len(got) != len(want):
            return "" if got is want else f"{type(got)}, expected {want}"
        wrong = (unequal(g, w, rtol, atol) for g, w in zip(got, want, strict=True))
        return next(filter(None, wrong), "")
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
    if got.dtype.name in FLOATS:
        wide = (got.astype(np.float64), want.astype(np.float64))
        same = np.allclose(*wide, rtol, atol, equal_nan=True)
    elif got.dtype.kind in "cO":
        same = bool(np.all(got == want)) if got.dtype.kind == "O" else np.allclose(got, want, rtol, atol)
    else:
        same = got.tobytes() == want.tobytes()
    return "" if same else f"{got.reshape(-1)[:12]}, expected {want.reshape(-1)[:12]}"


@pytest.mark.parametrize("op_type", [*OPERATORS, SEVERAL])
def test_node_cases(op_type: str) -> None:
    results = {case.name: difference(case) for case in cases().get(op_type, ())}
    failed = [f"{name}: {wrong}" for name, wrong in results.items() if wrong and name not in LEDGER]
    stale = [name for name, wrong in results.items() if not wrong and name in LEDGER]
    assert not failed, "\n".join(failed)
    assert not stale, f"these cases pass: remove them from the ledger: {stale}"


def test_cases_are_found() -> None:
    names = [case.name for group in cases().values() for case in group]
    assert len(names) >= LEAST
    assert set(LEDGER) <= set(names), f"no such case: {set(LEDGER) - set(names)}"
    assert all(LEDGER.values())


def test_a_wrong_output_is_seen() -> None:
    case = next(c for c in cases()["Transpose"] if c.name == "test_transpose_default")
    assert not difference(case)
    inputs, outputs = case.data_sets[0]
    right = case.data_sets
    try:
        case.data_sets = [(inputs, [outputs[0] + np.float32(0.01)])]
        assert difference(case)
        case.data_sets = [(inputs, [outputs[0].astype(np.float64)])]
        assert "float64" in difference(case)
    finally:
        case.data_sets = right
