"""Initializers that are graph inputs too: constants, until a run is fed another value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from onnx import helper, numpy_helper

import qrun

RNG = np.random.default_rng(7)
STORED = {
    "x_scale": np.float32(0.05), "x_zero": np.uint8(128), "w": RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8),
    "w_scale": np.float32(0.01), "w_zero": np.int8(0), "y_scale": np.float32(0.1), "y_zero": np.uint8(7),
    "gain": np.float32([2.0]),
}  # fmt: skip
X = RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)


def network(ir_version: int = 10) -> onnx.ModelProto:
    """A quantized convolution and a product, all of whose parameters may be replaced."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_codes"]),
        helper.make_node("DequantizeLinear", ["x_codes", "x_scale", "x_zero"], ["x_real"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_real"]),
        helper.make_node("Conv", ["x_real", "w_real"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "y_scale", "y_zero"], ["c_codes"]),
        helper.make_node("DequantizeLinear", ["c_codes", "y_scale", "y_zero"], ["c_real"]),
        helper.make_node("Mul", ["c_real", "gain"], ["y"]),
    ]
    inputs = {"x": X, **{name: np.asarray(value) for name, value in STORED.items()}}
    model = make_model(nodes, inputs, {"y": [1, 4, 4, 4]}, STORED, opset=13)
    model.ir_version = ir_version
    return model


def with_stored(changes: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The network with other values in place of the defaults, none of which is an input."""
    model = network()
    values = {**STORED, **changes}
    del model.graph.initializer[:], model.graph.input[1:]
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), n) for n, v in values.items())
    return model


@pytest.mark.parametrize("ir_version", [3, 8])
def test_defaults_are_constants_in_runs_that_do_not_replace_them(ir_version: int) -> None:
    session = qrun.Session(network(ir_version))
    assert session.as_written() == qrun.Session(with_stored({})).as_written()
    assert np.array_equal(session.run({"x": X})["y"], qrun.Session(with_stored({})).run({"x": X})["y"])


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_replaced_defaults_are_as_if_they_were_stored(backend: str) -> None:
    session = qrun.Session(network(), backend=backend)
    replaced: list[dict[str, np.ndarray]] = [
        {}, {"gain": np.float32([-1.5])}, {"y_scale": np.float32(0.03), "y_zero": np.uint8(130)}, {},
        {"w": -STORED["w"]}, {"gain": np.float32([-1.5])}, {"gain": np.float32([4.0])}, dict(STORED), {},
    ]  # fmt: skip
    for round_ in range(3):
        for changes in replaced:
            want = qrun.Session(with_stored(changes), backend="reference", fuse=False).run({"x": X})["y"]
            assert np.array_equal(session.run({"x": X, **changes})["y"], want), (round_, sorted(changes))


def test_every_way_to_run_takes_replaced_defaults() -> None:
    session = qrun.Session(network())
    feeds = {"x": X, "gain": np.float32([3.0])}
    want = session.run({"x": X})["y"] / 2 * 3
    seen: dict[str, np.ndarray] = {}
    session.watch(feeds, seen.__setitem__)
    results = [
        session.run(feeds)["y"], session.execute(feeds).outputs["y"], session.run_observed(feeds).outputs["y"],
        session.values(feeds)["y"], seen["y"], session.execute(feeds, ["gain", "y"]).outputs["y"],
    ]  # fmt: skip
    assert all(np.allclose(got, want) for got in results)
    assert "5 runs" in repr(session.profile(feeds, runs=5))
    assert float(session.run(feeds, "gain")["gain"][0]) == 3
    assert float(session.run({"x": X}, "gain")["gain"][0]) == 2


def test_a_wrong_replacement_is_refused_in_words_of_the_model() -> None:
    session = qrun.Session(network())
    with pytest.raises(qrun.CallError) as caught:
        session.run({"x": X, "gain": np.float64([3.0])})
    assert caught.value.code == "QR003"
    with pytest.raises(qrun.CallError) as caught:
        session.run({"gain": np.float32([3.0])})
    assert caught.value.code == "QR001"
    assert [value.name for value in session.inputs] == ["x"]


def test_a_kept_program_is_not_used_for_replaced_defaults(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(network(), path)
    feeds = {"x": X, "gain": np.float32([3.0])}
    first = qrun.Session(path, cache=tmp_path / "cache")
    plain = [first.run({"x": X})["y"] for _ in range(3)][-1]
    second = qrun.Session(path, cache=tmp_path / "cache")
    assert np.allclose(second.run(feeds)["y"], plain / 2 * 3)
    assert np.array_equal(second.run({"x": X})["y"], plain)


def test_many_replaced_sets_do_not_pile_up() -> None:
    session = qrun.Session(network())
    names = sorted(STORED)
    for count in range(1, len(names) + 1):
        for start in range(len(names) - count + 1):
            session.run({"x": X, **{n: STORED[n] for n in names[start : start + count]}})
    assert len(session._replacing) <= 8
