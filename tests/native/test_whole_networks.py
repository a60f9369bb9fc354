"""Whole networks: every tensor of the native backend has the bits of the reference backend's."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.native import ISAS, OBJECTS, thin
from helpers.support import assert_equal

import qrun

pytest.importorskip("onnxruntime", reason="its quantizer makes the networks")
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import make_networks  # noqa: E402

DIGITS = SCRIPTS.parent / "models" / "digits"
SIZES = {"squeezenet": 40, "mobilenetv2": 32}
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """name to (model, feeds, names of all tensors)."""

    @cache
    def built(name: str) -> tuple[qrun.Model, dict[str, np.ndarray], list[str]]:
        if name == "digits":
            model = qrun.load(DIGITS / "qoperator" / "model.onnx")
            image = np.load(DIGITS / "x.npy")
        else:
            folder = tmp_path_factory.mktemp(name)
            (path,) = make_networks.make(name, folder, SIZES[name], ("qop",))
            model, image = qrun.load(onnx.load(path)), np.load(folder / f"{name}-x.npy")
        return model, {model.inputs[0].name: image}, [n for node in model.nodes for n in node.outputs if n]

    return built


@pytest.fixture(scope="session")
def wanted(network: Any) -> Any:
    @cache
    def run(name: str, arith: Any) -> qrun.RunResult:
        model, feeds, names = network(name)
        return qrun.Session(model, arith=arith, backend="reference").execute(feeds, names)

    return run


def compare(network: Any, wanted: Any, name: str, **options: Any) -> qrun.RunResult:
    model, feeds, names = network(name)
    want = wanted(name, options.get("arith", "exact"))
    got = qrun.Session(model, backend="native", cache=OBJECTS, **options).execute(feeds, names)
    for tensor in names:
        assert_equal(got.outputs[tensor], want.outputs[tensor], f"{name} {tensor} {options}")
    for ours, theirs in zip(got.events, want.events, strict=True):
        assert ours.macs == theirs.macs
        assert (ours.backend == "native") == (not ours.why)
        assert ours.backend == "native" or not ours.sections
    return got


@pytest.mark.parametrize("arith", ["exact", "ort"])
@pytest.mark.parametrize("name", ["digits", "squeezenet", "mobilenetv2"])
def test_every_tensor_equals_the_reference(network: Any, wanted: Any, name: str, arith: str) -> None:
    model, _, _ = network(name)
    one = compare(network, wanted, name, arith=arith, threads=1)
    two = compare(network, wanted, name, arith=arith, threads=2)
    native = {model.nodes[e.index].op_type for e in one.events if e.backend == "native"}
    assert native >= {"QLinearConv"}
    assert all(e.backend == "native" for e in two.events if model.nodes[e.index].op_type in native)


@thin("digits", "mobilenetv2", other=2, name="name", products=True)
def test_every_instruction_set(network: Any, wanted: Any, isa: str, name: str) -> None:
    result = compare(network, wanted, name, isa=isa)
    kernels = [s.kernel for e in result.events for s in e.sections]
    assert kernels
    assert all(f"-{isa}-" in kernel for kernel in kernels)


@pytest.mark.parametrize("name", ["digits", "squeezenet", "mobilenetv2"])
def test_the_checks_find_the_same(network: Any, wanted: Any, name: str) -> None:
    from qrun.checking.rules import check

    model, feeds, _ = network(name)
    got = qrun.Session(model, backend="native", cache=OBJECTS).execute(feeds)
    assert check(model, got) == check(model, wanted(name, "exact"))
